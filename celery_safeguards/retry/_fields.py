"""
What each field of a policy may hold: checked once, where the value is written, and said in one way.
"""

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from celery_safeguards.errors import ConfigurationError, nearest

_E = TypeVar("_E", bound=StrEnum)


def is_number(value: object) -> bool:
    """Whether a value is a number that fits a float: no NaN, no infinity, no bool."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -sys.float_info.max <= value <= sys.float_info.max
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _at_least(least: float) -> Callable[[object], bool]:
    return lambda value: is_number(value) and value >= least  # type: ignore[operator]


def _above_zero(value: object) -> bool:
    return is_number(value) and value > 0  # type: ignore[operator]


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "attempts": (_is_count, "give a whole number, 1 or more; 1 starts the body once and never retries"),
    "base_seconds": (_above_zero, "give seconds above 0, such as 5"),
    "factor": (_at_least(1), "give 1 for equal ceilings, or more"),
    "cap_seconds": (_above_zero, "give seconds, at least base_seconds"),
    "floor_seconds": (_at_least(0), "give seconds, 0 or more, or None for a tenth of base_seconds"),
    "jitter_ratio": (
        lambda value: _above_zero(value) and value <= 1,  # type: ignore[operator]
        "give a share above 0, at most 1, such as 0.1",
    ),
    "total_seconds": (_above_zero, "give seconds above 0, or None for no limit"),
    "after_seconds": (_at_least(0), "give seconds, 0 or more, or None for the policy's backoff"),
}
_FLAGS = {"retry_unrecognised": "True or False", "retryable": "True or False", "effect_possible": "True or False"}


def check_field(owner: str, field: str, value: object) -> None:
    """
    Refuse what a field cannot hold.

    Raises:
        ConfigurationError: names the owner, the field, the value and what to give.

    """
    if field in _FLAGS:
        holds, advice = isinstance(value, bool), f"give {_FLAGS[field]}"
    else:
        may_hold, advice = _RULES[field]
        holds = may_hold(value)
    if not holds:
        raise ConfigurationError(f"{owner}({field}={value!r}): {advice}")


def choice(owner: str, field: str, value: object, choices: type[_E]) -> _E:
    """
    Return the member of a closed list that a value names.

    Raises:
        ConfigurationError: names the list and the nearest member.

    """
    try:
        return choices(str(value))
    except ValueError:
        names = [each.value for each in choices]
        raise ConfigurationError(f"{owner}({field}={value!r}): choose from {names}{nearest(value, names)}") from None
