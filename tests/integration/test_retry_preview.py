"""
The schedule ahead of time: in Python, at the command line and at a worker's start, beside the retries that are made.
"""

import json
import logging

import pytest
from celery import Celery, shared_task
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_safeguards import RetryOverride, RetryPolicy, RetryRule, Safeguards, SafeTask, preview_schedule
from celery_safeguards.cli import safeguards
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.printable import duration

SOUND = {"socket_timeout": 30, "socket_keepalive": True}


def automatic(self):
    raise ConnectionRefusedError


def manual(self):
    self.retry()


def manual_with_error(self):
    self.retry(exc=ConnectionRefusedError())


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated", "ratio"])
@pytest.mark.parametrize("fail", [automatic, manual, manual_with_error])
@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "unkeyed"])
def test_automatic_and_manual_retries_come_as_previewed(bench, is_keyed, fail, jitter):
    """
    A manual `self.retry()` ignores Celery's back-off options and waits 180 s, and nobody sees it before the first
    failure (packit/packit-service#1632).
    """
    policy = RetryPolicy(attempts=5, base_seconds=7, factor=2, cap_seconds=40, jitter=jitter)
    began = []

    def body(self, number):
        began.append(bench.clock.now)
        fail(self)

    task = bench.keyed(body, retry=policy) if is_keyed else bench.task(body, Safeguards(repeatable=True, retry=policy))
    (schedule,) = preview_schedule(task).schedules
    task.delay(1)

    bench.drain()

    # The bench's chance always draws the longest delay.
    assert [at - began[0] for at in began[1:]] == pytest.approx([start.latest_seconds for start in schedule.starts])
    assert [letter.reason for letter in bench.all_letters()] == [schedule.ends]


# --- at the command line and at a worker's start


@pytest.fixture
def app():
    """A shop whose broker is never asked."""
    with Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False) as app:
        app.conf.broker_transport_options = SOUND

        def register(name, retry, **options):
            @app.task(
                base=SafeTask,
                shared=False,
                name=name,
                safeguards=Safeguards(repeatable=True, retry=retry),
                **options,
            )
            def body():
                return None

        register("shop.sync", RetryPolicy(attempts=3))
        register("shop.report", None)
        register("shop.hunt", RetryPolicy(attempts=2, base_seconds=7200, cap_seconds=7200, total_seconds=7000))

        @app.task(shared=False, name="shop.plain")
        def plain():
            return None

        yield app


@pytest.fixture
def preview(app):
    """Run `retry preview`."""

    def run(*words):
        context = CLIContext(app=app, no_color=True, workdir=None)
        return CliRunner().invoke(safeguards, ["retry", "preview", *words], obj=context)

    return run


def test_preview_shows_each_start_in_wall_time_and_the_end(preview):
    """Somebody on call must see at a glance how long a task goes on by itself."""
    shown = preview("shop.sync")

    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "shop.sync: every failure",
        "  ATTEMPT  DELAY          EARLIEST  LATEST",
        "  2        0.5 s to 5 s   0.5 s     5 s",
        "  3        0.5 s to 15 s  1 s       20 s",
        "  then a dead letter (attempt 3 of 3): 20 s after the first failure at the latest",
        "",
    ]


def test_preview_shows_kinds_and_rules_apart(app, preview):
    """The general schedule would be taken for all of them."""
    policy = RetryPolicy(
        attempts=2,
        rules=[RetryRule("sdk.Gone", retryable=False)],
        by_kind={"rate_limited": RetryOverride(base_seconds=90, floor_seconds=90)},
    )

    @app.task(base=SafeTask, shared=False, name="shop.pay", safeguards=Safeguards(repeatable=True, retry=policy))
    def pay():
        return None

    lines = preview("shop.pay").stdout.splitlines()

    assert [line for line in lines if line.startswith("shop")] == [
        "shop.pay: other failures",
        "shop.pay: rate_limited",
        "shop.pay: sdk.Gone",
    ]
    assert "  2        1 min 30 s to 1 min 30 s  1 min 30 s  1 min 30 s" in lines
    assert "  a dead letter at once (errors like this are not retried)" in lines


