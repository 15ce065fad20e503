"""
Messages that expire or are revoked before their body starts leave a trace, and block nobody.

The reports: `expires` is not carried over retries, and expired messages are dropped as "revoked" without any hook
(celery/celery#980, celery/celery#3297, celery/celery#5278); a revoked task never frees its lock
(steinitzu/celery-singleton#29).
"""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_safeguards import Safeguards
from celery_safeguards.conf import Settings
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.replay import replay
from tests.support.bench import Bench

KINDS = ("keyed", "unkeyed")


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace)) as bench:
        yield bench


@pytest.fixture
def buries_all(namespace):
    """A bench whose expired messages all become letters."""
    with contextlib.closing(Bench(f"{namespace}-all", safeguards_bury_expired="always")) as bench:
        yield bench


@pytest.fixture(autouse=True)
def nothing_revoked():
    """The worker's memory of revoked ids is of the process."""
    before = set(state.revoked)
    yield
    state.revoked.clear()
    state.revoked.update(before)


def past():
    """Return a moment that is over, by the clock of the world."""
    return datetime.now(UTC) - timedelta(seconds=1)


def soon(bench, seconds):
    """Return a moment of the bench."""
    return datetime.fromtimestamp(bench.clock.wall_seconds() + seconds, UTC)


def task_of(bench, kind, body):
    """Register a task of a kind."""
    return bench.keyed(body) if kind == "keyed" else bench.task(body, Safeguards(repeatable=True))


def withdraw(bench):
    """Deliver the next message, which is withdrawn."""
    with pytest.raises(TaskRevokedError):
        bench.deliver()


def expire(bench):
    """Put the next message back with an expiry that is over."""
    message = bench.receive()
    message.headers["expires"] = past().isoformat()
    message.ack()
    with bench.app.producer_or_acquire() as producer:
        producer.publish(
            message.body,
            routing_key=bench.app.main,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=message.headers,
            **{name: message.properties[name] for name in ("correlation_id", "reply_to")},
        )


# --- the deadline stays where it is


@pytest.mark.parametrize("kind", KINDS)
def test_retries_keep_the_expiry_of_the_first_publish(bench, kind):
    """Told in seconds, it would begin anew with every retry, and never come."""
    seen = []

    def body(self, number):
        seen.append(self.request.expires)
        raise ConnectionRefusedError

    task = task_of(bench, kind, body)
    expires = soon(bench, 1_000_000)

    task.apply_async((1,), expires=1_000_000)
    bench.drain()

    assert task.policy.retry.attempts == len(seen)
    assert {expires} == {datetime.fromisoformat(each) for each in seen}


def test_deferral_keeps_the_expiry(bench):
    """A message that waits for its key must not outlive its time."""
    copies = []

    def body(self, number):
        if not copies:
            # Another message of the key, while this one has it.
            task.apply_async((1,), expires=500)
            copies.append(bench.deliver())
        return number

    task = bench.keyed(body)
    expires = soon(bench, 500)

    task.apply_async((1,), expires=900_000)
    bench.deliver()

    assert Outcome.DEFERRED in bench.outcomes
    assert expires == datetime.fromisoformat(bench.receive().headers["expires"])


# --- the trace


@pytest.mark.parametrize("kind", KINDS)
def test_expired_message_is_told_and_needs_no_letter(bench, kind):
    """An expiry says "not later"; what was dropped for it must still be counted."""
    ran = []
    task = task_of(bench, kind, lambda self, number: ran.append(number))

    result = task.apply_async((1,), expires=past())
    withdraw(bench)

    assert [Outcome.EXPIRED] == bench.outcomes
    assert ("REVOKED", []) == (result.state, ran)
    assert not bench.all_letters()
    assert 0 == bench.waiting()


@pytest.mark.parametrize("kind", KINDS)
def test_expired_message_becomes_a_letter_where_that_is_asked_for(buries_all, kind):
    """The whole message is there to be replayed, without its expiry."""
    bench, ran = buries_all, []
    task = task_of(bench, kind, lambda self, number: ran.append(number))

    task.apply_async((1,), expires=past())
    withdraw(bench)
    (letter,) = bench.all_letters()
    replay(bench.app, letter.id, who="test")
    bench.drain()

    assert (FailureKind.EXPIRED, False) == (letter.kind, letter.effect_possible)
    assert [1] == ran
    assert "closed" == bench.letters.get(letter.id).state


