"""
`replays`: what was chosen is asked about, sent in a job, and can be looked at, paused and gone on with from elsewhere.
"""

import json
import os
import signal
import threading
from dataclasses import replace

import pytest

from celery_safeguards._redis import Keys
from celery_safeguards.jobs.steps import taken
from celery_safeguards.jobs.tempo import Tempo
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay.many import running
from celery_safeguards.replay.many.batch import task_id_of
from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY
from tests.integration.replay.clocks import PacedClock, WorkersClock
from tests.integration.replay.shop import queued

pytestmark = pytest.mark.redis


@pytest.fixture
def plain(app):
    """A task that tells nobody how it ended: a job need not wait for it."""

    @app.task(shared=False, name="shop.note")
    def note(*args, **kwargs):
        return "noted"


@pytest.fixture
def worker(app):
    """A worker runs what is sent while the job waits."""
    clock = WorkersClock(app)
    replace(Wiring.of(app), clock=clock).use_for(app)
    return clock


def started(cli, *words):
    return cli("replays", "start", "--by", "ann", "--reason", "the bank is back", "--yes", *words)


def state_of(app, letter_id):
    return Wiring.of(app).letters.get(letter_id).state


def test_a_replay_of_a_group_sends_its_letters_and_no_others(cli, app, bury, plain):
    """Two causes at one time: the one that is mended is replayed, the other is not."""
    mended = bury("mended")
    bury("not-yet", kind=FailureKind.DATA)

    done = json.loads(started(cli, "--group", mended.fingerprint, "--json").stdout)

    assert (done["status"], done["sent"], done["unanswered"]) == ("done", 1, 1)
    assert (done["fingerprint"], done["who"]) == (mended.fingerprint, "ann")
    assert (state_of(app, "mended"), state_of(app, "not-yet")) == ("replayed", "open")


def test_a_replay_of_all_sends_what_the_filters_choose(cli, app, bury, plain):
    """After a fix of one bug only its letters go back."""
    bury("mine", kind=FailureKind.DATA)
    bury("mine-too", kind=FailureKind.DATA)
    bury("other")

    started(cli, "--all", "--kind", "data", "--per-second", "1000")

    assert (queued(app), state_of(app, "other")) == (2, "open")


@pytest.mark.parametrize(("missing", "code"), [([], 0), (["gone"], 1)])
def test_success_of_all_is_exit_code_0(cli, app, worker, missing, code):
    """A script goes by the code; of those that it has named one may be missing."""
    app.tasks["shop.charge"].delay(7, is_broken=True)
    worker.sleep(0)
    letter, *_ = Wiring.of(app).letters.list().letters
    Wiring.of(app).letters._apply(
        letter.id, lambda kept: replace(kept, wire=replace(kept.wire, body=kept.wire.body.replace(b"true", b"false")))
    )

    done = started(cli, letter.id, *missing)

    assert done.exit_code == code, done.stdout
    assert "letters" not in done.stderr  # a bar's label, where no terminal shows the bar
    assert "1 succeeded, 0 failed again, 0 gave no answer" in done.stdout


def test_failure_again_is_exit_code_1(cli, app, worker):
    app.tasks["shop.charge"].delay(7, is_broken=True)
    worker.sleep(0)

    done = started(cli, "--all")

    assert done.exit_code == 1
    assert "0 succeeded, 1 failed again, 0 gave no answer" in done.stdout


@pytest.mark.parametrize("how", [["--dry-run"], ["--detach", "--yes", "--reason", "mended"]])
def test_a_named_letter_that_is_not_there_is_told_and_is_no_success(cli, bury, how):
    """Of ten ids that were copied from a page, the one that was cut would stay dead without a word."""
    bury("one")

    ended = cli("replays", "start", "one", "gone", *how)

    assert ended.exit_code == 1
    assert ended.stderr.startswith("there is no letter gone that can be read\n")
    assert "1 letter" in ended.stdout


