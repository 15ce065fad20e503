"""`replays`: jobs that send many letters again, at a pace, with a look at the first ones, paused and gone on with."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.forecasting import print_forecast
from celery_safeguards.cli.job_text import in_doubt, plain, print_job, row_of
from celery_safeguards.cli.narrowing import KINDS, in_group
from celery_safeguards.cli.options import as_json, by_whom
from celery_safeguards.cli.text import complain, print_json, print_table
from celery_safeguards.jobs.job import MOST_AT_ONCE, JobStatus, ReplayJob
from celery_safeguards.jobs.refusals import NoSuchJob
from celery_safeguards.jobs.steps import declared
from celery_safeguards.outcome import FailureKind
from celery_safeguards.printable import counted
from celery_safeguards.replay.many.asking import Asker
from celery_safeguards.replay.many.choosing import ORDERS, Choice, Order, make_job, named
from celery_safeguards.replay.many.forecasting import foresee
from celery_safeguards.replay.many.running import run_job
from celery_safeguards.replay.many.settling import settle
from celery_safeguards.wiring import Wiring

_MOST_ASKED = 1_000
_ASK_SECONDS = 300.0


@click.group()
def replays() -> None:
    """Replays of many letters."""


@replays.command()
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All letters that are open now, instead of IDs.")
@in_group
@click.option("--task", help="With --all: only this task's.")
@click.option("--kind", type=KINDS, help="With --all: only failures of this kind.")
@by_whom
@click.option("--reason", default="", help="Why, for the history of each letter; a dry run needs none.")
@click.option("--per-second", type=click.FloatRange(0, min_open=True), help="Messages a second at most.")
@click.option(
    "--at-once",
    type=click.IntRange(1, MOST_AT_ONCE),
    default=100,
    show_default=True,
    help="Letters that are on their way at most, sent and without an answer.",
)
@click.option(
    "--canary", type=click.IntRange(0), default=0, help="Send so many first, and the others once all of them succeed."
)
@click.option(
    "--stop-at",
    type=click.IntRange(0),
    help="Stop once so many letters have failed again; 0: never. [default: a tenth of them, at least 10]",
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default=ORDERS[0],
    show_default=True,
    help="Of --all and --group: the oldest first, by first or last failure.",
)
@click.option("--steady", is_flag=True, help="Keep the pace also while letters fail again; else it slows.")
@click.option("--yes-it-may-run-twice", is_flag=True, help="Consent, for work without a key.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--each", "is_each", is_flag=True, help="With --dry-run: say it of each letter, too.")
@click.option(
    "--ask",
    "ask_most",
    type=click.IntRange(1, _MOST_ASKED),
    help="With --dry-run: call the tasks' own `verify` and `ensure` for so many letters, and say what they answer.",
)
@click.option("--detach", is_flag=True, help="Make the job and leave it to `replays run`.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_context
def start(
    ctx: click.Context,
    *,
    letter_ids: tuple[str, ...],
    is_all: bool,
    fingerprint: str | None,
    task: str | None,
    kind: str | None,
    who: str,
    reason: str,
    per_second: float | None,
    at_once: int,
    canary: int,
    stop_at: int | None,
    order: Order,
    steady: bool,
    yes_it_may_run_twice: bool,
    dry_run: bool,
    is_each: bool,
    ask_most: int | None,
    detach: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Replay letters: of a group, all that are open, or those named.

    They are taken down before the first is sent. Ctrl-C leaves the job for `replays run`. Exits with 0 if every letter
    was sent and has succeeded, with 3 if the store did not answer, else with 1, as where one that was named is not
    there.
    """
    if sum(map(bool, (letter_ids, is_all, fingerprint))) != 1:
        raise click.UsageError("give the letters' IDs, or --all, or --group")
    if (task or kind) and not is_all:
        raise click.UsageError("--task and --kind choose from --all")
    if (is_each or ask_most) and not dry_run:
        raise click.UsageError("--each and --ask go with --dry-run")
    if not dry_run and not reason.strip():
        raise click.UsageError("give --reason: it goes into the letters' histories")
    app = ctx.obj.app
    matching = Choice(fingerprint=fingerprint, task=task, kind=FailureKind(kind) if kind else None)
    choice = named(letter_ids) if letter_ids else matching
    missing = choice.missing(app)
    for letter_id in missing:
        complain(f"there is no letter {letter_id} that can be read")
    if dry_run:
        asker = Asker(app, most=ask_most, seconds=_ASK_SECONDS) if ask_most else None
        seen = foresee(app, choice, may_run_twice=yes_it_may_run_twice, asker=asker)
        print_forecast(choice, seen, asker, is_each=is_each, as_json=as_json)
        ctx.exit(Exit.REFUSED if missing else Exit.DONE)
    job = make_job(
        app,
        choice,
        who,
        reason=reason,
        per_second=per_second,
        at_once=at_once,
        canary=canary,
        stop_at=stop_at,
        order=order,
        adapts=not steady,
        may_run_twice=yes_it_may_run_twice,
    )
    if not yes and not _is_agreed(f"Replay {counted(job.total, 'letter')} ({job.chosen})?"):
        _declare(ctx, job.id, "cancelled", who)
        raise click.Abort
    if detach:
        print_job(job, as_json=as_json)
        ctx.exit(Exit.REFUSED if missing else Exit.DONE)
    _run(ctx, job.id, as_json=as_json, is_whole=not missing)


