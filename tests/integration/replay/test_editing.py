"""
Edit as new: what a copy sends, that its original stays, and what a person is told or refused before it is sent.
"""

import pickle
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import redis

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask
from celery_safeguards import headers as h
from celery_safeguards.deadletter.changes import look_at
from celery_safeguards.deadletter.letter import LetterTruncated
from celery_safeguards.deadletter.refusals import LetterChanged, LetterNotOpen
from celery_safeguards.errors import ConfigurationError, MessageTooLarge
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import (
    CopyNotPublished,
    EditRefused,
    discard,
    opened_at,
    prepare,
    replay,
    send_edited,
)
from celery_safeguards.replay.outlook import outlook
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import (
    VALUES,
    copied,
    die,
    forget_record,
    make_app,
    queued,
    run,
    run_failing,
    stored,
    take,
)
from tests.support.sockets import free_port

pytestmark = pytest.mark.redis


def now_of(shop):
    return Wiring.of(shop.app).clock.wall_seconds()


def edit_of(shop, letter, **changes):
    """Return an edit of a letter that differs from it by `changes`."""
    return replace(opened_at(letter, now_of(shop)).edit, **changes)


def send(shop, letter, *, may_run_twice=False, look=None, reason="a typing error", who="ann", **changes):
    edit = edit_of(shop, letter, **changes)
    return send_edited(shop.app, letter.id, who, edit, reason, may_run_twice=may_run_twice, look=look)


# --- the copy


def test_copy_runs_with_what_was_changed_and_all_else_as_it_was(shop):
    """A copy that loses a type on the way is another order than the one that a person saw."""
    letter = die(shop, shop.note, **VALUES)
    changed = {**VALUES, "amount": Decimal("99.90")}

    sent = send(shop, letter, kwargs=changed)
    result = run(shop.app)

    assert result == changed
    assert shop.ran == [("note", changed)]
    assert {type(result[name]) for name in ("at", "id", "raw")} == {datetime, uuid.UUID, bytes}
    assert sent.changed == ("kwargs.amount",)


def test_copy_is_a_message_of_its_own(shop):
    """Under the old id its result would be taken for the failed one's; with the old counters it would die at once."""
    letter = die(shop, shop.note, options={"headers": {"tenant": "a"}, "priority": 3, "time_limit": 300}, a=1)

    sent = send(shop, letter, kwargs={"a": 2})

    message = take(shop.app)
    headers = message.headers
    assert headers["id"] == sent.task_id != letter.task_id
    assert (headers["parent_id"], headers["root_id"]) == (letter.task_id, letter.root_id)
    assert (headers["tenant"], headers[h.EDITED_FROM]) == ("a", letter.id)
    assert (message.properties["priority"], headers["timelimit"], headers["retries"]) == (3, [300, None], 0)
    assert {name for name in headers if name.startswith("sg_")} == {h.EDITED_FROM}


def test_original_stays_open_and_tells_of_its_copy(shop):
    """Whoever finds the letter next must see that somebody has sent its work in another form."""
    letter = die(shop, shop.note, a=1, secret="4711")

    sent = send(shop, letter, kwargs={"a": 2, "secret": "4712"})

    kept = stored(shop, letter)
    assert (kept.state, kept.wire) == ("open", letter.wire)
    said = f"as task {sent.task_id}: changes kwargs.a, kwargs.secret: a typing error"
    assert [(entry.what, entry.who, entry.detail) for entry in kept.history] == [
        ("edit begun", "ann", said),
        ("edited as new", "ann", said),
    ]
    assert f"an edited copy is out, as task {sent.task_id}, by ann" in " ".join(outlook(shop.app, kept, 0).notes)


def test_copy_that_dies_has_a_letter_of_its_own_that_leads_back(shop):
    """Written into the original's letter, the message that a person saw would be gone."""
    letter = die(shop, shop.note, a=1)
    sent = send(shop, letter, kwargs={"a": 2})
    shop.error = ValueError("still wrong")
    run_failing(shop.app)

    own = Wiring.of(shop.app).letters.get(sent.task_id)
    assert (own.edited_from, own.state) == (letter.id, "open")
    assert opened_at(own, 0).edit.kwargs == {"a": 2}
    assert opened_at(stored(shop, letter), 0).edit.kwargs == {"a": 1}


