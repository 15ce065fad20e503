"""`dead groups`, `dead group`, `dead triage`, `dead regroup`: letters by their causes, and what people say of one."""

from dataclasses import asdict, replace
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.narrowing import KINDS
from celery_safeguards.cli.options import as_json, by_whom
from celery_safeguards.cli.text import complain, print_fields, print_json, print_table, progress
from celery_safeguards.deadletter.group import HOUR_SECONDS, STATUSES, LetterGroup, NoSuchGroup, ReleaseFailures
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.shown.playbook import playbook_of
from celery_safeguards.deadletter.store import LetterStore
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.indexing import indexed, redaction_of
from celery_safeguards.printable import counted, when
from celery_safeguards.wiring import Wiring

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_HOURS = 24
_LETTERS_A_TRIP = 200


@click.command(name="groups")
@click.option(
    "--status",
    type=click.Choice([*STATUSES, "any"]),
    default="any",
    show_default=True,
    help="Only groups that people say this of.",
)
@click.option("--task", help="Only this task's.")
@click.option("--kind", type=KINDS, help="Only failures of this kind.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", help="Go on from the cursor of an earlier page.")
@as_json
@click.pass_context
def list_groups(
    ctx: click.Context,
    *,
    status: str,
    task: str | None,
    kind: str | None,
    limit: int,
    before: str | None,
    as_json: bool,
) -> None:
    """List letters by their causes, the newest failure first."""
    wanted: Any = None if status == "any" else status
    wiring = Wiring.of(ctx.obj.app)
    page = wiring.letters.groups(
        limit=limit, before=before, status=wanted, task=task, kind=FailureKind(kind) if kind else None
    )
    page = replace(page, groups=tuple(_shown(wiring, group) for group in page.groups))
    if as_json:
        groups = [_plain(group) for group in page.groups]
        print_json({"groups": groups, "next_cursor": page.next_cursor, "unreadable": page.unreadable})
    elif page.groups:
        # Where nobody names them, a column of theirs would be empty.
        named = any(group.releases for group in page.groups)
        head = (
            *("GROUP", "STATUS", "OPEN", "LETTERS", "FAILURES", f"LAST {_SHOWN_HOURS} H"),
            *(["RELEASES"] if named else []),
            *("KIND", "TASK", "ERROR"),
        )
        print_table(head, [_row(group, wiring.clock.wall_seconds(), named=named) for group in page.groups])
    else:
        complain("no groups")
    if not as_json:
        for fingerprint in page.unreadable:
            complain(f"group {fingerprint} cannot be read: damaged, or written by a newer version")
        if page.next_cursor is not None:
            complain(f"there are more: --before '{page.next_cursor}'")
    ctx.exit(Exit.DONE if page.groups or page.unreadable else Exit.REFUSED)


@click.command(name="group")
@click.argument("fingerprint", metavar="GROUP")
@as_json
@click.pass_context
def show_group(ctx: click.Context, fingerprint: str, as_json: bool) -> None:
    """Show one group: how many, since when and in which releases, and what people have said of it."""
    wiring = Wiring.of(ctx.obj.app)
    group = wiring.letters.get_group(fingerprint)
    if group is None:
        raise NoSuchGroup(f"there is no group {fingerprint}")
    group = _shown(wiring, group)
    named = {"fingerprint": group.fingerprint, "task": group.task, "kind": group.kind}
    playbook = playbook_of(wiring.settings.playbooks, **named)
    if as_json:
        print_json({**_plain(group), "playbook": playbook or None})
    else:
        _print_group(group, wiring.clock.wall_seconds(), playbook)


@click.command()
@click.argument("fingerprint", metavar="GROUP")
@click.option("--status", type=click.Choice(STATUSES), help="How it stands; a failure reopens what is resolved.")
@click.option("--assign", "assignee", metavar="NAME", help="Whose it is; '' for nobody's.")
@click.option("--note", help="What is known of it, instead of the note that is there.")
@click.option("--reason", default="", help="With --status: why, for the group's history.")
@click.option(
    "--failures-seen",
    type=click.IntRange(0),
    help="With --status: refuse if it has failed more often by now; `dead group` shows the number.",
)
@by_whom
@as_json
@click.pass_context
def triage(
    ctx: click.Context,
    *,
    fingerprint: str,
    status: Any,
    assignee: str | None,
    note: str | None,
    reason: str,
    failures_seen: int | None,
    who: str,
    as_json: bool,
) -> None:
    """Say how a group stands, whose it is, and what is known of it."""
    if status is None and assignee is None and note is None:
        raise click.UsageError("give --status, --assign or --note")
    if status is None and (reason or failures_seen is not None):
        raise click.UsageError("--reason and --failures-seen go with --status")
    wiring = Wiring.of(ctx.obj.app)
    letters: LetterStore = wiring.letters
    # The one that may be refused is first: what is refused has said nothing.
    if status is not None:
        letters.declare_group(fingerprint, status, who, reason, failures_seen=failures_seen)
    if assignee is not None:
        letters.assign_group(fingerprint, assignee, who)
    if note is not None:
        letters.annotate_group(fingerprint, note, who)
    group = letters.get_group(fingerprint)
    if as_json:
        print_json(None if group is None else _plain(_shown(wiring, group)))
    else:
        complain(f"group {fingerprint} is {group.status if group else 'gone'}")


