"""
Messages that no task can read: each becomes a dead letter before it is given up, and its worker goes on.

celery/celery#5504, celery/kombu#928: an unknown task is discarded, and a log line remains. celery/celery#4308, #2873,
#1825, celery/kombu#2421: a message that cannot be decoded ends the worker, or is acknowledged away.
"""

import json
import time

import pytest

from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import replay
from tests.acceptance import intake_app
from tests.acceptance.intake_under_test import (
    BAD,
    GOOD_BODY,
    ODD,
    PATIENCE_SECONDS,
    Intake,
    bad_message,
    envelope,
    headers,
    odd_message,
)
from tests.support.announcements import is_said
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until


@pytest.fixture
def intake(redis_url, tmp_path):
    """A scene for one test."""
    with Intake(redis_url, tmp_path) as intake:
        yield intake


@pytest.fixture(scope="module")
def fed(redis_url, tmp_path_factory):
    """A worker that was fed every bad message, each followed by a good one: `(scene, worker, letters by name)`."""
    with Intake(redis_url, tmp_path_factory.mktemp("fed")) as intake:
        worker = intake.worker()
        sent = {}
        for number, name in enumerate(BAD):
            sent[name] = bad_message(name, intake.namespace)
            intake.lay(sent[name])
            intake.send("intake.plain" if number % 2 else "intake.guarded", number)
            intake.wait_ran(number)
            intake.wait_letters(number + 1)
        tags = {json.loads(raw)["properties"]["delivery_tag"]: name for name, raw in sent.items()}
        letters = {tags[each.wire.properties["delivery_tag"]]: each for each in intake.letters()}
        yield intake, worker, sent, letters


@pytest.mark.parametrize("name", BAD)
def test_message_that_cannot_be_read_is_a_letter_of_the_wires_bytes(fed, name):
    """celery/celery#5504, #4308: it would be gone with nothing but a log line to tell of it, or end its worker."""
    _intake, _worker, sent, letters = fed
    kind, body, _odd = BAD[name]
    raw = json.loads(sent[name])

    letter = letters[name]

    assert (FailureKind(kind), body) == (letter.kind, letter.wire.body)
    assert (raw["content-type"], raw["content-encoding"]) == (letter.wire.content_type, letter.wire.content_encoding)
    given = (
        raw["headers"] if isinstance(raw["headers"], dict) else {"headers": raw["headers"]} if raw["headers"] else {}
    )
    assert given == dict(letter.wire.headers)
    assert letter.reason
    assert not letter.effect_possible


def test_worker_that_was_fed_all_of_it_lives_and_keeps_nothing(fed):
    """celery/celery#2873: the queue would stand still behind one message, or every worker die of it in turn."""
    intake, worker, _sent, letters = fed

    intake.wait_quiet()

    assert worker.is_running()
    assert set(BAD) == set(letters)
    # Neither had the message end the consumer's loop, and start it anew.
    assert "Connection to broker lost" not in worker.log()
    assert "Unrecoverable error" not in worker.log()


DIES = {
    *("headers a list", "task a list", "body a number", "body of two", "body a mapping", "time limits one number"),
    *("bad base64", "body of the envelope a list", "no id, of no task here", "id a list"),
    *("stamps a number", "stamps mappings", "headers nested deeply", "protocol 1 nested deeply"),
}
STANDS_STILL = {"no id", "protocol 1 without id and args"}


@pytest.mark.parametrize("name", BAD)
def test_plain_celery_loses_the_message_or_itself(intake, name):
    """If plain Celery kept it, the tests above would prove nothing."""
    worker = intake.worker(**{intake_app.STOCK: "1"})

    intake.lay(bad_message(name, intake.namespace))

    if name in DIES:
        worker.wait_exited(PATIENCE_SECONDS)
    elif name in STANDS_STILL:
        # Again and again: a worker that has lost its connection in earnest says so once.
        lost = lambda: worker.log().count("Connection to broker lost") > 2  # noqa: E731
        wait_until(lost, PATIENCE_SECONDS, "the worker goes round in a circle")
    else:
        intake.send("intake.plain", 2)
        intake.wait_ran(2)
        intake.wait_quiet()
        assert [] == intake.announcements.heard(is_said("ran", number=1))
        assert () == intake.letters()


