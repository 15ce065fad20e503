"""
Canvases whose members are killed, delivered twice, put off, retried or buried: each ends once, with the right value.

What is counted stands outside: the gateway's ledger for every keyed member, and the last task of a canvas, which has no
key and tells its value as often as it is sent. All shapes meet one fate at the same time, on one worker.
"""

import contextlib
from types import SimpleNamespace

import pytest

from celery_safeguards.errors import DeadLettered
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import replay
from tests.acceptance.canvas_shapes import SHAPES, WITH_CHORD
from tests.acceptance.canvas_stage import Stage
from tests.support.sockets import Cutter

POINTS = ("before_admit", "after_effect", "after_settle", "before_send", "after_send", "before_ack")
FATES = ("twice", "held", "beside", "again", "retried")
# Killed between the send and the mark, these send once more. In a chain and below a group the second message bears the
# id of the first; a link gets a new id each time.
TOLD_AGAIN = {"link": [2, 2], "links": [1, 1, 2, 2], "group": [1, 1, 6]}

# For a member that fails for good: what is told all the same, and how often the errbacks of a chord's body are called.
FAILED = {shape: ([], 0) for shape in SHAPES} | {
    "group": ([6], 0),
    "chord": ([], 1),
    "single": ([], 1),
    "nested": ([], 1),
}


@pytest.fixture
def stage(redis_url, tmp_path):
    """A stage for one test."""
    with Stage(redis_url, tmp_path) as stage:
        yield stage


@pytest.fixture(scope="module")
def killed(redis_url, tmp_path_factory):
    """Canvases of each shape, by shape and point, whose member's child was killed there; all has ended."""
    with Stage(redis_url, tmp_path_factory.mktemp("killed")) as stage:
        stage.worker(len(SHAPES) + 3)
        canvases = {}
        for point in POINTS:
            here = {(shape, point): stage.send(shape, hold=point) for shape in SHAPES}
            stage.kill_there(point, *here.values())
            canvases |= here
        stage.wait_quiet()
        yield SimpleNamespace(stage=stage, canvases=canvases)


@pytest.fixture(scope="module")
def doubled(redis_url, tmp_path_factory):
    """
    Canvases of each shape, by fate and shape; all has ended.

    `twice`: what the producer sent is delivered again when all is done. `again`: another canvas of the same orders
    comes then. `held`: the member is delivered again while it runs, and `beside`, another canvas of the same orders,
    comes meanwhile. `retried`: the member fails once.
    """
    with Stage(redis_url, tmp_path_factory.mktemp("doubled")) as stage:
        twice = {("twice", shape): stage.send(shape) for shape in SHAPES}
        messages = stage.waiting()
        held = {("held", shape): stage.send(shape, hold="after_effect") for shape in SHAPES}
        retried = {("retried", shape): stage.send(shape, hit="fail_once") for shape in SHAPES}
        stage.worker(len(SHAPES) + 3)
        for sent in held.values():
            stage.wait_until_there("after_effect", sent)
        stage.deliver_again(stage.running(*held.values()))
        beside = {("beside", sent.shape): stage.send(sent.shape, like=sent) for sent in held.values()}
        for sent in held.values():
            stage.wait_for("ended", outcome="deferred", order_id=sent.hit_order, count=2)
        # What was put off goes on when the first delivery is through; held sooner, it would take all children.
        for sent in held.values():
            stage.announcements.hold("before_admit", order_id=sent.hit_order)
        stage.announcements.open("after_effect")
        for sent in held.values():
            stage.wait_for("task_postrun", task_id=sent.hit_id, state="SUCCESS")
        stage.announcements.open("before_admit")
        stage.wait_quiet()
        stage.deliver_again(messages)
        again = {("again", sent.shape): stage.send(sent.shape, like=sent) for sent in twice.values()}
        stage.wait_quiet()
        yield SimpleNamespace(stage=stage, canvases=twice | held | retried | beside | again)


