"""`locks list`, `locks show`, `locks release`: who holds a lock, who waits for it, and how an orphan is freed."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import click

from celery_safeguards._names import host_name
from celery_safeguards.cli.dead import as_json, login_name, require_name
from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.owners import find_out
from celery_safeguards.cli.text import complain, print_fields, print_json, print_table
from celery_safeguards.clock import to_seconds
from celery_safeguards.locks.evidence import Evidence, evidence_of
from celery_safeguards.locks.store import HeldLock, LockAsk, LockState, LockStore
from celery_safeguards.printable import clean, duration
from celery_safeguards.wiring import Wiring

logger = logging.getLogger("celery_safeguards")
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
    found = [describe(store, name) for name in sorted(set(store.names()))]
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

    The name is the rendered key, such as order:42, and with a scope SCOPE#order:42.
    """
    found = describe(Wiring.of(ctx.obj.app).locks, name)
    if as_json:
        print_json(found)
    elif found["fence"]:
        _print_lock(found)
    if not found["fence"]:
        complain(f"nobody has held lock {name} within a day")
    ctx.exit(Exit.DONE if found["fence"] else Exit.REFUSED)


@locks.command()
@click.argument("name", metavar="NAME")
@click.option("--override", is_flag=True, help="Also if its owner may be alive: two may then work at once.")
@click.option("--reason", help="Why, for the log; --override needs one.")
@click.option("--by", "by", default=login_name, callback=require_name, help="Your name, for the log.")
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
    state, found = find_out(app, name)
    if not state.owner:
        complain(f"nobody holds lock {name}")
        ctx.exit(Exit.REFUSED)
    evidence = evidence_of(state, found)
    may_release = evidence.is_dead or override
    if may_release:
        # Of this owner at this fence alone: whoever has it by now, or next, keeps it.
        ask = LockAsk(name=name, owner=state.owner, lease_seconds=1.0)
        Wiring.of(app).locks.release(HeldLock(ask=ask, fence=state.fence))
        _log_release(state, evidence, f"{by}@{host_name()}", reason)
    if as_json:
        print_json(_plain_release(state, evidence, is_released=may_release))
    for finding in evidence.findings:
        complain(f"{finding.shows}: {finding.text}")
    if may_release:
        complain(f"lock {name} of {who(state.holder)} is released")
    else:
        complain(f"lock {name} is not released: its owner, {who(state.holder)}, is not shown dead")
    ctx.exit(Exit.DONE if may_release else Exit.REFUSED)


def describe(store: LockStore, name: str) -> dict[str, Any]:
    """Return what is known of a lock, and of who holds it or held it last; fence 0: nobody has within a day."""
    state, now_us = store.read(name)
    is_held = state.is_held(now_us)
    return {
        "name": name,
        "state": "held" if is_held else "lapsed" if state.owner else "free",
        **_holder(state.holder),
        "owner": state.owner or None,
        "age_seconds": to_seconds(now_us - state.since_us) if state.owner else None,
        "lease_left_seconds": to_seconds(state.lease_until_us - now_us) if is_held else None,
        "fence": state.fence,
        "waiting": [
            {**_holder(each.holder), "owner": each.owner, "waits_seconds": to_seconds(now_us - each.since_us)}
            for each in store.waiting(name)
        ],
    }


def who(holder: Mapping[str, Any]) -> str:
    """Return an owner in words."""
    work = f"{holder.get('task')}[{holder.get('task_id')}]" if holder.get("task") else "plain code"
    return f"{work}, process {holder.get('pid')} on {holder.get('host')}"


def _holder(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {name: holder.get(name) or None for name in ("task", "task_id", "worker", "host", "pid")}


def _row(found: dict[str, Any]) -> Iterator[object]:
    yield from (found["name"], found["state"], _duration(found["age_seconds"]), _duration(found["lease_left_seconds"]))
    yield from (len(found["waiting"]), found["fence"], found["host"], found["pid"], found["worker"] or "-")
    yield f"{found['task']}[{found['task_id']}]" if found["task"] else "plain code"


def _print_lock(found: dict[str, Any]) -> None:
    print_fields(
        [
            ("lock", found["name"]),
            ("state", found["state"]),
            ("held by" if found["owner"] else "held last by", who(found)),
            ("worker", found["worker"]),
            ("age", found["owner"] and _duration(found["age_seconds"])),
            ("lease left", found["owner"] and _duration(found["lease_left_seconds"])),
            ("fence", found["fence"]),
            *(("waits", f"{_duration(each['waits_seconds'])}: {who(each)}") for each in found["waiting"]),
        ]
    )


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(max(0.0, seconds))


def _log_release(state: LockState, evidence: Evidence, by: str, reason: str | None) -> None:
    found = "; ".join(f"{each.shows}: {each.text}" for each in evidence.findings)
    message = "lock %s at fence %s released by %s, %s (reason: %s); it was held by %s (%s)"
    how = "its owner shown dead" if evidence.is_dead else "OVERRIDE, its owner not shown dead"
    words = (state.name, state.fence, by, how, reason or "none given", who(state.holder), found)
    logger.warning(message, *(clean(word) for word in words))


def _plain_release(state: LockState, evidence: Evidence, *, is_released: bool) -> dict[str, Any]:
    return {
        "name": state.name,
        "released": is_released,
        "is_shown_dead": evidence.is_dead,
        "findings": [{"shows": each.shows.value, "text": each.text} for each in evidence.findings],
        **_holder(state.holder),
        "owner": state.owner,
        "fence": state.fence,
    }
