"""
What comes of a replay: its letter is closed or opened again, and work that may have happened is not run unasked.
"""

from types import SimpleNamespace

import pytest
from celery import chord

from celery_safeguards import DidNotHappen, Happened, Safeguards, SafeTask
from celery_safeguards import headers as h
from celery_safeguards.admission.gate import Gate
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.errors import Refused, StoreUnavailable
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import ReplayRefused, discard, replay, replay_many, resume
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import die, forget_record, make_app, queued, run, run_failing, stored, take

pytestmark = pytest.mark.redis


# --- closed or open again


def raising(error):
    def call(*given, **options):
        raise error

    return call


def test_replay_that_succeeds_closes_its_letter(shop):
    """A desk full of letters that were repaired long ago hides the new ones."""
    keyed, unkeyed = die(shop, shop.charge, order_id=1), die(shop, shop.note, a=1)

    fates = [str(result) for result in replay_many(shop.app, [keyed.id, unkeyed.id], "ann")]
    results = [run(shop.app), run(shop.app)]

    assert fates == ["replayed", "replayed"]
    assert results == [{"order_id": 1}, {"a": 1}]
    assert [stored(shop, letter).state for letter in (keyed, unkeyed)] == ["closed", "closed"]


@pytest.mark.parametrize("name", ["charge", "note"])
def test_replay_that_dies_again_reopens_its_letter(shop, name):
    """A new letter for each try buries the history of the first."""
    letter = die(shop, getattr(shop, name), order_id=1)
    sent = replay(shop.app, letter.id, "ann")
    shop.error = ValueError("still no such order")

    run(shop.app)

    again = stored(shop, letter)
    assert (again.state, again.task_id) == ("open", sent.task_id)
    assert [entry.what for entry in again.history] == ["replay begun", "replayed", "died again"]
    assert len(Wiring.of(shop.app).letters.list().letters) == 1


def test_keyed_work_that_was_done_meanwhile_is_not_run_by_a_replay(shop):
    """The order was paid under another message: the replay must hand out that result."""
    letter = die(shop, shop.charge, order_id=1)
    replay(shop.app, letter.id, "ann")
    first = take(shop.app)
    run(shop.app, first)
    shop.ran.clear()

    assert run(shop.app, first) == {"order_id": 1}
    assert shop.ran == []


def test_conflict_that_is_replayed_in_vain_reopens_its_letter(shop):
    """A conflict that comes back under a new id would fill the desk with copies of itself."""
    shop.charge.apply_async(kwargs={"order_id": 1})
    run(shop.app)
    shop.charge.publish((), {"order_id": 1}, headers={h.KEY: "order:1", h.FINGERPRINT: "another"})
    run(shop.app)
    letters = Wiring.of(shop.app).letters
    (letter,) = letters.list().letters
    letters.begin_replay(letter.id, "again", "ann", 1.0)
    resume(shop.app, letter.id)

    run(shop.app)

    assert letter.kind is FailureKind.CONFLICT
    assert [each.id for each in letters.list(state="open").letters] == [letter.id]


def test_conflict_that_is_replayed_with_success_closes_its_letter(shop, redis_client, namespace):
    """Its record names no letter: only the message knows where it came from."""
    shop.charge.apply_async(kwargs={"order_id": 1})
    run(shop.app)
    shop.charge.publish((), {"order_id": 1}, headers={h.KEY: "order:1", h.FINGERPRINT: "another"})
    run(shop.app)
    (letter,) = Wiring.of(shop.app).letters.list().letters
    forget_record(redis_client, namespace, letter)

    replay(shop.app, letter.id, "ann")
    run(shop.app)

    assert stored(shop, letter).state == "closed"


# --- may have happened


def test_quarantined_work_is_refused_without_a_verdict_and_stays_as_it_is(shop):
    """A click without an answer would run into the same quarantine, and say that it was replayed."""
    letter = die(shop, shop.charge, order_id=1, error=TimeoutError())

    with pytest.raises(ReplayRefused, match="nobody knows"):
        replay(shop.app, letter.id, "ann")

    assert stored(shop, letter) == letter
    assert queued(shop.app) == 0