@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "end of input"])
def test_it_asks_before_it_sends(cli, app, bury, answer):
    """The arrow key and Enter brought the command back from yesterday; or a script forgot --yes."""
    bury()

    asked = cli("replays", "start", "--all", "--by", "ann", "--reason", "mended", text=answer)

    assert asked.exit_code == 1
    assert "Replay 1 letter (all open letters)?" in asked.stderr
    assert queued(app) == 0
    assert [job["status"] for job in json.loads(cli("replays", "list", "--json").stdout)["jobs"]] == ["cancelled"]


@pytest.mark.parametrize(
    ("names", "said"), [(["one"], "1 letter (chosen by its id)"), (["one", "two"], "2 letters (chosen by their ids)")]
)
def test_it_says_once_how_many_letters_were_given(cli, bury, names, said):
    """ "2 letters: 2 letters by their ids" is read twice, and understood no better."""
    for name in names:
        bury(name)

    asked = cli("replays", "start", *names, "--by", "ann", "--reason", "mended", text="n\n")

    assert f"Replay {said}?" in asked.stderr


def test_a_dry_run_says_what_would_happen(cli, app, bury):
    bury("sent")
    bury("needs-consent", effect_possible=True)

    said = cli("replays", "start", "--all", "--dry-run")
    plain = json.loads(cli("replays", "start", "--all", "--dry-run", "--json").stdout)

    assert said.exit_code == 0
    assert (plain["letters"], plain["would_be_sent"]) == (2, 1)
    assert plain["refused"] == {"needs consent to run twice": 1}
    assert "1: needs consent to run twice" in said.stdout
    assert (queued(app), json.loads(cli("replays", "list", "--json").stdout)["jobs"]) == (0, [])


def test_a_dry_run_counts_together_what_differs_by_a_moment_alone(cli, bury):
    """ "eta ?T?:?:?+?:?: past" is read as a fault of this command."""
    for name, eta in (("one", "2025-06-15T10:00:00+00:00"), ("two", "2025-06-15T10:07:01.523+02:00")):
        bury(name, headers={"eta": eta})

    said = cli("replays", "start", "--all", "--dry-run").stdout

    assert "2: eta ?: past\n" in said


def test_a_dry_run_says_it_of_each_letter_for_a_program_and_for_people(cli, app, bury):
    bury("sent", task="shop.elsewhere")
    bury("needs-consent", effect_possible=True)

    words = ("replays", "start", "--all", "--dry-run")
    counted = json.loads(cli(*words, "--json").stdout)
    plain = json.loads(cli(*words, "--each", "--json").stdout)
    said = cli(*words, "--each").stdout

    assert counted["expected"] == {"unknown_task": 1, "needs_consent": 1}
    assert "each" not in counted
    assert {each["letter_id"]: (each["expected"], each["would_be_sent"]) for each in plain["each"]} == {
        "sent": ("unknown_task", True),
        "needs-consent": ("needs_consent", False),
    }
    assert "needs-consent  needs_consent  needs consent to run twice" in said
    assert "expected          1: " in said


def test_a_dry_run_asks_the_outside_only_when_told_and_says_how_many_it_did_not_ask(cli, bury):
    """What it asks is the bank."""
    headers = {"task": "shop.pay"}
    body = b"[[1], {}, {}]"
    for number in range(3):
        known = {"key": f"order:{number}", "scope": "payments", "burial": 1, "effect_possible": True}
        bury(f"letter-{number}", task="shop.pay", headers=headers, body=body, **known)

    words = ("replays", "start", "--all", "--dry-run")
    unasked = json.loads(cli(*words, "--json").stdout)
    plain = json.loads(cli(*words, "--ask", "2", "--json").stdout)
    said = cli(*words, "--ask", "2").stdout

    assert "answers" not in unasked
    assert (plain["answers"], plain["asked"], plain["not_asked"]) == ({"verify": {"cannot_tell": 2}}, 2, 1)
    assert "2: verify: cannot tell" in said
    assert "not asked         1 more letter\n" in said


