"""
A letter's arguments as a person may edit them: what is hidden stands there as a mark, and goes out as it was.

    {"user": "ann", "cards": [{"number": "[redacted 5]"}], "note": "[redacted 7: call [redacted]]"}

A mark bears the number of its place among all that the arguments hold. So it is known wherever it stands in an edit:
lists may be reordered around it, entries taken away or added. It is left as it is, which sends the value; or it is
replaced by another one. The number says nothing of the value, and is the same whatever else is hidden by then.

A mark is taken only where its value stays hidden: under the same names, and so that the copy, when it dies, shows of
it what the letter does. Else an edit would be a way to read what nobody shall see, by moving it into a comment.

What is no mark any more is refused (`edit.require_no_marks`), so that nobody is sent "[redacted]" for a password.

Not covered: that a person changes what is hidden without knowing it; and whoever runs Python, who reads the store.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery_safeguards.deadletter.arguments import JSON, plain_of
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.shown.masking import FAILED, MASK, names_of_places
from celery_safeguards.deadletter.wire import WireMessage, dumps
from celery_safeguards.pipeline.indexing import redaction_of, shown, signature_of
from celery_safeguards.printable import clean
from celery_safeguards.replay.copies.edit import ENVELOPE, MARK, Edit, EditRefused, Opened
from celery_safeguards.wiring import Wiring

_NAME_CHARS = 80
_ABSENT = object()
"""Of what is seen where nothing can be: all of it is hidden."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """One value that is not shown; `names`: those that lead to it; `seen`: what is shown of it elsewhere."""

    value: Any
    names: tuple[str, ...]
    seen: Any


@dataclass(frozen=True, slots=True)
class MaskedEdit:
    """
    An edit as a person may see it.

    Attributes:
        edit: a letter's arguments, with marks.
        hidden: what each mark stands for.

    """

    edit: Edit
    hidden: Mapping[str, Hidden]
    _app: Any
    _letter: Letter

    def restored(self, edit: Edit) -> Edit:
        """
        Return what a person has made of `edit`, with the values that its marks stand for.

        Raises:
            EditRefused: a mark stands where its value would be shown.

        """
        if not self.hidden:
            return edit
        places: list[tuple[str, tuple[Any, ...]]] = []
        names = names_of_places(_signature(self._app, self._letter), len(edit.args))
        args = [
            self._restored(value, (name,), ("args", at), places)
            for at, (name, value) in enumerate(zip(names, edit.args, strict=True))
        ]
        kwargs = {name: self._restored(value, (name,), ("kwargs", name), places) for name, value in edit.kwargs.items()}
        whole = replace(edit, args=args, kwargs=kwargs)
        if places:
            self._require_hidden(whole, places)
        return whole

    def _restored(
        self, value: Any, names: tuple[str, ...], place: tuple[Any, ...], places: list[tuple[str, tuple[Any, ...]]]
    ) -> Any:
        if isinstance(value, str):
            found = self.hidden.get(value)
            if found is None:
                return value
            if found.names != names:
                raise EditRefused(
                    f"{clean(value, _NAME_CHARS)} stands for a hidden value of {_dotted(found.names)}, and is left or "
                    f"replaced there: it cannot go to {_dotted(names)}"
                )
            places.append((value, place))
            return found.value
        if isinstance(value, dict):
            return {
                key: self._restored(each, (*names, key), (*place, key), places) if isinstance(key, str) else each
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._restored(each, names, (*place, at), places) for at, each in enumerate(value)]
        return value

    def _require_hidden(self, whole: Edit, places: list[tuple[str, tuple[Any, ...]]]) -> None:
        seen = _seen(self._app, replace(self._letter, wire=wire_of(self._letter, whole)))
        for text, place in places:
            now = _at(seen, place)
            if now is not _ABSENT and not _is_same(now, self.hidden[text].seen):
                raise EditRefused(
                    f"{clean(text, _NAME_CHARS)}: with the other changes its value would not be hidden any more: write "
                    f"a new value for {_dotted(self.hidden[text].names)}"
                )


def masked(app: Any, letter: Letter, opened: Opened) -> MaskedEdit:
    """Return a letter's opened message as a person may see it; `app`: one that may know the task."""
    plain, _ = plain_of(letter.wire)
    edit = opened.edit
    names = names_of_places(_signature(app, letter), len(edit.args))
    walk, seen = _Walk(_mark_of(edit)), _seen(app, letter)
    pairs = [(("args", at), name) for at, name in enumerate(names)] + [(("kwargs", name), name) for name in edit.kwargs]
    true = {"args": edit.args, "kwargs": edit.kwargs}
    found = {place: walk.value(_at(true, place), _at(plain, place), _at(seen, place), (name,)) for place, name in pairs}
    args = [found["args", at] for at in range(len(names))]
    kwargs = {name: found["kwargs", name] for name in edit.kwargs}
    return MaskedEdit(replace(edit, args=args, kwargs=kwargs), walk.hidden, app, letter)


