"""
What every store of dead letters must do about letters that are over: give a `store` fixture that is empty.
"""

import random

import pytest

from celery_safeguards.deadletter.terms import name_term
from celery_safeguards.errors import ConfigurationError
from tests.conformance.archive_contract import archived
from tests.conformance.deadletter_contract import NOON, bring_to, letter, race, second_burial, walk

GROUP = letter().fingerprint
LATER = NOON + 1_000_000


def end(store, letter_id="l-1", at_seconds=NOON + 100, **changes):
    """Have a letter whose work came to its end."""
    store.bury(letter(letter_id, **changes))
    store.close(letter_id, "task t-2 succeeded", at_seconds)


def over(store, before_seconds=LATER, limit=50):
    """Return the ids of all pages of letters that are over."""
    found, cursor = [], None
    while True:
        page = store.over(before_seconds, limit=limit, before=cursor)
        found += [each.id for each in page.letters]
        cursor = page.next_cursor
        if cursor is None:
            return found


class LetterRetentionContract:
    @pytest.mark.parametrize("state", ["open", "replaying", "replayed"])
    @pytest.mark.parametrize("is_away", [False, True])
    def test_what_is_not_over_is_never_removed(self, store, state, is_away):
        """Work that failed, and that nobody has looked at for a year, is gone without a trace."""
        bring_to(store, state)
        if is_away and state != "replaying":
            archived(store)
        before = store.get("l-1")

        assert [] == over(store)
        assert 0 == store.remove(["l-1"], LATER)
        assert before == store.get("l-1")

    @pytest.mark.parametrize("state", ["closed", "discarded"])
    @pytest.mark.parametrize("is_away", [False, True])
    def test_what_is_over_is_removed_with_all_that_belongs_to_it(self, store, state, is_away):
        """A name that still finds a letter which is gone leads to an error page; a count never comes back to zero."""
        bring_to(store, state)
        if is_away:
            archived(store)
        store.bury(letter("other", task_id="t-9"))

        assert ["l-1"] == over(store)
        assert 1 == store.remove(["l-1", "l-1", "absent"], LATER)

        assert (None, []) == (store.get("l-1"), over(store))
        assert ({"open": 1}, 2) == (store.get_group(GROUP).counts, store.get_group(GROUP).failures)
        assert ["other"] == walk(store) == walk(store, fingerprint=GROUP)
        assert ([], ["other"]) == tuple(walk(store, terms=[name_term(name)]) for name in ("l-1", "t-9"))
        assert 0 == store.remove(["l-1"], LATER)

    def test_time_begins_with_the_end_of_the_work_and_not_with_its_failure(self, store):
        """Ninety days after a failure its replay succeeds, and the letter would be gone a minute later."""
        end(store, "l-1", NOON + 300)
        end(store, "l-2", NOON + 200, last_failed_seconds=NOON + 70)

        assert [[], ["l-2"], ["l-1", "l-2"]] == [over(store, NOON + at) for at in (200, 300, 301)]
        assert [0, 1] == [store.remove(["l-1", "l-2"], NOON + at) for at in (200, 300)]
        assert ["l-1"] == walk(store)

    def test_putting_away_neither_stops_the_time_nor_begins_it(self, store):
        """An archive would be a place where personal data are kept for ever, or a way to throw work away."""
        end(store)
        archived(store, at_seconds=NOON + 500)
        store.add_note("l-1", "seen", "ana", "", NOON + 600)

        assert ["l-1"] == over(store, NOON + 101)
        store.restore(["l-1"], "ana", NOON + 700)
        assert ["l-1"] == over(store, NOON + 101)

    def test_pages_hold_each_letter_once_also_those_of_one_time(self, store):
        names = [f"l-{number}" for number in range(25)]
        for number, name in enumerate(names):
            end(store, name, NOON + 100 + number // 10)

        found = over(store, limit=4)

        assert sorted(names) == sorted(found)
        assert sorted(found, key=lambda name: -(int(name[2:]) // 10)) == found
        with pytest.raises(ConfigurationError):
            store.over(LATER, limit=0)

    def test_letter_that_died_again_since_it_was_found_stays(self, store):
        """The failure that came between would be gone, and with it the work."""
        end(store)
        (found,) = store.over(LATER).letters
        store.bury(second_burial())

        assert 0 == store.remove([found.id], LATER)
        assert ("open", []) == (store.get("l-1").state, over(store))

        store.close("l-1", "task t-3 succeeded", NOON + 900)
        assert (0, []) == (store.remove(["l-1"], NOON + 800), over(store, NOON + 800))
        assert ["l-1"] == over(store)

    def test_of_a_purge_and_a_failure_of_the_same_letter_the_failure_stays(self, store):
        """Whoever is first: the letter is open with the new failure, and its group counts it once."""
        for number in range(20):
            end(store, f"l-{number}")
        names = [f"l-{number}" for number in range(20)]

        def act(number):
            if number % 2:
                return store.remove(random.sample(names, len(names)), LATER)
            return [store.bury(second_burial(id=name)) for name in names]

        _, errors = race(4, act)

        assert [] == errors
        assert {"open"} == {store.get(name).state for name in names}
        assert sorted(names) == sorted(walk(store)) == sorted(walk(store, state="open"))
        group = store.get_group(second_burial().fingerprint)
        left = store.get_group(GROUP)
        assert ({"open": 20}, {}) == (group.counts, left.counts if left else {})

    def test_two_purges_share_the_letters(self, store):
        """Counted twice, a group would have fewer letters than none."""
        names = [f"l-{number}" for number in range(20)]
        for name in names:
            end(store, name)
        store.bury(letter("open"))

        removed, errors = race(4, lambda _number: sum(store.remove([name], LATER) for name in names))

        assert ([], 20) == (errors, sum(removed))
        assert ({"open": 1}, ["open"]) == (store.get_group(GROUP).counts, walk(store))

    def test_a_removed_letter_can_be_buried_anew(self, store):
        end(store)
        store.remove(["l-1"], LATER)

        assert store.bury(letter(last_failed_seconds=LATER)) is True
        assert ("open", {"open": 1}) == (store.get("l-1").state, store.get_group(GROUP).counts)
        assert ["l-1"] == walk(store, terms=[name_term("t-1")])

    def test_a_group_goes_once_it_has_no_letter(self, store):
        end(store)
        assert not store.remove_group(GROUP, LATER)
        store.remove(["l-1"], LATER)

        # Its newest failure is from then.
        assert not store.remove_group(GROUP, NOON + 60)
        assert store.remove_group(GROUP, NOON + 61)

        assert (None, ()) == (store.get_group(GROUP), store.groups().groups)
        assert not store.remove_group(GROUP, LATER)
        store.bury(letter())
        assert ({"open": 1}, 1) == (store.get_group(GROUP).counts, store.get_group(GROUP).failures)
        assert [GROUP] == [each.fingerprint for each in store.groups().groups]

    @pytest.mark.parametrize(
        ("say", "stays"),
        [
            (lambda store: store.declare_group(GROUP, "muted", "ana"), True),
            (lambda store: store.annotate_group(GROUP, "the old gateway", "ana"), True),
            (lambda store: store.assign_group(GROUP, "bob", "ana"), True),
            (lambda store: store.declare_group(GROUP, "resolved", "ana"), False),
        ],
        ids=["muted", "noted", "assigned", "resolved"],
    )
    def test_what_people_have_said_of_a_group_stays(self, store, say, stays):
        """A muted failure that is forgotten wakes somebody the next time it happens."""
        end(store)
        say(store)
        store.remove(["l-1"], LATER)

        assert store.remove_group(GROUP, LATER) is not stays
        assert (store.get_group(GROUP) is not None) is stays

    def test_of_a_purge_of_a_group_and_its_next_failure_the_failure_is_counted(self, store):
        """A letter whose group is gone is on no page of groups."""
        for turn in range(5):
            at = NOON + 100 * turn
            end(store, f"old-{turn}", last_failed_seconds=at)
            store.remove([f"old-{turn}"], LATER)

            def act(number, turn=turn, at=at):
                if number:
                    return store.bury(letter(f"new-{turn}", last_failed_seconds=at))
                return store.remove_group(GROUP, LATER)

            _, errors = race(2, act)

            assert [] == errors
            assert {"open": turn + 1} == store.get_group(GROUP).counts
            assert [GROUP] == [each.fingerprint for each in store.groups().groups]
