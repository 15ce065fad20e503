"""
Letters that are over are removed, whoever is killed while it is done; and no key stays taken by a letter that is gone.
"""

import multiprocessing
import signal
from dataclasses import replace

import pytest

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.redis import RedisLetterStore
from celery_safeguards.replay.discarding import discard
from celery_safeguards.replay.purging import Purged, purge_letters
from celery_safeguards.wiring import Wiring
from tests.conformance.retention_contract import end
from tests.conformance.stores import FakeClock
from tests.integration.replay.shop import die, make_app, stored
from tests.integration.replay.test_jobs_killed import die_at_call

pytestmark = pytest.mark.redis
LETTERS = 9
PLACES = {
    "before a page is read": ("over", 2, True),
    "before a batch": ("remove", 2, True),
    "in a batch": ("_remove", 3, False),
    "after a batch": ("remove", 2, False),
    "before a group": ("remove_group", 1, True),
    "after a group": ("remove_group", 1, False),
}


def years_later(app):
    """Let the settings have been in force for long enough that all that is over is removed."""
    wiring = Wiring.of(app)
    clock = FakeClock(wiring.clock.wall_seconds() + 3 * wiring.settings.letter_retention_seconds)
    return replace(wiring, clock=clock)


def record(app, letter):
    return Wiring.of(app).admission.read(RecordKey(letter.scope, letter.key))


def purge_until_killed(redis_url, namespace, place):
    """Run in a process of its own."""
    with make_app(redis_url, redis_url, namespace) as app:
        name, number, before = PLACES[place]
        setattr(RedisLetterStore, name, die_at_call(getattr(RedisLetterStore, name), number, before=before))
        purge_letters(years_later(app), batch=2)


@pytest.mark.parametrize("place", PLACES)
def test_purge_that_is_killed_is_finished_by_the_next(shop, redis_url, namespace, place):
    """Half of a letter would be left for ever: a name that finds nothing, or a count that nothing explains."""
    over = [die(shop, shop.note, a=number) for number in range(LETTERS)]
    for letter in over:
        Wiring.of(shop.app).letters.close(letter.id, "it succeeded")
    kept = die(shop, shop.mail, b=1)

    process = multiprocessing.get_context("spawn").Process(
        target=purge_until_killed, args=(redis_url, namespace, place)
    )
    process.start()
    process.join(60)
    letters = Wiring.of(shop.app).letters
    left = [letter for letter in over if letters.get(letter.id)]
    assert process.exitcode == -signal.SIGKILL
    group = letters.get_group(over[0].fingerprint)
    assert (group.letters if group else 0) == len(left)

    purged = purge_letters(years_later(shop.app), batch=2)

    assert purged == Purged(letters=len(left), groups=0 if place == "after a group" else 1)
    assert ([kept.id], None) == ([each.id for each in letters.list().letters], letters.get_group(over[0].fingerprint))
    assert Purged() == purge_letters(years_later(shop.app))


def test_group_that_stays_forgets_what_a_letter_that_is_gone_has_said(shop):
    """A note would keep a customer's address for ever, where no erasing finds it."""
    gone, open_ = die(shop, shop.note, a=1), die(shop, shop.mail, b=1)
    letters = Wiring.of(shop.app).letters
    letters.close(gone.id, "it succeeded")
    for letter in (gone, open_):
        letters.annotate_group(letter.fingerprint, "the bank is away", "ann")

    assert Purged(letters=1) == purge_letters(years_later(shop.app))

    groups = [letters.get_group(each.fingerprint) for each in (gone, open_)]
    assert [("", "the bank is away"), (open_.error_message, "the bank is away")] == [
        (each.sample, each.note) for each in groups
    ]


def test_key_of_a_discarded_letter_is_free_before_the_letter_is_gone(shop):
    """Whoever discards was killed before the key was free: once the letter is gone, nobody could say it again."""
    letter = die(shop, shop.charge, order_id=7)
    Wiring.of(shop.app).letters.discard(letter.id, "ann", "a test order")
    assert not record(shop.app, letter).released

    assert Purged(letters=1, groups=1) == purge_letters(years_later(shop.app))

    assert (record(shop.app, letter).released, stored(shop, letter)) == (True, None)


def test_key_that_is_free_is_left_as_it_is(shop):
    """Its record would live on for another week with each purge."""
    letter = die(shop, shop.charge, order_id=7)
    discard(shop.app, letter.id, "ann", "a test order")
    before = record(shop.app, letter)

    purge_letters(years_later(shop.app))

    assert before == record(shop.app, letter)


def test_key_of_work_that_died_again_since_it_was_found_stays_taken(shop, monkeypatch):
    """A second publication would run beside the open letter."""
    letter = die(shop, shop.charge, order_id=7)
    wiring = years_later(shop.app)
    wiring.letters.discard(letter.id, "ann", "a test order")
    page = wiring.letters.over(wiring.clock.wall_seconds())
    wiring.letters.bury(replace(letter, burial=letter.burial + 1))
    monkeypatch.setattr(wiring.letters, "over", lambda *_args, **_options: page)

    assert Purged() == purge_letters(wiring)

    assert (record(shop.app, letter).released, stored(shop, letter).state) == (False, "open")


def test_nothing_is_removed_where_the_settings_keep_letters_for_ever(redis_url, namespace):
    with make_app(redis_url, redis_url, namespace, safeguards_letter_retention_seconds=0) as app:
        wiring = Wiring.of(app)
        wiring.admission.declare_new()
        end(wiring.letters)

        assert Purged() == purge_letters(wiring)
        assert wiring.letters.get("l-1").state == "closed"
