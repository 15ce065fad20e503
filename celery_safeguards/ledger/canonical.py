"""
The canonical form of a task's arguments, and its digest: the fingerprint.

Promise: publishes that mean the same call have the same fingerprint, others have another; in the web process, in the
worker after the wire, and after any number of retries.

    f(1)   f(a=1)   f(1, b=<default>)   apply_async((1,), None)      bound to the signature, values at their default
                           |                                         omitted, `self` dropped
                        {"a":1}                                      type-tagged JSON, sorted, ASCII
                           |
                         sha256

What it covers: keys that differed by process (the address of a bound `self`), by str type, by omitted or explicit
defaults, by `kwargs=None` and by an empty key list (cameronmaske/celery-once#93, #11, PR#128,
steinitzu/celery-singleton PR#39, #2).

Rules, so that a value reads the same on both sides of kombu's JSON (5.7) and of pickle:

| value | canonical form |
|---|---|
| None, bool, int, float, str | JSON, so `1`, `"1"`, `true`, `1.0` differ; -0.0 is 0.0; NFC; subclasses by content |
| list, tuple, namedtuple | array: JSON sends tuples as lists |
| dict | object with JSON's key text, so `{1: x}` is `{"1": x}`; two keys of the same text are refused: JSON loses one |
| set, frozenset | tagged, ordered by text; only pickle carries them |
| Decimal | tagged, by value: 1.10 is 1.1 |
| datetime | tagged; aware ones by instant, whatever the zone; naive ones differ from those; `fold` does not count |
| date, time, UUID, bytes | tagged |
| Enum | by its value; an IntEnum or StrEnum is its int or str, as JSON sends it |
| `__json__`, kombu `register_type` | what kombu would send |
| anything else | refused: it has no value that another process could compare |

What it does not cover: serializers that change values otherwise (msgpack, yaml), a type that kombu knows registered
anew with another encoder, and a deploy that changes what a default *is*: the calls that leave it out keep their digest.
"""

import hashlib
import inspect
import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import singledispatch
from typing import Any
from uuid import UUID

from kombu.utils.json import JSONEncoder

from celery_safeguards.errors import KeyRefused

_MAX_DEPTH = 100
# Python itself refuses to write out integers above 4,300 digits, unless a process has raised that limit.
_MAX_INT_BITS = 14_000
_MAX_DECIMAL_ZEROS = 30
_TYPE, _VALUE = "__type__", "__value__"
_ENVELOPE = {_TYPE, _VALUE}
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode
_kombu = JSONEncoder()


