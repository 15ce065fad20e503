"""
The lease of messages from Amazon SQS: the visibility timeout of each receipt, set anew while its worker lives.

    received ──▶ hidden for the queue's timeout ──renewed──▶ hidden for as long again ──▶ ... at most 12 hours in all
                                                      └ not renewed in time: it may be another's, and is renewed no more

A queue that exists keeps the timeout that it has, whatever `visibility_timeout` in `broker_transport_options` says
(kombu 5.7, `transport/SQS/__init__.py`), so the queue is asked. Whether somebody else has received a message SQS does
not tell the holder of an older receipt; only the own clock does.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from kombu.exceptions import OperationalError

from celery_safeguards.clock import Clock
from celery_safeguards.delivery.restoring import Aside

logger = logging.getLogger(__name__)
_RENEWED_AT_ONCE = 10
MOST_SECONDS = 43_200
"""SQS hides a message for twelve hours from its receipt at most (`ChangeMessageVisibility`)."""
_SEEN_LATE_SECONDS = 10
_SOON_SECONDS = {"connect_timeout": 5, "read_timeout": 5, "retries": {"total_max_attempts": 1}}
_IS_GONE = frozenset({"InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid"})
"""What SQS says of a receipt that holds nothing any more; with or without a prefix."""


@dataclass(slots=True)
class _Receipt:
    received: float
    confirmed: float
    """When the last renewal that was confirmed had been sent, monotonic."""
    queue_url: str


class SqsLease:
    """
    Messages that one channel has received from any number of queues.

    It has a connection of its own, whose calls give up after seconds, with the channel's credentials.

    Args:
        channel: of kombu's SQS transport.
        clock: gives the time.

    """

    def __init__(self, channel: Any, clock: Clock) -> None:
        self.parked = self.aside = 0
        self._channel = channel
        self._clock = clock
        self._receipts: dict[str, _Receipt] = {}
        self._timeouts: dict[str, int] = {}
        self._own: tuple[Any, Any] | None = None

    @property
    def timeout_seconds(self) -> float:
        """The shortest visibility timeout of the queues that messages are held of."""
        known = [self._timeouts[url] for url in self._queue_urls if url in self._timeouts]
        return float(min(known, default=self._said_seconds))

    @property
    def held(self) -> Collection[str]:
        """The delivery tags that this process answers for: receipt handles."""
        qos = self._channel.qos
        # Acknowledged ones wait there to be forgotten (kombu 5.7, `virtual.QoS`).
        return [tag for tag in tuple(qos._delivered) if tag not in qos._dirty]  # noqa: SLF001

    def message_of(self, tag: str) -> Any | None:
        """Return a held message, or None."""
        return self._channel.qos._delivered.get(tag)  # noqa: SLF001

    def renew(self, tags: Sequence[str]) -> Collection[str]:
        """
        Renew, queue by queue; returns those that lapsed: by this process's clock, or as SQS says.

        Raises:
            OperationalError: SQS did not answer, or not for all.

        """
        self._look()
        gone: set[str] = set()
        by_queue: dict[str, list[str]] = defaultdict(list)
        for tag in tags:
            receipt = self._receipts.get(tag)
            if receipt is None:
                continue
            if self._clock.monotonic_seconds() - receipt.confirmed >= self._timeouts[receipt.queue_url]:
                gone.add(tag)
            elif self._left_seconds(tag) > 0:
                by_queue[receipt.queue_url].append(tag)
        failed: list[str] = []
        for url, of_queue in by_queue.items():
            for start in range(0, len(of_queue), _RENEWED_AT_ONCE):
                for tag, code in self._renew_some(url, of_queue[start : start + _RENEWED_AT_ONCE]):
                    if code.rpartition(".")[2] in _IS_GONE:
                        gone.add(tag)
                    else:
                        failed.append(code)
        if failed:
            raise OperationalError(f"SQS did not renew {len(failed)} messages: {', '.join(sorted(set(failed)))}")
        return gone

    def lose(self, tag: str) -> None:
        """Answer for a message no more."""
        self._channel.qos._dirty.add(tag)  # noqa: SLF001

    def sweep(self) -> int:
        """Learn the timeouts of the queues that messages are held of; what lapses SQS gives on by itself."""
        self._look()
        return 0

    def call_next(self, line: str) -> None:
        """Do nothing: what waits on SQS is a copy with its own delay."""

    def give_aside(self, keep: Callable[[Aside], bool]) -> None:
        """Do nothing: what is no message is SQS' or kombu's to refuse."""

    def close(self) -> None:
        """Close this lease's connection."""
        own, self._own = self._own, None
        if own is not None:
            own[0].release()

    def _look(self) -> None:
        now = self._clock.monotonic_seconds()
        held = set(self.held)
        for tag in tuple(self._receipts.keys() - held):
            self._receipts.pop(tag, None)
        for tag in held - self._receipts.keys():
            message = self.message_of(tag)
            url = ((message and message.delivery_info) or {}).get("sqs_queue")
            if url:
                self._receipts[tag] = _Receipt(now, now, url)
        # After all receipts are noted: SQS may not answer.
        for url in self._queue_urls - self._timeouts.keys():
            self._timeouts[url] = self._ask_timeout_seconds(url)

    @property
    def _queue_urls(self) -> set[str]:
        return {each.queue_url for each in tuple(self._receipts.values())}

    def _left_seconds(self, tag: str) -> int:
        """Return for how long a message may be hidden from now."""
        receipt = self._receipts[tag]
        age_seconds = self._clock.monotonic_seconds() - receipt.received + _SEEN_LATE_SECONDS
        return min(self._timeouts[receipt.queue_url], int(MOST_SECONDS - age_seconds))

    def _renew_some(self, url: str, tags: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Renew some messages of one queue; yields those that were not, with SQS' code."""
        sent = self._clock.monotonic_seconds()
        entries = [
            {"Id": str(number), "ReceiptHandle": tag, "VisibilityTimeout": self._left_seconds(tag)}
            for number, tag in enumerate(tags)
        ]
        try:
            answer = self._client(url).change_message_visibility_batch(QueueUrl=url, Entries=entries)
        except (BotoCoreError, ClientError) as error:
            raise OperationalError(f"SQS: {error}") from error
        for each in answer.get("Successful", ()):
            receipt = self._receipts.get(tags[int(each["Id"])])
            if receipt is not None:
                receipt.confirmed = sent
        for each in answer.get("Failed", ()):
            yield tags[int(each["Id"])], each["Code"]

    def _ask_timeout_seconds(self, url: str) -> int:
        name = "VisibilityTimeout"
        try:
            answer = self._client(url).get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        except BotoCoreError as error:
            raise OperationalError(f"SQS: {error}") from error
        except ClientError as error:
            logger.warning(
                "%s: its visibility timeout could not be asked, and is taken to be %s s: %s",
                url,
                self._said_seconds,
                error,
            )
            return self._said_seconds
        return max(1, int(answer["Attributes"][name]))

    @property
    def _said_seconds(self) -> int:
        return max(1, int(self._channel.visibility_timeout))

    def _client(self, url: str) -> Any:
        if self._own is None:
            connection = self._channel.connection.client
            given = connection.transport_options or {}
            options = {**given, "client-config": {**(given.get("client-config") or {}), **_SOON_SECONDS}}
            own = connection.clone(transport_options=options)
            self._own = (own, own.channel())
        channel = self._own[1]
        predefined = {queue["url"]: name for name, queue in channel.predefined_queues.items()}
        return channel.sqs(queue=predefined.get(url))
