"""
Who may run which command: what each needs, and the project's function that says who has it.

Unset, whoever can run a command may. With `safeguards_command_rights` its answer is asked for before anything is read
or done. It keeps people from what is not theirs to do, and is no wall: who can run a command can read the project's
settings, and with them store and broker, and the name that `--by` gives is a word, not a proof.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import wraps
from typing import Any

import click
from celery.utils.imports import symbol_by_name

from celery_safeguards.cli.options import login_name
from celery_safeguards.errors import ConfigurationError, SafeguardsError
from celery_safeguards.wiring import Wiring


class Right(StrEnum):
    """What a person may; the Django app has a permission for each."""

    VIEW = "view"
    VIEW_PAYLOAD = "view_payload"
    VIEW_LOCKS = "view_locks"
    VIEW_JOBS = "view_jobs"
    TRIAGE = "triage"
    REPLAY = "replay"
    RESOLVE = "resolve"
    DISCARD = "discard"
    ARCHIVE = "archive"
    EDIT = "edit"
    EXPORT = "export"
    ERASE = "erase"
    RELEASE = "release"


class NotAllowed(SafeguardsError):
    """Raised when the project's function does not give a person a right."""


_Rights = tuple[Right, ...]
_Given = Mapping[str, Any]


def _to_replay(given: _Given) -> _Rights:
    return (Right.RESOLVE if given["happened"] is not None or given["did_not_happen"] else Right.REPLAY,)


def _to_export(given: _Given) -> _Rights:
    # What is found by an argument's value tells whose it is.
    shows_payload = given["with_payload"] or given["argument"] is not None or given["text"] is not None
    return (Right.EXPORT, *([Right.VIEW_PAYLOAD] if shows_payload else []))


NEEDS: Mapping[str, _Rights | Callable[[_Given], _Rights]] = {
    "check": (),
    "health": (),
    "retry preview": (),
    "dead list": (Right.VIEW, Right.VIEW_PAYLOAD),
    "dead show": (Right.VIEW, Right.VIEW_PAYLOAD),
    "dead groups": (Right.VIEW, Right.VIEW_PAYLOAD),
    "dead group": (Right.VIEW, Right.VIEW_PAYLOAD),
    # Its document is that of `dead group`, with what the newest failure said.
    "dead triage": lambda given: (Right.TRIAGE, *([Right.VIEW, Right.VIEW_PAYLOAD] if given["as_json"] else [])),
    "dead replay": _to_replay,
    "dead resume": _to_replay,
    "dead discard": (Right.DISCARD,),
    "dead archive": (Right.ARCHIVE,),
    "dead restore": (Right.ARCHIVE,),
    "dead edit": (Right.EDIT, Right.VIEW_PAYLOAD),
    "dead export": _to_export,
    "dead erase": (Right.ERASE, Right.VIEW_PAYLOAD),
    "keys show": (Right.VIEW, Right.VIEW_PAYLOAD),
    "locks list": (Right.VIEW_LOCKS,),
    "locks show": (Right.VIEW_LOCKS,),
    "locks release": (Right.VIEW_LOCKS, Right.RELEASE),
    "overdue": lambda given: (Right.REPLAY if given["resend"] else Right.VIEW,),
    # What the tasks' own functions answer quotes what work was given.
    "replays start": lambda given: (Right.REPLAY, *([Right.VIEW_PAYLOAD] if given["ask_most"] else [])),
    "replays run": (Right.REPLAY,),
    "replays pause": (Right.REPLAY,),
    "replays resume": (Right.REPLAY,),
    "replays cancel": (Right.REPLAY,),
    "replays list": (Right.VIEW_JOBS,),
    "replays show": (Right.VIEW_JOBS,),
    # Upkeep, which no person does: it shows nothing, and loses nothing that is to be kept.
    "dead ingest": (),
    "dead regroup": (),
    "store init": (),
    "store purge": (),
}
"""What each command needs, by its words; a function: by what it was given."""


def commands_of(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below a group, and its words."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands_of(command, *before, name)
        else:
            yield " ".join((*before, name)), command


def guard(group: click.Group) -> None:
    """Have every command below a group ask first."""
    for words, command in commands_of(group):
        if command.callback is not None:
            command.callback = _asking(words, command.callback)


def _asking(words: str, act: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(act)
    def ask_and_act(*args: Any, **given: Any) -> Any:
        allows = _function(click.get_current_context().obj.app)
        if allows is not None:
            needed = NEEDS[words]
            _require(allows, words, given.get("who", given.get("by")) or login_name(), _rights(needed, given))
        return act(*args, **given)

    return ask_and_act


def _rights(needed: _Rights | Callable[[_Given], _Rights], given: _Given) -> _Rights:
    return needed(given) if callable(needed) else needed


def _require(allows: Callable[[str, str], bool], words: str, name: str | None, rights: _Rights) -> None:
    missing = [right for right in rights if name is None or not allows(name, right.value)]
    if missing:
        raise NotAllowed(f"{name or 'nobody'} may not: {words} needs {', '.join(missing)}")


def _function(app: Any) -> Callable[[str, str], bool] | None:
    named = Wiring.of(app).settings.command_rights
    if not isinstance(named, str):
        return named
    try:
        found: Callable[[str, str], bool] = symbol_by_name(named)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"safeguards_command_rights={named!r} cannot be imported: {error}") from error
    return found
