"""`keys show`: what the store knows of one idempotency key."""

from typing import Any

import click

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json
from celery_safeguards.cli.text import complain, print_fields, print_json, quoted_text_hint, say
from celery_safeguards.clock import to_seconds
from celery_safeguards.deadletter.letter import LetterUnreadable
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.pipeline.indexing import shown as shown_letter
from celery_safeguards.pipeline.indexing import shown_failure
from celery_safeguards.replay.erasing import scopes_of
from celery_safeguards.wiring import Wiring


@click.group()
def keys() -> None:
    """Idempotency keys: who holds one, how often it was started, how it ended."""


@keys.command()
@click.argument("key", metavar="KEY")
@click.option("--task", help="The task whose key it is.")
@click.option("--scope", help="The scope, where tasks share keys.")
@as_json
@click.pass_context
def show(ctx: click.Context, key: str, task: str | None, scope: str | None, as_json: bool) -> None:
    """
    Show the records of a key as logs and letters write it, such as payment:42 or 'payment:"A-1"'.

    Without --task and --scope every scope that this app's tasks use is looked at.
    """
    if task and scope:
        raise click.UsageError("--task and --scope: give one of them")
    app = ctx.obj.app
    admission = Wiring.of(app).admission
    scopes = [scope] if scope else _scopes(app, task)
    try:
        found = [record for name in scopes if (record := admission.read(RecordKey(name, key))) is not None]
    except ValueError as error:
        complain(str(error))
        ctx.exit(Exit.REFUSED)
    now_us = admission.view().now_us
    records = [{**shown(record, now_us), "failure": _failure(app, record)} for record in found]
    if as_json:
        print_json({"key": key, "scopes": scopes, "records": records})
    else:
        for plain in records:
            print_fields((name.replace("_", " "), value) for name, value in plain.items() if value not in ("", [], {}))
            say()
    if not records:
        where = ", ".join(scopes) or "any scope: this app has no idempotent task"
        complain(f"no record of {key} in {where}{quoted_text_hint(key)}")
    ctx.exit(Exit.DONE if records else Exit.REFUSED)


def _failure(app: Any, record: Record) -> dict[str, Any]:
    wiring = Wiring.of(app)
    try:
        letter = wiring.letters.get(record.letter_id) if record.letter_id else None
    except LetterUnreadable:
        letter = None
    seen = None if letter is None else shown_letter(wiring, letter, app.tasks)
    return shown_failure(wiring, record.failure, seen, record.task)


def _scopes(app: Any, task: str | None) -> list[str]:
    """Return the scopes of idempotent tasks; one that is not known here is taken to use its name."""
    if task is None:
        return scopes_of(app)
    plan = getattr(app.tasks.get(task), "plan", None)
    return [task if plan is None else plan.record_key("").scope]


def shown(record: Record, now_us: int) -> dict[str, Any]:
    """Return what helps to understand a record; the result itself is left out, it may be large or a secret."""
    running = record.state is State.IN_PROGRESS
    due_us = record.not_before_us if record.state is State.RETRY_DUE else 0
    return {
        "scope": record.scope,
        "key": record.key,
        "state": record.state.value,
        "is_live": record.is_live(now_us),
        "owner": record.owner,
        "fence": record.fence,
        "lease_left_seconds": to_seconds(record.lease_until_us - now_us) if running else None,
        "was_lost": bool(record.lost_us) if running else None,
        "is_asking_verify": record.asking if running else None,
        "due_in_seconds": max(0.0, to_seconds(due_us - now_us)) if due_us else None,
        "attempts": record.attempt,
        "lost_starts": record.lost_starts,
        "effect_possible": record.effect_possible,
        "task": record.task,
        "task_id": record.task_id,
        "series": list(record.series),
        "letter_id": record.letter_id or None,
        "fingerprint": record.fingerprint,
        "result_form": record.result_form.value if record.state is State.DONE else None,
        "unsent_publishes": len(record.publishes) or None,
    }
