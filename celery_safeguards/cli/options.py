"""Options that many commands have: JSON for a program, who says so, and what a replay needs."""

import getpass

import click

from celery_safeguards.replay.plan import Need

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


OPTIONS_OF = {
    Need.NOTHING: None,
    Need.VERDICT: "--happened RESULT or --did-not-happen",
    Need.CONSENT: "--did-not-happen or --yes-it-may-run-twice",
}
"""By which options a person adds what a replay needs."""


def login_name() -> str | None:
    """Return who runs this process; None: it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def require_name(ctx: click.Context, option: click.Parameter, name: str | None) -> str:
    """Ask for a name where there is none: `required` takes a default of None for one (click 8.5)."""
    if name is None:
        raise click.MissingParameter(ctx=ctx, param=option)
    return name


by_whom = click.option(
    "--by",
    "who",
    default=login_name,
    callback=require_name,
    show_default="your login name",
    help="Your name, for the history of what you change.",
)
