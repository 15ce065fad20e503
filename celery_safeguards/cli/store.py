"""`store init`, `store purge`: begin a store, and take out of it what is over."""

from typing import Protocol, runtime_checkable

import click

from celery_safeguards.cli.dead import as_json
from celery_safeguards.cli.text import complain, print_json
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
    Delete what is over: records past their retention, counts of lost starts, locks that nobody has used for a day.

    Safe while workers run, and when interrupted. Dead letters stay, with the records of their work. Say once a day, for
    a store in a database; in Redis everything expires by itself.
    """
    wiring = Wiring.of(ctx.obj.app)
    deleted = wiring.admission.purge(batch) if isinstance(wiring.admission, _Purges) else None
    if as_json:
        print_json({"namespace": wiring.settings.namespace, "deleted": deleted or 0})
    where = f"namespace {wiring.settings.namespace!r}"
    complain(f"{where}: everything expires by itself" if deleted is None else f"{where}: {deleted} rows are deleted")
