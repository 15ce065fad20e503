"""
What the store is told of a delivery whose process has ended: its lock is free, its start had no outcome, its claim is
lost, its letter.

All of it is evidence that spares others a wait. A store that is away is not waited for: the claim's lease, the lock's
lease and the next delivery's own count tell the same later. The letter alone is more than that: without it the message
is not given up.
"""

import logging
import weakref
from types import SimpleNamespace
from typing import Any

from billiard.exceptions import TimeLimitExceeded

from celery_safeguards import headers as h
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.attempts import FailedAttempt, worker_name
from celery_safeguards.deadletter.text import ErrorText
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.locks.store import HeldLock, LockAsk
from celery_safeguards.pipeline.burial import compose_letter, write_letter
from celery_safeguards.pipeline.counting import is_redelivered
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.endings import Fate, Steps, kind_of
from celery_safeguards.worker.keeper import await_end, keeper_of

logger = logging.getLogger(__name__)


def tell_the_store(
    request: Any, steps: Steps, error: BaseException, key: RecordKey | None, lock: LockAsk | None
) -> Fate:
    """
    Take an ending's steps and return what becomes of the message; `BURY` only when its letter is durable.

    Args:
        request: a `SafeRequest`.
        steps: of its ending.
        error: what tells of its end.
        key: of the record that its child asked for, if it names one.
        lock: that its child asked for, if any.

    """
    fate = steps.fate
    if isinstance(error, TimeLimitExceeded):
        _await_end(request)
    if steps.releases_lock and lock is not None:
        _release(request, lock)
    if steps.counts_start and not _may_start_again(request, counted=_is_counted_by_children(request)):
        fate = steps.fate_at_limit or fate
    if steps.marks_lost and key is not None:
        held_a_claim = _mark_lost(request, error, key, lock)
        if steps.counts_unclaimed and not held_a_claim and not _may_start_again(request):
            fate = steps.fate_at_limit or fate
    return Fate.DROP if fate is Fate.BURY and not _is_buried(request, error, key) else fate


def _await_end(request: Any) -> None:
    """Wait for the end of a child over its hard limit: Celery tells us first, and what we free must not be in use."""
    keeper = keeper_of(request.app)
    if keeper is not None and keeper.has_children:
        await_end(request.worker_pid)


def _release(request: Any, lock: LockAsk) -> None:
    keeper = keeper_of(request.app)
    if keeper is not None and keeper.is_store_away:
        return
    try:
        Wiring.of(request.app).locks.release(HeldLock(ask=lock))
    except StoreUnavailable as away:
        logger.warning("%s[%s]: its lock could not be released, and lapses: %s", request.name, request.id, away)


def _is_counted_by_children(request: Any) -> bool:
    seen = SimpleNamespace(delivery_info=request.delivery_info, headers=request.request_dict["headers"])
    return is_redelivered(seen)


def _may_start_again(request: Any, *, counted: bool = False) -> bool:
    """
    Count a lost start by task id, unless its child has; False at the limit.

    Args:
        request: a `SafeRequest`.
        counted: by the child, if it came to that. One that died before has left the count as it was at the last loss
            that this process has seen.

    """
    starts, alive = Wiring.of(request.app).starts, alive_beside(request)
    limit = request.task.policy.max_lost_starts + alive
    try:
        count = starts.read(request.id) if counted else None
        if count is None or count == _COUNTS.get(request.id):
            # None: as many as there may be.
            count = starts.begin(request.id, limit) or limit
    except StoreUnavailable as away:
        logger.warning("%s[%s]: a lost start could not be counted: %s", request.name, request.id, away)
        return True
    _COUNTS[request.id] = count
    if len(_COUNTS) > _MOST_COUNTS:
        _COUNTS.pop(next(iter(_COUNTS)), None)
    return bool(count < limit)


_COUNTS: dict[str, int] = {}
"""By task id, the count that this process has seen after its last lost start; forgotten with any outcome."""
_MOST_COUNTS = 10_000
_HELD: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
"""By owner, the requests of this worker; Celery's own sets forget those of a lost connection."""


def hold(request: Any) -> None:
    """Note that this worker has a request, which a child will run."""
    _HELD[request.sg_owner] = request


def let_go(request: Any) -> None:
    """Forget a request that runs no more."""
    _HELD.pop(request.sg_owner, None)


def forget_losses(request: Any) -> None:
    """Forget what was seen of a message: it has an outcome."""
    _COUNTS.pop(request.id, None)


def alive_beside(request: Any) -> int:
    """Return how many other deliveries of this message's id this worker has."""
    others = [each() for each in _HELD.valuerefs()]
    return sum(each is not None and each is not request and each.id == request.id for each in others)


def _mark_lost(request: Any, error: BaseException, key: RecordKey, lock: LockAsk | None) -> bool:
    """Mark the claim of a dead child; False: it held none, for it died before its admission or after its outcome."""
    keeper = keeper_of(request.app)
    if keeper is not None and keeper.is_store_away:
        return True
    failure = {"kind": kind_of(error).value, "error": str(error), "reason": "its process ended"}
    failure |= {"worker": worker_name(request.worker_pid), "release": Wiring.of(request.app).settings.release}
    try:
        held = Wiring.of(request.app).admission.mark_lost(
            key, request.sg_owner, failure, keep_right_to_send=bool(request.chord), lock=lock
        )
    except StoreUnavailable as away:
        logger.warning("%s[%s]: its claim could not be marked lost: %s", request.name, request.id, away)
        return True
    return bool(held)


def _is_buried(request: Any, error: BaseException, key: RecordKey | None) -> bool:
    """Write the letter of a message that is not started again; False: it is not durable."""
    wiring, policy, fields = Wiring.of(request.app), request.task.policy, request.request_dict
    retries = int(fields.get("retries") or 0)
    last = FailedAttempt(
        number=retries + 1,
        at_seconds=wiring.clock.wall_seconds(),
        ended="lost: its process ended, and it is buried",
        error_type=f"{type(error).__module__}.{type(error).__qualname__}",
        message=str(error),
        worker=worker_name(request.worker_pid),
        release=wiring.settings.release,
        task_id=request.id,
    )
    letter = compose_letter(
        wiring,
        SimpleNamespace(**fields),
        letter_id=fields["headers"].get(h.LETTER) or request.id,
        kind=kind_of(error),
        reason=f"{error}; started {policy.max_lost_starts} times at most without an outcome",
        effect_possible=True,
        error=ErrorText(type=last.error_type, message=str(error)),
        attempts=last.number,
        past=[last],
        lost_starts=policy.max_lost_starts,
        key=key.key if key else None,
        scope=key.scope if key else None,
    )
    keeper = keeper_of(request.app)
    try:
        write_letter(wiring, letter, tasks=request.app.tasks, store_is_away=keeper is not None and keeper.is_store_away)
    except StoreUnavailable as away:
        logger.error("%s[%s]: its letter could not be written: %s", request.name, request.id, away)  # noqa: TRY400
        return False
    return True
