"""
`celery -A proj safeguards ...`: what an operator asks, and what he does about it.

Registered in the entry point group `celery.commands`, so every `celery` command loads this package: it only defines.

| exit code | means |
|---|---|
| 0 | done; there was something to show |
| 1 | nothing found, or something was refused; stderr says what; of `check`, that there is an error or a warning |
| 2 | usage: an option, an argument or a setting cannot hold |
| 3 | the store or the broker did not answer; of `check`, that something is not known |

With `--json` stdout holds one JSON document in ASCII and nothing else; whatever is said to people goes to stderr.
"""

from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_safeguards.cli.archiving import archive, restore
from celery_safeguards.cli.check import check
from celery_safeguards.cli.dead import dead
from celery_safeguards.cli.editing import edit_letter
from celery_safeguards.cli.erasing import erase_data
from celery_safeguards.cli.exits import ExitCodes
from celery_safeguards.cli.exporting import export_letters
from celery_safeguards.cli.groups import list_groups, regroup, show_group, triage
from celery_safeguards.cli.health import health
from celery_safeguards.cli.ingesting import ingest
from celery_safeguards.cli.keys import keys
from celery_safeguards.cli.locks import locks
from celery_safeguards.cli.overdue import overdue
from celery_safeguards.cli.replaying import replay, resume_letter
from celery_safeguards.cli.replays import replays
from celery_safeguards.cli.retry import retry
from celery_safeguards.cli.rights import guard
from celery_safeguards.cli.store import store


def _safeguards(context: click.Context, **_preloaded: Any) -> None:
    """Check the set-up; inspect and repair guarded work: dead letters, idempotency keys, locks, retries, the store."""
    app = context.obj.app
    # As a worker does first: it sets Django up, in whose database the store may be.
    app.loader.import_default_modules()
    # Only now are shared tasks registered, and with the first one the transport is chosen that workers have.
    app.finalize()


safeguards: click.Group = click.group(name="safeguards", cls=ExitCodes)(
    click.pass_context(handle_preload_options(_safeguards))
)
for _command in (edit_letter, erase_data, ingest, list_groups, regroup, replay, resume_letter, show_group, triage):
    dead.add_command(_command)
for _command in (archive, export_letters, restore):
    dead.add_command(_command)
for _command in (check, dead, health, keys, locks, overdue, replays, retry, store):
    safeguards.add_command(_command)
guard(safeguards)
