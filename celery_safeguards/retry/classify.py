"""
What an error means: its kind, whether an effect outside is possible, whether another start can help.

Validation errors that are retried for hours, and timeouts that are retried as if nothing had been sent, are the two
faults this covers (param20h/PDF-Assistant-RAG#664). The first answer holds:

1. `sg_failure_kind`, an attribute of the exception holding a `FailureKind`: its author has spoken.
2. An HTTP status of 400 to 599 on the exception or its response.
3. The rule of the first class in the MRO that has one (`_table.py`), found by name: no library is imported.
4. For a class without a rule, and for one that only translates another error: the answer for the error it stands for.
5. Nothing recognised: a bug for all we know, with an effect possible, and the policy says whether it is retried.

Which error another one stands for:

    raise GatewayDown(...) from error       `__cause__`: somebody said so, and is believed in full
    except Refused: raise GatewayDown(...)  `__context__`, raised in the frame that caught it: a translation
    except Refused: call_the_backup()       `__context__`, raised deeper: another accident, never followed. The backup
                                            may have had an effect although the first call was refused

An implicit translation by a class of the application's own gives the kind but never "no effect": nobody said so, and
the handler may have called something else before it raised.

Not covered: a client that tries again or follows redirects by itself (redis-py since 6, urllib3's `Retry`, requests)
reports its last try only. A command that was cut off and then refused on reconnect looks refused. An outside effect
made through such a client belongs in a `once()` step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from types import FrameType, TracebackType
from typing import Any

from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry._table import (
    DATABASE_OPERATIONAL,
    DATABASE_REFUSALS,
    DATABASE_REFUSED,
    RULES,
    TRANSLATORS,
    Rule,
    rule_of_kind,
    rule_of_status,
)

_CONTROL_FLOW = "celery.TaskPredicate"
_MAX_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """
    What an error means.

    `effect_possible` may be true where `kind.effect_possible` is not: the kind knows less. `retryable` tells whether
    another start can help; for an error that is not `recognised` the policy decides.
    """

    kind: FailureKind
    effect_possible: bool
    retryable: bool
    retry_after_seconds: float | None = None
    recognised: bool = True


def classify(error: BaseException, *, now_seconds: Callable[[], float] = time.time) -> Failure:
    """
    Say what an error means.

    Args:
        error: as caught, with its traceback: without one, an implicit `__context__` is not followed.
        now_seconds: wall time, for a Retry-After that is a date.

    Raises:
        ValueError: the error is one of Celery's control flow (`Retry`, `Ignore`, `Reject`), which is no failure
            (celery/celery PR#6138): a mistake of the caller.

    """
    if is_control_flow(type(error)):
        raise ValueError(f"{type(error).__name__} is Celery's control flow, not a failure: let it pass unclassified")
    return _answer(error, now_seconds, 0) or Failure(
        FailureKind.BUG,
        effect_possible=True,
        retryable=True,
        retry_after_seconds=retry_after_seconds(error, now_seconds),
        recognised=False,
    )


def _answer(error: BaseException, now_seconds: Callable[[], float], depth: int) -> Failure | None:
    """Return what is recognised of an error or of those it stands for; the depth ends cycles."""
    wait_seconds = retry_after_seconds(error, now_seconds)
    name = next((name for name in _names(error) if name in RULES), None)
    exact = _exact_rule(error, name, told_to_wait=wait_seconds is not None)
    if exact is not None:
        return _failure(exact, wait_seconds)
    inner = _translated(error)
    found = _answer(inner, now_seconds, depth + 1) if inner is not None and depth < _MAX_DEPTH else None
    if found is None:
        return None if name is None else _failure(RULES[name], wait_seconds)
    if wait_seconds is not None and found.retryable:
        found = replace(found, retry_after_seconds=wait_seconds)
    if error.__cause__ is None and not _translates_by_itself(error):
        return replace(found, effect_possible=True)
    return found


def _exact_rule(error: Any, name: str | None, *, told_to_wait: bool) -> Rule | None:
    """Return the rule that needs no look at another error, or None."""
    own_kind = _ask(lambda: error.sg_failure_kind)
    if isinstance(own_kind, FailureKind):
        return rule_of_kind(own_kind)
    status = _http_status(error)
    if status is not None:
        return rule_of_status(status, told_to_wait=told_to_wait)
    if name in DATABASE_OPERATIONAL and _refused_by_database(error):
        return DATABASE_REFUSED
    return None if name is None or name in TRANSLATORS else RULES[name]


def _failure(rule: Rule, wait_seconds: float | None) -> Failure:
    return Failure(rule.kind, rule.effect_possible, rule.retryable, wait_seconds if rule.retryable else None)


def is_control_flow(error_class: type[BaseException]) -> bool:
    """Whether a class is one of those by which Celery steers a task (`Retry`, `Ignore`, `Reject`)."""
    return _CONTROL_FLOW in _names_of(error_class)


def _names(error: BaseException) -> list[str]:
    return _names_of(type(error))


def _names_of(error_class: type[BaseException]) -> list[str]:
    # A class that a library makes at run time may have no module, or None.
    modules = [str(getattr(cls, "__module__", None)) for cls in error_class.__mro__]
    return [
        f"{module.partition('.')[0]}.{cls.__qualname__}"
        for module, cls in zip(modules, error_class.__mro__, strict=True)
    ]


def _refused_by_database(error: BaseException) -> bool:
    first = error.args[0] if error.args else None
    if isinstance(first, str):
        return first.startswith(tuple(head for head in DATABASE_REFUSALS if isinstance(head, str)))
    return isinstance(first, int) and first in DATABASE_REFUSALS


def _translated(error: BaseException) -> BaseException | None:
    """Return the error that this one stands for, or None where it stands for itself."""
    if error.__cause__ is not None:
        return error.__cause__
    context = error.__context__
    if context is None or error.__suppress_context__ or context.__traceback__ is None:
        return None
    return context if _raised_in(error.__traceback__) is context.__traceback__.tb_frame else None


def _translates_by_itself(error: BaseException) -> bool:
    """Whether it is a library's own class, not one derived from it: the library's `except` clauses are known."""
    own_name = _names(error)[0]
    return own_name in TRANSLATORS and not own_name.startswith("builtins.")


def _raised_in(traceback: TracebackType | None) -> FrameType | None:
    """Return the innermost frame; a traceback begins with the frame that caught the error."""
    frame = None
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
    return frame


def _http_status(error: Any) -> int | None:
    # Not `code`: that is an exit code or an error number elsewhere, and urllib's HTTPError says it as `status` too.
    for found in (
        _ask(lambda: error.response.status_code),
        _ask(lambda: error.status),
        _ask(lambda: error.status_code),
    ):
        if isinstance(found, int) and 400 <= found <= 599:
            return int(found)
    return None


def retry_after_seconds(error: Any, now_seconds: Callable[[], float]) -> float | None:
    """Return the wait that a server or the exception's author asks for, 0 or more, or None."""
    for found in (
        _header(_ask(lambda: error.response.headers)),
        _header(_ask(lambda: error.headers)),
        _ask(lambda: error.retry_after),
    ):
        wait_seconds = _parsed_seconds(found, now_seconds)
        if wait_seconds is not None:
            return wait_seconds
    return None


def _header(headers: Any) -> object:
    # Not `.get()`: a plain dict of an SDK is case-sensitive.
    return _ask(lambda: next((value for name, value in headers.items() if str(name).lower() == "retry-after"), None))


def _parsed_seconds(value: object, now_seconds: Callable[[], float]) -> float | None:
    """Read delay-seconds or an HTTP-date (RFC 9110, section 10.2.3); what is negative, past or garbage says nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        wait_seconds = float(value)
    except OverflowError:
        return None
    except ValueError:
        when = _ask(lambda: parsedate_to_datetime(str(value)))
        if when is None:
            return None
        # A date in "-0000" comes without a zone; HTTP-dates are UTC.
        wait_seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now_seconds()
    return wait_seconds if isfinite(wait_seconds) and wait_seconds >= 0 else None


def _ask(read: Callable[[], Any]) -> Any:
    """Return what a foreign object answers, or None where it answers with an exception."""
    try:
        return read()
    except Exception:  # noqa: BLE001
        # Attributes of foreign exceptions are properties that may raise anything (httpx: RuntimeError for a request
        # that was never set). A failure must not be lost because its error cannot be read.
        return None
