"""`store init`: tell a new store that nobody can be running yet."""

import click

from celery_safeguards.cli.text import complain
from celery_safeguards.wiring import Wiring


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
    if not yes:
        click.confirm(f"Is it certain that no worker of {where} runs?", abort=True, err=True)
    wiring.admission.declare_new()
    complain(f"{where} is declared new: keyed work starts at once")
