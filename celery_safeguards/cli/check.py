"""`check`: what a person should look at before work is trusted to this app."""

from collections import Counter
from difflib import get_close_matches
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json
from celery_safeguards.cli.text import complain, print_json, say
from celery_safeguards.diagnose.asking import Answer, ask
from celery_safeguards.diagnose.explaining import explain
from celery_safeguards.findings import KINDS, Finding, Severity
from celery_safeguards.printable import clean

_ORDER = list(Severity)


@click.command()
@as_json
@click.option("--explain", "explained", metavar="ID", help="Only show what a finding means, such as SG104.")
@click.pass_context
def check(ctx: click.Context, as_json: bool, explained: str | None) -> None:
    """
    Check settings, tasks, the broker and the fleet of workers.

    Connects to the broker for what only it knows; the pool and the prefetch are those of the settings, which a worker's
    command line may change. Exits with 1 if there is an error or a warning, else with 3 if something is not known, else
    with 0.
    """
    if explained is not None:
        _explain(ctx, explained, as_json=as_json)
        return
    answer = ask(ctx.obj.app)
    findings = sorted(answer.findings, key=lambda each: (_ORDER.index(each.severity), each.id, each.about))
    if as_json:
        print_json(_plain(answer, findings))
    else:
        _print(answer, findings)
    ctx.exit(_exit_code(findings))


def _explain(ctx: click.Context, finding_id: str, *, as_json: bool) -> None:
    wanted = finding_id.upper()
    if wanted not in KINDS:
        near = get_close_matches(wanted, KINDS, n=1)
        complain(f"no finding {finding_id}{f'; did you mean {near[0]}?' if near else ''}")
        ctx.exit(Exit.REFUSED)
    if as_json:
        kind = KINDS[wanted]
        print_json({"id": wanted, "severity": kind.severity, "title": kind.title, "page": explain(wanted)})
    else:
        say(explain(wanted))


def _print(answer: Answer, findings: list[Finding]) -> None:
    say(clean(answer.visibility))
    for report in answer.fleet:
        say(clean(report))
    for finding in findings:
        say(f"{finding.severity:<8}{clean(finding)}")
    counts = Counter(each.severity for each in findings)
    complain(", ".join(f"{counts[each]} {each}" for each in Severity if counts[each]) or "nothing found")


def _plain(answer: Answer, findings: list[Finding]) -> dict[str, Any]:
    visibility = answer.visibility
    return {
        "visibility": {
            "broker": visibility.broker or None,
            "timeout_seconds": visibility.timeout_seconds,
            "latest_redelivery_seconds": visibility.latest_seconds,
            "is_renewed": visibility.is_renewed,
            "is_effective": visibility.is_live,
        },
        "fleet": [each.plain() for each in answer.fleet],
        "findings": [
            {"id": each.id, "severity": each.severity, "title": KINDS[each.id].title, "text": each.text}
            for each in findings
        ],
    }


def _exit_code(findings: list[Finding]) -> Exit:
    if any(each.is_refused for each in findings):
        return Exit.REFUSED
    return Exit.UNAVAILABLE if any(each.severity is Severity.UNKNOWN for each in findings) else Exit.DONE
