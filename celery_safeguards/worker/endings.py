"""
How a delivery ends, as the worker's main process sees it, and what is then done: a table, and nothing that acts.

| how it ended | mark its claim lost | release its lock | count the start | then |
|---|---|---|---|---|
| a child reported it | | | | Celery's own handling |
| its child has no right to acknowledge | | | | dropped locally: it comes back by the visibility timeout |
| done, and its result could not be handed on | | | | dropped locally: the redelivery finds the record |
| called off: revoked, cancelled, acknowledged early | yes | yes | | Celery's own handling; if cancelled, put back |
| lost, with a key | yes | with it | if it held no claim | put back: admission answers; at the limit buried |
| lost in its transaction | yes | with it | yes | put back: what it did is rolled back |
| lost, without a key | | yes | yes | put back; at the limit buried |
| over its hard limit, and nothing declared | | yes | | buried: nobody has said that it may run twice |

*Lost*: its process was killed, ended by the body, or is over its hard limit. What a claim has lost is counted by
admission alone, so marking one counts nothing; but a process that ends before its admission, or after its outcome, in a
hook or a receiver, holds none, and would be started for ever.
"""

from dataclasses import dataclass
from enum import StrEnum

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskPredicate

from celery_safeguards.errors import DroppedLocally, SafeguardsError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.refusing import PASSING
from celery_safeguards.policy import Declared, Policy
from celery_safeguards.retry.classify import classify

_PROCESS_ENDED = (WorkerLostError, TimeLimitExceeded, Terminated, SystemExit, KeyboardInterrupt)


class Ending(StrEnum):
    """How a delivery ended, in the order of the table."""

    REPORTED = "reported"
    DROPPED = "dropped"
    NOT_HANDED_ON = "not handed on"
    CALLED_OFF = "called off"
    LOST = "lost"
    LOST_ATOMIC = "lost in its transaction"
    LOST_UNKEYED = "lost without a key"
    OVER_LIMIT = "over its limit"


class Fate(StrEnum):
    """What becomes of the message."""

    CELERY = "left to Celery"
    DROP = "dropped locally"
    PUT_BACK = "put back"
    BURY = "buried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is done about an ending, in this order; a child over its hard limit is ended before all of it."""

    releases_lock: bool = False
    counts_start: bool = False
    marks_lost: bool = False
    """Which releases its lock as well."""
    counts_unclaimed: bool = False
    """A start that held no claim is counted by task id: its record counts only what was admitted."""
    fate: Fate
    fate_at_limit: Fate | None = None

    @property
    def is_loss(self) -> bool:
        """Whether the message is this process's to put back or to bury."""
        return self.fate in {Fate.PUT_BACK, Fate.BURY}


STEPS = {
    Ending.REPORTED: Steps(fate=Fate.CELERY),
    Ending.DROPPED: Steps(fate=Fate.DROP),
    Ending.NOT_HANDED_ON: Steps(fate=Fate.DROP),
    # Else the next publication of the key would wait for the lease of the dead.
    Ending.CALLED_OFF: Steps(releases_lock=True, marks_lost=True, fate=Fate.CELERY),
    Ending.LOST: Steps(marks_lost=True, counts_unclaimed=True, fate=Fate.PUT_BACK, fate_at_limit=Fate.BURY),
    # The rollback leaves no trace of this start; a child counts it, or buries the message, at its next one.
    Ending.LOST_ATOMIC: Steps(counts_start=True, marks_lost=True, fate=Fate.PUT_BACK),
    Ending.LOST_UNKEYED: Steps(releases_lock=True, counts_start=True, fate=Fate.PUT_BACK, fate_at_limit=Fate.BURY),
    Ending.OVER_LIMIT: Steps(releases_lock=True, fate=Fate.BURY),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What an ending depends on, besides the error."""

    policy: Policy
    has_record: bool
    """Whether its arguments name a record."""
    was_called_off: bool
    """Whether Celery itself has ended the process, to revoke or to cancel."""


def ending_of(error: BaseException, around: Circumstances) -> Ending:
    """
    Return how a delivery ended.

    Args:
        error: what a child raised, or what tells of its death.
        around: the rest.

    """
    if isinstance(error, DroppedLocally):
        return Ending.DROPPED
    if _is_loss(error, around) and around.policy.declared is not Declared.AT_MOST_ONCE:
        return _loss(error, around)
    if isinstance(error, _PROCESS_ENDED):
        return Ending.CALLED_OFF
    return Ending.NOT_HANDED_ON if _came_after_the_settle(error, around.policy) else Ending.REPORTED


def kind_of(error: BaseException) -> FailureKind:
    """Return what the death of a process is called in a letter."""
    return FailureKind.WORKER_TIMEOUT if isinstance(error, TimeLimitExceeded) else FailureKind.WORKER_LOST


def _is_loss(error: BaseException, around: Circumstances) -> bool:
    if isinstance(error, SystemExit | KeyboardInterrupt):
        # The body ended its process; unless Celery itself did.
        return not around.was_called_off
    return isinstance(error, WorkerLostError | TimeLimitExceeded)


def _loss(error: BaseException, around: Circumstances) -> Ending:
    policy = around.policy
    if around.has_record:
        is_atomic = policy.idempotent is not None and policy.idempotent.atomic is not None
        return Ending.LOST_ATOMIC if is_atomic else Ending.LOST
    if isinstance(error, TimeLimitExceeded) and policy.declared is Declared.NOTHING and policy.retry is None:
        return Ending.OVER_LIMIT
    return Ending.LOST_UNKEYED


def _came_after_the_settle(error: BaseException, policy: Policy) -> bool:
    """
    Whether a keyed task's work is recorded and Celery could not store its result or report its part of a chord.

    Its own failures are all letters, retries and control flow. The redelivery finds the record, and hands on again.
    """
    if policy.idempotent is None or isinstance(error, SafeguardsError | TaskPredicate):
        return False
    return isinstance(error, Exception) and classify(error).kind in PASSING
