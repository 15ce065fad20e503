"""
What may be changed in a copy of a letter's message, and what may not: pure reading, writing and comparing.

Arguments are edited as the JSON that Celery sends, in which a date, a Decimal, a UUID or bytes is an envelope:

    {"__type__": "decimal", "__value__": "10.10"}

What was not touched goes out equal, with its type. An envelope that this process cannot open (a type that only the
workers register) stays as it is on the wire; a new one of such a type is refused, since nobody here can check it.

Only JSON is opened. A pickle runs the code that it names, so a letter that holds one is never read here.

Not covered: a JSON object in which a name stands twice. Readers keep the last one, and so does the copy.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.shown.masking import FAILED, MASK
from celery_safeguards.deadletter.wire import dumps, loads
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.printable import clean

MOST_DEPTH = 100
"""Levels of nesting: as deep as a fingerprint is taken, and far from where Python's own readers end."""
ENVELOPE = {"__type__", "__value__"}
MARK = MASK.removesuffix("]")
"""How a mark begins that stands for a hidden value: see `masked`."""
_MOST_NAMES = 10
_NAME_CHARS = 40
_JSON_TYPE = "application/json"


class EditRefused(SafeguardsError):
    """Raised when a letter cannot be sent as an edited copy, or not as asked; nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """
    The whole of what a person may change, as the copy is to have it.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        queue: name of one that the app knows; None: the way that the letter came.
        eta: aware; None: at once, or by the countdown.
        countdown_seconds: from the moment of sending; instead of an eta.

    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    eta: datetime | None = None
    countdown_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """
    A letter's message, opened for an edit.

    Attributes:
        edit: as it is.
        embed: what Celery sends beside the arguments: the canvas.
        unopened: envelopes that stay as they are, as JSON.

    """

    edit: Edit
    embed: Mapping[str, Any]
    unopened: frozenset[str] = frozenset()

    def value_of(self, text: str, what: str) -> Any:
        """
        Read JSON that a person has written.

        Args:
            text: JSON.
            what: it is, for people.

        Raises:
            EditRefused: it is no JSON, names something twice, is nested too deeply, or holds an envelope that is none.

        """

        def object_of(pairs: list[tuple[str, Any]]) -> Any:
            found = dict(pairs)
            if len(found) < len(pairs):
                twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
                raise EditRefused(f"{what}: {clean(twice, _NAME_CHARS)!r} stands twice in one object")
            return self._opened(found, what) if found.keys() == ENVELOPE else found

        try:
            value = json.loads(text, object_pairs_hook=object_of)
        except (ValueError, RecursionError) as error:
            raise EditRefused(f"{what}: this is no JSON ({clean(error, 200)}); text needs its quotes") from error
        _require_shallow(value, what)
        return value

    def args_of(self, text: str) -> list[Any]:
        """Read positional arguments; raises as `value_of` does."""
        value = self.value_of(text, "args")
        if not isinstance(value, list):
            raise EditRefused("args: give a JSON array, such as [42]")
        return value

    def kwargs_of(self, text: str) -> dict[str, Any]:
        """Read keyword arguments; raises as `value_of` does."""
        value = self.value_of(text, "kwargs")
        if not isinstance(value, dict):
            raise EditRefused('kwargs: give a JSON object, such as {"order_id": 42}')
        return value

    def _opened(self, envelope: dict[str, Any], what: str) -> Any:
        if dumps(envelope) in self.unopened:
            return envelope
        value = loads(dumps(envelope))
        if isinstance(value, dict) and value.keys() == ENVELOPE:
            named = f"{clean(envelope['__type__'], _NAME_CHARS)!r}"
            raise EditRefused(f"{what}: this is no value of type {named}, or that type is not known to this process")
        return value