def test_link_to_the_original_survives_a_replay_of_the_copy(shop):
    letter = die(shop, shop.note, a=1)
    sent = send(shop, letter, kwargs={"a": 2})
    shop.error = ValueError()
    run_failing(shop.app)
    replay(shop.app, sent.task_id, "ann")
    run_failing(shop.app)

    assert Wiring.of(shop.app).letters.get(sent.task_id).edited_from == letter.id


def test_success_of_a_copy_leaves_the_original_to_the_person(shop):
    """Another operation has succeeded; whether the first is settled by it, no program knows."""
    letter = die(shop, shop.note, a=1)
    send(shop, letter, kwargs={"a": 2})
    run(shop.app)

    assert stored(shop, letter).state == "open"


def test_copy_sent_from_inside_a_task_is_not_its_child(shop):
    """A desk may be a task itself: what it sends belongs to the order, not to the desk."""
    letter = die(shop, shop.note, a=1)
    kept = {}

    @shop.app.task(shared=False, name="shop.desk", bind=True)
    def desk(self):
        send(shop, letter, kwargs={"a": 2})
        kept["children"] = list(self.request.children)

    desk.apply(task_id="the-desk", throw=True)
    headers = take(shop.app).headers

    assert (headers["parent_id"], headers["root_id"]) == (letter.task_id, letter.root_id)
    assert kept["children"] == []


def test_eta_that_is_ahead_stays_and_another_one_takes_its_place(shop):
    """A reminder for next week must not go out now because its address was mended."""
    eta = datetime.now(UTC) + timedelta(days=7)
    letter = die(shop, shop.note, options={"eta": eta}, a=1)
    send(shop, letter, kwargs={"a": 2})
    kept = take(shop.app).headers["eta"]
    sooner = eta - timedelta(days=6)
    send(shop, stored(shop, letter), eta=sooner)
    moved = take(shop.app).headers["eta"]
    send(shop, stored(shop, letter), eta=None)
    at_once = take(shop.app).headers["eta"]
    send(shop, stored(shop, letter), eta=None, countdown_seconds=60)
    counted = datetime.fromisoformat(take(shop.app).headers["eta"]) - datetime.now(UTC)

    assert (datetime.fromisoformat(kept), datetime.fromisoformat(moved), at_once) == (eta, sooner, None)
    assert timedelta(seconds=50) < counted < timedelta(seconds=61)


def test_copy_goes_to_the_queue_that_is_named_whatever_the_routes_say(shop, namespace):
    """A route of the app's would lead it back to the queue that it was to leave."""
    letter = die(shop, shop.note, a=1)
    route = {"queue": namespace, "exchange": "elsewhere", "routing_key": "astray"}
    shop.app.conf.update(task_routes={"shop.note": route})
    shop.app.amqp.queues.add(f"{namespace}-slow")

    send(shop, letter, queue=f"{namespace}-slow")

    assert (queued(shop.app, f"{namespace}-slow"), queued(shop.app)) == (1, 0)
    assert send(shop, stored(shop, letter), kwargs={"a": 2})
    assert queued(shop.app) == 1


def test_copy_follows_its_original_to_the_queue_it_came_from(shop, namespace):
    letter = copied(shop, delivery_info={"exchange": "", "routing_key": f"{namespace}-slow"})

    send(shop, letter, kwargs={"a": 2})

    assert (queued(shop.app, f"{namespace}-slow"), queued(shop.app)) == (1, 0)


# --- what is refused, before anything is begun


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "nothing is changed"),
        ({"queue": "nowhere"}, "none that this app knows"),
        ({"kwargs": {"order_id": 1, "extra": 2}}, "do not fit"),
        ({"args": [1]}, "do not fit"),
        ({"kwargs": {"order_id": None}}, "order_id"),
        ({"eta": datetime.fromisoformat("2099-01-01")}, "zone"),
        ({"eta": datetime(2099, 1, 1, tzinfo=UTC), "countdown_seconds": 1}, "not both"),
        ({"countdown_seconds": float("inf")}, "seconds"),
        ({"countdown_seconds": 1e12}, "calendar"),
        ({"kwargs": {"order_id": object()}}, "JSON cannot carry"),
    ],
)
def test_edit_that_cannot_be_sent_is_refused_and_leaves_no_trace(shop, changes, why):
    """A form that takes what the worker will refuse makes a second dead letter of one."""
    letter = die(shop, shop.charge, order_id=1)

    with pytest.raises(EditRefused, match=why):
        send(shop, letter, **changes)
    assert (stored(shop, letter), queued(shop.app)) == (letter, 0)


