"""
What a replay sends, and when it is refused at the click.
"""

from dataclasses import replace

import pytest

from celery_safeguards import headers as h
from celery_safeguards._store_view import StoreView
from celery_safeguards.deadletter.letter import Letter, LetterTruncated
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.policy import DidNotHappen, Happened, Idempotent, Policy, Safeguards, Verify
from celery_safeguards.replay.plan import Need, ReplayRefused, Work, need, refusal, replay_message, resend_refusal

NOW = 1_750_000_000.0
NOW_US = 1_750_000_000_000_000
BODY = b'[[1], {"when": {"__type__": "datetime", "__value__": "2025-01-01T00:00:00"}}, {"chain": [{"task": "ship"}]}]'

RERUN = Policy.of(Safeguards(idempotent=Idempotent("order:{order_id}", on_unknown="rerun")))
QUARANTINE = Policy.of(Safeguards(idempotent=Idempotent("order:{order_id}", on_unknown="quarantine", quiet_seconds=5)))
ASKS = Policy.of(
    Safeguards(idempotent=Idempotent("order:{order_id}", on_unknown=Verify(DidNotHappen, after_seconds=30)))
)
REPEATABLE = Policy.of(Safeguards(repeatable=True))
UNDECLARED = Policy.of(Safeguards())


def wire(**changes):
    headers = {"task": "shop.charge", "id": "old", "root_id": "root", "parent_id": "parent", "retries": 3}
    given = {
        "body": BODY,
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {**headers, **changes.pop("headers", {})},
        "properties": {"correlation_id": "old", "reply_to": "answers", "priority": 3, "delivery_mode": 2},
        "delivery_info": {"exchange": "", "routing_key": "slow", "priority": 3, "redelivered": True},
    }
    return WireMessage(**{**given, **changes})


def letter(message=None, **changes):
    given = {
        "id": "letter-1",
        "task": "shop.charge",
        "task_id": "old",
        "wire": message or wire(),
        "kind": FailureKind.BUG,
        "effect_possible": False,
        "reason": "attempt 4 of 4",
        "first_seen_seconds": NOW - 100,
        "last_failed_seconds": NOW - 10,
    }
    return Letter(**{**given, **changes})


def keyed(**changes):
    return letter(**{"key": "order:1", "scope": "shop.charge", "burial": 900, **changes})


def buried(state=State.DEAD, **changes):
    return Record(state=state, **{"letter_id": "letter-1", "doubt_us": NOW_US - 10_000_000, **changes})


def work(policy=None, record=None):
    return Work(store=StoreView(now_us=NOW_US, epoch="e"), record=record, policy=policy)


def sent(message=None, verdict=None, **changes):
    return replay_message(letter(message, **changes), "new", verdict, at_seconds=NOW)


# --- the message


def test_body_type_and_encoding_are_those_of_the_letter():
    """Arguments that were written anew could mean something else: a date as text, a big number as a float."""
    message = sent(wire(body=b"\x80\x04pickle\x00", content_type="application/x-python-serialize"))

    assert message.body == b"\x80\x04pickle\x00"
    assert (message.content_type, message.content_encoding) == ("application/x-python-serialize", "utf-8")


def test_new_id_stands_everywhere_the_old_one_did():
    """A result or an ack under the old id would be taken for the failed attempt's."""
    message = sent(wire(headers={"root_id": "old"}))

    assert message.task_id == "new"
    assert (message.headers["id"], message.headers["root_id"]) == ("new", "new")
    assert message.properties["correlation_id"] == "new"


def test_root_and_parent_of_another_task_are_kept():
    """Whoever looks for all that an order's request caused must find the replay among it."""
    message = sent()

    assert (message.headers["root_id"], message.headers["parent_id"]) == ("root", "parent")


def test_attempts_are_counted_anew():
    """A replay that starts at its last attempt is dead again after one hiccup."""
    assert sent().headers["retries"] == 0


@pytest.mark.parametrize(
    "name",
    [
        *("redelivered", "x-death", "x-first-death-queue", "x-last-death-reason", "x-delivery-count", "compression"),
        *("sentry-trace", "sentry-task-enqueued-time", "baggage", "Traceparent", "tracestate"),
        *(h.DEFERRALS, h.DEFERRED_SINCE, h.BEGAN, h.VERDICT),
    ],
)
def test_artefacts_of_the_delivery_are_left_out(name):
    """Each would be believed: a trace joins strangers, a compression is undone twice, an old verdict starts a body."""
    message = sent(wire(headers={name: 1, "headers": {name: 1, "tenant": "a"}}))

    assert name not in message.headers
    assert message.headers["headers"] == {"tenant": "a"}


