"""What every policy value needs: an option that was not given, and errors that name field, value and fix."""

import sys
from enum import Enum, StrEnum
from typing import Final, TypeVar

from celery_safeguards.errors import ConfigurationError, nearest

_E = TypeVar("_E", bound=StrEnum)


class Unset(Enum):
    """Stands for an option that was not given, where None means something."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


def choice(field: str, value: object, choices: type[_E]) -> _E:
    try:
        return choices(str(value))
    except ValueError:
        names = [choice.value for choice in choices]
        raise ConfigurationError(f"{field}={value!r}: choose from {names}{nearest(value, names)}") from None


def number(field: str, value: object, *, at_least: float, whole: bool = False) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not at_least <= value <= sys.float_info.max:
        raise ConfigurationError(f"{field}={value!r}: give {'a whole number' if whole else 'a number'} >= {at_least}")