@pytest.fixture(scope="module")
def buried(redis_url, tmp_path_factory):
    """
    Canvases of each shape, by fate and shape, whose member fails for good; all has ended.

    `plain`: it is a task of plain Celery. `once`: it is keyed. `twice`: and was delivered again while it ran; that
    copy, which was put off, came back when the first delivery was through.
    """
    with Stage(redis_url, tmp_path_factory.mktemp("buried")) as stage:
        plain = {("plain", shape): stage.send(shape, hit="plain_fail") for shape in SHAPES}
        once = {("once", shape): stage.send(shape, hit="fail") for shape in SHAPES}
        twice = {("twice", shape): stage.send(shape, hit="fail", hold="fails") for shape in SHAPES}
        stage.worker(len(SHAPES) + 3)
        for sent in twice.values():
            stage.wait_until_there("fails", sent)
        stage.deliver_again(stage.running(*twice.values()))
        for sent in twice.values():
            stage.wait_for("ended", outcome="deferred", order_id=sent.hit_order)
        for sent in twice.values():
            stage.announcements.hold("before_admit", order_id=sent.hit_order)
        stage.announcements.open("fails")
        for sent in twice.values():
            stage.wait_for("task_postrun", task_id=sent.hit_id, state="FAILURE")
        stage.announcements.open("before_admit")
        stage.wait_quiet()
        yield SimpleNamespace(stage=stage, canvases=plain | once | twice)


def assert_ended_once(stage, sent, told=None):
    """Assert that a canvas has told its end, each of its orders is charged once, and nothing was told as failed."""
    _build, values, orders = SHAPES[sent.shape]
    assert (told or values) == stage.told(sent)
    assert [1] * orders == list(stage.charges(sent).values())
    assert "SUCCESS" == stage.meta(sent.hit_id)[0]
    assert [] == stage.heard("told_failure", canvas=sent.name) + stage.heard("told_error", canvas=sent.name)


# --- killed


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("point", POINTS)
def test_canvas_ends_once_although_a_member_is_killed(killed, shape, point):
    """The rest of an order's work would be lost with a process, or be done twice."""
    again = point == "after_send" and shape in TOLD_AGAIN

    assert_ended_once(killed.stage, killed.canvases[shape, point], TOLD_AGAIN[shape] if again else None)


def test_member_that_is_killed_is_never_reported_as_failed(killed):
    """celery/celery#5106: a chord is aborted because of a member that is started again and succeeds."""
    members = {sent.hit_id for sent in killed.canvases.values()}

    assert [] == [said for said in killed.stage.heard("task_failure") if said["task_id"] in members]
    assert {"SUCCESS"} == {killed.stage.meta(member)[0] for member in members}


def test_chord_completes_although_the_worker_of_a_member_is_killed(stage):
    """celery/celery#5106: a chord would wait for ever for a member that died with its host."""
    changes = {"visibility_timeout": 2, "safeguards_lease_seconds": 3.0, "safeguards_store_timeout_seconds": 0.9}
    worker = stage.worker(2, **changes)
    sent = stage.send("nested", hold="after_effect")
    stage.wait_until_there("after_effect", sent)

    worker.kill_all()
    stage.announcements.open("after_effect")
    stage.worker(2, **changes)
    stage.wait_for("told", canvas=sent.name)
    stage.wait_quiet()

    assert_ended_once(stage, sent)


def test_plain_celery_does_the_rest_of_a_chain_twice_when_a_member_is_killed(stage):
    """If plain Celery came through, the kills of this file would prove nothing."""
    stage.worker(2)
    sent = stage.send("chain", hold="after_send", hit="plain_add", member="plain_add")

    stage.kill_there("after_send", sent)
    stage.wait_quiet()

    assert [1, 2, 2] == sorted(stage.charges(sent).values())
    assert [3, 3] == stage.told(sent)


# --- delivered twice, put off, retried


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_canvas_ends_once_for_each_time_it_was_published(doubled, shape, fate):
    """A duplicate would do the rest of the work again, or a second canvas would wait for ever for the first one's."""
    assert_ended_once(doubled.stage, doubled.canvases[fate, shape])


