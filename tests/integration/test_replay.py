"""
Letters back to work, over a real broker and store: published, died, replayed, run again by Celery's own tracer.

A message is taken from its queue and run in this process, as a worker's pool child runs it.
"""

import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest
from celery import Celery, chord

from celery_safeguards import DidNotHappen, Happened, Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards import headers as h
from celery_safeguards._redis import Keys
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.store import LetterNotOpen
from celery_safeguards.errors import ConfigurationError, Refused
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import Fate, NotPublished, ReplayRefused, discard, replay, replay_many, resume
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.request import SafeRequest
from tests.support.apps import queue_settings
from tests.support.sockets import free_port

pytestmark = pytest.mark.redis


def make_app(broker_url, store_url, namespace, **settings):
    app = Celery("shop", broker=broker_url, set_as_current=False)
    app.conf.update(queue_settings(namespace))
    app.conf.update(
        safeguards_store_url=store_url,
        safeguards_namespace=namespace,
        task_publish_retry_policy={"max_retries": 0},
        **settings,
    )
    return app


@pytest.fixture
def app(redis_url, namespace):
    """The shop's app; its store is declared new."""
    with make_app(redis_url, redis_url, namespace) as app:
        Wiring.of(app).admission.declare_new()
        yield app


@pytest.fixture
def shop(app):
    """Tasks that fail while `shop.error` is set, and what they did."""
    world = SimpleNamespace(app=app, error=None, ran=[], verdict=DidNotHappen(), asked=[])

    def body(name, **arguments):
        world.ran.append((name, arguments))
        if world.error is not None:
            raise world.error
        return arguments

    def find(order_id):
        world.asked.append(order_id)
        return world.verdict

    once = RetryPolicy(attempts=1)

    @app.task(shared=False, base=SafeTask, name="shop.note", safeguards=Safeguards(repeatable=True, retry=once))
    def note(**arguments):
        return body("note", **arguments)

    @app.task(shared=False, base=SafeTask, name="shop.mail", safeguards=Safeguards(retry=once))
    def mail(**arguments):
        return body("mail", **arguments)

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.charge",
        safeguards=Safeguards(
            idempotent=Idempotent("order:{order_id}", on_unknown="quarantine", quiet_seconds=0), retry=once
        ),
    )
    def charge(order_id):
        return body("charge", order_id=order_id)

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.pay",
        safeguards=Safeguards(
            idempotent=Idempotent("payment:{order_id}", on_unknown=Verify(find, after_seconds=0)), retry=once
        ),
    )
    def pay(order_id):
        return body("pay", order_id=order_id)

    @app.task(
        shared=False,
        base=SafeTask,
        name="shop.note_once",
        safeguards=Safeguards(idempotent=Idempotent("note:{order_id}", on_unknown="rerun"), retry=once),
    )
    def note_once(order_id):
        return body("note_once", order_id=order_id)

    world.note, world.mail, world.charge, world.pay, world.note_once = note, mail, charge, pay, note_once
    return world


def queued(app, queue=None):
    """Return how many messages wait."""
    name = queue or app.conf.task_default_queue
    with app.connection_for_read() as connection:
        return connection.default_channel.client.llen(name)


def take(app):
    """Take one message from the queue; None: there is none."""
    with app.connection_for_read() as connection:
        queue = app.amqp.queues[app.conf.task_default_queue]
        return queue(connection.default_channel).get(no_ack=True, accept=app.conf.accept_content)


def run(app, message=None):
    """Run one message as a pool child does, and return what the task returned or how it failed."""
    message = take(app) if message is None else message
    request = SafeRequest(message, app=app, task=app.tasks[message.headers["task"]], hostname="w1")
    return request.execute()


def run_failing(app):
    """Run one message that fails, and return with what."""
    message = take(app)
    failed = run(app, message)
    return failed.exception if hasattr(failed, "exception") else failed


def die(shop, task, error=None, options=None, **arguments):
    """Publish a task, let it die, and return its letter."""
    shop.error = error or ValueError("no such order")
    sent = task.apply_async(kwargs=arguments, **(options or {}))
    run(shop.app)
    shop.error = None
    shop.ran.clear()
    page = Wiring.of(shop.app).letters.list(state="open", limit=100)
    return next(letter for letter in page.letters if letter.task_id == sent.id)


