"""The post-condition: the result is checked in the data before success is recorded."""

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
