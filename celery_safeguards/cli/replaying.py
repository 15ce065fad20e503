"""`dead replay` and `dead resume`: letters sent again, with a result for each."""

import json
from collections.abc import Sequence
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import OPTIONS_OF, as_json, by_whom
from celery_safeguards.cli.text import complain, print_json, say
from celery_safeguards.policy import DidNotHappen, Happened
from celery_safeguards.printable import clean
from celery_safeguards.replay import Fate, Result, replay_many, resume
from celery_safeguards.replay.plan import PersonsVerdict

_UNAVAILABLE = {Fate.NOT_PUBLISHED, Fate.STORE_UNAVAILABLE}
happened = click.option("--happened", metavar="RESULT_JSON", help="It happened: record this as its result.")
did_not_happen = click.option("--did-not-happen", is_flag=True, help="It did not happen: let it start.")
may_run_twice = click.option("--yes-it-may-run-twice", is_flag=True, help="Consent, for work without a key.")


@click.command()
@click.argument("letter_ids", metavar="ID...", nargs=-1, required=True)
@by_whom
@happened
@did_not_happen
@may_run_twice
@click.option("--reason", default="", help="Why, for the letters' histories; of several letters it is required.")
@as_json
@click.pass_context
def replay(
    ctx: click.Context,
    *,
    letter_ids: Sequence[str],
    who: str,
    happened: str | None,
    did_not_happen: bool,
    yes_it_may_run_twice: bool,
    reason: str,
    as_json: bool,
) -> None:
    """
    Send letters again at once, under new task ids and their original keys; for many of them see `replays start`.

    Exits with 0 if every letter was sent, with 3 if the store or the broker did not answer, which ends it, else with 1.
    """
    verdict = _verdict(happened, did_not_happen)
    if isinstance(verdict, Happened) and len(letter_ids) > 1:
        raise click.UsageError("--happened records one result: give one ID")
    if len(letter_ids) > 1 and not reason.strip():
        raise click.UsageError("give --reason: it goes into the letters' histories")
    results: list[Result] = []
    said: dict[str, Any] = {"verdict": verdict, "may_run_twice": yes_it_may_run_twice, "reason": reason}
    for result in replay_many(ctx.obj.app, letter_ids, who, **said):
        results.append(result)
        if not as_json:
            _print_result(result)
            if OPTIONS_OF[result.lacks]:
                complain(f"give {OPTIONS_OF[result.lacks]}")
        if result.fate in _UNAVAILABLE:
            # Each of the others would wait as long, and be left in the midst of a replay.
            break
    not_tried = letter_ids[len(results) :]
    sent = sum(result.fate is Fate.REPLAYED for result in results)
    if as_json:
        plain = [_plain(result) for result in results]
        asked = {"replayed": sent, "asked": len(letter_ids), "not_tried": list(not_tried)}
        print_json({"results": plain, **asked})
    else:
        complain(f"{sent} of {len(letter_ids)} replayed")
    if not_tried:
        complain(f"not tried, since that would not answer for them either: {' '.join(not_tried)}")
    ctx.exit(_exit_code(results))


@click.command(name="resume")
@click.argument("letter_id", metavar="ID")
@by_whom
@happened
@did_not_happen
@may_run_twice
@as_json
@click.pass_context
def resume_letter(
    ctx: click.Context,
    *,
    letter_id: str,
    who: str,
    happened: str | None,
    did_not_happen: bool,
    yes_it_may_run_twice: bool,
    as_json: bool,
) -> None:
    """
    Send a replay that was cut short again, under the same task id.

    Only once whoever began it has ended: a letter stays "replaying" when that process was killed, or when the broker
    did not take its message.
    """
    app = ctx.obj.app
    verdict = _verdict(happened, did_not_happen)
    sent = resume(app, letter_id, who, verdict, may_run_twice=yes_it_may_run_twice)
    result = Result(letter_id=letter_id, fate=Fate.REPLAYED, task_id=sent.task_id)
    if as_json:
        print_json(_plain(result))
    else:
        _print_result(result)


def _verdict(happened: str | None, did_not_happen: bool) -> PersonsVerdict | None:
    if happened is not None and did_not_happen:
        raise click.UsageError("--happened and --did-not-happen: give one of them")
    if happened is None:
        return DidNotHappen() if did_not_happen else None
    try:
        return Happened(json.loads(happened))
    except ValueError as error:
        raise click.UsageError(f"--happened: {clean(happened, 80)} is no JSON ({error}); text needs quotes") from error


def _print_result(result: Result) -> None:
    under = f" as task {result.task_id}" if result.task_id and result.fate is Fate.REPLAYED else ""
    say(f"{clean(result.letter_id)}  {clean(result)}{clean(under)}")


def _plain(result: Result) -> dict[str, Any]:
    return {
        "letter_id": result.letter_id,
        "fate": result.fate.value,
        "task_id": result.task_id,
        "reason": result.reason or None,
    }


def _exit_code(results: Sequence[Result]) -> Exit:
    if any(result.fate in _UNAVAILABLE for result in results):
        return Exit.UNAVAILABLE
    return Exit.DONE if results and all(result.fate is Fate.REPLAYED for result in results) else Exit.REFUSED