def bound_arguments(
    signature: inspect.Signature, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> inspect.BoundArguments:
    """
    Bind a call's arguments, without defaults; None stands for no arguments.

    Raises:
        KeyRefused: they do not fit the signature; the cause is the TypeError that the call would raise.

    """
    try:
        return signature.bind(*(args or ()), **(kwargs or {}))
    except TypeError as error:
        raise KeyRefused(f"the arguments do not fit the task's signature: {error}") from error


def fingerprint(
    signature: inspect.Signature,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    fields: tuple[str, ...] | None = None,
) -> str:
    """
    Return the digest of a call's arguments, 64 hex digits.

    Arguments at their default are left out, so a deploy that adds a parameter with a default changes no digest.

    Args:
        signature: the task's, without `self`.
        args: positional arguments, None for none.
        kwargs: keyword arguments, None for none.
        fields: the parameters to compare; None compares all. `key.check_fingerprint` finds those that do not exist.

    Raises:
        KeyRefused: the arguments do not fit, or a compared one has no canonical form; names the parameter and type.

    """
    members = []
    for name, value in sorted(bound_arguments(signature, args, kwargs).arguments.items()):
        default = signature.parameters[name].default
        if value is default or (fields is not None and name not in fields):
            continue
        try:
            text = canonical(value)
        except KeyRefused as error:
            raise KeyRefused(f"argument {name!r}: {error}") from error
        if text != _canonical_default(default):
            members.append(f"{_encode(name)}:{text}")
    return hashlib.sha256(f"{{{','.join(members)}}}".encode()).hexdigest()


def canonical(value: object) -> str:
    """
    Return a value's canonical form: type-tagged, sorted JSON in ASCII.

    Raises:
        KeyRefused: a type without a value of its own, two mapping keys that JSON writes the same way, or more than
            100 levels of nesting, which a structure that contains itself always has.

    """
    try:
        return _encode(_form(value, 0))
    except RecursionError as error:
        raise KeyRefused("nested too deep for the stack that is left here") from error


def plain_text(value: str) -> str:
    """Return a str, or a subclass of it, as plain NFC text."""
    text = str.__str__(value)
    if text.isascii():
        return text
    # JSON joins two surrogates that Python kept apart; do the same before the wire as after it.
    return unicodedata.normalize("NFC", text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass"))


def tagged_text(value: object) -> tuple[str, str] | None:
    """Return type tag and text of a scalar that JSON has no form for, or None when the value is no such scalar."""
    # The real type, since `isinstance` believes lazy proxies, and these methods do not.
    actual = type(value)
    for kind, tag, text_of in _TAGGED:
        if issubclass(actual, kind):
            return tag, text_of(value)
    return None


def type_name(value: object) -> str:
    """Return a value's type for an error message, without the value: arguments may be secrets."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _canonical_default(default: object) -> str | None:
    try:
        return None if default is inspect.Parameter.empty else canonical(default)
    except KeyRefused:
        # A sentinel object: only itself is at that default, and the caller has compared identity.
        return None


def _form(value: object, depth: int) -> Any:
    """Return a tree of JSON's own types."""
    if depth > _MAX_DEPTH:
        raise KeyRefused(f"nested deeper than {_MAX_DEPTH} levels, or containing itself")
    return _form_by_type.dispatch(type(value))(value, depth)


@singledispatch
def _form_by_type(value: object, depth: int) -> Any:
    """Return the form of what JSON has no syntax for, in the order in which kombu's encoder asks."""
    if not hasattr(value, "__json__") and (found := tagged_text(value)):
        return {_TYPE: found[0], _VALUE: found[1]}
    try:
        sent = _kombu.default(value)  # type: ignore[no-untyped-call]
    except TypeError as error:
        if isinstance(value, Enum):
            return _form(value.value, depth + 1)
        raise KeyRefused(
            f"of type {type_name(value)}, which has no value that another process could compare: "
            "pass its identifier, or plain data"
        ) from error
    if isinstance(sent, dict) and sent.keys() == _ENVELOPE:
        return {_TYPE: sent[_TYPE], _VALUE: _form(sent[_VALUE], depth + 1)}
    return _form(sent, depth + 1)


_form_by_type.register(type(None), lambda value, _depth: value)
_form_by_type.register(str, lambda value, _depth: plain_text(value))
_form_by_type.register(int, lambda value, _depth: _writable(value))
_form_by_type.register(float, lambda value, _depth: float.__add__(value, 0.0))  # -0.0 + 0.0 is 0.0


@_form_by_type.register(list)
@_form_by_type.register(tuple)
def _array(value: Sequence[Any], depth: int) -> Any:
    return [_form(item, depth + 1) for item in value]


@_form_by_type.register(dict)
def _mapping(value: dict[Any, Any], depth: int) -> Any:
    form: dict[str, Any] = {}
    for key, item in value.items():
        text = _key_text(key)
        if text in form:
            raise KeyRefused(f"a mapping has two keys that JSON writes as {text!r}, and one would be lost")
        form[text] = _form(item, depth + 1)
    if form.keys() == _ENVELOPE:
        raise KeyRefused(f"a mapping of {_TYPE!r} and {_VALUE!r} alone: kombu's JSON reads it as another type")
    return form


@_form_by_type.register(set)
@_form_by_type.register(frozenset)
def _unordered(value: frozenset[Any], depth: int) -> Any:
    by_text = {_encode(form): form for form in (_form(item, depth + 1) for item in value)}
    return {_TYPE: "set", _VALUE: [by_text[text] for text in sorted(by_text)]}


def _key_text(key: object) -> str:
    if isinstance(key, str):
        return plain_text(key)
    if isinstance(key, int):
        return _encode(_writable(key))
    if key is None or isinstance(key, float):
        return _encode(key)
    raise KeyRefused(f"a mapping key of type {type_name(key)}: JSON cannot carry it")


def _writable(value: int) -> int:
    if int.bit_length(value) > _MAX_INT_BITS:
        raise KeyRefused("an integer of more than 4,000 digits: not every process could write it out")
    return value


def _instant(value: datetime) -> str:
    if value.utcoffset() is None:
        return datetime.isoformat(value.replace(tzinfo=None))
    try:
        return datetime.isoformat(value.astimezone(UTC))
    except OverflowError as error:
        raise KeyRefused("a datetime that UTC cannot express") from error


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)  # NaN, Infinity
    text = "".join(map(str, digits))
    significant = text.rstrip("0")
    if not significant:
        return "0"
    exponent += len(text) - len(significant)
    if 0 < exponent <= _MAX_DECIMAL_ZEROS:
        significant, exponent = significant + "0" * exponent, 0
    # Not `normalize()`, which rounds to the context's precision; and a context decides between E and e.
    return str(Decimal(f"{'-' * sign}{significant}E{exponent}")).upper()


_TAGGED: tuple[tuple[type, str, Callable[[Any], str]], ...] = (
    (datetime, "datetime", _instant),  # before date, its base
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (Decimal, "decimal", _decimal),
    (UUID, "uuid", UUID.__str__),
    (bytes, "bytes", bytes.hex),
)