def copied(shop, **changes):
    """Return the letter of another message, which came by another way."""
    letter = die(shop, shop.note, a=1)
    fields = {name: getattr(letter, name) for name in Letter.__dataclass_fields__}
    other = Letter(**{**fields, "id": f"{letter.id}-2", "wire": replace(letter.wire, **changes)})
    Wiring.of(shop.app).letters.bury(other)
    return other


def forget_record(client, namespace, letter):
    """Lose a letter's record, as a store that is restored from an old copy does."""
    assert client.delete(Keys(namespace).record(letter.scope, letter.key)) == 1


def stored(shop, letter):
    return Wiring.of(shop.app).letters.get(letter.id)


def race(count, call):
    """Call from `count` threads at the same instant and return the results."""
    barrier, results = threading.Barrier(count), []

    def racer(number):
        barrier.wait()
        results.append(call(number))

    threads = [threading.Thread(target=racer, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# --- the message


VALUES = {
    "yes": True,
    "nothing": None,
    "nested": {"a": [1, {"b": [None, False, 0.1]}], "empty": {}},
    "text": 'quotes " \\ ünïcode \u2028 ' + "x" * 2048,
    "at": datetime(2025, 3, 1, 12, 30, 5, 123456, tzinfo=UTC),
    "id": uuid.UUID("5c1f8a3e-0000-4000-8000-000000000001"),
    "amount": Decimal("10.10"),
    "raw": b"\x00\xff",
}


def test_values_of_every_type_are_equal_after_a_replay(shop):
    """A replay from a stored repr runs with "True" and "..." (celery/django-celery-results#113)."""
    letter = die(shop, shop.note, **VALUES)

    replay(shop.app, letter.id, "ann")
    run(shop.app)

    assert shop.ran == [("note", VALUES)]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_replayed_body_is_byte_for_byte_the_one_that_died(shop, serializer):
    """Bytes that were decoded and written anew are another message."""
    shop.app.conf.accept_content = ["json", "pickle"]
    shop.note.apply_async(kwargs=VALUES, serializer=serializer, compression="zlib")
    died = take(shop.app)
    shop.error = ValueError()
    run(shop.app, died)

    (letter,) = Wiring.of(shop.app).letters.list().letters
    replay(shop.app, letter.id, "ann")
    replayed = take(shop.app)

    assert replayed.body == died.body
    assert (replayed.content_type, replayed.content_encoding) == (died.content_type, died.content_encoding)


def test_priority_and_time_limits_are_kept(shop, namespace):
    """A replay that loses its priority waits behind all it was urgent against (celery/celery#5654)."""
    options = {"time_limit": 300, "soft_time_limit": 270, "priority": 3}
    letter = die(shop, shop.note, options=options, a=1)

    replay(shop.app, letter.id, "ann")

    assert queued(shop.app, f"{namespace}\x06\x163") == 1
    message = take(shop.app)
    assert message.headers["timelimit"] == [300, 270]
    assert message.properties["priority"] == 3


def test_message_returns_to_the_queue_it_came_from(shop, namespace):
    """In another queue no worker may have the task."""
    letter = copied(shop, delivery_info={"exchange": "", "routing_key": f"{namespace}-slow"})

    replay(shop.app, letter.id, "ann")

    assert (queued(shop.app, f"{namespace}-slow"), queued(shop.app)) == (1, 0)


def test_way_that_ends_nowhere_is_refused(shop):
    """A broker drops what no queue takes, and the letter would say that it was replayed."""
    letter = copied(shop, delivery_info={"exchange": "media", "routing_key": "video"})

    with pytest.raises(ReplayRefused, match="task_queues"):
        replay(shop.app, letter.id, "ann")
    assert stored(shop, letter) == letter


def test_letter_of_delayed_delivery_returns_to_its_queue(shop):
    """On RabbitMQ's quorum queues every retry comes by way of the delay exchange."""
    delayed = "0." * 25 + "1.0.1." + shop.app.amqp.default_queue.routing_key
    letter = copied(shop, delivery_info={"exchange": "celery_delayed_delivery", "routing_key": delayed})

    replay(shop.app, letter.id, "ann")

    assert queued(shop.app) == 1


def test_letter_of_eager_work_goes_the_way_of_its_task(shop):
    """Eager work has no route of its own, and its letters are real."""
    bare = {"task": "shop.note", "id": "t", "root_id": "t"}
    letter = copied(shop, delivery_info={}, headers=bare, properties={})

    replay(shop.app, letter.id, "ann")

    assert run(shop.app) == {"a": 1}


def test_letter_of_an_unknown_task_is_replayed(shop, redis_url, namespace):
    """Whoever replays need not have the code: a desk, or an app before its deploy."""
    letter = die(shop, shop.note, a=1)

    with make_app(redis_url, redis_url, namespace) as desk:
        replay(desk, letter.id, "ann")

    assert run(shop.app) == {"a": 1}


# --- one click, one message


def test_people_who_replay_the_same_letters_send_each_once(shop, redis_url, namespace):
    """Two admins press replay for the same letters: a second message is a second effect (django-q2/django-q2 PR#99)."""
    ids = [die(shop, shop.note, number=number).id for number in range(20)]
    with make_app(redis_url, redis_url, namespace) as ann, make_app(redis_url, redis_url, namespace) as bob:
        apps = [ann, bob, ann, bob]
        results = race(4, lambda number: list(replay_many(apps[number], ids, f"person {number}")))

    sent = [each.letter_id for batch in results for each in batch if each.fate is Fate.REPLAYED]
    assert sorted(sent) == sorted(ids)
    assert queued(shop.app) == 20
    assert {each.fate for batch in results for each in batch} == {Fate.REPLAYED, Fate.NOT_OPEN}


def test_history_tells_who_replayed_under_which_id(shop):
    """An incident review asks who pressed the button."""
    letter = die(shop, shop.note, a=1)

    sent = replay(shop.app, letter.id, "ann")

    kept = stored(shop, letter)
    assert (kept.state, kept.replay_task_id) == ("replayed", sent.task_id)
    assert [(entry.what, entry.who) for entry in kept.history] == [("replay begun", "ann"), ("replayed", None)]


def test_replay_under_no_name_is_refused(shop):
    """An audit trail of blanks is none."""
    letter = die(shop, shop.note, a=1)

    with pytest.raises(ConfigurationError, match="name"):
        replay(shop.app, letter.id, " ")


def test_batch_tells_the_result_of_each_letter_and_goes_on(shop):
    """One letter that somebody else took must not leave the other hundred lying (rq/django-rq PR#179)."""
    first, taken, last = (die(shop, shop.note, number=number).id for number in range(3))
    replay(shop.app, taken, "bob")

    results = list(replay_many(shop.app, [first, taken, "none", last, first], "ann"))

    fates = [Fate.REPLAYED, Fate.NOT_OPEN, Fate.REFUSED, Fate.REPLAYED, Fate.NOT_OPEN]
    assert [result.fate for result in results] == fates
    assert str(results[2]) == "refused: there is no letter none"


def test_batch_keeps_its_pace(shop):
    """A thousand letters at once are the storm that killed the dependency (mperham/sidekiq#6481)."""
    ids = [die(shop, shop.note, number=number).id for number in range(3)]
    clock = PacedClock()
    replace(Wiring.of(shop.app), clock=clock).use_for(shop.app)

    fates = [result.fate for result in replay_many(shop.app, [ids[0], "none", *ids[1:]], "ann", per_second=2)]

    assert fates == [Fate.REPLAYED, Fate.REFUSED, Fate.REPLAYED, Fate.REPLAYED]
    assert clock.slept == [0.5, 0.5]


@pytest.mark.parametrize("per_second", [0, -1, float("inf")])
def test_pace_that_is_none_is_refused_before_the_first_letter(shop, per_second):
    """A pace of nothing would be found out after everything was sent."""
    with pytest.raises(ConfigurationError, match="per_second"):
        replay_many(shop.app, [], "ann", per_second=per_second)


class PacedClock:
    """Time that passes by sleeping only."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def wall_seconds(self):
        return 1_750_000_000.0

    def monotonic_seconds(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


# --- cut short


def test_replay_cut_short_is_sent_again_under_its_id(shop):
    """A replay whose process was killed after the compare-and-set would never be sent."""
    letter = die(shop, shop.charge, order_id=1)
    Wiring.of(shop.app).letters.begin_replay(letter.id, "allocated", "ann", 1.0)
    with pytest.raises(LetterNotOpen):
        replay(shop.app, letter.id, "bob")

    sent = resume(shop.app, letter.id, "bob")

    assert sent.task_id == "allocated"
    assert take(shop.app).headers["id"] == "allocated"
    assert stored(shop, letter).state == "replayed"


def test_replay_killed_after_publishing_runs_once(shop):
    """Sent twice under one id, the keyed work must not be done twice."""
    letter = die(shop, shop.charge, order_id=1)
    begun = replay(shop.app, letter.id, "ann")
    first = take(shop.app)
    _unmark(shop, letter)
    resume(shop.app, letter.id, "ann")
    second = take(shop.app)

    results = [run(shop.app, message) for message in (first, second)]

    assert first.headers["id"] == second.headers["id"] == begun.task_id
    assert results == [{"order_id": 1}, {"order_id": 1}]
    assert shop.ran == [("charge", {"order_id": 1})]


def test_work_without_a_key_is_not_sent_again_unasked(shop):
    """Nothing tells the two messages apart."""
    letter = die(shop, shop.mail, a=1)
    Wiring.of(shop.app).letters.begin_replay(letter.id, "allocated", "ann", 1.0)

    with pytest.raises(ReplayRefused, match="may be out already"):
        resume(shop.app, letter.id, "ann")
    assert resume(shop.app, letter.id, "ann", may_run_twice=True).task_id == "allocated"


def test_broker_that_is_away_leaves_the_letter_to_be_resumed(shop, redis_url, namespace):
    """A letter marked as replayed whose message nobody took is lost work."""
    letter = die(shop, shop.charge, order_id=1, error=TimeoutError())
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline:
        with pytest.raises(NotPublished):
            replay(offline, letter.id, "ann", Happened({"charge": 7}))
        (result,) = replay_many(offline, [letter.id], "ann")
    begun = stored(shop, letter)

    sent = resume(shop.app, letter.id)

    assert (begun.state, result.fate) == ("replaying", Fate.NOT_OPEN)
    message = take(shop.app)
    assert message.headers["id"] == sent.task_id == begun.replay_task_id
    assert message.headers[h.VERDICT] == {"happened": True, "result": {"charge": 7}}


def test_verdict_too_long_for_the_history_is_asked_for_again(shop, redis_url, namespace):
    """Without it admission would fail the replay, and with a cut one it would record half a result."""
    letter = die(shop, shop.charge, order_id=1, error=TimeoutError())
    verdict = Happened("x" * 2000)
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline, pytest.raises(NotPublished):
        replay(offline, letter.id, "ann", verdict)

    with pytest.raises(ReplayRefused, match="give it again"):
        resume(shop.app, letter.id)
    resume(shop.app, letter.id, "ann", verdict)

    assert run(shop.app) == "x" * 2000


def test_verdict_of_who_lost_the_race_is_not_taken(shop, redis_url, namespace):
    """Two people decide at once; the message must carry the word of the one whose replay it is."""
    letter = die(shop, shop.charge, order_id=1, error=TimeoutError())
    letters = Wiring.of(shop.app).letters
    letters.add_note(letter.id, "verdict", "bob", '{"task_id": "bobs", "happened": false}')
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as offline, pytest.raises(NotPublished):
        replay(offline, letter.id, "ann", Happened(1))

    resume(shop.app, letter.id)

    assert take(shop.app).headers[h.VERDICT]["happened"] is True


# --- what comes of it


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


def test_discarding_frees_the_key_for_a_new_publication(shop):
    """The key of work that was given up would be refused for ever, and nobody would see why."""
    letter = die(shop, shop.note_once, order_id=1)
    shop.note_once.delay(order_id=1)
    assert isinstance(run_failing(shop.app), Refused)

    discard(shop.app, letter.id, "ann", "a test order")
    shop.note_once.delay(order_id=1)
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


def test_unkeyed_work_with_a_possible_effect_needs_consent(shop):
    """A mail that timed out may have been sent."""
    letter = die(shop, shop.mail, a=1, error=TimeoutError())

    with pytest.raises(ReplayRefused, match="may run twice"):
        replay(shop.app, letter.id, "ann")
    replay(shop.app, letter.id, "ann", may_run_twice=True)

    assert queued(shop.app) == 1
    assert ("may run twice", "ann") in [(entry.what, entry.who) for entry in stored(shop, letter).history]


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


def _chord_keys(client, group):
    sizes = {"zset": client.zcard, "list": client.llen, "set": client.scard, "string": client.get}
    return {key: sizes[client.type(key)](key) for key in client.keys(f"*{group}*")}


def _unmark(shop, letter):
    """Put the letter back to where it stood between the publish and the mark."""
    Wiring.of(shop.app).letters._apply(letter.id, lambda kept: replace(kept, state="replaying"))