@click.command()
@as_json
@click.pass_context
def regroup(ctx: click.Context, as_json: bool) -> None:
    """
    Count letters of an older version in their groups, and have all letters found by what the settings say now.

    Say it once after an upgrade, and when safeguards_searchable_arguments, safeguards_sensitive_arguments or their
    secret have changed. Safe while workers run, when interrupted, and when said again: a letter is counted once.
    """
    app = ctx.obj.app
    wiring = Wiring.of(app)
    letters: LetterStore = wiring.letters
    found, unreadable, cursor = 0, 0, None

    def again(letter: Letter) -> Letter:
        return indexed(wiring, letter, app.tasks)

    with progress() as tell:
        while True:
            page = letters.list(limit=_LETTERS_A_TRIP, before=cursor)
            found += sum(letters.regroup(letter.id, again) for letter in page.letters)
            unreadable += len(page.unreadable)
            tell(found + unreadable)
            cursor = page.next_cursor
            if cursor is None:
                break
    if as_json:
        print_json({"letters": found, "unreadable": unreadable})
    else:
        complain(f"in their groups and in the index: {counted(found, 'letter')}; {unreadable} cannot be read")


def sparkline(group: LetterGroup, now_seconds: float) -> str:
    """Return failures of the last hours as bars, the newest last; an hour without any is a blank."""
    last_hour = int(now_seconds // HOUR_SECONDS)
    counts = [group.hours.get(hour, 0) for hour in range(last_hour - _SHOWN_HOURS + 1, last_hour + 1)]
    most = max(counts)
    return "".join(_BARS[(len(_BARS) - 1) * count // most] if count else " " for count in counts)


def _shown(wiring: Wiring, group: LetterGroup) -> LetterGroup:
    return replace(group, sample=redaction_of(wiring).text("error", group.sample, group.task))


def _row(group: LetterGroup, now_seconds: float, *, named: bool) -> tuple[object, ...]:
    error = ": ".join(filter(None, (group.error_type, group.sample)))
    return (
        *(group.fingerprint, _status(group), group.counts.get("open", 0), group.letters, group.failures),
        f"[{sparkline(group, now_seconds)}]",
        *([_from_to(group)] if named else []),
        *(group.kind, group.task or "-", error),
    )


def _from_to(group: LetterGroup) -> str:
    """Return the release that a group came with and the one that failed last."""
    last = group.releases[-1].release if group.releases else "?"
    first = group.first_release or "?"
    return first if first == last else f"{first} to {last}"


def _in_release(release: str) -> str:
    return f", in release {release}" if release else ""


def _status(group: LetterGroup) -> str:
    is_reopened = group.status == "open" and group.reopened_seconds is not None
    return "reopened" if is_reopened else group.status


def _of_release(found: ReleaseFailures) -> str:
    first, last = when(found.first_failed_seconds), when(found.last_failed_seconds)
    return f"{found.release}: {found.failures}, first {first}, last {last}"


def _print_group(group: LetterGroup, now_seconds: float, playbook: str) -> None:
    reopened = group.reopened_seconds
    states = ", ".join(f"{count} {state}" for state, count in group.counts.items())
    print_fields(
        [
            ("group", group.fingerprint),
            ("status", _status(group)),
            ("reopened", reopened and f"{when(reopened)}{_in_release(group.reopened_release)}"),
            ("assignee", group.assignee or None),
            ("note", group.note or None),
            ("playbook", playbook or None),
            ("task", group.task or None),
            ("kind", group.kind),
            ("error", group.error_type or None),
            ("sample", group.sample or None),
            ("", f"of letter {group.sample_letter_id}"),
            ("letters", states or "none"),
            ("failures", f"{group.failures}  [{sparkline(group, now_seconds)}] the last {_SHOWN_HOURS} hours"),
            ("first failed", f"{when(group.first_failed_seconds)}{_in_release(group.first_release)}"),
            ("last failed", when(group.last_failed_seconds)),
            *(("in release", _of_release(each)) for each in reversed(group.releases)),
        ]
    )
    for entry in group.history:
        print_fields([(when(entry.at_seconds), f" {entry.what} by {entry.who}: {entry.detail}")])


def _plain(group: LetterGroup) -> dict[str, Any]:
    names = (
        *("fingerprint", "status", "assignee", "note", "task", "kind", "error_type", "sample", "sample_letter_id"),
        *("failures", "counts", "first_failed_seconds", "last_failed_seconds", "reopened_seconds"),
        *("first_release", "reopened_release"),
    )
    hours = {when(hour * HOUR_SECONDS): count for hour, count in sorted(group.hours.items())}
    history = [
        {"at_seconds": each.at_seconds, "what": each.what, "who": each.who, "detail": each.detail}
        for each in group.history
    ]
    releases = [asdict(each) for each in group.releases]
    said = {"failures_by_hour": hours, "releases": releases, "history": history}
    return {**{name: getattr(group, name) for name in names}, **said}