def test_plain_celery_does_a_canvas_twice_when_its_message_comes_twice(stage):
    """If plain Celery came through, the duplicates of this file would prove nothing."""
    sent = stage.send("chain", hit="plain_add", member="plain_add")
    stage.deliver_again(stage.waiting())

    stage.worker(2)
    stage.wait_quiet()

    assert [2, 2, 2] == list(stage.charges(sent).values())
    assert [3, 3] == stage.told(sent)


# --- buried


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fate", ["plain", "once", "twice"])
def test_errbacks_run_once_for_a_member_that_fails_for_good(buried, shape, fate):
    """celery/celery#6029, celery/celery#9674: nobody learns that a canvas has failed, or is told so twice."""
    stage, sent = buried.stage, buried.canvases[fate, shape]
    told, body_errbacks = FAILED[shape]

    assert told == stage.told(sent)
    assert [sent.hit_id] == [said["task_id"] for said in stage.heard("told_failure", canvas=sent.name, of="member")]
    assert [sent.hit_id] == [said["task_id"] for said in stage.heard("told_error", canvas=sent.name)]
    assert body_errbacks == len(stage.heard("told_failure", canvas=sent.name, of="body"))


@pytest.mark.parametrize("fate", ["once", "twice"])
@pytest.mark.parametrize("shape", SHAPES)
def test_errback_with_a_key_has_one_effect(buried, shape, fate):
    """A failed order would be paid back twice, because its message came twice."""
    stage, sent = buried.stage, buried.canvases[fate, shape]

    assert 1 == stage.charges(sent)[f"{sent.orders}-back"]


@pytest.mark.parametrize("fate", ["once", "twice"])
@pytest.mark.parametrize("shape", WITH_CHORD)
def test_error_callback_of_a_chord_runs_once(buried, shape, fate):
    """celery/celery#6029: a chord would fail silently, or its compensation run for each delivery of a member."""
    stage, sent = buried.stage, buried.canvases[fate, shape]

    assert 1 == len(stage.heard("told_failure", canvas=sent.name, of="body"))


@pytest.mark.parametrize("fate", ["once", "twice"])
@pytest.mark.parametrize("shape", SHAPES)
def test_state_of_a_member_that_fails_for_good_names_its_letter(buried, shape, fate):
    """Whoever looks at the failed canvas could not find what to mend and replay."""
    stage, sent = buried.stage, buried.canvases[fate, shape]
    letters = stage.letters_of(sent)

    state, error = stage.meta(sent.hit_id)

    assert [(FailureKind.DATA, sent.hit_id)] == [(letter.kind, letter.task_id) for letter in letters]
    assert "FAILURE" == state
    assert isinstance(error, DeadLettered)
    assert letters[0].id == error.letter_id


@pytest.mark.parametrize("fate", ["plain", "once", "twice"])
@pytest.mark.parametrize("shape", ["chain", "chord", "single", "nested", "chord_after"])
def test_what_waits_for_a_member_that_fails_for_good_fails_too(buried, shape, fate):
    """celery/celery#9674: a caller waits for ever for the end of a canvas whose member has failed."""
    assert "FAILURE" == buried.stage.meta(buried.canvases[fate, shape].last_id)[0]


# --- the broker refuses

CONTINUED = ("chain", "link", "links", "group_after", "chord_after")
PLAIN = {"hit": "plain_add", "member": "plain_add", "errbacks": False}


@pytest.fixture
def cutter(redis_url):
    """The way of one test's workers to the broker's ear."""
    with Cutter(redis_url) as cutter:
        yield cutter


@contextlib.contextmanager
def refusing(stage, cutter, canvases, *, visibility_timeout):
    """Take the broker's ear away before what follows these canvases' members is published, and give it back."""
    stage.worker(
        len(canvases) + 2,
        visibility_timeout=visibility_timeout,
        broker_read_url=stage.redis_url,
        broker_write_url=cutter.url,
        broker_connection_timeout=0.2,
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.1},
    )
    for sent in canvases:
        stage.wait_until_there("after_effect", sent)
        stage.wait_until_last(sent)
    cutter.refuse()
    stage.announcements.open("after_effect")
    yield
    cutter.allow()
    stage.wait_quiet()


