"""`dead edit`: an edited copy of a letter, sent as work of its own."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from celery_safeguards.cli.options import as_json, by_whom
from celery_safeguards.cli.text import complain, print_fields, print_json, say
from celery_safeguards.deadletter.changes import look_at, require_found
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.pipeline.indexing import shown
from celery_safeguards.printable import clean
from celery_safeguards.replay import Edit, EditRefused, MaskedEdit, Prepared, masked, prepare, send_edited
from celery_safeguards.replay.copies.copying import known_queues, opened_at, with_argument
from celery_safeguards.replay.copies.edit import Opened, as_text
from celery_safeguards.replay.copies.locked import locked_fields
from celery_safeguards.wiring import Wiring

_AT_ONCE = "none"
_WHOLE: dict[str, Any] = {"args": [], "kwargs": {}, "queue": None, "eta": None}


@click.command(name="edit")
@click.argument("letter_id", metavar="ID")
@click.option("--args", "args_text", metavar="JSON", help="All positional arguments, as an array.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="All keyword arguments, as an object.")
@click.option("--set", "settings", metavar="NAME=JSON", multiple=True, help="One argument, by its name.")
@click.option("--queue", help="One that the app knows; else the way that the letter came.")
@click.option("--eta", metavar="ISO", help=f"Not before this time, with its zone; '{_AT_ONCE}': at once.")
@click.option("--countdown", type=click.FloatRange(0), help="Not before so many seconds are over.")
@by_whom
@click.option("--reason", help="Why, for the letter's history.")
@click.option("--yes-it-may-run-twice", is_flag=True, help="Consent, where no key holds two effects apart.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and what cannot be edited.")
@as_json
@click.pass_context
def edit_letter(
    ctx: click.Context,
    *,
    letter_id: str,
    args_text: str | None,
    kwargs_text: str | None,
    settings: Sequence[str],
    queue: str | None,
    eta: str | None,
    countdown: float | None,
    who: str,
    reason: str | None,
    yes_it_may_run_twice: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """
    Send a copy of a letter with other arguments, another queue or time, as work of its own; the letter stays.

    Without an option that changes something, your $EDITOR opens. Values that JSON does not have keep their type as
    Celery sends them: {"__type__": "decimal", "__value__": "10.10"}. What is hidden stands there as "[redacted 3]":
    left as it is, it goes out as it was.
    """
    app = ctx.obj.app
    wiring = Wiring.of(app)
    letter = require_found(wiring.letters.get(letter_id), letter_id)
    found = opened_at(letter, wiring.clock.wall_seconds())
    seen = masked(app, letter, found)
    if args_text is None and kwargs_text is None and not settings and not (queue or eta or countdown is not None):
        edit = seen.edit if dry_run else _edited_by_hand(found, seen.edit)
    else:
        edit = _of_options(found, seen.edit, args_text, kwargs_text, queue=queue, eta=eta, countdown=countdown)
        edit = _with_settings(app, letter, found, edit, settings)
    if dry_run:
        _print_ahead(app, letter, seen, edit, as_json=as_json)
        return
    if not reason:
        raise click.UsageError("give --reason: it goes into the letter's history")
    whole, look = seen.restored(edit), look_at(letter)
    sent = send_edited(app, letter_id, who, whole, reason, look=look, may_run_twice=yes_it_may_run_twice)
    if as_json:
        print_json({"letter_id": letter_id, "task_id": sent.task_id, "changed": list(sent.changed)})
    else:
        say(f"{clean(letter_id)}  a copy is sent as task {clean(sent.task_id)}: changes {', '.join(sent.changed)}")


def _of_options(
    found: Opened,
    edit: Edit,
    args_text: str | None,
    kwargs_text: str | None,
    *,
    queue: str | None,
    eta: str | None,
    countdown: float | None,
) -> Edit:
    if args_text is not None:
        edit = replace(edit, args=_given(found.args_of, args_text))
    if kwargs_text is not None:
        edit = replace(edit, kwargs=_given(found.kwargs_of, kwargs_text))
    if eta is not None and eta != _AT_ONCE and countdown is not None:
        raise click.UsageError("--eta and --countdown: give one of them")
    if eta is not None:
        edit = replace(edit, eta=_moment_of(eta))
    if countdown is not None:
        edit = replace(edit, eta=None if eta is None else edit.eta, countdown_seconds=countdown)
    return replace(edit, queue=queue)


def _with_settings(app: Any, letter: Letter, found: Opened, edit: Edit, settings: Sequence[str]) -> Edit:
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--set {clean(setting, 80)}: give NAME=JSON")
        edit = with_argument(app, letter, edit, name, _given(lambda given: found.value_of(given, "--set"), text))
    return edit


def _edited_by_hand(found: Opened, edit: Edit) -> Edit:
    eta = edit.eta.isoformat() if edit.eta else None
    text = as_text({"args": list(edit.args), "kwargs": edit.kwargs, "queue": edit.queue, "eta": eta})
    changed = click.edit(text, extension=".json")
    if changed is None:
        raise EditRefused("nothing was saved, so nothing is sent")
    whole = _given(found.kwargs_of, changed)
    unknown = whole.keys() - _WHOLE.keys()
    args, kwargs, queue, eta = (whole.get(name, default) for name, default in _WHOLE.items())
    is_text = all(each is None or isinstance(each, str) for each in (queue, eta))
    if unknown or not is_text or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise click.UsageError(
            "keep args (an array), kwargs (an object), queue and eta (text or null), and add nothing"
        )
    return Edit(args=args, kwargs=kwargs, queue=queue, eta=_moment_of(eta or _AT_ONCE))


def _given(read: Callable[[str], Any], text: str) -> Any:
    """What is no JSON is a mistake in the command, not a refusal of the letter's."""
    try:
        return read(text)
    except EditRefused as error:
        raise click.UsageError(clean(error, 500)) from error


