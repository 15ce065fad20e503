"""`retry preview`: when a task's retries come, before anything has failed."""

from difflib import get_close_matches
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json
from celery_safeguards.cli.text import complain, print_json, print_table, say
from celery_safeguards.diagnose.surroundings import by_settings
from celery_safeguards.diagnose.timing import schedule_timeout_seconds
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.printable import clean, duration
from celery_safeguards.retry.findings import budget_of, schedule_findings
from celery_safeguards.retry.schedule import Preview, Schedule, preview_schedule


@click.group()
def retry() -> None:
    """Retries: when they come, and where they end."""


@retry.command()
@click.argument("task_name", metavar="TASK")
@as_json
@click.pass_context
def preview(ctx: click.Context, task_name: str, as_json: bool) -> None:
    """
    Show a task's retries in wall time after its first failure.

    Findings of the schedule, as a worker reports them at its start, go to stderr.
    """
    app = ctx.obj.app
    task = app.tasks.get(task_name)
    if task is None:
        near = get_close_matches(task_name, list(app.tasks), n=1)
        complain(f"no task {task_name}{f'; did you mean {near[0]}?' if near else ''}")
        ctx.exit(Exit.REFUSED)
    try:
        found = preview_schedule(task)
    except ConfigurationError as error:
        complain(error)
        ctx.exit(Exit.REFUSED)
    findings = schedule_findings(
        found.task, task.policy.retry, budget_of(task, schedule_timeout_seconds(by_settings(app)))
    )
    if as_json:
        print_json({**_plain(found), "findings": [{"id": each.id, "text": each.text} for each in findings]})
    else:
        _print(found)
        for finding in findings:
            complain(finding)


def _print(found: Preview) -> None:
    for schedule in found.schedules:
        for_what = ", ".join(schedule.failures) or ("every failure" if len(found.schedules) == 1 else "other failures")
        say(clean(f"{found.task}: {for_what}"))
        if schedule.starts:
            _print_starts(schedule)
            latest = duration(schedule.total_seconds)
            say(f"  then a dead letter ({clean(schedule.ends)}): {latest} after the first failure at the latest")
        else:
            say(f"  a dead letter at once ({clean(schedule.ends)})")
        say()


def _print_starts(schedule: Schedule) -> None:
    rows = [
        (
            f"  {start.attempt}",
            f"{duration(start.delay.earliest_seconds)} to {duration(start.delay.latest_seconds)}",
            duration(start.earliest_seconds),
            duration(start.latest_seconds),
            "" if start.is_certain else "if total_seconds is not over",
        )
        for start in schedule.starts
    ]
    print_table(("  ATTEMPT", "DELAY", "EARLIEST", "LATEST", ""), rows)


def _plain(found: Preview) -> dict[str, Any]:
    return {
        "task": found.task,
        "schedules": [
            {
                "failures": list(schedule.failures),
                "starts": [
                    {
                        "attempt": start.attempt,
                        "delay_earliest_seconds": start.delay.earliest_seconds,
                        "delay_latest_seconds": start.delay.latest_seconds,
                        "earliest_seconds": start.earliest_seconds,
                        "latest_seconds": start.latest_seconds,
                        "is_certain": start.is_certain,
                    }
                    for start in schedule.starts
                ],
                "ends": schedule.ends,
                "total_seconds": schedule.total_seconds,
            }
            for schedule in found.schedules
        ],
    }
