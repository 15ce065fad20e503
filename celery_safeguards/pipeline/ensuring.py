"""The post-condition: the result is checked in the data before success is recorded."""

from collections.abc import Callable, Mapping
from typing import Any

from celery_safeguards.errors import SafeguardsError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.policy import call_with_named


class PostconditionFailed(SafeguardsError):
    """Raised when `ensure` says False, or raises: the body ran, and its effect is not what it should be."""

    sg_failure_kind = FailureKind.INVARIANT


def check_postcondition(ensure: Callable[..., Any] | None, result: Any, arguments: Mapping[str, Any]) -> None:
    """
    Call `ensure(result, **named arguments)`. Only False fails; None is the answer of a function that asserts.

    Raises:
        PostconditionFailed: with what `ensure` raised as its cause.

    """
    if ensure is None:
        return
    name = getattr(ensure, "__qualname__", repr(ensure))
    try:
        holds = call_with_named(ensure, (result,), arguments)
    except Exception as error:
        raise PostconditionFailed(f"{name} raised {type(error).__name__}: {error}") from error
    if holds is False:
        raise PostconditionFailed(f"{name} is False")
