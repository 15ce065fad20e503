"""
What a worker has written a letter of already is not written a second time, and what died anew is.
"""

from dataclasses import replace

import pytest

from celery_safeguards.outcome import FailureKind
from celery_safeguards.signals import message_dead_lettered
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.unread import keep_unread
from tests.integration.replay.shop import run

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


@pytest.fixture
def queue_type():
    """It makes no difference here."""
    return "classic"


def fail_and_reject(shop, broker):
    """Run the next message, which fails, and have it rejected, as Celery does for `Reject` and after a lost answer."""
    shop.error = ValueError("no such order")
    message = broker.take()
    run(shop.app, message)
    message.reject()
    shop.error = None
    broker.waiting(1)


@pytest.mark.parametrize("task", ["mail", "charge"], ids=["without a key", "with a key"])
def test_work_that_a_worker_has_buried_stays_one_letter(shop, broker, ingest, letters, task):
    """Two letters of one failure would be two replays."""
    getattr(shop, task).apply_async(kwargs={"order_id": 7})
    fail_and_reject(shop, broker)
    (written,) = letters()

    assert {"known": 1} == ingest()

    (letter,) = letters()
    assert (written.id, "no such order") == (letter.id, letter.error_message)
    assert ["also in a dead-letter queue"] == [entry.what for entry in letter.history]
    broker.waiting(0)


@pytest.mark.parametrize("is_archived", [False, True])
def test_letter_that_was_given_up_does_not_stand_for_other_work_of_its_key(
    shop, broker, ingest, letters, app, is_archived
):
    """Taken for known, the new publication would be gone; put away, what was given up is given up still."""
    shop.note_once.apply_async(kwargs={"order_id": 7})
    fail_and_reject(shop, broker)
    ingest()
    (first,) = letters()
    store = Wiring.of(app).letters
    store.discard(first.id, "ann", "given up")
    if is_archived:
        store.archive([first.id], "ann", "old")
    shop.note_once.apply_async(kwargs={"order_id": 7})
    broker.reject()
    broker.waiting(1)

    assert {"ingested": 1} == ingest()

    assert 2 == len(letters())


def test_message_that_a_worker_could_not_read_stays_one_letter(shop, broker, ingest, letters):
    """Intake writes its letter and rejects the message, which is how it comes here."""
    broker.put_raw("{", headers={"task": "shop.mail", "id": "t-1"}, content_type="application/json")
    message = broker.take()
    keep_unread(shop.app, message, FailureKind.UNDECODABLE, "its body cannot be read", ValueError("{"))
    message.reject()
    broker.waiting(1)

    assert {"known": 1} == ingest()

    assert 1 == len(letters())


def test_message_without_an_id_is_known_by_its_letter_that_was_put_away(shop, broker, ingest, letters, app):
    """It is kept once more by its worker, and rejected: a second letter of it would be open, and be replayed."""
    broker.put_raw("{", headers={"task": "shop.mail"}, content_type="application/json")

    def kept(message):
        assert keep_unread(shop.app, message, FailureKind.UNDECODABLE, "its body cannot be read", ValueError("{"))

    first = broker.take()
    kept(first)
    (letter,) = letters()
    Wiring.of(app).letters.archive([letter.id], "ann", "noise")
    first.requeue()
    again = broker.take()
    kept(again)
    seen_by_the_worker = len(letters())
    again.reject()
    broker.waiting(1)

    assert {"known": 1} == ingest()
    assert (1, ["archived"]) == (seen_by_the_worker, [each.state for each in letters()])


def test_other_work_under_a_dead_key_gets_its_own_letter(shop, broker, ingest, letters):
    """Other arguments under the same key: taken for the letter's own message, they would be gone."""
    shop.note_once.apply_async(kwargs={"order_id": 7})
    fail_and_reject(shop, broker)
    ingest()
    broker.put_raw(
        '[[7], {}, {"callbacks": null}]',
        headers={"task": "shop.note_once", "id": "t-2", "sg_key": "note:7", "sg_fp": "another"},
        content_type="application/json",
        content_encoding="utf-8",
    )
    broker.reject()
    broker.waiting(1)

    assert {"ingested": 1} == ingest()

    assert 2 == len(letters())


def test_second_death_of_one_message_is_another_letter(shop, broker, ingest, letters):
    """Sent again under its own id by a shovel, it has failed again: taken for known, that would be lost."""
    shop.mail.apply_async(kwargs={"order_id": 7}, task_id="t-1")
    broker.reject()
    broker.waiting(1)
    ingest()
    (first,) = letters()
    broker.put_raw(first.wire.body, headers=dict(first.wire.headers), content_type="application/json")
    broker.reject()
    broker.waiting(1)

    assert {"ingested": 1} == ingest()

    assert [first.task_id] * 2 == [each.task_id for each in letters()]


def test_taken_again_after_its_letter_was_written_it_is_known(shop, broker, ingest, letters, app, dead):
    """As after a kill before the acknowledgement, whatever has become of the letter meanwhile."""
    heard = []
    message_dead_lettered.connect(lambda **said: heard.append(said), weak=False, dispatch_uid="known")
    shop.mail.apply_async(kwargs={"order_id": 7})
    broker.reject()
    broker.waiting(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("celery_safeguards.ingest.source.Source.acknowledge", lambda *_: None)
        assert {"ingested": 1} == ingest()
    (letter,) = letters()
    Wiring.of(app).letters.discard(letter.id, "ann", "given up")
    broker.waiting(1)

    assert {"known": 1} == ingest()

    message_dead_lettered.disconnect(dispatch_uid="known")
    assert [(letter.id, "discarded")] == [(each.id, each.state) for each in letters()]
    assert 1 == len(heard)
    broker.waiting(0)


def test_messages_alike_that_have_no_id_are_letters_each(broker, ingest, letters, app):
    """A foreign producer sends the same bytes every minute: one letter for all of them would lose the rest."""
    for _ in range(2):
        broker.put_raw("ping", content_type="text/plain")
        broker.reject()
    broker.waiting(2)

    assert {"ingested": 2} == ingest()

    assert ["undecodable"] * 2 == [each.kind for each in letters()]


def test_replay_that_dies_in_the_broker_reopens_its_letter(shop, broker, ingest, letters, cli):
    """It would say "replayed" for ever, beside a second letter of the same work."""
    shop.charge.apply_async(kwargs={"order_id": 7})
    shop.error = ValueError("no such order")
    run(shop.app, broker.take())
    shop.error = None
    (letter,) = letters()
    assert 0 == cli("dead", "replay", letter.id, "--by", "ann").exit_code
    broker.reject()
    broker.waiting(1)

    assert {"ingested": 1} == ingest()

    (again,) = letters()
    assert (letter.id, "open", "data") == (again.id, again.state, again.kind)
    assert replace(again, wire=letter.wire).burial == letter.burial
    assert 0 == cli("dead", "replay", letter.id, "--by", "ann", "--did-not-happen").exit_code