def test_other_headers_and_properties_are_kept():
    """A tenant, a time limit or a priority that is lost makes another task of it."""
    message = sent(wire(headers={"tenant": "a", "timelimit": [300, 270], "stamps": {"shop": 7}}))

    assert {"tenant": "a", "timelimit": [300, 270], "stamps": {"shop": 7}}.items() <= message.headers.items()
    assert {"reply_to": "answers", "priority": 3, "delivery_mode": 2}.items() <= message.properties.items()


def test_it_goes_the_way_it_came():
    """A replay in the default queue may wait for a worker that does not have the task."""
    message = sent(wire(delivery_info={"exchange": "media", "routing_key": "video.mp4"}))

    assert (message.exchange, message.routing_key) == ("media", "video.mp4")


@pytest.mark.parametrize("name", ["eta", "expires"])
def test_a_past_deadline_is_dropped_and_said(name):
    """An expiry that is over would drop the replay without a word."""
    message = sent(wire(headers={name: "2025-06-15T00:00:00+00:00"}))

    assert message.headers[name] is None
    assert message.left_behind == (f"{name} 2025-06-15T00:00:00+00:00: past",)


@pytest.mark.parametrize("name", ["eta", "expires"])
def test_a_deadline_ahead_holds(name):
    """A reminder for next month must not go out because its letter was replayed today."""
    message = sent(wire(headers={name: "2025-07-15T00:00:00"}))

    assert message.headers[name] == "2025-07-15T00:00:00"


def test_replay_leaves_its_group_and_says_so():
    """A chord that has failed would count this member a second time."""
    message = sent(wire(headers={"group": "g-1", "group_index": 4}))

    assert (message.headers["group"], message.headers["group_index"]) == (None, None)
    assert message.left_behind == ("group g-1: a finished group or chord is not repaired by a replay",)


def test_headers_kept_as_repr_only_are_left_out_and_said():
    """The text of an object is not the object: a tenant of "<Tenant 7>" matches no tenant."""
    message = sent(wire(headers={"tenant": object()}))

    assert "tenant" not in message.headers
    assert message.left_behind == ("headers.tenant: not kept whole in the letter",)


def test_replay_names_its_letter():
    """Without it the work would be refused by its own letter."""
    assert sent().headers[h.LETTER] == "letter-1"


def test_proof_of_an_earlier_start_is_kept():
    """A store that has lost the record would take the replay for a first start."""
    assert sent(wire(headers={h.SEEN: 700})).headers[h.SEEN] == 700


def test_letter_with_a_possible_effect_proves_its_start():
    """The first delivery of a message has no proof in its headers, and it may have charged a card."""
    message = replay_message(keyed(effect_possible=True), "new", at_seconds=NOW)

    assert message.headers[h.SEEN] == 900


def test_letter_without_an_effect_proves_no_start():
    """Work that has certainly done nothing would wait for a person after a wipe."""
    assert h.SEEN not in replay_message(keyed(), "new", at_seconds=NOW).headers


def test_key_that_admission_made_is_sent_along():
    """A key made anew after a deploy could be another one, and the work would be done twice."""
    assert replay_message(keyed(), "new", at_seconds=NOW).headers[h.KEY] == "order:1"


def test_key_of_the_message_is_kept():
    """The key was fixed at first publish."""
    message = replay_message(keyed(wire=wire(headers={h.KEY: "order:1", h.FINGERPRINT: "f"})), "new", at_seconds=NOW)

    assert (message.headers[h.KEY], message.headers[h.FINGERPRINT]) == ("order:1", "f")


@pytest.mark.parametrize(
    ("verdict", "header"),
    [(Happened({"id": 7}), {"happened": True, "result": {"id": 7}}), (DidNotHappen(), {"happened": False})],
)
def test_verdict_travels_in_a_header(verdict, header):
    """Admission decides by the person's word, which it must find in the message."""
    assert sent(verdict=verdict).headers[h.VERDICT] == header


def test_letter_that_is_not_whole_is_refused():
    """Half a message would run with half of its arguments."""
    with pytest.raises(LetterTruncated):
        sent(wire().without_body())


def test_message_without_a_task_in_its_headers_is_refused():
    """Its id is in the body, so it would run under the old one."""
    message = replace(wire(), headers={"lang": "py"})

    with pytest.raises(ReplayRefused, match="publish it anew"):
        sent(message)


# --- what a person must say


