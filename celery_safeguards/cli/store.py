"""`store init`, `store purge`: begin a store, and take out of it what is over."""

from typing import Protocol, runtime_checkable

import click

from celery_safeguards.cli.options import as_json
from celery_safeguards.cli.text import complain, print_json
from celery_safeguards.printable import counted
from celery_safeguards.replay.purging import purge_letters
from celery_safeguards.wiring import Wiring


@runtime_checkable
class _Purges(Protocol):
    """A store of records in which nothing expires by itself."""

    def purge(self, batch: int) -> int:
        """Delete what is over, at most `batch` rows in one transaction, and return how many rows it was."""
        ...


@click.group()
def store() -> None:
    """The store of records, claims and letters."""


@store.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def init(ctx: click.Context, yes: bool) -> None:
    """
    Declare a new store: keyed work starts at once.

    A store that is empty may be new, or may have been wiped under running workers. Nobody can tell, so nobody is
    admitted for one lease, in which workers that live write their claims back.

    Safe only before the first worker of this namespace runs: on deployment, or in a test. After a wipe under running
    workers it would let a second body start beside the first.
    """
    wiring = Wiring.of(ctx.obj.app)
    where = f"namespace {wiring.settings.namespace!r}"
    view = wiring.admission.view()
    if view.now_us >= max(view.admit_from_us, view.takeover_from_us):
        complain(f"{where} is in use, and nothing waits: nothing to do")
        return
    if not yes:
        click.confirm(f"Is it certain that no worker of {where} runs?", abort=True, err=True)
    wiring.admission.declare_new()
    complain(f"{where} is declared new: keyed work starts at once")


@store.command()
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Rows in one transaction."
)
@as_json
@click.pass_context
def purge(ctx: click.Context, batch: int, as_json: bool) -> None:
    """
    Delete what is over: dead letters that were closed or discarded safeguards_letter_retention_seconds ago, groups
    that have none any more, and replay jobs past safeguards_job_retention_seconds; in a database also records past
    their retention, counts of lost starts, and locks that nobody has used for a day (in Redis these expire by
    themselves).

    Safe while workers run, when interrupted, and beside another purge. Letters of work that is not over stay, with the
    records of their work, however old they are. Say once a day.
    """
    wiring = Wiring.of(ctx.obj.app)
    deleted = wiring.admission.purge(batch) if isinstance(wiring.admission, _Purges) else None
    gone = purge_letters(wiring, batch)
    jobs = _purge_jobs(wiring, batch)
    if as_json:
        counts = {"deleted": deleted or 0, "letters": gone.letters, "groups": gone.groups, "jobs": jobs}
        print_json({"namespace": wiring.settings.namespace, **counts})
    rows = (
        "records and locks expire by themselves"
        if deleted is None
        else f"{counted(deleted, 'row')} {'is' if deleted == 1 else 'are'} deleted"
    )
    kept = "" if wiring.settings.letter_retention_seconds else " (letters are kept for ever, as the settings say)"
    letters, groups = counted(gone.letters, "letter"), counted(gone.groups, "group")
    removed = f"{letters} and {groups} are removed{kept}, and {counted(jobs, 'replay job')}"
    complain(f"namespace {wiring.settings.namespace!r}: {rows}; {removed}")


def _purge_jobs(wiring: Wiring, batch: int) -> int:
    """Delete replay jobs that were over long ago, in any store."""
    made_before = wiring.clock.wall_seconds() - wiring.settings.job_retention_seconds
    deleted = gone = wiring.jobs.purge(made_before, batch)
    while gone == batch:
        gone = wiring.jobs.purge(made_before, batch)
        deleted += gone
    return deleted
