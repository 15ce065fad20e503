"""`dead archive` and `dead restore`: letters put away and brought back, with a result for each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json, by_whom
from celery_safeguards.cli.text import complain, print_json, say
from celery_safeguards.deadletter.letter import Letter, State
from celery_safeguards.deadletter.store import LetterStore
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.printable import clean, counted
from celery_safeguards.wiring import Wiring

_LETTERS_A_STEP = 200
_DONE: Mapping[State, str] = {"open": "archived", "archived": "restored"}
"""What becomes of letters that are chosen by this state."""
_Step = Callable[[Sequence[str]], Mapping[str, Letter | SafeguardsError]]
_ids = click.argument("letter_ids", metavar="[ID...]", nargs=-1)


@click.command()
@_ids
@click.option("--group", "fingerprint", metavar="GROUP", help="The letters of this group that are open.")
@by_whom
@click.option("--reason", required=True, help="Why they are put away, for the letters' histories.")
@as_json
@click.pass_context
def archive(
    ctx: click.Context, *, letter_ids: Sequence[str], fingerprint: str | None, who: str, reason: str, as_json: bool
) -> None:
    """
    Put letters away: they ask for no attention, are in no list unless it asks for them, and can be restored.

    Nothing is given up: a letter keeps its key, is closed by a success of its work, and opened by another failure.

    Exits with 0 if every letter was put away, else with 1.
    """
    store = Wiring.of(ctx.obj.app).letters
    _each(ctx, letter_ids, fingerprint, "open", lambda ids: store.archive(ids, who, reason), as_json=as_json)


@click.command()
@_ids
@click.option("--group", "fingerprint", metavar="GROUP", help="The letters of this group that are archived.")
@by_whom
@click.option("--reason", default="", help="Why, for the letters' histories; of several letters it is required.")
@as_json
@click.pass_context
def restore(
    ctx: click.Context, *, letter_ids: Sequence[str], fingerprint: str | None, who: str, reason: str, as_json: bool
) -> None:
    """Bring archived letters back to where each was; exits with 0 if every one came back, else with 1."""
    if (fingerprint is not None or len(letter_ids) > 1) and not reason.strip():
        raise click.UsageError("give --reason: it goes into the letters' histories")
    store = Wiring.of(ctx.obj.app).letters
    step = partial(store.restore, who=who, reason=reason)
    _each(ctx, letter_ids, fingerprint, "archived", step, as_json=as_json)


def _each(
    ctx: click.Context, letter_ids: Sequence[str], fingerprint: str | None, state: State, step: _Step, *, as_json: bool
) -> None:
    """Take a step with letters, by their ids or of a group, and tell what became of each."""
    if bool(letter_ids) == (fingerprint is not None):
        raise click.UsageError("give letters by their IDs, or --group")
    store = Wiring.of(ctx.obj.app).letters
    parts = _parts(letter_ids) if fingerprint is None else _parts_of_group(store, fingerprint, state)
    results: list[dict[str, str | None]] = []
    asked = done = 0
    for part in parts:
        for letter_id, became in step(part).items():
            asked, done = asked + 1, done + isinstance(became, Letter)
            if as_json:
                results.append(_plain(letter_id, became))
            else:
                say(f"{clean(letter_id)}  {clean(_words(became))}")
    if as_json:
        print_json({"results": results, "done": done, "asked": asked})
    else:
        complain(f"{done} of {counted(asked, 'letter')} {_DONE[state]}" if asked else "no letters")
    ctx.exit(Exit.DONE if asked and done == asked else Exit.REFUSED)


def _parts(letter_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(letter_ids), _LETTERS_A_STEP):
        yield letter_ids[first : first + _LETTERS_A_STEP]


def _parts_of_group(store: LetterStore, fingerprint: str, state: State) -> Iterator[Sequence[str]]:
    cursor = None
    while True:
        page = store.list(limit=_LETTERS_A_STEP, before=cursor, state=state, fingerprint=fingerprint)
        if page.letters:
            yield [letter.id for letter in page.letters]
        cursor = page.next_cursor
        if cursor is None:
            return


def _words(became: Letter | SafeguardsError) -> str:
    return became.state if isinstance(became, Letter) else str(became)


def _plain(letter_id: str, became: Letter | SafeguardsError) -> dict[str, str | None]:
    if isinstance(became, Letter):
        return {"letter_id": letter_id, "state": became.state, "refused": None}
    return {"letter_id": letter_id, "state": None, "refused": str(became)}