@pytest.mark.parametrize(
    ("given", "at_hand", "expected"),
    [
        (letter(), work(UNDECLARED), Need.NOTHING),
        (letter(effect_possible=True), work(UNDECLARED), Need.CONSENT),
        (letter(effect_possible=True), work(None), Need.CONSENT),
        (letter(effect_possible=True), work(REPEATABLE), Need.NOTHING),
        (keyed(effect_possible=True), work(UNDECLARED), Need.CONSENT),
        (keyed(), work(QUARANTINE, buried()), Need.NOTHING),
        (keyed(effect_possible=True), work(QUARANTINE, buried(State.QUARANTINED)), Need.VERDICT),
        (keyed(effect_possible=True), work(QUARANTINE, buried(effect_possible=True)), Need.VERDICT),
        (keyed(effect_possible=True), work(QUARANTINE), Need.VERDICT),
        (keyed(effect_possible=True), work(QUARANTINE, buried(State.DYING, final="quarantined")), Need.VERDICT),
        (keyed(effect_possible=True), work(QUARANTINE, buried(State.DONE)), Need.NOTHING),
        (keyed(effect_possible=True), work(QUARANTINE, buried(State.IN_PROGRESS)), Need.NOTHING),
        (keyed(effect_possible=True), work(RERUN, buried(effect_possible=True)), Need.NOTHING),
        (keyed(effect_possible=True), work(ASKS, buried(State.QUARANTINED)), Need.NOTHING),
        (keyed(effect_possible=True), work(None, buried(State.QUARANTINED)), Need.VERDICT),
        (keyed(effect_possible=True), work(None, buried(effect_possible=True)), Need.NOTHING),
        (keyed(effect_possible=True), work(None), Need.VERDICT),
    ],
)
def test_need_follows_the_table(given, at_hand, expected):
    """Asking too little doubles an effect; asking too much trains people to say yes."""
    assert need(given, at_hand) is expected


def test_quarantined_work_without_a_verdict_is_refused():
    """Admission would fail the replay, and the letter would say that it was replayed."""
    why = refusal(keyed(effect_possible=True), work(QUARANTINE, buried(State.QUARANTINED)))

    assert why == "nobody knows whether it happened: find out, and say that it happened or that it did not"


@pytest.mark.parametrize("verdict", [Happened(1), DidNotHappen()])
def test_verdict_opens_quarantined_work(verdict):
    """The person's word is what the letter waited for."""
    assert refusal(keyed(effect_possible=True), work(QUARANTINE, buried(State.QUARANTINED)), verdict) is None


def test_work_without_a_key_and_with_an_effect_needs_consent():
    """One click could send a second mail."""
    given = letter(effect_possible=True)

    assert "may run twice" in refusal(given, work(UNDECLARED))
    assert refusal(given, work(UNDECLARED), may_run_twice=True) is None
    assert refusal(given, work(UNDECLARED), DidNotHappen()) is None


def test_happened_is_refused_where_nothing_can_record_it():
    """Work without a key ignores a verdict: its body would run although the person said that it happened."""
    assert "discard" in refusal(letter(), work(UNDECLARED), Happened())
    assert "discard" in resend_refusal(letter(), work(UNDECLARED), Happened())


def test_did_not_happen_is_refused_within_the_quiet_period():
    """A request that the lost attempt sent may land after the person has looked."""
    why = refusal(keyed(effect_possible=True), work(ASKS, buried(effect_possible=True)), DidNotHappen())

    assert why == "its request may still land: ask again in 20 s"


def test_quiet_period_counts_from_the_letter_where_the_record_is_gone():
    """A wiped store must not shorten the wait."""
    why = refusal(keyed(effect_possible=True), work(ASKS), DidNotHappen())

    assert why == "its request may still land: ask again in 20 s"


def test_happened_needs_no_quiet_period():
    """What has happened cannot un-happen."""
    assert refusal(keyed(effect_possible=True), work(ASKS, buried(effect_possible=True)), Happened()) is None


def test_conflict_is_refused_while_the_other_work_holds_the_key():
    """It would be buried again at once, as the same conflict."""
    given = keyed(id="conflict-old", wire=wire(headers={h.FINGERPRINT: "mine"}))
    why = refusal(given, work(RERUN, buried(State.DONE, fingerprint="theirs", task_id="t-9")))

    assert why == "key order:1 is in use with other arguments, by task t-9"


def test_letter_beside_the_one_that_holds_the_key_is_refused():
    """Admission would refuse it, and name the letter to replay instead."""
    why = refusal(keyed(id="overdue-old"), work(RERUN, buried()))

    assert why == "key order:1 is dead under letter letter-1: replay that one"


# --- sending again what was cut short


def test_keyed_work_is_sent_again_without_a_question():
    """Admission gives two messages of one id one start."""
    assert resend_refusal(keyed(), work(RERUN, buried())) is None


def test_work_without_a_key_is_sent_again_by_consent_only():
    """Its first message may be out already, and nothing holds the two apart."""
    assert "may be out already" in resend_refusal(letter(), work(UNDECLARED))
    assert resend_refusal(letter(), work(UNDECLARED), may_run_twice=True) is None
    assert resend_refusal(letter(), work(REPEATABLE)) is None


def test_quarantined_work_is_sent_again_with_its_verdict_only():
    """Without the verdict admission would fail the replay."""
    at_hand = work(QUARANTINE, buried(State.QUARANTINED))

    assert "give it again" in resend_refusal(keyed(effect_possible=True), at_hand)
    assert resend_refusal(keyed(effect_possible=True), at_hand, DidNotHappen()) is None
