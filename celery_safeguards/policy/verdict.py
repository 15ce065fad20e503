"""Asking the outside whether an attempt with an unknown end took effect."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.policy._checks import number


@dataclass(frozen=True, slots=True)
class Happened:
    """
    The outside effect took place; the body need not run.

    Args:
        result: what the task returns then.

    """

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The outside effect did not take place and no request of it is on its way: the body may start."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """The other side could not be asked, or its answer is no answer: ask again later, then a person."""

    reason: str = ""


Verdict = Happened | DidNotHappen | CannotTell


@dataclass(frozen=True, slots=True)
class Verify:
    """
    Ask the outside whether an attempt with an unknown end took effect, before anything is started again.

    Args:
        find: called with those of the task's arguments that it names, and, if it names them, `idempotency_key` and
            `step`. Returns `Happened(result)`, `DidNotHappen()` or `CannotTell()`; an exception counts as the last.
        after_seconds: how long the outside call may still be in flight after its sender was lost: the longest life of
            one request. The answer is exact if nothing lands later than that.
        asks: how often an unclear answer is asked for again before a person must decide.

    """

    find: Callable[..., Verdict]
    _: KW_ONLY
    after_seconds: float = 30.0
    asks: int = 5

    def __post_init__(self) -> None:
        if not callable(self.find):
            raise ConfigurationError(f"Verify(find={self.find!r}): give a function that returns Happened, DidNotHappen")
        number("Verify.after_seconds", self.after_seconds, at_least=0)
        number("Verify.asks", self.asks, at_least=1, whole=True)


def call_with_named(function: Callable[..., Any], first: tuple[Any, ...], offered: Mapping[str, Any]) -> Any:
    """Call a user's function with `first` and those of the offered arguments that its parameters name."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return function(*first, **offered)
    named = [each.name for each in parameters if each.kind not in {each.VAR_POSITIONAL, each.POSITIONAL_ONLY}]
    return function(*first, **{name: offered[name] for name in named[len(first) :] if name in offered})
