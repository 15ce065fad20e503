"""
Putting a message off: parked by the hardened transport; else a copy for later is published, and the original is then
acknowledged.

A put-back through the broker has no delay and would loop hot (`Reject(requeue=True)`, celery 5.7: 4 runs in 20 ms). A
copy keeps task id and retries, stores no state and fires no hook; links and chords fire once, when the copy succeeds.
Delays double from one second to a minute with jitter, or end when the wait is over, where that is known.
"""

from typing import Any, NoReturn

from celery_safeguards.clock import Clock
from celery_safeguards.conf import Settings
from celery_safeguards.errors import DeferralRefused, Deferred, DroppedLocally
from celery_safeguards.headers import Lineage
from celery_safeguards.outcome import Outcome
from celery_safeguards.pipeline.copies import CopyRefused, deferral_headers, publish_copy
from celery_safeguards.pipeline.parking import park_message
from celery_safeguards.signals import end_delivery
from celery_safeguards.wiring import Wiring

_SPREAD_RATIO = 0.1
_LEAST_SPREAD_SECONDS = 0.2


def delay_seconds(wiring: Wiring, deferrals: int, known_wait_seconds: float | None) -> float:
    """Return how long to put off: the known wait and a little more, or the next step of the backoff."""
    if known_wait_seconds is not None:
        # Later only, never earlier: an early copy would be put off again.
        spread = max(_LEAST_SPREAD_SECONDS, known_wait_seconds * _SPREAD_RATIO)
        return max(0.0, known_wait_seconds) + wiring.chance.uniform(0, spread)
    settings = wiring.settings
    ceiling = min(settings.deferral_cap_seconds, settings.deferral_base_seconds * 2 ** min(deferrals, 30))
    return wiring.chance.uniform(ceiling / 2, ceiling)


def is_overdue(settings: Settings, lineage: Lineage, clock: Clock) -> bool:
    """Whether a message has been put off for longer than the deadline allows."""
    since = lineage.deferred_since
    return since is not None and clock.wall_seconds() - since > settings.deferral_deadline_seconds


def put_off(
    task: Any,
    request: Any,
    wiring: Wiring,
    lineage: Lineage,
    *,
    headers: dict[str, Any],
    reason: str,
    known_wait_seconds: float | None = None,
) -> NoReturn:
    """
    Park the message, or publish a copy for later, and end this delivery.

    Raises:
        Deferred: it comes back later.
        DroppedLocally: the broker did not do it: the original comes back by the visibility timeout.

    """
    delay = delay_seconds(wiring, lineage.deferrals, known_wait_seconds)
    carried = {**headers, **deferral_headers(lineage, wiring.clock)}
    try:
        is_timed = known_wait_seconds is not None
        if not park_message(task, request, delay, headers=carried, is_timed=is_timed):
            publish_copy(task, request, delay, headers=carried, retries=request.retries)
    except CopyRefused as error:
        end_delivery(task, request.id, Outcome.FENCED, lineage.key, f"{reason}, and it could not be put off")
        raise DroppedLocally(str(error)) from error
    end_delivery(task, request.id, Outcome.DEFERRED, lineage.key, f"{reason}; again in {delay:.1f} s")
    raise Deferred(reason)


class EagerWait:
    """Eager execution has a caller who waits: it waits a bounded time in place of a deferral."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._ends = clock.monotonic_seconds() + settings.eager_wait_seconds

    def wait(self, seconds: float, reason: str) -> None:
        """
        Sleep, or refuse.

        Raises:
            DeferralRefused: the caller would wait longer than `safeguards_eager_wait_seconds`.

        """
        if self._clock.monotonic_seconds() + seconds > self._ends:
            raise DeferralRefused(f"{reason}: eager execution does not wait longer than safeguards_eager_wait_seconds")
        self._clock.sleep(seconds)
