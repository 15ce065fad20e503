"""`dead list`, `dead show`, `dead discard`: dead letters, read and given up."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.narrowing import Narrowed, narrowing
from celery_safeguards.cli.options import OPTIONS_OF, as_json, by_whom
from celery_safeguards.cli.text import complain, print_fields, print_json, print_table, say
from celery_safeguards.deadletter.arguments import arguments_of
from celery_safeguards.deadletter.changes import require_found
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.port.reading import Page
from celery_safeguards.deadletter.retention import kept_in_words, kept_until, left_in_words, over_since
from celery_safeguards.deadletter.shown.playbook import playbook_of
from celery_safeguards.pipeline.indexing import shown
from celery_safeguards.printable import clean_lines, counted, when
from celery_safeguards.replay.discarding import discard as give_up
from celery_safeguards.replay.outlook import Outlook, outlook
from celery_safeguards.wiring import Wiring

_SUMMARY = (
    *(
        "id",
        "fingerprint",
        "state",
        "kind",
        "effect_possible",
        "reason",
        "task",
        "task_id",
        "key",
        "scope",
        "replay_task_id",
    ),
    *("error_type", "error_message", "attempts", "lost_starts", "first_seen_seconds", "last_failed_seconds", "release"),
)


@click.group()
def dead() -> None:
    """Dead letters: work that failed for good, with everything needed to send it again."""


@dead.command(name="list")
@narrowing
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", help="Go on from the cursor of an earlier page.")
@as_json
@click.pass_context
def list_letters(ctx: click.Context, /, *, limit: int, before: str | None, as_json: bool, **given: str | None) -> None:
    """List letters, the newest failure first: all, or what is searched for."""
    wiring = Wiring.of(ctx.obj.app)
    narrowed = Narrowed(**given)
    terms, sought = narrowed.sought(wiring.search)
    page = wiring.letters.list(limit=limit, before=before, **narrowed.options(wiring.search))
    matched = {letter.id: wiring.search.matches(letter, sought) for letter in page.letters} if terms else {}
    page = replace(page, letters=tuple(shown(wiring, letter, ctx.obj.app.tasks) for letter in page.letters))
    if as_json:
        letters = [
            {**_summary(letter), **_kept(wiring, letter), **({"matched": matched[letter.id]} if terms else {})}
            for letter in page.letters
        ]
        print_json({"letters": letters, "next_cursor": page.next_cursor, "unreadable": page.unreadable})
    else:
        _print_page(wiring, page, matched)
    ctx.exit(Exit.DONE if page.letters or page.unreadable else Exit.REFUSED)


@dead.command()
@click.argument("letter_id", metavar="ID")
@as_json
@click.pass_context
def show(ctx: click.Context, letter_id: str, as_json: bool) -> None:
    """Show one letter: its arguments, error and history, and what a replay would do."""
    app = ctx.obj.app
    wiring = Wiring.of(app)
    letter = require_found(wiring.letters.get(letter_id), letter_id)
    ahead = outlook(app, letter, wiring.clock.wall_seconds())
    letter = shown(wiring, letter, app.tasks)
    named = {"fingerprint": letter.fingerprint, "task": letter.task, "kind": letter.kind}
    playbook = playbook_of(wiring.settings.playbooks, **named)
    if as_json:
        arguments = arguments_of(letter.wire)
        document = {
            "letter": json.loads(letter.to_json(), parse_constant=str),
            **_kept(wiring, letter),
            "arguments": arguments.plain,
            "replay": {
                "possible": ahead.refused is None,
                "refused": ahead.refused,
                "needs": OPTIONS_OF[ahead.needs],
                "notes": list(ahead.notes),
            },
        }
        print_json({**document, "note": arguments.note or None, "playbook": playbook or None})
    else:
        retention = wiring.settings.letter_retention_seconds
        _print_letter(letter, ahead, playbook, kept_in_words(letter, retention, wiring.clock.wall_seconds()))


@dead.command()
@click.argument("letter_id", metavar="ID")
@by_whom
@click.option("--reason", required=True, help="Why it is given up, for the letter's history.")
@click.pass_context
def discard(ctx: click.Context, letter_id: str, who: str, reason: str) -> None:
    """Give up an open letter: it stays readable, is never sent again, and its key is free for a new publication."""
    give_up(ctx.obj.app, letter_id, who, reason)
    complain(f"letter {letter_id} is discarded")


def _summary(letter: Letter) -> dict[str, Any]:
    return {name: getattr(letter, name) for name in _SUMMARY}


def _kept(wiring: Wiring, letter: Letter) -> dict[str, float | None]:
    until = kept_until(letter, wiring.settings.letter_retention_seconds)
    return {"over_seconds": over_since(letter), "kept_until_seconds": until}


def _print_page(wiring: Wiring, page: Page, matched: Mapping[str, Sequence[str]]) -> None:
    if page.letters:
        retention, now = wiring.settings.letter_retention_seconds, wiring.clock.wall_seconds()
        has_ends = any(kept_until(each, retention) is not None for each in page.letters)
        more = [*(["KEPT FOR"] if has_ends else []), *(["MATCHED"] if matched else [])]
        head = ("LETTER", "STATE", "KIND", "TASK", "KEY", "LAST FAILED", *more, "ERROR")
        rows = [
            (
                *(each.id, each.state, each.kind, each.task or "-", each.key or "-", when(each.last_failed_seconds)),
                *([left_in_words(each, retention, now)] if has_ends else []),
                *([", ".join(matched[each.id])] if matched else []),
                _error(each),
            )
            for each in page.letters
        ]
        print_table(head, rows)
    else:
        complain("no letters")
    for name in page.unreadable:
        complain(f"letter {name} cannot be read: damaged, or written by a newer version")
    if page.next_cursor is not None:
        complain(f"there are more: --before '{page.next_cursor}'")


def _print_letter(letter: Letter, ahead: Outlook, playbook: str, kept: str) -> None:
    arguments = arguments_of(letter.wire)
    print_fields(
        [
            ("letter", letter.id),
            ("group", letter.fingerprint),
            ("state", _state(letter)),
            ("kept", kept),
            ("task", f"{letter.task or '(not named)'} [{letter.task_id or 'no id'}]"),
            ("before that", ", ".join(letter.earlier_task_ids) or None),
            ("key", letter.key),
            ("scope", letter.scope),
            ("kind", f"{letter.kind}, an outside effect is {'' if letter.effect_possible else 'not '}possible"),
            ("reason", letter.reason),
            ("error", _error(letter)),
            ("playbook", playbook or None),
            ("attempts", f"{letter.attempts}, {counted(letter.lost_starts, 'start')} without an outcome"),
            ("first seen", when(letter.first_seen_seconds)),
            ("last failed", f"{when(letter.last_failed_seconds)} on {letter.host or 'a host unknown'}"),
            ("in release", letter.release or None),
            ("root, parent", f"{letter.root_id or '-'}, {letter.parent_id or '-'}"),
            ("canvas group", letter.group_id),
            ("edited from", letter.edited_from),
            *arguments.shown,
            ("body", arguments.note or None),
            ("not found by", letter.terms_note or None),
            ("replay", ahead.refused or "possible"),
            ("replay needs", OPTIONS_OF[ahead.needs]),
            *(("", note) for note in ahead.notes),
        ]
    )
    if letter.traceback:
        say("traceback")
        for line in clean_lines(letter.traceback.rstrip()):
            say(f"  {line}")
    _print_attempts(letter)
    for entry in letter.history:
        print_fields([(when(entry.at_seconds), f" {_entry(entry)}")])


def _print_attempts(letter: Letter) -> None:
    if letter.attempt_history:
        rows = [
            (
                *(each.number, when(each.at_seconds), each.ended, each.worker or "-", each.release or "-"),
                *(each.task_id or "-", ": ".join(filter(None, (each.error_type, each.message))) or "-"),
            )
            for each in letter.attempt_history
        ]
        print_table(("ATTEMPT", "WHEN", "ENDED", "WORKER", "RELEASE", "TASK ID", "ERROR"), rows, last_chars=200)


def _state(letter: Letter) -> str:
    if letter.archived_from:
        return f"{letter.state}, was {letter.archived_from}"
    return f"{letter.state} as task {letter.replay_task_id}" if letter.replay_task_id else letter.state


def _entry(entry: HistoryEntry) -> str:
    return ": ".join(filter(None, (f"{entry.what} by {entry.who or 'the system'}", entry.detail)))


def _error(letter: Letter) -> str:
    return ": ".join(filter(None, (letter.error_type, letter.error_message)))
