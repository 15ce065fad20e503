"""`dead erase`: one person's data, taken from letters and from the records of their keys."""

from collections.abc import Sequence
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.narrowing import terms_of_argument
from celery_safeguards.cli.options import as_json, by_whom
from celery_safeguards.cli.text import complain, print_json, say
from celery_safeguards.printable import counted
from celery_safeguards.replay.erasing import NOT_COVERED, Wanted, erase, find
from celery_safeguards.wiring import Wiring


@click.command(name="erase")
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@click.option("--argument", metavar="NAME=VALUE", help="All letters with this value of a searchable argument, exactly.")
@click.option("--key", metavar="KEY", help="All letters of an idempotency key, and its records.")
@click.option("--group", "fingerprint", metavar="GROUP", help="All letters of this group.")
@by_whom
@click.option("--reason", help="Why, for the letters' histories; nothing of what is erased.")
@click.option("--dry-run", is_flag=True, help="Say what would be erased.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_context
def erase_data(
    ctx: click.Context,
    *,
    letter_ids: Sequence[str],
    argument: str | None,
    key: str | None,
    fingerprint: str | None,
    who: str,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Take one person's data from letters, for ever: arguments, headers, errors, what people noted, and stored results.

    A letter stays, as erased, with its ids, task, kind and times; an open one is discarded first. The record of its key
    stays without its result, so that a duplicate is known for one. Safe when interrupted: say it again, until it exits
    with 0.
    """
    app = ctx.obj.app
    wanted = _wanted(Wiring.of(app), letter_ids, argument, key, fingerprint)
    if not dry_run and not reason:
        raise click.UsageError("give --reason: it goes into the letters' histories")
    found, done = find(app, wanted), None
    refused = found.refused
    counts = {"letters": found.letters, "keys": found.keys}
    if not dry_run:
        question = f"Erase {found}? It cannot be undone"
        if not yes and not click.confirm(question, err=True):
            raise click.Abort
        done = erase(app, wanted, who, reason or "")
        counts = {"letters": done.letters, "records": done.records, "samples": done.samples}
        counts["under_way"], refused = done.under_way, done.refused
    if as_json:
        whys = [{"letter_id": letter_id, "why": why} for letter_id, why in refused.items()]
        print_json({"dry_run": dry_run, **counts, "refused": whys, "not_covered": list(NOT_COVERED)})
    else:
        say(f"would erase {found}" if done is None else f"erased: {done}")
    if not as_json:
        for letter_id, why in refused.items():
            complain(f"not erased: letter {letter_id}: {why}")
        if counts.get("under_way"):
            records = counted(counts["under_way"], "record")
            complain(f"not erased: {records} of work that is under way: say it again later")
        complain("not covered, look there yourself:")
        for each in NOT_COVERED:
            complain(f"  {each}")
    ctx.exit(Exit.REFUSED if refused or counts.get("under_way") else Exit.DONE)


def _wanted(
    wiring: Any, letter_ids: Sequence[str], argument: str | None, key: str | None, fingerprint: str | None
) -> Wanted:
    if sum(bool(each) for each in (letter_ids, argument, key, fingerprint)) != 1:
        raise click.UsageError("give ids, --argument, --key or --group: one of them")
    if argument is not None:
        terms = terms_of_argument(wiring.search, argument)
        if not terms:
            raise click.UsageError("--argument: no letter is found by such a value")
        return Wanted(terms=terms, secret=argument.partition("=")[2])
    return Wanted(letter_ids=tuple(letter_ids), fingerprint=fingerprint, key=key, secret=key or "")