def test_happened_records_the_result_without_running(shop):
    """The card was charged: charging it again is what the quarantine was for."""
    letter = die(shop, shop.charge, order_id=1, error=TimeoutError())

    replay(shop.app, letter.id, "ann", Happened({"charge": 7}))

    assert run(shop.app) == {"charge": 7}
    assert shop.ran == []
    assert stored(shop, letter).state == "closed"
    assert Wiring.of(shop.app).admission.read(RecordKey("shop.charge", "order:1")).state is State.DONE


def test_did_not_happen_lets_the_body_run(shop):
    """The person has looked: the work is still to be done."""
    letter = die(shop, shop.charge, order_id=1, error=TimeoutError())

    replay(shop.app, letter.id, "ann", DidNotHappen())
    run(shop.app)

    assert shop.ran == [("charge", {"order_id": 1})]
    assert stored(shop, letter).state == "closed"


def test_result_that_no_message_carries_is_refused_before_anything_changes(shop):
    """Found out after the compare-and-set it would leave the letter replaying for ever."""
    letter = die(shop, shop.charge, order_id=1, error=TimeoutError())

    with pytest.raises(ReplayRefused, match="JSON"):
        replay(shop.app, letter.id, "ann", Happened(object()))

    assert stored(shop, letter) == letter


def test_work_with_verify_is_asked_about_before_it_runs_again(shop):
    """Its last attempt timed out: it may have paid."""
    letter = die(shop, shop.pay, order_id=1, error=TimeoutError())
    shop.verdict = Happened("paid before")

    replay(shop.app, letter.id, "ann")

    assert run(shop.app) == "paid before"
    assert (shop.asked, shop.ran) == ([1], [])


def test_unkeyed_work_with_a_possible_effect_needs_consent(shop):
    """A mail that timed out may have been sent."""
    letter = die(shop, shop.mail, a=1, error=TimeoutError())

    with pytest.raises(ReplayRefused, match="may run twice"):
        replay(shop.app, letter.id, "ann")
    replay(shop.app, letter.id, "ann", may_run_twice=True)

    assert queued(shop.app) == 1
    assert ("may run twice", "ann") in [(entry.what, entry.who) for entry in stored(shop, letter).history]


# --- the record is lost


@pytest.mark.parametrize("name", ["pay", "charge"])
def test_store_that_lost_the_record_does_not_run_unasked(shop, name, redis_client, namespace):
    """The letter survived the wipe, the record did not: the replay must not pass for a first start."""
    letter = die(shop, getattr(shop, name), order_id=1, error=TimeoutError())
    shop.verdict = Happened("paid before")
    verdict = Happened("paid before") if name == "charge" else None
    forget_record(redis_client, namespace, letter)

    replay(shop.app, letter.id, "ann", verdict)

    assert run(shop.app) == "paid before"
    assert shop.ran == []


def test_burial_after_a_lost_record_reopens_the_letter_it_came_from(shop, redis_client, namespace):
    """One operation, one letter: a second one would leave the first as replayed for ever."""
    letter = die(shop, shop.pay, order_id=1, error=TimeoutError())
    forget_record(redis_client, namespace, letter)
    shop.error = ValueError("still no such order")

    replay(shop.app, letter.id, "ann")
    run(shop.app)

    assert stored(shop, letter).state == "open"
    assert len(Wiring.of(shop.app).letters.list().letters) == 1


# --- given up


def test_discarding_frees_the_key_for_a_new_publication(shop):
    """The key of work that was given up would be refused for ever, and nobody would see why."""
    letter = die(shop, shop.note_once, order_id=1)
    shop.note_once.delay(order_id=1)
    assert isinstance(run_failing(shop.app), Refused)

    discard(shop.app, letter.id, "ann", "a test order")
    shop.note_once.delay(order_id=1)
    run(shop.app)

    assert shop.ran == [("note_once", {"order_id": 1})]


