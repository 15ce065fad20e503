"""
What is checked between a body's return and its success: its own post-condition, and what other packages know of.

The Django app, for instance, knows whether a body has left a transaction open: what it wrote there is not committed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from celery_safeguards.deadletter.text import describe_error
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.policy import call_with_named

MAX_MESSAGE_CHARS = 1_000


class PostconditionFailed(SafeguardsError):
    """Raised when `ensure` says False, or raises: the body ran, and its effect is not what it should be."""

    sg_failure_kind = FailureKind.INVARIANT


_CHECKS: list[Callable[[Any, Any], None]] = []


def check_bodies(check: Callable[[Any, Any], None]) -> None:
    """Have `check(task, request)` called after each body of this process; what it raises fails the attempt."""
    if check not in _CHECKS:
        _CHECKS.append(check)


def check_body(task: Any, request: Any) -> None:
    """Raise what a check of another package finds of a body that has returned."""
    for check in _CHECKS:
        check(task, request)


def check_postcondition(ensure: Callable[..., Any], result: Any, arguments: Mapping[str, Any]) -> None:
    """
    Call `ensure(result, **named arguments)`. Only False fails; None is the answer of a function that asserts.

    Raises:
        PostconditionFailed: with what `ensure` raised as its cause.

    """
    name = getattr(ensure, "__qualname__", repr(ensure))
    try:
        holds = call_with_named(ensure, (result,), arguments)
    except Exception as error:
        shown = describe_error(error, MAX_MESSAGE_CHARS, 1)
        raise PostconditionFailed(f"{name} raised {shown.type}: {shown.message}") from error
    if holds is False:
        raise PostconditionFailed(f"{name} is False")
