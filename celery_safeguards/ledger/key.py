"""
The idempotency key: the name of one business operation.

Promise: within one template, and so within one scope, equal field values give the same key in every process, and
different ones give different keys. A key that could not hold that promise is refused, at import where the template
shows it, else at publish.

    KeyTemplate("payment:{order_id}:{part}")

    order_id=42,   part="a"    payment:42:"a"
    order_id="42", part="a"    payment:"42":"a"          text is quoted, so "1:2" with "3" is not "1" with "2:3"
    order_id=UUID, part="a"    payment:uuid(5c1f...):"a"

The template's own text stands as written. Fields are JSON or `type(text)`, in ASCII, and each shows where it ends:

| value | in the key |
|---|---|
| int, bool, float, str | JSON; subclasses, IntEnum and StrEnum by their content; NFC text; -0.0 is 0.0 |
| Decimal, UUID, date, time, datetime, bytes | `decimal(1.1)`: by value, aware datetimes in UTC, bytes in hex |
| other Enum | by its value |
| None, blank text, NaN, infinity, any other type | refused |

What it does not cover: whether the fields name the operation. An argument that holds a fresh uuid or the clock makes
every publish a new operation; only names that say so are caught. And `42` and `"42"` are two operations: callers that
disagree about an identifier's type do not meet.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from string import Formatter
from typing import Any, NamedTuple

from celery_safeguards.errors import ConfigurationError, KeyRefused, nearest
from celery_safeguards.ledger.canonical import bound_arguments, canonical, plain_text, tagged_text, type_name

# fmt: off
_DELIVERY_NAMES = frozenset({
    "attempt", "correlation_id", "date", "delivery_tag", "eta", "id", "message_id", "now", "parent_id", "random",
    "request_id", "retries", "root_id", "self", "task_id", "time", "timestamp", "today", "uuid", "uuid4", "worker",
})
# fmt: on
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def body_signature(run: Callable[..., Any]) -> inspect.Signature:
    """
    Return the signature that callers of a task see: its `run` without `self`.

    Args:
        run: a task's `run`, bound or not: of a plain function a first parameter named `self` is dropped.

    Raises:
        ConfigurationError: Python knows no signature for this callable.

    """
    try:
        signature = inspect.signature(run)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{run!r} has no signature to bind arguments to: {error}") from error
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name == "self":
        del parameters[0]
    return signature.replace(parameters=parameters)


def bind(signature: inspect.Signature, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Return all arguments by parameter name, defaults included.

    `*args` is a tuple and `**kwargs` a dict under their own names, empty where nothing was given.

    Raises:
        KeyRefused: they do not fit the signature; the cause is the TypeError that the call would raise.

    """
    bound = bound_arguments(signature, args, kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def check_fingerprint(fields: tuple[str, ...], signature: inspect.Signature, task_name: str) -> None:
    """
    Check that a fingerprint's fields are parameters of the task.

    Raises:
        ConfigurationError: no tuple of names, an empty one, or a name that is no parameter.

    """
    if not isinstance(fields, tuple) or not fields:
        raise ConfigurationError(
            f"{task_name}: fingerprint={fields!r}: give a tuple of parameter names, or None to compare all arguments"
        )
    for field in fields:
        if field not in signature.parameters:
            hint = nearest(field, signature.parameters)
            raise ConfigurationError(
                f"{task_name}: fingerprint={fields!r}: {field!r} is no parameter of the task{hint}"
            )


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """
    A template such as `payment:{order_id}`, whose fields are parameters of the task.

    Raises:
        ConfigurationError: empty, no field, broken braces, or a field that is more than a parameter's name.

    Attributes:
        text: the template.
        may_be_constant: it need not have a field: a lock may have one name for all calls, an operation may not.

    """

    text: str
    may_be_constant: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ConfigurationError(f"key={self.text!r}: give a template such as 'payment:{{order_id}}'")
        if not self.fields and not self.may_be_constant:
            raise ConfigurationError(
                f"key={self.text!r} has no field, so all calls would be one operation: "
                "name the parameter that tells them apart, as in 'payment:{order_id}'"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the key names, each once."""
        return tuple(dict.fromkeys(part.field for part in _parts(self.text) if part.field))

    def check(self, signature: inspect.Signature, task_name: str) -> None:
        """
        Check that every field is one parameter of the task.

        Args:
            signature: as `body_signature` returns it.
            task_name: for the message.

        Raises:
            ConfigurationError: a field is no parameter, or takes any number of arguments; gives the nearest choice.

        """
        single = [name for name, parameter in signature.parameters.items() if parameter.kind not in _VARIADIC]
        for field in self.fields:
            if field in single:
                continue
            if field in signature.parameters:
                why = f"{field!r} takes any number of arguments: give the identifier a parameter of its own"
            elif field in _DELIVERY_NAMES:
                why = (
                    f"{field!r} is no parameter of the task. A key names the business operation, not the delivery: "
                    "an id or a time that is new for every publish makes every publish a new operation"
                    f"{nearest(field, single)}"
                )
            else:
                why = f"{field!r} is no parameter of the task{nearest(field, single)}"
            raise ConfigurationError(f"{task_name}: key={self.text!r}: {why}")

    def render(self, arguments: Mapping[str, Any]) -> str:
        """
        Return the key of one call.

        Args:
            arguments: by parameter name, defaults included, as `bind` returns them.

        Raises:
            KeyRefused: a field is missing, None, blank, NaN or infinite, or of a type without a stable value.

        """
        key = []
        for part in _parts(self.text):
            key.append(part.literal)
            if part.field:
                try:
                    key.append(_field_text(arguments.get(part.field), bare=part.bare))
                except KeyRefused as error:
                    raise KeyRefused(f"key={self.text!r}: field {part.field!r} is {error}") from error
        return "".join(key)


class _Part(NamedTuple):
    """A literal and the field after it."""

    literal: str
    field: str | None
    bare: bool
    """Whether the text behind the field can't be read as more of a number; else `{a}{b}` of 1, 23 is that of 12, 3."""


@lru_cache(maxsize=1024)
def _parts(text: str) -> tuple[_Part, ...]:
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigurationError(f"key={text!r}: {error}; literal braces are written {{{{ and }}}}") from error
    parts = []
    for at, (literal, field, spec, conversion) in enumerate(pieces, start=1):
        if field is not None:
            _check_field(text, field, spec, conversion)
        behind = pieces[at][0][:1] if at < len(pieces) else " "
        parts.append(_Part(literal, field, bare=behind not in {"", "."} and not behind.isalnum()))
    return tuple(parts)


def _check_field(text: str, field: str, spec: str | None, conversion: str | None) -> None:
    if not field or field.isdecimal():
        why = "positional fields name nothing: write the parameter's name, as in {order_id}"
    elif conversion or spec:
        why = (
            f"{{{field}}} must stand without a conversion or format: they make distinct values look the same "
            "(and !r may show an address that differs in every process)"
        )
    elif not field.isidentifier():
        why = (
            f"{{{field}}} is no parameter's name: pass the identifier itself as an argument, not an object to look into"
        )
    else:
        return
    raise ConfigurationError(f"key={text!r}: {why}")


def _field_text(value: Any, *, bare: bool) -> str:
    if isinstance(value, Enum) and not isinstance(value, str | int | float):
        value = value.value
    kind = type(value)
    if why := _instability(value, kind):
        raise KeyRefused(f"{why}, and names no operation")
    if issubclass(kind, str):
        return json.dumps(plain_text(value))
    if issubclass(kind, int | float):
        return canonical(value) if bare else f"({canonical(value)})"
    tagged = tagged_text(value)
    if tagged is None:
        raise KeyRefused(
            f"of type {type_name(value)}: pass one stable identifier, such as a number, text, UUID, date or Decimal"
        )
    return f"{tagged[0]}({tagged[1]})"


def _instability(value: Any, kind: type) -> str | None:
    if value is None:
        return "missing or None"
    if issubclass(kind, str | bytes) and not value.strip():
        return "empty"
    if issubclass(kind, float) and not math.isfinite(value):
        return str(value)
    if issubclass(kind, Decimal) and not value.is_finite():
        return str(value)
    return None