def test_pickle_is_never_opened(shop):
    """Reading a pickle runs what it names: the desk would be the attacker's."""
    marker = []

    class Bomb:
        def __reduce__(self):
            return marker.append, (1,)

    letter = copied(
        shop, body=pickle.dumps([[Bomb()], {}, {}]), content_type="application/x-python-serialize", content_encoding=""
    )
    with pytest.raises(EditRefused, match="only JSON"):
        opened_at(letter, 0)
    assert marker == []


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"body": b"\xff\xfe"}, EditRefused),
        ({"body": b'{"id": 1}'}, EditRefused),
        ({"body": b"[1, 2, 3]"}, EditRefused),
        ({"body": b"[" * 2000}, EditRefused),
        ({"body": b"[" + b"[" * 200 + b"]" * 200 + b", {}, {}]"}, EditRefused),
        ({"headers": {}}, EditRefused),
        ({"truncated": True}, LetterTruncated),
    ],
)
def test_message_that_cannot_be_opened_says_why(shop, changes, refused):
    letter = copied(shop, **changes)

    with pytest.raises(refused):
        opened_at(letter, 0)


def test_task_that_the_app_does_not_know_is_refused(shop, redis_url, namespace):
    """Nobody could check its arguments, or make its key."""
    letter = die(shop, shop.note, a=1)

    with make_app(redis_url, redis_url, namespace) as desk, pytest.raises(EditRefused, match="not known to this app"):
        send_edited(desk, letter.id, "ann", edit_of(shop, letter, kwargs={"a": 2}), "why")


@pytest.mark.parametrize("state", ["replaying", "replayed", "closed"])
def test_letter_whose_own_message_is_under_way_is_refused(shop, state):
    letter = die(shop, shop.note, a=1)
    Wiring.of(shop.app).letters._apply(letter.id, lambda kept: replace(kept, state=state))

    with pytest.raises(LetterNotOpen):
        send(shop, letter, kwargs={"a": 2})


@pytest.mark.parametrize(("who", "reason"), [(" ", "why"), ("ann", " ")])
def test_copy_without_a_name_or_a_reason_is_refused(shop, who, reason):
    letter = die(shop, shop.note, a=1)

    with pytest.raises(ConfigurationError):
        send(shop, letter, kwargs={"a": 2}, who=who, reason=reason)


def test_message_that_is_too_large_is_refused_before_it_is_begun(shop):
    letter = die(shop, shop.note, a=1)
    shop.app.conf.safeguards_large_messages = "deny"
    wiring = Wiring.of(shop.app)
    replace(wiring, settings=replace(wiring.settings, large_messages="deny", max_message_bytes=1000)).use_for(shop.app)

    with pytest.raises(EditRefused, match="2"):
        send(shop, letter, kwargs={"a": "x" * 2000})
    assert stored(shop, letter) == letter


# --- its own key


@pytest.fixture
def sell(shop):
    """A task whose fingerprint is all of its arguments, and whose key is one of them."""

    @shop.app.task(
        shared=False,
        base=SafeTask,
        name="shop.sell",
        safeguards=Safeguards(
            idempotent=Idempotent("sale:{order_id}", on_unknown="quarantine", quiet_seconds=0),
            retry=RetryPolicy(attempts=1),
        ),
    )
    def sell(order_id, amount=0):
        shop.ran.append(("sell", {"order_id": order_id, "amount": amount}))
        if shop.error is not None:
            raise shop.error
        return amount

    return sell