def without_values(app: Any, letter: Letter, edit: Edit, text: str) -> str:
    """Return an error of an edit without what is hidden in the letter or the edit: it may quote their arguments."""
    redaction, signature = redaction_of(Wiring.of(app)), _signature(app, letter)
    for wire in _wires_of(letter, edit):
        text = redaction.text_of("failure", text, wire, letter.task, signature)
    return text


def wire_of(letter: Letter, edit: Edit) -> WireMessage:
    """
    Return a letter's message with the arguments of an edit, to be looked at; it is none to be sent.

    Raises:
        TypeError, ValueError, RecursionError: JSON cannot carry them.

    """
    body = dumps([list(edit.args), dict(edit.kwargs), {}]).encode()
    return replace(letter.wire, body=body, content_type=JSON, content_encoding="utf-8")


class _Walk:
    """One walk through what a letter holds, through its JSON, and through what is seen of it."""

    def __init__(self, mark: str) -> None:
        self.hidden: dict[str, Hidden] = {}
        self._mark = mark
        self._count = 0

    def value(self, true: Any, plain: Any, seen: Any, names: tuple[str, ...]) -> Any:
        """Return a value with marks for what is hidden in it."""
        number = self._count
        self._count += 1
        together = (true, plain, seen)
        if all(isinstance(each, dict) for each in together) and true.keys() == plain.keys() == seen.keys() != ENVELOPE:
            return {key: self.value(true[key], plain[key], seen[key], (*names, key)) for key in true}
        if all(isinstance(each, list) for each in together) and len(true) == len(plain) == len(seen):
            return [self.value(*each, names) for each in zip(*together, strict=True)]
        self._count += sum(1 for _ in _inside(plain))
        if _is_same(plain, seen):
            return true
        text = f"{self._mark} {number}{_said(seen)}]"
        self.hidden[text] = Hidden(true, names, seen)
        return text


def _said(seen: Any) -> str:
    if seen is _ABSENT or seen in (MASK, FAILED):
        return ""
    return f": {seen if isinstance(seen, str) else json.dumps(seen)}"


def _mark_of(edit: Edit) -> str:
    """Return how marks begin: as no text of the letter's own does."""
    mark, texts = MARK, dumps([list(edit.args), edit.kwargs])
    while f"{mark} " in texts:
        mark = f"[{mark}"
    return mark


def _seen(app: Any, letter: Letter) -> dict[str, Any] | None:
    """Return what is shown of a letter's arguments; None: nothing."""
    return plain_of(shown(Wiring.of(app), letter, app.tasks).wire)[0]


def _signature(app: Any, letter: Letter) -> inspect.Signature | None:
    return signature_of(app.tasks.get(letter.task))


def _wires_of(letter: Letter, edit: Edit) -> Iterator[WireMessage]:
    yield letter.wire
    try:
        wire = wire_of(letter, edit)
    except (TypeError, ValueError, RecursionError):
        # It cannot be sent either.
        return
    yield wire


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    """Return what stands at a place; `_ABSENT`: it has none, for what is around it is hidden."""
    for step in place:
        if not (step in value if isinstance(value, dict) else isinstance(value, list) and step in range(len(value))):
            return _ABSENT
        value = value[step]
    return value


def _inside(value: Any) -> Iterator[Any]:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield each
        yield from _inside(each)


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (_ABSENT not in (one, other) and json.dumps(one) == json.dumps(other))


def _dotted(names: tuple[str, ...]) -> str:
    return clean(".".join(names), _NAME_CHARS)