def opened(letter: Letter, eta: datetime | None = None) -> Opened:
    """
    Open a letter's message for an edit.

    Args:
        letter: in any state.
        eta: that it still has.

    Raises:
        EditRefused: it is no JSON of Celery's message protocol 2, or is nested too deeply.
        LetterTruncated: it is not whole.

    """
    letter.require_whole()
    wire = letter.wire
    if not wire.headers.get("task") or not letter.task_id:
        raise EditRefused("its headers name no task and no id (task protocol 1, or none of Celery's): publish it anew")
    if wire.content_type != _JSON_TYPE:
        raise EditRefused(f"its body is {wire.content_type or 'of no known type'}, and only JSON is opened here")
    try:
        text = wire.body.decode(wire.content_encoding or "utf-8")
        args, kwargs, embed = loads(text)
        plain_args, plain_kwargs, _ = json.loads(text)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise EditRefused(f"its body is no task message: {clean(error, 200)}") from error
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise EditRefused("its body holds no positional and keyword arguments")
    for name, value in (("args", plain_args), ("kwargs", plain_kwargs)):
        _require_shallow(value, name)
    unopened = frozenset(dumps(each) for each in _mappings([args, kwargs]) if each.keys() == ENVELOPE)
    edit = Edit(args=args, kwargs=kwargs, eta=eta)
    return Opened(edit=edit, embed=embed if isinstance(embed, dict) else {}, unopened=unopened)


def as_text(value: Any) -> str:
    """Return a value as JSON for a person to edit: what cannot be printed is escaped, so nothing is hidden in it."""
    text = json.dumps(json.loads(dumps(value)), ensure_ascii=False, indent=2)
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def as_sent(edit: Edit) -> Edit:
    """
    Return an edit with the arguments that a worker gets of it: a tuple is a list there.

    Raises:
        EditRefused: JSON cannot carry an argument.

    """
    values = {}
    for name in ("args", "kwargs"):
        try:
            values[name] = loads(dumps(getattr(edit, name)))
        except (TypeError, ValueError, RecursionError) as error:
            raise EditRefused(f"{name}: JSON cannot carry this: {clean(error, 200)}") from error
        _require_shallow(values[name], name)
    return Edit(**values, queue=edit.queue, eta=edit.eta, countdown_seconds=edit.countdown_seconds)


def changed_fields(before: Edit, after: Edit) -> tuple[str, ...]:
    """Return the names of what differs, and no values: these go into histories and logs."""
    most = max(len(before.args), len(after.args))
    named = [(f"args[{at}]", before.args[at : at + 1], after.args[at : at + 1]) for at in range(most)]
    for name in dict.fromkeys([*before.kwargs, *after.kwargs]):
        pair = [[each.kwargs[name]] if name in each.kwargs else [] for each in (before, after)]
        named.append((f"kwargs.{clean(name, _NAME_CHARS)}", pair[0], pair[1]))
    changed = [name for name, old, new in named if dumps(old) != dumps(new)]
    changed += ["queue"] * (before.queue != after.queue)
    changed += ["eta"] * ((before.eta, before.countdown_seconds) != (after.eta, after.countdown_seconds))
    return tuple(changed)


def require_no_marks(before: Edit, after: Edit) -> None:
    """
    Refuse an edit in which a mark of what is hidden stands for the value itself.

    Raises:
        EditRefused: a text or a name in it has one, and none of the letter's own is the same.

    """
    own = set(_texts(before))
    for text in _texts(after):
        if (MARK in text or FAILED in text) and text not in own:
            raise EditRefused(
                f"{clean(text, 80)!r} stands for a hidden value, and is not sent: leave it as the form has it, which "
                "keeps the value, or write a new value in place of all of it"
            )


def in_words(changed: Sequence[str]) -> str:
    """Return changed fields in one line."""
    more = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
    return f"{', '.join(changed[:_MOST_NAMES])}{more}"


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"


def _require_shallow(value: Any, what: str) -> None:
    level, depth = [value], 0
    while level:
        if depth > MOST_DEPTH:
            raise EditRefused(f"{what}: nested deeper than {MOST_DEPTH} levels")
        level, depth = list(_children(level)), depth + 1


def _children(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list):
            yield from value


def _texts(edit: Edit) -> Iterable[str]:
    level: list[Any] = [json.loads(dumps([list(edit.args), dict(edit.kwargs)]))]
    while level:
        yield from (each for each in level if isinstance(each, str))
        yield from (key for each in level if isinstance(each, dict) for key in each)
        level = list(_children(level))


def _mappings(values: Iterable[Any]) -> Iterable[dict[str, Any]]:
    level = list(values)
    while level:
        yield from (each for each in level if isinstance(each, dict))
        level = list(_children(level))
