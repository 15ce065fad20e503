"""
A broker's dead-letter queues, read one message at a time by a connection of their own.

A message is held until it is acknowledged, or until the connection closes and the broker gives it back: on RabbitMQ at
once, on SQS by the queue's visibility timeout. Nothing is ever put back by this side: kombu's virtual transports would
send it to the queue that it first came from.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from amqp.exceptions import NotFound
from kombu.exceptions import OperationalError

from celery_safeguards._compat import has_sqs_queue, keep_undecodable_bodies
from celery_safeguards.errors import ConfigurationError, SafeguardsError
from celery_safeguards.findings import Finding
from celery_safeguards.ingest.deaths import SQS_ATTRIBUTES

_ANSWER_SECONDS = 30
_WORKERS_ANSWER_SECONDS = 1.0
_OPTIONS: dict[str, dict[str, Any]] = {
    # A peer that is gone without a word is not waited for.
    "amqp": {"read_timeout": _ANSWER_SECONDS, "write_timeout": _ANSWER_SECONDS},
    # A second asks all of SQS' servers, as any wait does.
    "sqs": {"fetch_message_attributes": list(SQS_ATTRIBUTES), "wait_time_seconds": 1},
}


class BrokerUnavailable(SafeguardsError):
    """Raised when the broker did not answer: what was not acknowledged comes back to its queue."""


class IngestRefused(SafeguardsError):
    """Raised when a queue is not to be drained, or holds what cannot be taken out of it; nothing was acknowledged."""


class Source:
    """
    A connection to the broker that keeps dead-letter queues; for use in a `with`.

    Args:
        app: whose broker it is.
        url: of another one.

    Raises:
        ConfigurationError: it has no dead-letter queues.
        BrokerUnavailable: it does not answer.

    """

    def __init__(self, app: Any, url: str | None = None) -> None:
        self._app = app
        broker = str(app.connection_for_read(url).get_transport_cls().driver_type)
        if broker not in _OPTIONS:
            raise ConfigurationError(
                f"{broker} has no dead-letter queues: RabbitMQ and SQS have. What workers bury is a letter at once"
            )
        self._is_sqs = broker == "sqs"
        self._connection = app.connection_for_read(url, transport_options=_OPTIONS[broker])
        try:
            with self._speaking():
                self._connection.connect()
                self._channel = self._channel_of()
        except BaseException:
            self.close()
            raise

    def require(self, queue: str) -> None:
        """
        Refuse a queue that is not there, or that is consumed.

        Raises:
            IngestRefused: whose messages may be work that somebody else does.
            BrokerUnavailable: the broker does not answer.

        """
        if queue in self._app.amqp.queues.consume_from:
            raise _is_consumed(queue, "this app's workers; take it out of task_queues")
        # On a quorum queue whoever drains it, too, is counted, so the workers are asked.
        if self._consumers_of(queue):
            with self._speaking():
                inspect = self._app.control.inspect(timeout=_WORKERS_ANSWER_SECONDS, connection=self._connection)
                answers = inspect.active_queues() or {}
            workers = sorted(name for name, queues in answers.items() if any(each["name"] == queue for each in queues))
            if workers:
                raise _is_consumed(queue, f"{', '.join(workers)}; take it off their -Q")

    def take(self, queue: str) -> Any | None:
        """
        Return the next message of a queue, held; None: there is none.

        Raises:
            BrokerUnavailable: the broker does not answer.
            IngestRefused: the next one is none that kombu can make.

        """
        with self._speaking():
            try:
                raw = self._channel.basic_get(queue, no_ack=False)
                return None if raw is None else self._channel.message_to_python(raw)
            except (LookupError, ValueError, TypeError, AttributeError) as error:
                raise IngestRefused(
                    f"queue {queue!r}: its next message cannot be taken, and stays there: {error!r}"
                ) from error

    def acknowledge(self, message: Any, queue: str) -> None:
        """
        Let go of a message whose letter is durable.

        Raises:
            BrokerUnavailable: it may come back.

        """
        if self._is_sqs:
            # Kombu deletes by the client of the queue that is named here (5.7, `transport/SQS`, `basic_ack`).
            message.delivery_info["routing_key"] = queue
        with self._speaking():
            message.ack()

    def close(self) -> None:
        """Close the connection; what is held goes back."""
        with self._speaking():
            self._connection.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def _channel_of(self) -> Any:
        channel = self._connection.channel()
        # A body is kept as it came: py-amqp would decode it by an encoding that nobody undoes.
        channel.auto_decode = False
        channel.do_restore = False
        keep_undecodable_bodies(channel)
        return channel

    def _consumers_of(self, queue: str) -> int:
        missing = IngestRefused(f"there is no queue {queue!r}")
        with self._speaking():
            if self._is_sqs:
                if not has_sqs_queue(self._channel, queue):
                    raise missing
                return 0
            try:
                return int(self._channel.queue_declare(queue, passive=True).consumer_count)
            except NotFound as error:
                raise missing from error

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        connection = self._connection
        botocore = sys.modules.get("botocore.exceptions")
        others = () if botocore is None else (botocore.ClientError,)
        try:
            yield
        except (*connection.connection_errors, *connection.channel_errors, OperationalError, *others) as error:
            raise BrokerUnavailable(f"the broker did not answer: {error!r}") from error


def _is_consumed(queue: str, by: str) -> IngestRefused:
    about = f"queue {queue!r}, which is to be made letters of, is consumed by {by}: they would run what has failed"
    return IngestRefused(str(Finding("SG156", about)))
