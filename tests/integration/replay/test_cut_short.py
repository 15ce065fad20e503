"""
A replay that was cut short: resumed under its own id and with its own verdict, so that nothing is lost or done twice.
"""

import pytest

from celery_safeguards import Happened
from celery_safeguards import headers as h
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.replay import Fate, NotPublished, ReplayRefused, replay, replay_many, resume
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import die, make_app, run, stored, take, unmark
from tests.support.sockets import free_port

pytestmark = pytest.mark.redis


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
    unmark(shop, letter)
    resume(shop.app, letter.id, "ann")
    second = take(shop.app)

    results = [run(shop.app, message) for message in (first, second)]

    assert first.headers["id"] == second.headers["id"] == begun.task_id
    assert results == [{"order_id": 1}, {"order_id": 1}]
    assert shop.ran == [("charge", {"order_id": 1})]


def test_replay_that_was_begun_by_a_step_whose_answer_was_lost_is_sent(shop, monkeypatch):
    """Made once more, the step finds its own beginning: nobody else has sent it."""
    letter = die(shop, shop.mail, a=1)
    begin = Wiring.of(shop.app).letters.begin_replay
    monkeypatch.setattr(Wiring.of(shop.app).letters, "begin_replay", lambda *given: (begin(*given), begin(*given))[1])

    sent = replay(shop.app, letter.id, "ann")

    assert take(shop.app).headers["id"] == sent.task_id
    assert stored(shop, letter).state == "replayed"


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