@pytest.mark.parametrize("again", [0, 1])
def test_discarding_frees_the_key_of_a_burial_that_was_cut_short_behind_its_letter(shop, monkeypatch, again):
    """Its record is dead once the message comes back: under a letter that is discarded by then, the key is nobody's."""
    sent = shop.note_once.apply_async(kwargs={"order_id": 1})
    message, shop.error = take(shop.app), ValueError("no such order")
    with monkeypatch.context() as patch:
        patch.setattr(Gate, "finish_burial", raising(StoreUnavailable("killed")))
        run(shop.app, message)
    (letter,) = Wiring.of(shop.app).letters.list().letters
    while take(shop.app) is not None:
        pass
    shop.ran.clear()
    shop.error = None

    discard(shop.app, letter.id, "ann", "a test order")
    for _ in range(again):
        run(shop.app, message)
    second = shop.note_once.apply_async(kwargs={"order_id": 1})
    run(shop.app)

    assert sent.id != second.id
    assert shop.ran == [("note_once", {"order_id": 1})]
    run(shop.app, message)
    assert (len(shop.ran), stored(shop, letter).state) == (1, "discarded")


def test_burial_that_is_finished_while_its_letter_is_discarded_does_not_keep_the_key(shop, monkeypatch):
    """Both steps are compared with the record as it was read, and the burial's came first."""
    shop.note_once.apply_async(kwargs={"order_id": 1})
    message, shop.error = take(shop.app), ValueError("no such order")
    finish = Gate.finish_burial

    def finish_between(gate, record):
        (letter,) = Wiring.of(shop.app).letters.list().letters
        admission = Wiring.of(shop.app).admission
        settle, later = admission.settle, []

        def settle_second(*given, **options):
            admission.settle = settle
            later.append(finish(gate, record))
            return settle(*given, **options)

        admission.settle = settle_second
        discard(shop.app, letter.id, "ann", "a test order")
        return later[0]

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "finish_burial", finish_between)
        run(shop.app, message)
    shop.ran.clear()
    shop.error = None

    shop.note_once.apply_async(kwargs={"order_id": 1})
    run(shop.app)

    assert shop.ran == [("note_once", {"order_id": 1})]


def test_discarding_leaves_a_replay_that_has_begun_alone(shop):
    """Its start would be taken from it, and its outcome refused."""
    letter = die(shop, shop.note_once, order_id=1)
    replay(shop.app, letter.id, "bob")

    with pytest.raises(LetterNotOpen):
        discard(shop.app, letter.id, "ann", "a test order")

    run(shop.app)
    assert stored(shop, letter).state == "closed"


# --- in a chord


def _chord_keys(client, group):
    sizes = {"zset": client.zcard, "list": client.llen, "set": client.scard, "string": client.get}
    return {key: sizes[client.type(key)](key) for key in client.keys(f"*{group}*")}


@pytest.mark.filterwarnings("ignore:Call to deprecated")
def test_replayed_member_of_a_dead_chord_neither_crashes_nor_counts(redis_url, namespace, redis_client):
    """A chord that has failed must not be completed by a late member (celery/celery#9674)."""
    with make_app(redis_url, redis_url, namespace, result_backend=redis_url, result_expires=60) as app:
        Wiring.of(app).admission.declare_new()
        world = SimpleNamespace(broken=True)

        @app.task(shared=False, base=SafeTask, name="shop.part", safeguards=Safeguards(repeatable=True, retry=None))
        def part(number):
            if world.broken:
                raise ValueError(number)
            return number

        @app.task(shared=False, name="shop.total")
        def total(numbers):
            return sum(numbers)

        waiting = chord([part.s(1), part.s(2)], app=app)(total.s())
        members = [take(app), take(app)]
        for message in members:
            run(app, message)
        counted = _chord_keys(redis_client, members[0].headers["group"])
        world.broken = False

        letters = Wiring.of(app).letters.list().letters
        results = [run(app) for _ in replay_many(app, [letter.id for letter in letters], "ann")]

        assert sorted(results) == [1, 2]
        assert _chord_keys(redis_client, members[0].headers["group"]) == counted
        assert queued(app) == 0
        assert waiting.state == "FAILURE"
        waiting.forget()
        app.backend.client.close()
