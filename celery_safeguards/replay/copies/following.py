"""
What follows an edited copy: the canvas of its original, as work of its own.

| of the canvas | in the copy |
|---|---|
| links, the rest of the chain, errbacks | sent after it, as after a replay, but under ids of their own |
| its place in a group or chord, also that of the chain which it begins | left behind |

Under the old ids the copy's chain and that of the original, replayed, would be one: their chords would count each
other's parts. And a chord has counted its failed member already, or the chain that this one began: with its place the
copy would be counted a second time, and end the chord before the other members have (celery 5.7: a chord's place stands
in the headers of a member, and in the options of the last task of a chain that is one).

Ids that are taken away are made anew by Celery when what follows is sent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_OF_ONE_RUN = {"task_id", "reply_to", "root_id", "parent_id", "group_id", "group_index", "chord"}
_IN_OPTIONS = ("link", "link_error", "chain")
_IN_ARGUMENTS = ("tasks", "header", "body")
_OPTION_OF = {"callbacks": "link", "errbacks": "link_error", "chain": "chain"}
_WORDS = {"link": "linked", "link_error": "on an error", "chain": "then, in its chain"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What is sent after a copy, as options of `apply_async`; what is said of it."""

    options: Mapping[str, Any]
    words: tuple[str, ...] = ()
    leaves_chord: bool = False


def following(embed: Mapping[str, Any]) -> Following:
    """Return what follows the copy of a message whose body holds this beside its arguments."""
    options, words, left = {}, [], bool(embed.get("chord"))
    for name, option in _OPTION_OF.items():
        signatures = embed.get(name) or []
        signatures = list(signatures) if isinstance(signatures, list | tuple) else [signatures]
        if signatures:
            options[option] = [_as_new(each) for each in signatures]
            # Celery takes the chain from its end.
            order = signatures[::-1] if option == "chain" else signatures
            words.append(f"{_WORDS[option]}: {', '.join(_name_of(each) for each in order)}")
            left = left or any(_has_place(each) for each in signatures)
    return Following(options=options, words=tuple(words), leaves_chord=left)


def _as_new(signature: Any) -> Any:
    """Return a signature, and all that it holds, without what names one run of it."""
    if not isinstance(signature, dict) or "task" not in signature:
        return signature
    options = {name: value for name, value in (signature.get("options") or {}).items() if name not in _OF_ONE_RUN}
    options |= {name: _each(options[name]) for name in _IN_OPTIONS if name in options}
    changed = {**signature, "options": options}
    kwargs = signature.get("kwargs")
    if signature.get("subtask_type") and isinstance(kwargs, dict):
        changed["kwargs"] = {**kwargs, **{name: _each(kwargs[name]) for name in _IN_ARGUMENTS if name in kwargs}}
    return changed


def _each(value: Any) -> Any:
    return [_as_new(each) for each in value] if isinstance(value, list | tuple) else _as_new(value)


def _has_place(signature: Any) -> bool:
    """Whether a chord waits for this: for its result, or for that of the body which ends it."""
    if not isinstance(signature, dict):
        return False
    kwargs = signature.get("kwargs") or {}
    last = kwargs.get("body") if signature.get("subtask_type") == "chord" else None
    return bool((signature.get("options") or {}).get("chord")) or _has_place(last)


def _name_of(signature: Any) -> str:
    if not isinstance(signature, dict):
        return "?"
    parts: Iterable[Any] = ()
    kwargs = signature.get("kwargs") or {}
    if signature.get("subtask_type") == "chord":
        parts = [kwargs.get("header"), kwargs.get("body")]
    elif signature.get("subtask_type") in {"group", "chain"}:
        parts = kwargs.get("tasks") or ()
    inside = ", ".join(_name_of(part) for part in parts)
    name = str(signature.get("task"))
    return f"{name.removeprefix('celery.')} of ({inside})" if inside else name
