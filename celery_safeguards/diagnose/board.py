"""
Where the workers of one broker namespace say what they work with: a hash in the broker's own database.

There and not in the store, since what they must agree on is shared by that database and its `global_keyprefix`. Each
exchange opens a connection of its own with a time limit, like the worker's in everything else, so that it goes to the
same server by TLS, Sentinel or a socket; nothing is kept open that a child could inherit.

    t0 read: the server's time, the others' reports
    t1 write: one's own, with the offset of this host's clock; it counts for one lease
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kombu.exceptions import KombuError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_safeguards._compat import broker_client
from celery_safeguards._redis import Script
from celery_safeguards.clock import Clock, to_seconds
from celery_safeguards.diagnose.fleet import WorkerReport
from celery_safeguards.errors import ConfigurationError, StoreUnavailable

logger = logging.getLogger(__name__)
KEY = "sg:fleet:v1"
"""The hash's name, behind the broker's `global_keyprefix`."""
ANSWER_SECONDS = 2.0
_ONE_CALL_OF_BOTO = {
    "connect_timeout": ANSWER_SECONDS,
    "read_timeout": ANSWER_SECONDS,
    "retries": {"total_max_attempts": 1},
}
_SCRIPT = Script.of("diagnose/fleet.lua")


class Board:
    """
    The workers' reports on one broker.

    Args:
        connection: the worker's or the app's; it is copied, and neither opened nor used.
        keep_seconds: how long a report that is written by it counts for all, unless it is written again.
        clock: of this host.

    Every method raises `StoreUnavailable` when the broker does not answer. Safe when: used by several threads.

    """

    def __init__(self, connection: Any, keep_seconds: float, clock: Clock) -> None:
        self._connection = connection
        self._keep_ms = round(keep_seconds * 1000)
        self._clock = clock

    def read(self) -> list[WorkerReport]:
        """Return the reports that count, by name."""
        with open_channel(self._connection) as channel:
            return self._exchange(channel, "", "")

    def measured(self, report: WorkerReport) -> tuple[WorkerReport, list[WorkerReport]]:
        """Return a report with the offset of this host's clock, and those of the other workers; writes nothing."""
        with open_channel(self._connection) as channel:
            others = [each for each in self._exchange(channel, "", "") if each.worker != report.worker]
            return self._measure(channel, report), others

    def write(self, report: WorkerReport) -> list[WorkerReport]:
        """Measure the clock, write a report and return all that count, this one included."""
        with open_channel(self._connection) as channel:
            measured = self._measure(channel, report)
            return self._exchange(channel, report.worker, json.dumps({**measured.plain(), "keep_ms": self._keep_ms}))

    def take_off(self, worker: str) -> None:
        """Take a worker's report off: it ends."""
        with open_channel(self._connection) as channel:
            self._exchange(channel, worker, "")

    def _measure(self, channel: Any, report: WorkerReport) -> WorkerReport:
        with broker_client(channel) as (client, _prefix):
            # The first round trip opens a connection: its time says nothing of the way.
            client.time()
            sent = self._clock.wall_seconds()
            seconds, microseconds = client.time()
            received = self._clock.wall_seconds()
        return replace(
            report,
            clock_offset_seconds=round((sent + received) / 2 - seconds - to_seconds(microseconds), 6),
            clock_error_seconds=round(abs(received - sent) / 2, 6),
        )

    def _exchange(self, channel: Any, worker: str, report: str) -> list[WorkerReport]:
        with broker_client(channel) as (client, prefix):
            words = (_SCRIPT.source, 1, f"{prefix}{KEY}", worker, report, self._keep_ms)
            answer = client.execute_command("EVAL", *words)
        found = [each.decode() if isinstance(each, bytes) else each for each in answer]
        return sorted(_reports(found), key=lambda each: each.worker)


def _reports(found: list[str]) -> Iterator[WorkerReport]:
    for worker, report in zip(found[::2], found[1::2], strict=True):
        try:
            yield WorkerReport.from_plain(worker, json.loads(report))
        except (ValueError, TypeError, AttributeError):
            logger.warning("the report of worker %r cannot be read", worker)


@contextmanager
def open_channel(connection: Any) -> Iterator[Any]:
    """
    Open a channel like a connection's, whose every round trip ends in time, and close it behind the block.

    Raises:
        StoreUnavailable: the broker did not answer, or refused.
        ConfigurationError: kombu cannot open it by these options.

    """
    copied = connection.clone()
    copied.transport_options = _bounded(copied.transport.driver_type, copied.transport_options)
    try:
        with copied:
            _connect(copied)
            yield copied.channel()
    except _away_errors(copied) as error:
        raise StoreUnavailable(f"broker at {copied.as_uri()}: {error}") from error


def _connect(connection: Any) -> None:
    # Sentinels are named the same way, and each connection asks all of them.
    brokers = 1 if "sentinel" in str(connection.transport_cls) else max(1, len(connection.alt))
    try:
        # Kombu would try again for as long as it is let; each time it takes the next of the brokers.
        connection.ensure_connection(
            max_retries=max(1, brokers - 1), interval_start=0, timeout=ANSWER_SECONDS * brokers
        )
    except ValueError as error:
        raise ConfigurationError(f"broker at {connection.as_uri()}: {error}") from error


def _bounded(driver_type: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a transport's options with an end for every round trip."""
    if driver_type == "sqs":
        return {**options, "client-config": {**(options.get("client-config") or {}), **_ONE_CALL_OF_BOTO}}
    if driver_type != "redis":
        return dict(options)
    limits = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": ANSWER_SECONDS, "socket_keepalive": True}
    # Where these are given, redis-py takes no limit over from the others (redis-py 8, `sentinel.py`).
    of_sentinels = {**(options.get("sentinel_kwargs") or {}), **limits, "retry": Retry(NoBackoff(), 0)}
    return {**options, **limits, "sentinel_kwargs": of_sentinels}


def _away_errors(connection: Any) -> tuple[type[Exception], ...]:
    # Kombu counts a KeyError among those of Redis (kombu 5.7), as it would one of ours.
    given = {*connection.connection_errors, *connection.channel_errors} - {KeyError}
    # SQS answers a key that is wrong, or may not list its queues, while the channel is opened; kombu does not count it.
    botocore = sys.modules.get("botocore.exceptions")
    others = () if botocore is None else (botocore.ClientError,)
    return (*given, *others, KombuError, RedisError, OSError)