def test_a_detached_job_is_paused_resumed_and_run_by_others(cli, app, bury, plain):
    """Whoever begins a replay goes home; whoever is on call at night has another terminal."""
    bury()
    job_id = json.loads(started(cli, "--all", "--detach", "--json", "--reason", "fixed").stdout)["id"]
    assert queued(app) == 0

    paused = cli("replays", "pause", job_id, "--by", "bob")
    refused = cli("replays", "run", job_id)
    resumed = cli("replays", "resume", job_id, "--by", "bob", "--detach")
    shown = cli("replays", "show", job_id)
    run = json.loads(cli("replays", "run", job_id, "--json").stdout)

    assert (paused.exit_code, refused.exit_code, resumed.exit_code) == (0, 1, 0)
    assert f"job {job_id} is paused, 1 of 1 letter left" in paused.stderr
    assert "is paused: by bob" in refused.stderr
    assert "ann: fixed" in shown.stdout
    assert (run["status"], run["sent"], queued(app)) == ("done", 1, 1)
    assert "done" in cli("replays", "list").stdout


def test_it_is_said_how_slow_a_job_goes_and_why(cli, app, bury):
    """Whoever watches would take it for stuck, and begin another."""
    bury()
    job_id = json.loads(started(cli, "--all", "--per-second", "20", "--detach", "--json").stdout)["id"]
    Wiring.of(app).jobs.change(job_id, lambda job: replace(job, tempo=Tempo(share=0.5, failing=0.7, answers=20.0)))

    shown = cli("replays", "show", job_id).stdout
    plain = json.loads(cli("replays", "show", job_id, "--json").stdout)

    assert "slowed to 50.0% of it: 70% of the latest 20 failed again; just now 10 a second" in shown
    assert (plain["pace_share"], plain["failing_share"], plain["per_second_now"], plain["window"]) == (0.5, 0.7, 10, 50)
    assert plain["adapts"] is True


def test_a_job_that_is_to_keep_its_pace_says_so(cli, bury):
    bury()

    made = json.loads(started(cli, "--all", "--steady", "--detach", "--json").stdout)

    assert made["adapts"] is False
    assert "also while letters fail again" in cli("replays", "show", made["id"]).stdout


def test_a_cancelled_job_sends_nothing_more(cli, app, bury):
    bury()
    job_id = json.loads(started(cli, "--all", "--detach", "--json").stdout)["id"]

    assert cli("replays", "cancel", job_id, "--by", "bob").exit_code == 0
    assert cli("replays", "resume", job_id, "--by", "bob").exit_code == 1
    assert cli("replays", "run", job_id).exit_code == 1
    assert (queued(app), state_of(app, "letter-1")) == (0, "open")


def test_what_a_dead_runner_has_left_is_listed_with_how_to_go_on(cli, app, bury):
    """Whoever cancels at night must not find out a week later that three letters say "replaying"."""
    bury("untouched")
    keyed = {"task": "shop.charge", "key": "order:1", "scope": "shop.charge", "headers": {"task": "shop.charge"}}
    bury("begun", body=b"[[1], {}, {}]", **keyed)
    job_id = json.loads(started(cli, "begun", "untouched", "--detach", "--json").stdout)["id"]
    wiring = Wiring.of(app)
    now = wiring.clock.wall_seconds()
    wiring.jobs.change(job_id, taken("dead", now, 60))
    wiring.letters.begin_replay("begun", task_id_of(job_id, "begun"), "ann", now)

    cancelled = cli("replays", "cancel", job_id, "--by", "bob")
    early = json.loads(cli("replays", "show", job_id, "--json").stdout)
    replace(wiring, clock=PacedClock(wall=now + 61)).use_for(app)
    shown = cli("replays", "show", job_id)
    late = json.loads(cli("replays", "show", job_id, "--json").stdout)

    assert f"known in 60 s at the latest: `replays show {job_id}`" in cancelled.stderr
    assert (early["settled"], early["in_doubt"], late["settled"], late["in_doubt"]) == (False, [], True, ["begun"])
    assert "in doubt          letter begun was begun, perhaps not sent: `dead resume begun` sends it" in shown.stdout
    assert cli("dead", "resume", "begun", "--by", "bob").exit_code == 0
    assert (queued(app), state_of(app, "untouched")) == (1, "open")


def test_a_job_of_a_group_that_has_one_is_refused_by_its_name(cli, bury):
    group = bury().fingerprint
    job_id = json.loads(started(cli, "--group", group, "--detach", "--json").stdout)["id"]

    refused = started(cli, "--group", group)

    assert refused.exit_code == 1
    assert job_id in refused.stderr