def test_odd_message_that_plain_celery_runs_runs_unless_its_task_is_guarded(intake):
    """A plain task would lose work by the mere presence of a guarded one in its app."""
    intake.worker()

    for count, name in enumerate(ODD, start=1):
        intake.lay(odd_message(name, "intake.plain", intake.namespace))
        intake.wait_ran(1, count=count)
        intake.lay(odd_message(name, "intake.guarded", intake.namespace))
        intake.wait_letters(count)

    intake.wait_quiet()
    assert len(ODD) == len(intake.announcements.heard(is_said("ran", number=1)))
    assert {"intake.guarded"} == {letter.task for letter in intake.letters()}


# --- replay


@pytest.mark.parametrize("name", ["intake.gone", "intake.gone_plain"])
def test_unknown_task_runs_with_its_arguments_once_it_is_there(intake, name):
    """celery/celery#5504: what was published before its workers were deployed is never done."""
    worker = intake.worker()
    intake.send(name, 7)
    (letter,) = intake.wait_letters()
    worker.stop()
    intake.worker(**{intake_app.KNOWS_GONE: "1"})

    replayed = replay(intake.app, letter.id, "ops")

    intake.wait_ran(7)
    intake.wait_quiet()
    assert (FailureKind.UNKNOWN_TASK, name) == (letter.kind, letter.task)
    assert 1 == len(intake.announcements.heard(is_said("task_prerun", task_id=replayed.task_id)))
    # A plain task tells nobody that it has succeeded.
    end = "closed" if name == "intake.gone" else "replayed"
    wait_until(lambda: end == intake.wiring.letters.get(letter.id).state, PATIENCE_SECONDS, f"the letter is {end}")


def test_replay_of_a_task_that_is_still_unknown_reopens_its_letter(intake):
    """A second letter would have two people replay one message."""
    intake.worker()
    intake.send("intake.gone", 7)
    (letter,) = intake.wait_letters()

    replayed = replay(intake.app, letter.id, "ops")

    is_open = lambda: intake.wiring.letters.get(letter.id).state == "open"  # noqa: E731
    wait_until(lambda: is_open() and intake.messages() == (0, 0), PATIENCE_SECONDS, "the letter is open again")
    (reopened,) = intake.letters()
    assert (letter.id, replayed.task_id) == (reopened.id, reopened.task_id)


# --- before the message is given up


def test_worker_killed_between_letter_and_reject_leaves_one_letter(intake):
    """Rejected first, the message would be gone with the worker; written again, there would be two letters of it."""
    worker = intake.worker()
    intake.announcements.hold("letter")
    intake.lay(bad_message("no id", intake.namespace))
    intake.announcements.wait_for("letter", PATIENCE_SECONDS)
    kept = intake.messages()
    worker.kill_all()
    intake.announcements.open("letter")
    intake.let_messages_time_out()

    intake.worker()
    intake.wait_quiet()

    assert (0, 1) == kept
    assert 1 == len(intake.letters())


def test_plain_celery_killed_where_it_tells_of_an_unknown_task_has_lost_it(intake):
    """celery/kombu#928: a receiver of `task_unknown` that keeps messages comes after the reject."""
    worker = intake.worker(**{intake_app.STOCK: "1"})
    intake.announcements.hold("task_unknown")
    intake.send("intake.gone", 1)
    intake.announcements.wait_for("task_unknown", PATIENCE_SECONDS)

    kept = intake.messages()
    worker.kill_all()

    assert (0, 0) == kept


def test_same_bytes_published_again_have_a_letter_of_their_own(intake):
    """Taken for a redelivery, the second message would be given up without a trace."""
    intake.worker()
    raw = envelope(intake.namespace, GOOD_BODY, headers("intake.gone"))

    for count in (1, 2):
        intake.lay(raw)
        intake.wait_letters(count)
        intake.wait_quiet()

    first, second = intake.letters()
    assert first.id != second.id
    assert first.wire.body == second.wire.body


# --- a store that is away, or hangs


@pytest.fixture
def way_to_store(redis_url):
    """The workers' way to the store; broker and test have their own."""
    with Cutter(redis_url) as cutter:
        yield cutter


@pytest.fixture
def cut_off(redis_url, tmp_path, way_to_store):
    """A scene whose workers go to the store by a way that can be cut."""
    with Intake(redis_url, tmp_path, store_url=way_to_store.url) as intake:
        yield intake