def test_another_key_is_another_operation(shop, sell):
    letter = die(shop, sell, order_id=1, amount=7)

    ahead = prepare(shop.app, letter, edit_of(shop, letter, kwargs={"order_id": 2, "amount": 7}))
    send(shop, letter, kwargs={"order_id": 2, "amount": 7}, may_run_twice=True)

    assert "its key is sale:2, another one than the original's" in ahead.notes
    assert take_key(shop) == "sale:2"


def take_key(shop):
    return take(shop.app).headers[h.KEY]


class Rejected(Exception):
    """Raised before anything was done."""

    sg_failure_kind = FailureKind.DATA


def sale_without_effect(shop, sell):
    """Return a letter of work that certainly did nothing outside."""
    letter = die(shop, sell, error=Rejected("amount"), order_id=1, amount=-1)
    assert not letter.effect_possible
    return letter


def test_same_key_of_an_effect_that_may_have_happened_is_a_conflict(shop, sell):
    """The old amount may have been charged: nothing that is written here tells."""
    letter = die(shop, sell, error=TimeoutError(), order_id=1, amount=7)
    discard(shop.app, letter.id, "ann", "wrong amount")

    with pytest.raises(EditRefused, match=r"other arguments, by task .* may have had an effect"):
        send(shop, stored(shop, letter), kwargs={"order_id": 1, "amount": 8})
    assert queued(shop.app) == 0


def test_discarded_letter_gives_its_key_free_to_corrected_arguments(shop, sell):
    """The usual repair: the same order, with the amount put right."""
    letter = sale_without_effect(shop, sell)
    with pytest.raises(EditRefused, match="discard this letter first"):
        send(shop, letter, kwargs={"order_id": 1, "amount": 7})

    discard(shop.app, letter.id, "ann", "wrong amount")
    sent = send(shop, stored(shop, letter), kwargs={"order_id": 1, "amount": 7})
    result = run(shop.app)
    sell.apply_async(kwargs={"order_id": 1, "amount": 7})
    again = run(shop.app)

    assert (result, again, shop.ran) == (7, 7, [("sell", {"order_id": 1, "amount": 7})])
    assert stored(shop, letter).state == "discarded"
    assert sent.task_id in stored(shop, letter).history[-1].detail


def test_copy_under_the_same_key_that_dies_leaves_its_original_alone(shop, sell):
    """A record keeps one letter for all its series, but an edited copy must not overwrite what it was edited from."""
    letter = sale_without_effect(shop, sell)
    discard(shop.app, letter.id, "ann", "wrong amount")
    kept = stored(shop, letter)
    send(shop, kept, kwargs={"order_id": 1, "amount": 7})
    shop.error = ValueError("still")
    failed = run_failing(shop.app)

    assert failed.letter_id != letter.id
    own = Wiring.of(shop.app).letters.get(failed.letter_id)
    assert (own.edited_from, opened_at(own, 0).edit.kwargs) == (letter.id, {"order_id": 1, "amount": 7})
    assert stored(shop, letter).wire == kept.wire
    assert stored(shop, letter).state == "discarded"


def test_work_that_is_done_meanwhile_is_not_done_again_and_that_is_said(shop, sell):
    letter = sale_without_effect(shop, sell)
    replay(shop.app, letter.id, "bob")
    run(shop.app)
    Wiring.of(shop.app).letters._apply(letter.id, lambda kept: replace(kept, state="open"))
    shop.ran.clear()
    shop.app.amqp.queues.add("other")

    ahead = prepare(shop.app, stored(shop, letter), edit_of(shop, letter, queue="other"))

    assert any("does not run, and the stored result" in note for note in ahead.notes)


def test_key_in_use_with_other_arguments_is_refused_before_it_is_sent(shop, sell):
    """A conflict makes a letter of its own: one dead letter would become two."""
    sell.apply_async(kwargs={"order_id": 2, "amount": 1})
    run(shop.app)
    letter = sale_without_effect(shop, sell)

    with pytest.raises(EditRefused, match="in use with other arguments"):
        send(shop, letter, kwargs={"order_id": 2, "amount": 7})