@pytest.fixture(scope="module")
def refused(redis_url, tmp_path_factory):
    """
    Canvases, by shape, whose continuation the broker refused, and how their members stood then; all has ended.

    `plain_body` and `unkeyed` are chords: with a body of plain Celery, and with a member that has no key.
    """
    with Stage(redis_url, tmp_path_factory.mktemp("refused")) as stage, Cutter(redis_url) as cutter:
        canvases = {shape: stage.send(shape, hold="after_effect") for shape in (*CONTINUED, *WITH_CHORD)}
        canvases["plain_body"] = stage.send("single", hold="after_effect", body="plain_total")
        canvases["unkeyed"] = stage.send("single", hold="after_effect", hit="unkeyed_add")
        with refusing(stage, cutter, canvases.values(), visibility_timeout=10):
            for sent in canvases.values():
                stage.wait_for("before_ack", order_id=sent.hit_order)
            states = {name: stage.meta(sent.hit_id)[0] for name, sent in canvases.items()}
            kept = stage.unacknowledged()
        yield SimpleNamespace(stage=stage, canvases=canvases, states=states, kept=kept)


@pytest.mark.parametrize("name", [*CONTINUED, *WITH_CHORD, "plain_body"])
def test_continuation_that_the_broker_refuses_is_sent_when_it_is_back(refused, name):
    """The rest of a canvas would be gone with the answer of a broker that was away for a moment."""
    assert_ended_once(refused.stage, refused.canvases[name])
    assert [] == refused.stage.letters_of(refused.canvases[name])


def test_member_without_a_key_runs_again_for_a_body_that_the_broker_refuses(refused):
    """At least once is all that is promised without a key; the chord must not be lost for that."""
    stage, sent = refused.stage, refused.canvases["unkeyed"]

    assert [2] == stage.told(sent)
    assert {sent.hit_order: 2, f"{sent.orders}-body": 1} == stage.charges(sent)


def test_member_whose_continuation_is_refused_is_kept_and_not_shown_as_failed(refused):
    """A finished payment would be shown as failed, and somebody would make it again."""
    # A chord's part is reported with its result.
    chords = dict.fromkeys((*WITH_CHORD, "plain_body", "unkeyed"), "SUCCESS")

    assert dict.fromkeys(CONTINUED, "PENDING") | chords == refused.states
    assert len(refused.canvases) == refused.kept


def test_plain_celery_loses_the_chain_that_the_broker_refuses(stage, cutter):
    """If plain Celery came through, the tests above would prove nothing."""
    sent = stage.send("chain", hold="after_effect", **PLAIN)

    with refusing(stage, cutter, [sent], visibility_timeout=600):
        stage.wait_for("task_failure", task_id=sent.hit_id)

    assert "FAILURE" == stage.meta(sent.hit_id)[0]
    assert [] == stage.told(sent)


def test_plain_celery_loses_the_body_of_a_chord_that_the_broker_refuses(stage, cutter):
    """If plain Celery came through, the tests of chords would prove nothing."""
    sent = stage.send("nested", hold="after_effect", body="plain_total", **PLAIN)

    with refusing(stage, cutter, [sent], visibility_timeout=600):
        stage.wait_for("before_ack", task_id=sent.hit_id)

    assert "FAILURE" == stage.meta(sent.last_id)[0]
    assert ([], []) == (stage.told(sent), stage.letters_of(sent))


def test_body_of_a_chord_of_plain_tasks_that_the_broker_refuses_is_a_letter(stage, cutter):
    """Plain Celery acknowledges the last member: all are done, and what they were done for would be lost."""
    sent = stage.send("nested", hold="after_effect", **PLAIN)
    with refusing(stage, cutter, [sent], visibility_timeout=600):
        stage.wait_for("before_ack", task_id=sent.hit_id)

    (letter,) = stage.letters_of(sent)
    before = stage.told(sent)
    replay(stage.app, letter.id, "somebody")
    stage.wait_quiet()

    assert (sent.last_id, "canvas.total", False) == (letter.task_id, letter.task, letter.effect_possible)
    assert "FAILURE" == stage.meta(sent.last_id)[0]
    assert [] == before
    assert_ended_once(stage, sent)