def test_message_stays_while_its_letter_cannot_be_written(cut_off, way_to_store):
    """Given up without a letter, it would be lost; waited for, nothing else would run."""
    cut_off.worker()
    way_to_store.refuse()
    cut_off.send("intake.gone", 1)
    cut_off.send("intake.plain", 2)

    cut_off.wait_ran(2)
    wait_until(lambda: cut_off.messages() == (0, 1), PATIENCE_SECONDS, "one message is left, and not acknowledged")
    way_to_store.allow()
    cut_off.let_messages_time_out()
    # A worker that comes looks for lapsed messages at once; kombu before 5.7 does so seldom otherwise.
    cut_off.worker()

    (letter,) = cut_off.wait_letters()
    cut_off.wait_quiet()
    assert FailureKind.UNKNOWN_TASK == letter.kind


def test_letter_goes_to_the_spool_while_its_store_is_away(cut_off, way_to_store, tmp_path):
    """The message would come back again and again as long as the outage lasts."""
    spool = tmp_path / "spool"
    spool.mkdir()
    cut_off.worker(**{intake_app.SPOOL: str(spool)})
    way_to_store.refuse()
    cut_off.send("intake.gone", 1)

    cut_off.announcements.wait_for("letter", PATIENCE_SECONDS)
    cut_off.wait_quiet()
    spooled = list(spool.glob("*.letter"))
    way_to_store.allow()

    cut_off.wait_letters(timeout=30)
    assert 1 == len(spooled)


HANG_SECONDS = 6
SOON_SECONDS = 3


def unknown_task(intake, _worker):
    """Have the main process write a letter."""
    intake.send("intake.gone", 1)
    wait_until(lambda: intake.messages() == (0, 1), PATIENCE_SECONDS, "the message is taken")


def killed_child(intake, worker):
    """Have the main process count a lost start."""
    worker.kill_child(_wait_in_body(intake, "intake.wait"))
    wait_until(lambda: "was lost" in worker.log(), PATIENCE_SECONDS, "the death is noticed")


def hard_limit(intake, worker):
    """Have the main process count a start that was over its limit."""
    _wait_in_body(intake, "intake.limited")
    wait_until(lambda: "was lost" in worker.log(), PATIENCE_SECONDS, "the limit is over")


def _wait_in_body(intake, name):
    intake.announcements.hold("waiting")
    intake.app.tasks[name].delay(1)
    return intake.announcements.wait_for("waiting", PATIENCE_SECONDS)["pid"]


def seconds_until_another_runs(intake, way_to_store, fault, **env):
    """Return how long another task takes to run beside a fault whose store hangs."""
    worker = intake.worker(concurrency=2, **{intake_app.STORE_TIMEOUT: str(HANG_SECONDS), **env})
    way_to_store.stall()
    fault(intake, worker)
    begun = time.monotonic()
    intake.send("intake.plain", 2)
    ran = intake.wait_ran(2)
    way_to_store.resume()
    intake.announcements.open("waiting")
    return ran["at"] - begun


FAULTS = [unknown_task, killed_child, hard_limit]


@pytest.mark.parametrize("fault", FAULTS)
def test_store_that_hangs_keeps_no_other_task_waiting(cut_off, way_to_store, fault):
    """One message would stop a worker's loop: no message taken, no limit kept, no child heard."""
    assert seconds_until_another_runs(cut_off, way_to_store, fault) < SOON_SECONDS


@pytest.mark.parametrize("fault", FAULTS)
def test_store_that_is_asked_on_the_loop_keeps_every_task_waiting(cut_off, way_to_store, fault):
    """If it did not, the test above would prove nothing."""
    assert seconds_until_another_runs(cut_off, way_to_store, fault, **{intake_app.INLINE: "1"}) > SOON_SECONDS


def test_shutdown_waits_for_the_letter(cut_off, way_to_store):
    """A worker that is deployed anew while its store is slow would leave the message to the visibility timeout."""
    worker = cut_off.worker(**{intake_app.STORE_TIMEOUT: str(HANG_SECONDS)})
    way_to_store.stall()
    unknown_task(cut_off, worker)
    worker.terminate()
    worker.wait_for("worker_shutting_down", PATIENCE_SECONDS)
    way_to_store.resume()

    worker.wait_exited()

    assert (1, (0, 0)) == (len(cut_off.letters()), cut_off.messages())


# --- pools and queues


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_every_pool_keeps_what_it_cannot_read(intake, pool):
    """A pool without an event loop acknowledges elsewhere, and must not do so before the letter either."""
    worker = intake.worker(pool=pool, concurrency=2)

    for number, name in enumerate(BAD):
        intake.lay(bad_message(name, intake.namespace))
        intake.send("intake.plain", number)
        intake.wait_ran(number)

    intake.wait_letters(len(BAD))
    intake.wait_quiet()
    assert worker.is_running()
    assert len(BAD) == len(intake.letters())