@replays.command(name="list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@as_json
@click.pass_context
def list_jobs(ctx: click.Context, limit: int, as_json: bool) -> None:
    """List jobs, the newest first."""
    page = Wiring.of(ctx.obj.app).jobs.list(limit)
    if as_json:
        print_json({"jobs": [plain(job) for job in page.jobs], "unreadable": page.unreadable})
    elif page.jobs:
        head = ("JOB", "STATUS", "DONE", "SENT", "SUCCEEDED", "FAILED AGAIN", "MADE", "BY", "CHOSEN")
        print_table(head, [row_of(job) for job in page.jobs])
    else:
        complain("no jobs")
    ctx.exit(Exit.DONE if page.jobs else Exit.REFUSED)


@replays.command()
@click.argument("job_id", metavar="JOB")
@as_json
@click.pass_context
def show(ctx: click.Context, job_id: str, as_json: bool) -> None:
    """Show one job: how it stands, what became of its letters, and which a runner that was killed has left."""
    print_job(settle(ctx.obj.app, job_id), as_json=as_json)


@replays.command()
@click.argument("job_id", metavar="JOB")
@as_json
@click.pass_context
def run(ctx: click.Context, job_id: str, as_json: bool) -> None:
    """
    Run a job that runs and that nobody has: one that was detached, or whose runner has died.

    Ctrl-C and SIGTERM leave it for the next one.
    """
    _run(ctx, job_id, as_json=as_json)


@replays.command()
@click.argument("job_id", metavar="JOB")
@by_whom
@click.pass_context
def pause(ctx: click.Context, job_id: str, who: str) -> None:
    """Send nothing more, until it is resumed; whoever runs it ends within seconds."""
    _declare(ctx, job_id, "paused", who)


@replays.command()
@click.argument("job_id", metavar="JOB")
@by_whom
@click.option("--detach", is_flag=True, help="Leave it to `replays run`.")
@as_json
@click.pass_context
def resume(ctx: click.Context, job_id: str, who: str, detach: bool, as_json: bool) -> None:
    """Go on with a job that was paused, or that has stopped: as many failures more stop it again."""
    _declare(ctx, job_id, "running", who)
    if not detach:
        _run(ctx, job_id, as_json=as_json)


@replays.command()
@click.argument("job_id", metavar="JOB")
@by_whom
@click.pass_context
def cancel(ctx: click.Context, job_id: str, who: str) -> None:
    """
    End a job; what it has not begun stays open.

    Letters that its runner had begun when it was killed may be sent or not: they are listed, here or by `replays show`
    once the runner's lease is over, each to be sent again by `dead resume`.
    """
    _declare(ctx, job_id, "cancelled", who)


def _is_agreed(question: str) -> bool:
    """Ask; Ctrl-C and the end of the input are a no, as for a script that forgot --yes."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        return False


def _run(ctx: click.Context, job_id: str, *, as_json: bool, is_whole: bool = True) -> None:
    app = ctx.obj.app
    with _stops_asked() as should_stop, _progress(app, job_id, is_shown=not as_json) as on_step:
        job = run_job(app, job_id, on_step=on_step, should_stop=should_stop)
    print_job(job, as_json=as_json)
    if job.status == "running":
        complain(f"left where it is: go on by `replays run {job_id}`")
    is_well = is_whole and job.status == "done" and job.tally.succeeded == job.total
    ctx.exit(Exit.DONE if is_well else Exit.REFUSED)


def _declare(ctx: click.Context, job_id: str, status: JobStatus, who: str) -> None:
    wiring = Wiring.of(ctx.obj.app)
    job = wiring.jobs.change(job_id, declared(status, who, wiring.clock.wall_seconds()))
    if status == "cancelled":
        job = settle(ctx.obj.app, job_id)
    complain(f"job {job_id} is {job.status}, {job.left} of {counted(job.total, 'letter')} left")
    if status == "cancelled" and not job.settled:
        left_seconds = max(0.0, job.lease_until_seconds - wiring.clock.wall_seconds())
        complain(f"what its runner has begun is known in {left_seconds:.0f} s at the latest: `replays show {job_id}`")
    for line in in_doubt(job):
        complain(line)


@contextmanager
def _stops_asked() -> Iterator[Callable[[], bool]]:
    """Ask the runner to stop at the next step, in place of being killed in the midst of one."""
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop.is_set
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _progress(app: Any, job_id: str, *, is_shown: bool) -> Iterator[Callable[[ReplayJob], object]]:
    """Show a bar on a terminal, and nothing where nobody looks."""
    job = Wiring.of(app).jobs.get(job_id)
    if job is None:
        raise NoSuchJob(f"there is no job {job_id}")
    # Without a terminal click writes the bar's label alone.
    if not is_shown or not sys.stderr.isatty():
        yield lambda _job: None
        return
    with click.progressbar(length=job.total, label="letters", show_pos=True, file=sys.stderr) as bar:

        def move(now: ReplayJob) -> None:
            bar.update(max(0, now.position - bar.pos))

        move(job)
        yield move