def test_preview_for_programs_has_seconds_and_findings(preview):
    """A deployment's check reads it: durations in words are of no use there."""
    shown = preview("shop.hunt", "--json")

    found = json.loads(shown.stdout)
    (schedule,) = found["schedules"]
    assert (shown.exit_code, found["task"], schedule["failures"]) == (0, "shop.hunt", [])
    assert schedule["starts"] == [
        {
            "attempt": 2,
            "delay_earliest_seconds": 720.0,
            "delay_latest_seconds": 7200.0,
            "earliest_seconds": 720.0,
            "latest_seconds": 7000,
            "is_certain": False,
        }
    ]
    assert (schedule["ends"], schedule["total_seconds"]) == ("attempt 2 of 2", 7000)
    assert [each["id"] for each in found["findings"]] == ["SG111"]


def test_preview_tells_people_its_findings_on_stderr(preview):
    """A table that looks fine would hide that the message is delivered again while it waits."""
    shown = preview("shop.hunt")

    assert [line.partition(" ")[0] for line in shown.stderr.splitlines()] == ["SG111"]
    assert "if total_seconds is not over" in shown.stdout


def test_work_without_retries_is_shown_as_that(preview):
    """Nothing at all would read as an error of the command."""
    shown = preview("shop.report")

    assert (shown.exit_code, shown.stdout.splitlines()[1]) == (0, "  a dead letter at once (no retry policy)")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop.snyc", "no task shop.snyc; did you mean shop.sync?"),
        ("shop.plain", "shop.plain is no SafeTask: Celery retries it, by its own options"),
        ("celery.chord_unlock", "celery.chord_unlock is no SafeTask: Celery retries it, by its own options"),
        ("\x1b[2J", "no task \\x1b[2J"),
    ],
)
def test_task_without_a_schedule_of_ours_exits_with_1(preview, name, said):
    """A script must tell a typing slip from a task that is never retried."""
    shown = preview(name)

    assert (shown.exit_code, shown.stdout, shown.stderr.strip()) == (1, "", said)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "0.25 s"), (5.0, "5 s"), (59.6, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (93_600, "1 d 2 h")],
)
def test_durations_are_said_as_people_say_them(seconds, said):
    """Nobody reads 93600.0 as a day and two hours."""
    assert duration(seconds) == said


def test_shared_task_can_be_previewed():
    """Django projects have nothing but `@shared_task`."""

    @shared_task(base=SafeTask, name="shop.shared", safeguards=Safeguards(repeatable=True))
    def shared():
        return None

    with Celery("shop", broker="memory://"):
        assert [start.attempt for start in preview_schedule(shared).schedules[0].starts] == [2, 3, 4]


def test_worker_reports_findings_at_its_start(app, caplog):
    """Nobody would look before the first message came twice."""
    with caplog.at_level(logging.WARNING, "celery_safeguards.worker.steps"):
        app.WorkController(pool="solo")

    said = [record.message for record in caplog.records if record.name == "celery_safeguards.worker.steps"]
    assert ["SG111 perhaps no retry"] == [line.partition(":")[0] for line in said]


def test_strict_worker_refuses_to_start_with_a_finding(app):
    """A deployment that asked for strictness would run with a schedule that cannot be meant."""
    app.conf.safeguards_strict = True

    with pytest.raises(ConfigurationError, match=r"SG111 .*shop\.hunt.*safeguards_strict"):
        app.WorkController(pool="solo")


def test_strict_worker_starts_with_a_delay_beyond_the_visibility_timeout(app):
    """What waits for its time is renewed: on Redis such a schedule holds."""
    app.conf.safeguards_strict = True
    app.conf.broker_transport_options = {**SOUND, "visibility_timeout": 60}
    app.tasks.pop("shop.hunt")
    slow = RetryPolicy(attempts=2, base_seconds=7200, cap_seconds=7200)

    @app.task(base=SafeTask, shared=False, name="shop.slow", safeguards=Safeguards(repeatable=True, retry=slow))
    def body():
        return None

    app.WorkController(pool="solo")
