"""
Renews the lease of every message that this worker holds, from receipt to its end, and sweeps those of dead workers.

    taken ──waits for a slot or its ETA──▶ body begins ──▶ acknowledged
      └ renewed for an hour beyond its ETA ┘└ for its task's budget ┘

Beyond that a task counts as hung: its message is given to another worker a visibility timeout later, and what still
waited here is not begun any more, unless the pool has it already. So it is when the consumer's loop stands still: what
it holds would wait for ever. A body that runs in the loop's own thread (solo pool) is no standstill within its budget.

It is a thread of the main process with a connection of its own; under gevent it is a greenlet.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis
from kombu.exceptions import OperationalError

from celery_safeguards.clock import Clock
from celery_safeguards.delivery.channel import SWEPT_AT_ONCE, HardenedChannel
from celery_safeguards.delivery.lease import MessageLease
from celery_safeguards.pipeline.budget import DEFAULT_SECONDS
from celery_safeguards.worker.forking import no_fork

logger = logging.getLogger(__name__)
_STANDSTILL_SECONDS = 30.0
_AWAY = (redis.RedisError, OperationalError, OSError)


@dataclass(slots=True)
class Holding:
    """How long one message is renewed, by the monotonic clock."""

    until: float
    has_begun: bool = False
    confirmed: float = 0.0
    """When the last renewal that was confirmed had been sent."""


class Renewing:
    """
    Renews what one worker holds.

    Args:
        clock: gives the time.
        last_turn: when the consumer's loop last turned, monotonic; None where that cannot be told.
        on_aside: called with the lease when its broker has set something aside; must not wait.
        is_in_loop: whether bodies run in the loop's own thread.

    """

    def __init__(
        self,
        clock: Clock,
        last_turn: Callable[[], float | None],
        on_aside: Callable[[MessageLease], None],
        *,
        is_in_loop: bool,
    ) -> None:
        self._on_aside = on_aside
        self._clock = clock
        self._last_turn = last_turn
        self._is_in_loop = is_in_loop
        self._holdings: dict[str, Holding] = {}
        self._lease: MessageLease | None = None
        self._renewed_at = 0.0
        self._renew_now = True
        self._retired: list[MessageLease] = []
        self._calls: deque[str] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self.is_away = False
        """Whether the broker did not answer the last time."""

    def follow(self, lease: MessageLease) -> None:
        """Renew through another lease from now on: the connection is new. Renews at once."""
        before, self._lease = self._lease, lease
        self._renew_now = True
        if before is not None:
            # By the thread, which may be in the midst of a question to it.
            self._retired.append(before)
        if self._thread is None or not self._thread.is_alive():
            self._stopped = False
            self._thread = threading.Thread(target=self._run, name="celery-safeguards-lease", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Stop; nothing that is still held is renewed any more."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STANDSTILL_SECONDS)
        if self._lease is not None:
            self._lease.close()

    @property
    def is_over(self) -> bool:
        """Whether its worker has ended: another one in this process has a loop and a pool of its own."""
        return self._stopped

    def begins(self, tag: str, budget_seconds: float) -> None:
        """The body of a message begins, and may take this long."""
        until = self._clock.monotonic_seconds() + budget_seconds
        self._holdings[tag] = Holding(until, has_begun=True, confirmed=self._confirmed(tag))

    def has_lapsed(self, tag: str, received: float) -> bool:
        """
        Whether a message that was received then, monotonic, may be another worker's by now: nothing confirmed it since.

        After a standstill the loop may wake before this thread does, and begin what was waiting for its ETA. What has
        waited for longer than it is renewed may be taken by another worker, too.
        """
        lease = self._lease
        if lease is None:
            return False
        return self._clock.monotonic_seconds() - max(received, self._confirmed(tag)) >= lease.timeout_seconds

    def _confirmed(self, tag: str) -> float:
        holding = self._holdings.get(tag)
        return holding.confirmed if holding else 0.0

    @property
    def is_anything_parked(self) -> bool:
        """Whether the broker keeps messages that wait for something, as it was a second ago."""
        return self._lease is not None and bool(self._lease.parked)

    def call_soon(self, line: str) -> None:
        """Have the next message of a line come back: one that was withdrawn or buried here will not call it."""
        if self.is_anything_parked:
            self._calls.append(line)
            self._wake.set()

    @property
    def begun(self) -> set[str]:
        """The messages whose bodies have begun, until they are acknowledged."""
        return {tag for tag, each in tuple(self._holdings.items()) if each.has_begun}

    def tick(self) -> bool:
        """
        Renew if it is time, and sweep: in this order, so that what lives is renewed whatever a sweep may meet.

        Returns:
            Whether there may be more to sweep.

        """
        while self._retired:
            self._retired.pop().close()
        lease = self._lease
        if lease is None:
            return False
        now = self._clock.monotonic_seconds()
        if self._renew_now or now - self._renewed_at >= lease.timeout_seconds / 3:
            self._renew(lease, now)
        while self._calls:
            # A call that fails is made good by the time at which the message is due.
            lease.call_next(self._calls.popleft())
        swept = lease.sweep()
        if lease.aside:
            self._on_aside(lease)
        return swept >= SWEPT_AT_ONCE

    def _renew(self, lease: MessageLease, now: float) -> None:
        # First what is known: a body that begins from here on is not taken for one that has ended.
        known = tuple(self._holdings)
        held = set(lease.held)
        for tag in known:
            if tag not in held:
                self._holdings.pop(tag, None)
        if not self._turns(lease, now):
            logger.error("the consumer's loop stands still: its %s messages are renewed no more", len(held))
            return
        due = [tag for tag in held if self._is_within_budget(lease, tag, now)]
        # `now` is from before it was sent: the server cannot have heard of it earlier.
        gone = lease.renew(due)
        self._renewed_at, self._renew_now = now, False
        self._confirm(set(due).difference(gone), now)
        for tag in gone:
            message = lease.message_of(tag)
            if message is not None:
                name = (message.headers or {}).get("task")
                logger.warning("%s: another worker may have this message by now (delivery %s)", name, tag)
                lease.lose(tag)

    def _confirm(self, tags: Collection[str], now: float) -> None:
        for tag in tags:
            holding = self._holdings.get(tag)
            if holding is not None:
                holding.confirmed = now

    def _is_within_budget(self, lease: MessageLease, tag: str, now: float) -> bool:
        holding = self._holdings.get(tag)
        if holding is None:
            message = lease.message_of(tag)
            if message is None:
                # It is just being taken, and its ETA is not known yet; or just acknowledged.
                return True
            # Its body may begin meanwhile, and that counts.
            holding = self._holdings.setdefault(tag, Holding(now + _wait_seconds(message) + DEFAULT_SECONDS))
        return now < holding.until

    def _turns(self, lease: MessageLease, now: float) -> bool:
        """Whether the consumer's loop turns, or has a reason not to."""
        turned = self._last_turn()
        if turned is None or now - turned < max(_STANDSTILL_SECONDS, lease.timeout_seconds):
            return True
        runs = any(each.has_begun and now < each.until for each in tuple(self._holdings.values()))
        return self._is_in_loop and runs

    def _run(self) -> None:
        while not self._stopped:
            goes_on = False
            try:
                with no_fork():
                    goes_on = self.tick()
            except _AWAY as error:
                if not self.is_away:
                    logger.warning("messages could not be renewed: %s", error)
                self.is_away = True
            except Exception:
                # The thread must outlive what it cannot foresee: without it every message of this worker lapses.
                logger.exception("renewal of messages failed")
            else:
                self.is_away = False
            self._wake.wait(0 if goes_on else self._pause_seconds())
            self._wake.clear()

    def _pause_seconds(self) -> float:
        lease = self._lease
        every = HardenedChannel.sweep_every_seconds
        return min(every, lease.timeout_seconds / 6) if lease is not None else every


def _wait_seconds(message: Any) -> float:
    """Return how long a message waits for its ETA yet."""
    eta = (getattr(message, "headers", None) or {}).get("eta")
    if not isinstance(eta, str):
        return 0.0
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return 0.0
    now = datetime.now(UTC)
    return max(0.0, (due if due.tzinfo else due.replace(tzinfo=UTC)).timestamp() - now.timestamp())


_RENEWING: "weakref.WeakKeyDictionary[Any, Renewing]" = weakref.WeakKeyDictionary()


def renewing_of(app: Any) -> Renewing | None:
    """Return what renews the messages of this process's worker, or None."""
    return _RENEWING.get(app)


def appoint(app: Any, renewing: Renewing) -> None:
    """Make it the one of this process's worker."""
    _RENEWING[app] = renewing
