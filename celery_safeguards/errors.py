"""
Everything this package raises.

    SafeguardsError
    ├── ConfigurationError          a policy or setting that cannot hold, at import or worker start
    ├── KeyRefused                  a publish whose idempotency key is missing or unstable
    ├── MessageTooLarge             a publish of more bytes than are allowed
    ├── PublishTimedOut             a publish that was not over in time
    ├── StoreUnavailable            the store did not answer
    ├── DeferralRefused             eager execution cannot be put off any longer
    ├── NotOurs                     a write under an owner and fence that no longer hold
    ├── LeaseLost                   the body's claim is gone: stop before the next outside call
    │   └── LockLost                its lock is: another owner may have it
    ├── LockBusy                    somebody else holds the lock
    ├── FencedOut                   a write with the token of a late owner
    ├── DeadlineExceeded            the body's time budget is over
    └── LetteredError               what Celery sees as FAILURE; each names its dead letter
        ├── DeadLettered            this work failed for good
        │   └── DeadBefore          the same, to a message whose series has failed before
        ├── Quarantined             its outcome is unknown, and a person or `verify` must say
        ├── ConflictingPayload      same idempotency key, other arguments
        ├── Refused                 a new publication of dead work, where `on_dead="refuse"`
        └── AttachedToLetter        the same operation is dead or quarantined already

    celery.exceptions.Ignore
    ├── Deferred                    a copy of the message was published; this one may be acknowledged
    └── DroppedLocally              nothing durable happened: neither acknowledged nor sent back

Every class can be pickled with its arguments, since Celery hands exceptions from the pool's child to its parent.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from celery.exceptions import Ignore
from kombu.exceptions import OperationalError

from celery_safeguards.outcome import FailureKind


class SafeguardsError(Exception):
    """Base of all errors of this package; not raised itself."""


class ConfigurationError(SafeguardsError, ValueError):
    """Raised when a policy, a setting or their combination cannot hold; names the field, the value and the fix."""


class KeyRefused(SafeguardsError, ValueError):
    """Raised by a publish when the idempotency key would be missing, empty or not stable."""


class MessageTooLarge(SafeguardsError, ValueError):
    """Raised by a publish whose encoded body is above `safeguards_max_message_bytes`: nothing was sent."""

    sg_failure_kind = FailureKind.DATA


class PublishTimedOut(SafeguardsError, OperationalError):
    """
    Raised when a publish was not over within `safeguards_publish_timeout_seconds`; names the broker and the deadline.

    The message may have arrived all the same: its answer may be what was late. Publishing it again is harmless where
    the task has a key. It is an `OperationalError` of kombu's, as a broker that refuses is.
    """

    sg_failure_kind = FailureKind.DEPENDENCY_TIMEOUT


class StoreUnavailable(SafeguardsError):
    """Raised when the store is down, unreachable, read-only or out of memory: nothing is known to have been written."""


class DeferralRefused(SafeguardsError):
    """Raised in eager mode when work stays busy or not due for longer than a caller can wait."""


class NotOurs(SafeguardsError):
    """Raised when a write was refused because another owner holds the record by now."""


class LeaseLost(SafeguardsError):
    """Raised at a checkpoint when the claim's lease is over or was taken: no outside call may begin."""


class LockLost(LeaseLost):
    """Raised to the owner of a lock that another owner may have by now: begin nothing that the lock protects."""

    sg_failure_kind = FailureKind.TRANSIENT


class LockBusy(SafeguardsError):
    """Raised when a lock is held by somebody else, and was not free in time."""

    sg_failure_kind = FailureKind.TRANSIENT


class FencedOut(SafeguardsError):
    """Raised by a write whose fencing token is older than one that was seen: nothing was written."""


class DeadlineExceeded(SafeguardsError):
    """Raised at a checkpoint when the task's own time budget is used up."""

    sg_failure_kind = FailureKind.WORKER_TIMEOUT


class LetteredError(SafeguardsError):
    """
    Base of the failures that name a dead letter.

    Args:
        letter_id: the letter to show, replay or discard.
        kind: the `FailureKind` as a string.
        error: class path and message of what went wrong, for people.

    """

    def __init__(self, letter_id: str, kind: str = "", error: str = "") -> None:
        super().__init__(letter_id, kind, error)
        self.letter_id = letter_id
        self.kind = kind
        self.error = error

    def __str__(self) -> str:
        return f"dead letter {self.letter_id} ({self.kind}): {self.error}"


class DeadLettered(LetteredError):
    """Raised when work failed for good: its message, cause and history are in the letter, ready to replay."""


class DeadBefore(DeadLettered):
    """Raised to a late copy of a message that was dead-lettered before: nothing new has failed."""


class Quarantined(LetteredError):
    """Raised when nobody knows whether the effect happened: the letter waits for a person or for `verify`."""


class ConflictingPayload(LetteredError):
    """Raised when an idempotency key that is in use arrives with other arguments: the body is not run."""


class Refused(LetteredError):
    """Raised to a new publication of dead work: replay or discard its letter first, or choose `on_dead="run"`."""


class AttachedToLetter(LetteredError):
    """Raised to a new publication of work that is dead or quarantined already; no new letter is written."""


class Deferred(Ignore):  # type: ignore[misc]
    """
    Raised in the pool's child when a copy of the message was published for later.

    Celery's parent acknowledges an `Ignore`, stores no result and fires no hook: links and chords fire once, later.
    """


class DroppedLocally(Ignore):  # type: ignore[misc]
    """
    Raised when a delivery has no right to acknowledge: it was fenced out, or could make nothing durable.

    The worker frees the slot and stops renewing the tag. The message comes back by the visibility timeout.
    """


def nearest(value: object, choices: Iterable[object]) -> str:
    """Return a hint for an error message: `; did you mean 'x'?`, or nothing."""
    found = get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
