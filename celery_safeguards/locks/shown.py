"""A lock as people see it: who holds it, for how long, and who waits; the same words in a terminal and in the admin."""

from collections.abc import Iterable, Mapping
from typing import Any

from celery_safeguards.clock import to_seconds
from celery_safeguards.locks.store import LockState, LockStore, Waiting
from celery_safeguards.printable import duration


def describe(store: LockStore, name: str) -> dict[str, Any]:
    """Return what is known of a lock, and of who holds it or held it last; fence 0: nobody has within a day."""
    state, now_us = store.read(name)
    return described(state, now_us, store.waiting(name))


def described(state: LockState, now_us: int, waiting: Iterable[Waiting]) -> dict[str, Any]:
    """Return the same of a lock that was read."""
    is_held = state.is_held(now_us)
    return {
        "name": state.name,
        "state": "held" if is_held else "lapsed" if state.owner else "free",
        **named(state.holder),
        "owner": state.owner or None,
        "age_seconds": to_seconds(now_us - state.since_us) if state.owner else None,
        "lease_left_seconds": to_seconds(state.lease_until_us - now_us) if is_held else None,
        "fence": state.fence,
        "waiting": [
            {**named(each.holder), "owner": each.owner, "waits_seconds": to_seconds(now_us - each.since_us)}
            for each in waiting
        ],
    }


def named(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an owner has said of itself; None: it has not."""
    return {name: holder.get(name) or None for name in ("task", "task_id", "worker", "host", "pid")}


def who(holder: Mapping[str, Any]) -> str:
    """Return an owner in words."""
    work = f"{holder.get('task')}[{holder.get('task_id')}]" if holder.get("task") else "plain code"
    if not holder.get("pid") and not holder.get("host"):
        return f"{work}, in a process that is not named"
    return f"{work}, process {holder.get('pid')} on {holder.get('host')}"


def fields(found: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return names and values of what `describe` has found; None: there is none."""
    return [
        ("lock", found["name"]),
        ("state", found["state"]),
        ("held by" if found["owner"] else "held last by", who(found)),
        ("worker", found["worker"]),
        ("age", found["owner"] and span(found["age_seconds"])),
        ("lease left", found["owner"] and span(found["lease_left_seconds"])),
        ("fence", found["fence"]),
        *(("waits", f"{span(each['waits_seconds'])}: {who(each)}") for each in found["waiting"]),
    ]


def span(seconds: float | None) -> str:
    """Return a time in words; two clocks may disagree, and none of it is less than nothing."""
    return "-" if seconds is None else duration(max(0.0, seconds))
