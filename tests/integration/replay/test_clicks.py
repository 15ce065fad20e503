"""
One click, one message: whoever presses, however often, for one letter or a thousand.
"""

import threading
from dataclasses import replace

import pytest

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.replay import Fate, replay, replay_many
from celery_safeguards.wiring import Wiring
from tests.integration.replay.clocks import PacedClock
from tests.integration.replay.shop import die, make_app, queued, stored

pytestmark = pytest.mark.redis


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


def test_history_tells_why_it_was_replayed(shop):
    """A verdict without its grounds cannot be questioned a week later."""
    letter = die(shop, shop.note, a=1)

    sent = list(replay_many(shop.app, [letter.id], "ann", reason="the bank says no"))

    said = next(entry for entry in stored(shop, letter).history if entry.what == "replay asked")
    assert (said.who, said.detail) == ("ann", f"as task {sent[0].task_id}: the bank says no")


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
