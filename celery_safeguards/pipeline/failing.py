"""
What follows a failed start, for keyed and unkeyed work alike: the error as the retry decision reads it.

`self.retry()` only raises `RetryAsked`; Celery's own would publish from inside the body, before the outcome is
recorded. Control flow (`Ignore`, `Reject`, `Retry`) is never classified as a failure.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any, cast

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import MaxRetriesExceededError, Reject, Retry, TaskPredicate
from celery.utils.serialization import get_pickleable_exception, raise_with_context

from celery_safeguards._compat import REJECT_IS_A_FAILURE
from celery_safeguards.attempts import FailedAttempt, worker_name
from celery_safeguards.clock import Clock
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.text import ErrorText, describe_error
from celery_safeguards.errors import LetteredError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.policy import Policy
from celery_safeguards.printable import duration
from celery_safeguards.retry.classify import Failure
from celery_safeguards.retry.decide import Again, Bury, decide
from celery_safeguards.retry.policy import RetryPolicy
from celery_safeguards.retry.rules import classify_by
from celery_safeguards.wiring import Wiring

MAX_MESSAGE_CHARS = 4_000
_LETTER_NOTE = "dead letter "
_NOT_OF_THE_BODY = (TaskPredicate, LetteredError, MemoryError, WorkerLostError, TimeLimitExceeded, Terminated)
RETRY_ASKED = "sg_retry_asked"
"""Where `self.retry(throw=False)` leaves its wish on the request, for when the body has returned."""
_RETRY_REFUSED = "sg_retry_refused"
"""Where `self.retry()` leaves a wish that it has refused, for when the body does not catch what it raised."""


class FailedForGood(Exception):
    """Raised once the letter of a failed start is written, where Celery is to store the body's own error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class RetryAsked(Retry):  # type: ignore[misc]
    """Raised by `self.retry()` inside a guarded body: the pipeline records the attempt, then publishes."""

    def __init__(
        self,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
        *,
        args: Any = None,
        kwargs: Any = None,
        max_retries: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(exc=exc, when=when)
        # What `Retry` makes of an error that pickle refuses is another class.
        self.cause = exc
        self.refused_with: Exception | None = None
        self.other_args = args
        self.other_kwargs = kwargs
        self.max_retries = max_retries
        self.options = dict(options or {})

    def __reduce__(self) -> Any:
        """Travel as Celery's own `Retry`: outside the child it is only what another exception came from."""
        return Retry, (self.message, self.exc, self.when)

    def delay_seconds(self, clock: Clock) -> float | None:
        """Return the countdown that was asked for; None, also where it is no finite number: by the policy."""
        due = _moment(self.when)
        if due is not None:
            return max(0.0, (due if due.tzinfo else due.replace(tzinfo=UTC)).timestamp() - clock.wall_seconds())
        try:
            seconds = float(self.when)
        except (TypeError, ValueError):
            return None
        return max(0.0, seconds) if isfinite(seconds) else None


def _moment(when: Any) -> datetime | None:
    """Return an eta, which Celery takes as text, too; None: it is something else."""
    if not isinstance(when, str):
        return when if isinstance(when, datetime) else None
    try:
        return datetime.fromisoformat(when)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A start of the body that has failed."""

    number: int
    elapsed_seconds: float
    error: BaseException


@dataclass(frozen=True, slots=True)
class NextStep:
    """What follows a failed start."""

    decision: Again | Bury
    failure: Failure
    cause: BaseException
    """What has failed, as the letter says it."""
    raised: BaseException
    """What the body has raised; the cause, but for a `self.retry()` that was refused while an error was handled."""

    @property
    def error(self) -> BaseException | None:
        """The error behind a retry, as Celery tells hooks and callers of it; None: the body asked without one."""
        return None if isinstance(self.cause, RetryAsked) else self.cause


def next_step(wiring: Wiring, policy: Policy, attempt: Attempt) -> NextStep:
    """Decide on a failed start; the same answer for automatic and asked retries, from one policy."""
    error = attempt.error
    if isinstance(error, Reject):
        failure = Failure(kind=FailureKind.DATA, effect_possible=False, retryable=False)
        return NextStep(Bury(failure.kind, "the body rejected its message"), failure, error, error)
    cause: BaseException = error
    retry: RetryPolicy | None = policy.retry
    delay: float | None = None
    if isinstance(error, RetryAsked):
        delay = error.delay_seconds(wiring.clock)
        retry, failure = _asked(policy, error)
        cause = error.cause if isinstance(error.cause, BaseException) else error
    else:
        failure = classify_by(retry.rules if retry else (), cause)
    decision = decide(
        retry,
        failure,
        attempt=attempt.number,
        elapsed_seconds=attempt.elapsed_seconds,
        random=wiring.chance,
        asked_delay_seconds=delay,
    )
    if isinstance(cause, RetryAsked) and isinstance(decision, Bury):
        cause = MaxRetriesExceededError(f"a retry was asked for, without an error: {decision.reason}")
    refused_with = error.refused_with if isinstance(error, RetryAsked) else None
    return NextStep(decision, failure, cause, refused_with or cause)


def refuse_if_used_up(task: Any, request: Any, asked: RetryAsked, attempt: int, given: BaseException | None) -> None:
    """
    Raise what Celery's `retry` raises in the body's last attempt, so that the body can catch it and clean up.

    A body that does not catch it is buried as by the retry that it asked for. A policy's `total_seconds`, which Celery
    does not have, ends work after its body.

    Args:
        task: whose body asks.
        request: of the delivery.
        asked: what it asks for.
        attempt: the number of its start.
        given: the error that `retry` was given; without one there is a `MaxRetriesExceededError`.

    """
    policy, failure = _asked(task.policy, asked)
    most = policy.for_kind(failure.kind).attempts
    if attempt < most:
        return
    error = given or MaxRetriesExceededError(
        f"{task.name}[{request.id}]: attempt {attempt} of {most}", task_args=request.args, task_kwargs=request.kwargs
    )
    if not isinstance(error, Exception):
        return
    asked.refused_with = error
    setattr(request, _RETRY_REFUSED, asked)
    raise_with_context(error)


def what_failed(error: BaseException | None) -> BaseException | None:
    """
    Return the error that a retry is asked for with; None: there is none.

    A body that catches every `Exception` to ask for a retry also catches the `Retry` of a `self.retry()` in its `try`.
    """
    while isinstance(error, TaskPredicate):
        error = error.cause if isinstance(error, RetryAsked) else getattr(error, "exc", None)
    return error


def as_asked(request: Any, error: Exception) -> Exception:
    """Return what a body has raised, or the retry that it asked for by that."""
    refused = getattr(request, _RETRY_REFUSED, None)
    if refused is not None and refused.refused_with is error:
        return cast("RetryAsked", refused)
    if isinstance(error, Retry) and not isinstance(error, RetryAsked):
        return RetryAsked(what_failed(error), error.when)
    return error


def is_stored_as_itself(task: Any, error: BaseException, text: ErrorText) -> bool:
    """
    Whether Celery is to store the error of work that is buried, as it does without safeguards, and not one of ours.

    Callers catch it by its class, and errbacks, chords and Sentry tell it by that. Not of keyed work: a later copy of
    it gets the failure from the record, which holds text, and both are to raise the same. Nor what means something
    else to the worker's main process: that it is out of memory, that a child died, or that another letter has it all.
    Nor what would not arrive: a class that cannot be called again (celery/celery#6990), or a message that some back
    end cannot hold (celery/django-celery-results#82).

    Args:
        task: that has failed.
        error: its own, or the one it asked for a retry with.
        text: of the error, as its letter has it.

    """
    if task.plan is not None or not isinstance(error, Exception):
        return False
    if isinstance(error, _NOT_OF_THE_BODY) and not (isinstance(error, Reject) and REJECT_IS_A_FAILURE):
        return False
    try:
        return str(error) == text.message and type(get_pickleable_exception(error)) is type(error)
    except Exception:  # noqa: BLE001 - the class is the user's: whatever it raises, ours is stored
        return False


def name_letter(error: Exception, letter: Letter) -> Exception:
    """Return the error with a note that names its letter, the last one where a body raises the same object again."""
    others = [each for each in getattr(error, "__notes__", ()) if not str(each).startswith(_LETTER_NOTE)]
    # A class may refuse attributes, and the letter is found by the task's id as well.
    with suppress(Exception):
        error.__notes__ = [*others, f"{_LETTER_NOTE}{letter.id} ({letter.kind}): {letter.reason}"]
    return error


def raise_asked_retry(request: Any) -> None:
    """Raise the retry that the body asked for by `self.retry(throw=False)`, if it did."""
    asked = getattr(request, RETRY_ASKED, None)
    if asked is not None:
        raise asked


def failed_attempt(
    wiring: Wiring, request: Any, number: int, ended: str, text: ErrorText, message: str = ""
) -> FailedAttempt:
    """
    Return what is kept of an attempt that has failed in this process.

    Args:
        wiring: the app's.
        request: of the delivery.
        number: of the attempt.
        ended: what follows it.
        text: of its error.
        message: what may be kept of what it said: redacted.

    """
    return FailedAttempt(
        number=number,
        at_seconds=wiring.clock.wall_seconds(),
        ended=ended,
        error_type=text.type,
        message=message,
        worker=worker_name(),
        release=wiring.settings.release,
        task_id=request.id or "",
    )


def retried_in(delay_seconds: float) -> str:
    """Return how an attempt has ended that is followed by another."""
    return f"retried in {duration(delay_seconds)}" if delay_seconds > 0 else "retried at once"


def error_text(wiring: Wiring, error: BaseException) -> ErrorText:
    """Return an error as text that every store can hold."""
    return describe_error(error, MAX_MESSAGE_CHARS, wiring.settings.max_traceback_chars)


def _asked(policy: Policy, asked: RetryAsked) -> tuple[RetryPolicy, Failure]:
    """Return what holds for a retry that was asked for: who asks has judged the error, the caps stay."""
    retry = policy.retry or RetryPolicy()
    if isinstance(asked.cause, BaseException):
        failure = classify_by(policy.retry.rules if policy.retry else (), asked.cause)
    else:
        failure = Failure(kind=FailureKind.TRANSIENT, effect_possible=False, retryable=True)
    failure = replace(failure, retryable=True, recognised=True)
    if asked.max_retries is not None:
        # One start can only lower the cap: admission holds every start of a key to the policy's.
        wanted, retry = max(1, asked.max_retries + 1), retry.for_kind(failure.kind)
        retry = replace(retry, attempts=min(wanted, retry.attempts) if policy.retry else wanted)
    return retry, failure