def test_a_job_that_another_process_has_is_refused(cli, app, bury):
    bury()
    job_id = json.loads(started(cli, "--all", "--detach", "--json").stdout)["id"]
    now = Wiring.of(app).clock.wall_seconds()
    Wiring.of(app).jobs.change(job_id, taken("other", now, 60))

    refused = cli("replays", "run", job_id)

    assert refused.exit_code == 1
    assert "run by other" in refused.stderr


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_the_job_to_be_gone_on_with(cli, app, bury, plain, signal_number, monkeypatch):
    """Ended in the midst of a step, it would leave letters that nobody can tell from those under way."""
    for number in range(5):
        bury(f"letter-{number}")
    monkeypatch.setattr(running, "_STEP_SECONDS", 0.0)
    before = signal.getsignal(signal_number)

    def interrupt(job_id):
        while not Wiring.of(app).jobs.get(job_id).position:
            continue
        os.kill(os.getpid(), signal_number)

    job_id = json.loads(started(cli, "--all", "--per-second", "4", "--detach", "--json").stdout)["id"]
    thread = threading.Thread(target=interrupt, args=(job_id,))
    thread.start()
    left = cli("replays", "run", job_id)
    thread.join()
    stored = Wiring.of(app).jobs.get(job_id)

    assert left.exit_code == 1
    assert f"go on by `replays run {job_id}`" in left.stderr
    assert (stored.status, stored.runner) == ("running", "")
    assert 0 < stored.position < 5
    assert queued(app) == stored.position
    assert signal.getsignal(signal_number) is before


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["letter-1", "--all"],
        ["--all", "--group", "f"],
        ["letter-1", "--kind", "data"],
        ["--group", "f", "--task", "t"],
        ["--all", "--per-second", "0"],
        ["--all", "--at-once", "0"],
        ["--all", "--canary", "-1"],
        ["--all", "--by", " "],
        ["--all", "--order", "random"],
        ["--all", "--each"],
        ["--all", "--reason", " "],
        ["--all", "--ask", "5"],
        ["--all", "--dry-run", "--ask", "0"],
    ],
)
def test_words_that_make_no_sense_together_change_nothing(cli, app, bury, words):
    bury()

    assert started(cli, *words).exit_code == 2
    assert (queued(app), Wiring.of(app).jobs.list().jobs) == (0, ())


def test_nothing_to_replay_is_exit_code_1(cli):
    assert started(cli, "--group", "f" * 32).exit_code == 1
    assert cli("replays", "list").exit_code == 1
    for verb in ("show", "run"):
        assert cli("replays", verb, "absent").exit_code == 1


def test_odd_text_of_people_and_messages_is_shown_and_never_raw(cli, app, bury, plain):
    """A name with an escape sequence in it would write over the line that says what was refused."""
    bury("letter-1", task=NASTY, effect_possible=True)
    started(cli, "--all", "--reason", NASTY, "--by", NASTY, "--detach")

    for said in (cli("replays", "list"), cli("replays", "start", "--all", "--dry-run", "--task", NASTY)):
        assert not set(said.stdout) & set("\x1b\x07\x00\u202e\x9b\r")
    (job,) = Wiring.of(app).jobs.list().jobs
    shown, run = cli("replays", "show", job.id), cli("replays", "run", job.id)
    for said in (shown, run):
        assert not set(said.stdout + said.stderr) & set("\x1b\x07\x00\u202e\x9b\r")
    assert "SECOND LINE" not in [line.strip() for line in shown.stdout.splitlines()]


def test_a_job_that_cannot_be_read_hides_no_other(cli, app, bury, redis_client, namespace):
    bury()
    jobs = [json.loads(started(cli, "--all", "--detach", "--json").stdout)["id"] for _ in range(2)]
    redis_client.hset(Keys(namespace).job(jobs[0]), "job", "{")

    listed = json.loads(cli("replays", "list", "--json").stdout)
    shown = cli("replays", "show", jobs[0])

    assert ([job["id"] for job in listed["jobs"]], listed["unreadable"]) == ([jobs[1]], [jobs[0]])
    assert shown.exit_code == 1
    assert "Traceback" not in shown.stderr