def _on_one_line(value: Any) -> str:
    # Its line breaks and their indent are for an editor; those of a text in it are escaped.
    return " ".join(line.strip() for line in as_text(value).split("\n"))


def _moment_of(text: str) -> datetime | None:
    if text == _AT_ONCE:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--eta {clean(text, 80)}: give a time such as 2025-03-01T12:00+00:00") from error
    if moment.tzinfo is None:
        raise click.UsageError(f"--eta {clean(text, 80)}: say of which zone, such as {clean(text, 80)}+00:00")
    return moment


def _print_ahead(app: Any, letter: Letter, seen: MaskedEdit, edit: Edit, *, as_json: bool) -> None:
    """Say what may be edited and what would be sent; raises what a sending would."""
    prepared: Prepared | None = None if edit == seen.edit else prepare(app, letter, seen.restored(edit))
    locked = locked_fields(letter, shown(Wiring.of(app), letter, app.tasks).wire)
    if as_json:
        print_json(
            {
                "args": json.loads(as_text(list(edit.args))),
                "kwargs": json.loads(as_text(edit.kwargs)),
                "queues": known_queues(app),
                "locked": [{"name": each.name, "value": each.value, "why": each.why} for each in locked],
                "changes": list(prepared.changed) if prepared else [],
                "key": prepared.key if prepared else None,
                "notes": list(prepared.notes) if prepared else [],
                "needs": prepared.consent or None if prepared else None,
            }
        )
        return
    print_fields(
        [
            ("args", _on_one_line(list(edit.args))),
            ("kwargs", _on_one_line(edit.kwargs)),
            ("queues", ", ".join(known_queues(app))),
            *((f"locked: {each.name}", f"{each.value} ({each.why})") for each in locked),
            *(("the copy", note) for note in (prepared.notes if prepared else ())),
            ("needs", f"--yes-it-may-run-twice: {prepared.consent}" if prepared and prepared.consent else None),
        ]
    )
    complain("nothing was sent")