def test_effect_that_may_have_happened_is_not_forgotten_with_the_record(shop, sell, redis_url, namespace):
    """A store that has lost the record would take the copy for a first delivery, and charge again."""
    letter = die(shop, sell, error=TimeoutError(), order_id=1, amount=7)
    with redis.Redis.from_url(redis_url) as client:
        forget_record(client, namespace, letter)

    shop.app.amqp.queues.add("other")
    with pytest.raises(EditRefused, match="was started before"):
        send(shop, letter, queue="other")


# --- consent


@pytest.mark.parametrize("task", ["mail", "sell"])
def test_doubt_that_no_key_settles_needs_consent(shop, sell, task):
    """The first mail may have gone out; the copy is a second one, and no record holds it back."""
    if task == "mail":
        letter, changes = die(shop, shop.mail, error=TimeoutError(), to="a"), {"kwargs": {"to": "b"}}
    else:
        letter = die(shop, sell, error=TimeoutError(), order_id=1)
        changes = {"kwargs": {"order_id": 2}}

    with pytest.raises(EditRefused, match="may run twice"):
        send(shop, letter, **changes)
    assert (queued(shop.app), stored(shop, letter)) == (0, letter)
    send(shop, letter, may_run_twice=True, **changes)

    assert queued(shop.app) == 1
    assert "may run twice" in stored(shop, letter).history[-1].detail


def test_copy_that_nobody_knows_of_needs_consent(shop):
    """Whoever began it was killed before or after the broker had it."""
    letter = die(shop, shop.mail, to="a", error=ConnectionRefusedError())
    letters = Wiring.of(shop.app).letters
    letters.begin_edit(letter.id, "lost", "bob", "changes kwargs.to: why", look_at(letter))

    kept = stored(shop, letter)
    with pytest.raises(EditRefused, match="begun as task lost"):
        send(shop, kept, kwargs={"to": "b"})
    assert send(shop, kept, kwargs={"to": "b"}, may_run_twice=True)


# --- two people


@pytest.mark.parametrize("deed", ["edit", "replay", "discard"])
def test_letter_that_has_changed_since_it_was_looked_at_is_refused(shop, deed):
    """Two people mend the same order: the second would not know that the first has."""
    letter = die(shop, shop.note, a=1)
    look, edit = look_at(letter), edit_of(shop, letter, kwargs={"a": 3})
    if deed == "edit":
        send(shop, letter, kwargs={"a": 2}, who="bob", look=look)
    elif deed == "replay":
        replay(shop.app, letter.id, "bob")
    else:
        discard(shop.app, letter.id, "bob", "a test")

    with pytest.raises(LetterChanged, match=r"bob|system"):
        send_edited(shop.app, letter.id, "ann", edit, "why", look=look)
    assert queued(shop.app) == (0 if deed == "discard" else 1)


# --- a broker that fails


def test_broker_that_is_away_leaves_a_trace_that_says_so(shop, redis_url, namespace):
    letter = die(shop, shop.note, a=1)
    edit = edit_of(shop, letter, kwargs={"a": 2})
    with make_app(f"redis://127.0.0.1:{free_port()}/0", redis_url, namespace) as away:

        @away.task(shared=False, base=SafeTask, name="shop.note", safeguards=Safeguards(repeatable=True))
        def note(**arguments):
            return arguments

        with pytest.raises(CopyNotPublished, match="Look for that task"):
            send_edited(away, letter.id, "ann", edit, "why")

    kept = stored(shop, letter)
    assert ([entry.what for entry in kept.history], kept.state) == (["edit begun"], "open")
    assert "may be out" in " ".join(outlook(shop.app, kept, 0).notes)


def test_refusal_by_the_publish_itself_is_noted_as_not_sent(shop):
    """A team's own `apply_async` may refuse what no check here knows; then it is known that nothing is out."""
    letter = die(shop, shop.mail, to="a", error=ConnectionRefusedError())

    def refuses(*_args, **_options):
        raise MessageTooLarge("too many")

    shop.mail.apply_async = refuses
    with pytest.raises(EditRefused, match="too many"):
        send(shop, letter, kwargs={"to": "b"}, may_run_twice=True)
    del shop.mail.apply_async

    kept = stored(shop, letter)
    assert [entry.what for entry in kept.history] == ["edit begun", "edit not sent"]
    assert outlook(shop.app, kept, 0).notes == outlook(shop.app, letter, 0).notes
