"""
One walk through a letter's message: what is masked by name in its arguments and headers, and then in its texts.

The order matters. First all that has a sensitive name is masked, and its values are noted; only then are they looked
for in the other values, the headers and the texts.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from celery_safeguards.deadletter.arguments import JSON, plain_of
from celery_safeguards.deadletter.terms import is_tagged
from celery_safeguards.deadletter.wire import WireMessage, dumps, loads, safe_repr

MASK = "[redacted]"
FAILED = "[redaction failed]"
_REPRS = ("argsrepr", "kwargsrepr")
_LEAST_CHARS = 4
_MOST_VALUES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionContext:
    """
    What a project's function is given a value of.

    Attributes:
        what: `argument`, `header`, `property`, `error`, `traceback`, `reason`, `history` or `failure`.
        name: of an argument, a header or a property; else empty. A positional argument whose name is not known here
            has its place, such as `0`.
        task: whose letter it is; may be empty.

    """

    what: str
    name: str = ""
    task: str = ""


class Rules(Protocol):
    """What a walk asks; see `redaction.Redaction`."""

    sensitive: tuple[str, ...]

    def is_sensitive(self, path: Sequence[str]) -> bool:
        """Whether what a path leads to is masked by its name."""
        ...

    def without_names(self, text: str) -> str:
        """Return a text without the values that stand behind a sensitive name."""
        ...

    def asked(self, context: RedactionContext, value: Any) -> Any:
        """Return what the project's function makes of a value."""
        ...