@pytest.mark.parametrize("kind", KINDS)
def test_retry_that_expires_becomes_a_letter(bench, kind):
    """Its attempt has failed; dropped in silence nobody would know of it."""
    ran = []

    def body(self, number):
        ran.append(number)
        raise ConnectionRefusedError

    task = task_of(bench, kind, body)
    task.delay(1)
    bench.deliver()

    expire(bench)
    withdraw(bench)

    (letter,) = bench.all_letters()
    assert (FailureKind.EXPIRED, True) == (letter.kind, letter.effect_possible)
    assert [Outcome.RETRIED, Outcome.EXPIRED] == bench.outcomes
    assert [1] == ran


def test_key_of_an_expired_retry_is_free_for_the_next_publication(bench):
    """A record that waits for a retry that never comes would block its key for a week."""
    ran = []

    def body(self, number):
        ran.append(self.request.id)
        if len(ran) == 1:
            raise ConnectionRefusedError
        return number

    task = bench.keyed(body)
    task.delay(1)
    bench.deliver()
    expire(bench)
    withdraw(bench)
    assert State.RETRY_DUE == bench.record(task, 1).state

    again = task.delay(1)
    bench.drain()

    assert State.DONE == bench.record(task, 1).state
    assert [again.id] == ran[1:]
    assert ("SUCCESS", 1) == (again.state, again.result)


@pytest.mark.parametrize("kind", KINDS)
def test_revoked_message_is_told_and_needs_no_letter(bench, kind):
    """A person has decided; the count of outcomes knows of it."""
    task = task_of(bench, kind, lambda self, number: number)

    result = task.delay(1)
    state.revoked.add(result.id)
    withdraw(bench)

    assert [Outcome.CANCELLED] == bench.outcomes
    assert "REVOKED" == result.state
    assert not bench.all_letters()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["expired", "revoked"])
def test_replay_that_is_withdrawn_opens_its_letter_again(bench, kind, how):
    """A letter that says it was replayed would never be looked at again."""

    def body(self, number):
        raise ValueError(number)

    task = task_of(bench, kind, body)
    task.delay(1)
    bench.drain()
    (letter,) = bench.all_letters()
    replayed = replay(bench.app, letter.id, who="test")
    if how == "revoked":
        state.revoked.add(replayed.task_id)
    else:
        expire(bench)
    assert "replayed" == bench.letters.get(letter.id).state

    withdraw(bench)

    reopened = bench.letters.get(letter.id)
    assert "open" == reopened.state
    assert (FailureKind.EXPIRED if how == "expired" else letter.kind) == reopened.kind
    again = replay(bench.app, letter.id, who="test")
    bench.drain()
    assert again.task_id != replayed.task_id
    assert Outcome.DEAD_LETTERED == bench.outcomes[-1], "it runs again"


def test_expired_message_whose_letter_cannot_be_written_is_kept(buries_all):
    """Acknowledged without its letter it would be gone without a trace."""
    bench = buries_all
    task = bench.keyed(lambda self, number: number)
    result = task.apply_async((1,), expires=past())

    bench.letters.pull(60)
    withdraw(bench)
    bench.letters.pull(0)

    assert ("PENDING", []) == (result.state, bench.outcomes)
    assert not bench.all_letters()


def test_celery_alone_calls_no_hook_for_an_expired_message(bench):
    """The control: neither `on_failure` nor `after_return` tells that it is gone."""
    called = []

    class Plain(bench.app.Task):
        abstract = True

        def on_failure(self, *args):
            called.append("on_failure")

        def after_return(self, *args):
            called.append("after_return")

    def plain(number):
        called.append("body")

    name = bench.app.task(plain, base=Plain, name="withdrawn.plain", shared=False).name

    bench.app.tasks[name].apply_async((1,), expires=past())
    withdraw(bench)

    assert [] == called
    assert 0 == bench.waiting()


def test_policy_for_expired_messages_is_one_of_three():
    """A misspelt word would bury nothing."""
    with pytest.raises(ConfigurationError, match="did you mean 'always'"):
        Settings(bury_expired="alway")
