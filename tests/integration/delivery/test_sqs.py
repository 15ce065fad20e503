"""
The lease of messages from SQS, against a server that keeps time itself; the lease's own clock is moved by hand.
"""

import uuid
from types import SimpleNamespace

import pytest
from kombu import Connection, Consumer, Queue
from kombu.exceptions import OperationalError

from celery_safeguards.delivery.lease import is_lost, lease_of, receive_count
from celery_safeguards.delivery.sqs import MOST_SECONDS
from tests.support.sockets import Cutter
from tests.support.sqs import broker_options
from tests.support.waiting import wait_until

SHORT_SECONDS = 1
LONG_SECONDS = 600
PATIENCE_SECONDS = 15
pytestmark = pytest.mark.sqs


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self):
        self.now = 1_000.0

    def monotonic_seconds(self):
        return self.now


class Inbox:
    """One queue, its messages in hand, and their lease."""

    def __init__(self, connection, name):
        self.name, self.clock, self.taken = name, Clock(), []
        self.channel = connection.channel()
        self._connection = connection
        self._queue = Queue(name)
        self._consumer = Consumer(self.channel, [self._queue], on_message=self.taken.append)
        self._consumer.consume()
        self.sqs = self.channel.sqs(queue=name if self.channel.predefined_queues else None)
        self.url = self.channel._queue_cache[name]
        self.lease = lease_of(self.channel, self.clock)

    def take(self, count):
        """Put so many messages into the queue, and take them."""
        with self._connection.Producer(channel=self.channel) as producer:
            for number in range(count):
                producer.publish({"number": number}, routing_key=self.name)
        before = len(self.taken)
        while len(self.taken) < before + count:
            self._connection.drain_events(timeout=PATIENCE_SECONDS)
        return [message.delivery_tag for message in self.taken[before:]]

    def set_timeout(self, seconds):
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes={"VisibilityTimeout": str(seconds)})

    def counts(self):
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return tuple(int(found[name]) for name in names)

    def wait_for(self, visible):
        wait_until(lambda: self.counts()[0] == visible, PATIENCE_SECONDS, f"{visible} messages are visible")


@pytest.fixture
def options():
    """Of the transport."""
    return broker_options(SHORT_SECONDS)


@pytest.fixture
def broker_url(sqs_url):
    return sqs_url


@pytest.fixture
def inbox(broker_url, options):
    name = f"t{uuid.uuid4().hex[:12]}"
    with Connection(broker_url, transport_options=options) as connection:
        inbox = Inbox(connection, name)
        yield inbox
        inbox.lease.close()
        # Nothing is to be put back.
        inbox.channel.qos._dirty.update(inbox.channel.qos._delivered)
        inbox.sqs.delete_queue(QueueUrl=inbox.url)


def test_any_number_of_messages_is_renewed_ten_at_a_time(inbox):
    """SQS refuses more in one call; what is not renewed comes back."""
    tags = inbox.take(26)
    inbox.set_timeout(LONG_SECONDS)

    gone = inbox.lease.renew(tags[1:])

    inbox.wait_for(visible=1)
    assert [] == [*gone]
    assert (1, 25) == inbox.counts()
    assert sorted(tags) == sorted(inbox.lease.held)


def test_timeout_is_that_of_the_queue(inbox):
    """A queue keeps what it was made with: renewed by the settings' word, its messages would lapse in between."""
    inbox.set_timeout(LONG_SECONDS)
    inbox.take(1)

    inbox.lease.sweep()

    assert LONG_SECONDS == inbox.lease.timeout_seconds


def test_message_is_renewed_until_it_is_twelve_hours_old(inbox):
    """SQS refuses to hide it for longer, and a batch that asks for too much would be refused for others' sake."""
    inbox.set_timeout(MOST_SECONDS)
    old = inbox.take(1)
    inbox.lease.sweep()
    inbox.set_timeout(SHORT_SECONDS)
    inbox.channel.sqs().change_message_visibility(QueueUrl=inbox.url, ReceiptHandle=old[0], VisibilityTimeout=2)

    inbox.clock.now += MOST_SECONDS - 1
    young = inbox.take(1)
    gone = inbox.lease.renew([*old, *young])

    inbox.wait_for(visible=1)
    assert [] == [*gone]
    assert (1, 1) == inbox.counts()


def test_message_that_lapsed_is_renewed_no_more(inbox):
    """After a standstill an old receipt could hide a message from the worker that has it now."""
    inbox.set_timeout(LONG_SECONDS)
    tags = inbox.take(2)
    inbox.lease.sweep()

    inbox.clock.now += LONG_SECONDS
    gone = inbox.lease.renew(tags)
    for tag in gone:
        inbox.lease.lose(tag)

    assert set(tags) == set(gone)
    assert [] == [*inbox.lease.held]
    assert [True, True] == [is_lost(message) for message in inbox.taken]


def test_receipt_that_holds_nothing_is_told(inbox):
    """Deleted by a person, or received by somebody else."""
    inbox.set_timeout(LONG_SECONDS)
    deleted, kept = inbox.take(2)
    inbox.sqs.delete_message(QueueUrl=inbox.url, ReceiptHandle=deleted)

    assert [deleted] == [*inbox.lease.renew([deleted, kept])]


def test_receipts_are_counted(inbox):
    """A message's second receipt is all that tells of a start that ended its worker."""
    inbox.take(1)
    inbox.wait_for(visible=1)

    inbox._connection.drain_events(timeout=PATIENCE_SECONDS)

    assert [1, 2] == [receive_count(message) for message in inbox.taken]
    assert 0 == receive_count(SimpleNamespace(delivery_info={"exchange": "", "routing_key": "q"}))


class TestAway:
    @pytest.fixture
    def cutter(self, sqs_url):
        with Cutter(sqs_url) as cutter:
            yield cutter

    @pytest.fixture
    def broker_url(self, cutter):
        return cutter.url

    def test_server_that_is_away_is_an_error_and_no_loss(self, inbox, cutter):
        inbox.set_timeout(LONG_SECONDS)
        tags = inbox.take(2)
        inbox.lease.sweep()

        cutter.refuse()
        with pytest.raises(OperationalError):
            inbox.lease.renew(tags)
        cutter.allow()

        assert [] == [*inbox.lease.renew(tags)]
        assert sorted(tags) == sorted(inbox.lease.held)