class Look:
    """One look at one letter: what was masked in its arguments is known when its texts are read."""

    def __init__(self, redaction: Rules, task: str) -> None:
        self._redaction = redaction
        self._task = task
        self._values: dict[str, None] = {}
        self._has_masked = False

    def wire(self, wire: WireMessage, signature: inspect.Signature | None) -> WireMessage:
        """Return a message as a person may see it; what is masked in it is masked in texts from then on."""
        plain, _ = plain_of(wire)
        if plain is not None and not (isinstance(plain["args"], list) and isinstance(plain["kwargs"], dict)):
            plain = None
        headers = self._masked_mapping(wire.headers)
        properties = self._masked_mapping(wire.properties)
        if plain is None:
            seen = without_content(wire, self._unread(wire))
        else:
            seen = self._with_arguments(wire, plain, signature)
        if self._has_masked or (plain is None and self._redaction.sensitive):
            # They write the same values in a way of their own, and cut.
            headers |= {name: MASK for name in _REPRS if name in headers}
        # After the body: what was masked there is in the reprs of the arguments, which are among the headers.
        return replace(seen, headers=self._named("header", headers), properties=self._named("property", properties))

    def text(self, what: str, text: str) -> str:
        """Return a text that stands beside the message."""
        if not text:
            return text
        masked = self._redaction.without_names(self._without_values(text))
        shown = self._redaction.asked(RedactionContext(what=what, task=self._task), masked)
        return shown if isinstance(shown, str) else FAILED

    def _unread(self, wire: WireMessage) -> str:
        """Return what is shown of a body that holds no arguments, or none that can be told apart."""
        if wire.content_type != JSON or wire.truncated or self._redaction.sensitive:
            return MASK
        return self.text("argument", wire.body.decode("utf-8", "replace"))

    def _with_arguments(
        self, wire: WireMessage, plain: Mapping[str, Any], signature: inspect.Signature | None
    ) -> WireMessage:
        args, names = plain["args"], names_of_places(signature, len(plain["args"]))
        if signature is None and args and self._redaction.sensitive:
            # Which of them is sensitive, only the task could tell.
            names = ["args"] * len(args)
            self._note(args)
            self._has_masked = True
            args = [MASK] * len(args)
        args = [self._masked(each, (name,)) for name, each in zip(names, args, strict=True)]
        kwargs = self._masked(plain["kwargs"], ())
        embed = self._masked(self._without_places(plain["embed"]) if self._redaction.sensitive else plain["embed"], ())
        # All that is masked is known only now.
        args, embed = self._scrubbed(args), self._scrubbed(embed)
        # The names of arguments are the task's own.
        kwargs = {name: self._scrubbed(each) for name, each in kwargs.items()}
        args = [self._asked("argument", name, each) for name, each in zip(names, args, strict=True)]
        kwargs = {name: self._asked("argument", name, each) for name, each in kwargs.items()}
        seen = {"args": args, "kwargs": kwargs, "embed": embed}
        if seen == plain:
            return wire
        return replace(wire, body=json.dumps(list(seen.values())).encode(), content_encoding="utf-8")

    def _without_places(self, value: Any) -> Any:
        """Return what follows a task without what it is given by place, of which nobody here knows the names."""
        if isinstance(value, list):
            return [self._without_places(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {key: self._without_places(each) for key, each in value.items()}
        if isinstance(value.get("args"), list) and value["args"] and "task" in value:
            self._note(value["args"])
            self._has_masked = True
            found["args"] = [MASK] * len(value["args"])
        return found

    def _masked_mapping(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._masked(value, (name,)) for name, value in values.items()}

    def _named(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._asked(what, name, self._scrubbed(value, self._redaction.without_names))
            for name, value in values.items()
        }

    def _asked(self, what: str, name: str, value: Any) -> Any:
        shown = self._redaction.asked(RedactionContext(what=what, name=name, task=self._task), value)
        try:
            json.dumps(shown)
        except (TypeError, ValueError, RecursionError):
            return value if shown is value else FAILED
        return shown

    def _masked(self, value: Any, path: tuple[str, ...]) -> Any:
        if value is not None and self._redaction.is_sensitive(path):
            self._note(value)
            self._has_masked = True
            return MASK
        if isinstance(value, dict):
            # What follows a task has arguments of its own.
            return {key: self._masked(each, () if key == "kwargs" else (*path, key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(each, path) for each in value]
        return value

    def _scrubbed(self, value: Any, and_then: Callable[[str], str] = str) -> Any:
        if isinstance(value, str):
            return and_then(self._without_values(value))
        if isinstance(value, dict):
            return {self._scrubbed(key): self._scrubbed(each, and_then) for key, each in value.items()}
        if isinstance(value, list):
            return [self._scrubbed(each, and_then) for each in value]
        return value

    def _note(self, value: Any) -> None:
        """Note what a masked value is as text, to be looked for in other texts."""
        if is_tagged(value):
            # The name of its type is no secret; a text has the value as Python writes it.
            self._note(value["__value__"])
            opened = loads(dumps(value))
            if not isinstance(opened, dict):
                self._note(opened)
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                self._note(each)
        elif value is not None and not isinstance(value, bool):
            for text in _texts_of(value):
                # As it is, as Python and JSON write it, and as Celery's `saferepr` does.
                for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1], text.replace("'", "\\'")):
                    if len(form) >= _LEAST_CHARS:
                        self._values[form] = None

    def _without_values(self, text: str) -> str:
        if len(self._values) > _MOST_VALUES:
            # To look for each would take too long, and to look for some would show the others.
            return MASK
        for value in sorted(self._values, key=len, reverse=True):
            # A number is looked for as a word: 1234 is in many a longer one.
            edge = r"\b" if value.isdigit() else ""
            text = re.sub(f"{edge}{re.escape(value)}{edge}", MASK, text)
        return text


def _texts_of(value: Any) -> tuple[str, ...]:
    """Return what a value is in texts: a date's `str` and its `repr` have no word in common."""
    if isinstance(value, str | int | float):
        return (str(value),)
    if isinstance(value, bytes):
        return (value.decode("utf-8", "replace"), repr(value)[2:-1])
    text, written = str(value), safe_repr(value)
    return (text,) if text in written else (text, written)


def names_of_places(signature: inspect.Signature | None, count: int) -> list[str]:
    """Return the names of positional arguments; those that have none are called by their places."""
    names: list[str] = []
    for name, parameter in signature.parameters.items() if signature else ():
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [name] * max(0, count - len(names))
    return [*names[:count], *(str(place) for place in range(len(names), count))]


def without_content(wire: WireMessage, body: str) -> WireMessage:
    """Return a message with another body, whose length is still known, and without what stands beside it."""
    whole = len(wire.body) if wire.body_bytes is None else wire.body_bytes
    return replace(wire, body=body.encode("utf-8", "replace"), body_bytes=whole, headers={}, properties={})
