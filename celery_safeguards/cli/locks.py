"""`locks list`, `locks show`, `locks release`: who holds a lock, who waits for it, and how an orphan is freed."""

from collections.abc import Iterator
from typing import Any

import click

from celery_safeguards._names import host_name
from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json, login_name, require_name
from celery_safeguards.cli.text import complain, print_fields, print_json, print_table, quoted_text_hint
from celery_safeguards.locks.shown import describe, fields, named, span
from celery_safeguards.locks.store import LockUnreadable
from celery_safeguards.releasing import Look
from celery_safeguards.releasing import look as look_at
from celery_safeguards.releasing import release as release_it
from celery_safeguards.wiring import Wiring

_HEAD = ("LOCK", "STATE", "AGE", "LEASE LEFT", "WAITING", "FENCE", "HOST", "PID", "WORKER", "OWNER")


@click.group()
def locks() -> None:
    """Entity locks: who holds one, who waits for it, and the release of an orphan."""


@locks.command(name="list")
@click.option("--all", "also_free", is_flag=True, help="Also locks that are free, used within a day.")
@click.option("--task", help="Only those that this task holds, or held last.")
@click.option("--host", help="Only those that this host's processes hold, or held last.")
@as_json
@click.pass_context
def list_locks(ctx: click.Context, *, also_free: bool, task: str | None, host: str | None, as_json: bool) -> None:
    """List locks that are held or waited for, the longest held first."""
    store = Wiring.of(ctx.obj.app).locks
    # A name may come twice while the store is being written to.
    found = []
    for name in sorted(set(store.names())):
        try:
            found.append(describe(store, name))
        except LockUnreadable as error:
            complain(f"lock {name} cannot be read: {error}")
    chosen = [
        each
        for each in found
        if (also_free or each["state"] != "free" or each["waiting"])
        and task in {None, each["task"]}
        and host in {None, each["host"]}
    ]
    chosen.sort(key=lambda each: -(each["age_seconds"] or 0.0))
    if as_json:
        print_json({"locks": chosen})
    elif chosen:
        print_table(_HEAD, [tuple(_row(each)) for each in chosen])
    else:
        complain("no locks")
    ctx.exit(Exit.DONE if chosen else Exit.REFUSED)


@locks.command()
@click.argument("name", metavar="NAME")
@as_json
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """
    Show one lock, by its name as `locks list` writes it, and who waits for it.

    The name is the rendered key, such as order:42 or 'stock:"A-1"', and with a scope SCOPE#order:42.
    """
    found = describe(Wiring.of(ctx.obj.app).locks, name)
    if as_json:
        print_json(found)
    elif found["fence"]:
        print_fields(fields(found))
    if not found["fence"]:
        complain(f"nobody has held lock {name} within a day{quoted_text_hint(name)}")
    ctx.exit(Exit.DONE if found["fence"] else Exit.REFUSED)


@locks.command()
@click.argument("name", metavar="NAME")
@click.option("--override", is_flag=True, help="Also if its owner may be alive: two may then work at once.")
@click.option("--reason", help="Why, for the log; --override needs one.")
@click.option(
    "--by",
    "by",
    default=login_name,
    callback=require_name,
    show_default="your login name",
    help="Your name, for the log.",
)
@as_json
@click.pass_context
def release(ctx: click.Context, *, name: str, override: bool, reason: str | None, by: str, as_json: bool) -> None:
    """
    Release a lock whose owner is shown dead.

    Shown by one of: its lease is over; its process was on this host and does not exist; its worker, up since before,
    answers that it has neither the task nor its process. A worker that does not answer shows nothing.

    Whoever has waited longest has the lock next.
    """
    if override and not (reason or "").strip():
        raise click.UsageError("--override needs --reason: the log must say why two may work at once")
    app = ctx.obj.app
    found = look_at(app, name)
    if not found.state.owner:
        complain(f"nobody holds lock {name}{quoted_text_hint(name)}")
        ctx.exit(Exit.REFUSED)
    may_release = found.evidence.is_dead or override
    if may_release:
        release_it(app, found, by=f"{by}@{host_name()}", reason=reason)
    if as_json:
        print_json(_plain_release(found, is_released=may_release))
    for finding in found.findings:
        complain(finding)
    complain(found.released if may_release else found.not_released)
    ctx.exit(Exit.DONE if may_release else Exit.REFUSED)


def _row(found: dict[str, Any]) -> Iterator[object]:
    yield from (found["name"], found["state"], span(found["age_seconds"]), span(found["lease_left_seconds"]))
    yield from (len(found["waiting"]), found["fence"], found["host"], found["pid"], found["worker"] or "-")
    yield f"{found['task']}[{found['task_id']}]" if found["task"] else "plain code"


def _plain_release(found: Look, *, is_released: bool) -> dict[str, Any]:
    return {
        "name": found.state.name,
        "released": is_released,
        "is_shown_dead": found.evidence.is_dead,
        "findings": [{"shows": each.shows.value, "text": each.text} for each in found.evidence.findings],
        **named(found.state.holder),
        "owner": found.state.owner,
        "fence": found.state.fence,
    }
