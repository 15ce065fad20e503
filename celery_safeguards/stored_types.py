"""
What was stored, against the types of the class that it was written from.

Text that is JSON may still be no letter, group, job or record: a count where a list was, null for a time, a number that
no calendar has. Let in, it fails somewhere else, and whoever reads it takes the damage for a fault of their own. So all
that read stored JSON ask here, and a value of another type is damage like a text that breaks off.

The types are those of the fields. A list stands for a tuple, as does the empty object that a script of Redis makes of
an empty list; text for a value of an enum; and True is 1. `Any` is whatever was stored, keys are text or were made of
it, and which texts a `Literal` allows, its reader asks.

It is asked of each letter of a list and each record that a delivery reads. So the types of all values together are the
question, whose answer is kept: letters by the thousand have the same few. Then only items and times are looked at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache, lru_cache
from math import isfinite
from operator import not_
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_LATEST_SECONDS = 1e11
"""No calendar, column or page could show a later time, and infinity is none; all else that is measured is less."""

_Within = Callable[[Any], bool]


def known_fields(cls: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a dataclass's fields; fields of a newer minor version are left out."""
    return {name: plain[name] for name in names_of_fields(cls) if name in plain}


def names_of_fields(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields; looked up once, for letters are read by the thousand."""
    return _names_of_fields(cls)


def require_types(cls: type, given: Mapping[str, Any]) -> None:
    """
    Refuse values that fields of a dataclass cannot have.

    Args:
        cls: the dataclass.
        given: values by the names of its fields, as JSON has them or already made of that.

    Raises:
        TypeError: naming the first that does not fit, and not what it says.

    """
    for name, within in _asked_within(cls, tuple(given), tuple(map(type, given.values()))):
        value = given[name]
        if value and not within(value):
            raise TypeError(f"{name} holds what it cannot")


def require_row(cls: type, row: Sequence[Any]) -> None:
    """Refuse the same of the values of all fields, in their order; raises `ValueError` if they are more or fewer."""
    for at, within in _asked_within_row(cls, tuple(map(type, row))):
        if not within(row[at]):
            raise TypeError(f"{names_of_fields(cls)[at]} holds what it cannot")


@lru_cache(maxsize=1_000)
def _asked_within(cls: type, names: tuple[str, ...], types: tuple[type, ...]) -> Sequence[tuple[str, _Within]]:
    """Return which values of these types have to be looked at, and how."""
    wanted, asked = _wanted_by(cls), []
    for name, type_ in zip(names, types, strict=True):
        if type_ not in wanted[name]:
            raise TypeError(f"{name} cannot be of type {type_.__name__}")
        within = wanted[name][type_]
        if within is not None:
            asked.append((name, within))
    return tuple(asked)


@lru_cache(maxsize=1_000)
def _asked_within_row(cls: type, types: tuple[type, ...]) -> Sequence[tuple[int, _Within]]:
    names = names_of_fields(cls)
    return tuple((names.index(name), within) for name, within in _asked_within(cls, names, types))


@cache
def _names_of_fields(cls: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cls))


@cache
def _wanted_by(cls: Any) -> dict[str, dict[type, _Within | None]]:
    hints = get_type_hints(cls)
    return {each.name: _wanted(hints[each.name]) for each in fields(cls)}


def _wanted(hint: Any) -> dict[type, _Within | None]:
    """Return the types that a value may have, each with what its value has to be asked."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return {type_: within for each in args for type_, within in _wanted(each).items()}
    if origin is Literal:
        return {str: None}
    if origin is tuple:
        return {**dict.fromkeys((list, tuple), _items(args[0])), dict: not_}
    if origin is Mapping:
        return {dict: _values(args[1])}
    if hint in _NUMBERS:
        return _NUMBERS[hint]
    return {hint: None, str: None} if issubclass(hint, Enum) else {hint: None}


def _items(hint: Any) -> _Within:
    """Return what is asked of many values of one kind."""
    wanted = _wanted(hint)
    types, within = frozenset(wanted), next(iter(wanted.values()))

    def are(values: Iterable[Any]) -> bool:
        return types.issuperset(map(type, values)) and (within is None or all(map(within, values)))

    return are


def _values(hint: Any) -> _Within | None:
    """Return what is asked of a mapping's values."""
    if hint is Any:
        return None
    if get_origin(hint) is not tuple:
        are = _items(hint)
        return lambda found: are(found.values())
    types, size = frozenset(_wanted(get_args(hint)[0])), len(get_args(hint))

    def are_rows(found: Mapping[str, Any]) -> bool:
        # A replay job has up to ten thousand: each column is looked at as a whole, and all are of numbers.
        columns = list(zip(*found.values(), strict=True))
        are_numbers = (types.issuperset(map(type, column)) and isfinite(sum(column)) for column in columns)
        return len(columns) == size and all(are_numbers)

    return are_rows


def _is_shown(seconds: float) -> bool:
    return -_LATEST_SECONDS < seconds < _LATEST_SECONDS


_NUMBERS: dict[Any, dict[type, _Within | None]] = {
    float: {float: _is_shown, int: _is_shown},
    int: {int: None, bool: None},
}
