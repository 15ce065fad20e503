"""
What every store of dead letters must do about groups: subclass it, and give a `store` fixture that is empty.
"""

import random
from collections import Counter

import pytest

from celery_safeguards.deadletter.group import HOUR_SECONDS, MOST_HOURS, MOST_RELEASES, GroupHasMoved, NoSuchGroup
from celery_safeguards.deadletter.history import MAX_HISTORY
from celery_safeguards.deadletter.letter import STATES
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from tests.conformance.deadletter_contract import NOON, RACERS, bring_to, letter, race, second_burial

GROUP = letter().fingerprint
STEPS = 120


def failed(letter_id, after_seconds=0.0, **changes):
    """Return a letter of the one group, that died so much later."""
    at_seconds = NOON + 60 + after_seconds
    return letter(letter_id, last_failed_seconds=at_seconds, **changes)


def walk_groups(store, **options):
    """Return the fingerprints of all pages."""
    found, cursor = [], None
    while True:
        page = store.groups(before=cursor, **options)
        found += [each.fingerprint for each in page.groups]
        cursor = page.next_cursor
        if cursor is None:
            return found


class LetterGroupContract:
    def test_first_failure_begins_a_group(self, store):
        """An operator who sees ten thousand letters asks how many causes there are."""
        store.bury(letter())

        group = store.get_group(GROUP)
        assert (group.task, group.kind, group.error_type) == ("shop.charge", FailureKind.BUG, "builtins.ValueError")
        assert (group.sample, group.sample_letter_id) == ("first", "l-1")
        assert (group.failures, group.counts, group.letters) == (1, {"open": 1}, 1)
        assert (group.first_failed_seconds, group.last_failed_seconds) == (NOON + 60, NOON + 60)
        assert (group.status, group.assignee, group.note, group.history) == ("open", "", "", ())
        assert {int((NOON + 60) // HOUR_SECONDS): 1} == group.hours

    def test_a_group_that_is_not_there_is_none(self, store):
        assert store.get_group("absent") is None

    def test_letters_of_one_cause_are_one_group(self, store):
        for number in range(3):
            store.bury(failed(f"l-{number}", number, error_message=f"message {number}"))

        # Without a stack the message tells, but for its values.
        (group,) = store.groups().groups
        assert (group.failures, group.counts, group.sample) == (3, {"open": 3}, "message 2")

    def test_twenty_failures_at_once_are_counted(self, store):
        """In a storm a group's counter is the busiest row of the store."""
        _, errors = race(RACERS, lambda number: store.bury(failed(f"l-{number}")))

        assert [] == errors
        group = store.get_group(GROUP)
        assert (group.failures, group.counts) == (RACERS, {"open": RACERS})
        assert [RACERS] == list(group.hours.values())

    def test_a_second_writer_of_one_burial_counts_nothing(self, store):
        store.bury(letter())
        store.bury(letter())

        assert (1, {"open": 1}) == (store.get_group(GROUP).failures, store.get_group(GROUP).counts)

    @pytest.mark.parametrize("state", STATES)
    def test_a_letter_is_counted_in_its_state(self, store, state):
        bring_to(store, state)
        store.add_note("l-1", "note", "ana")

        assert (1, {state: 1}) == (store.get_group(GROUP).failures, store.get_group(GROUP).counts)

    def test_a_replay_that_dies_of_the_same_is_one_more_failure(self, store):
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        store.bury(failed("l-1", 7_200, burial=9))

        group = store.get_group(GROUP)
        assert (group.failures, group.counts) == (2, {"open": 1})
        assert [1, 1] == list(group.hours.values())

    def test_a_replay_that_dies_of_something_else_changes_the_group(self, store):
        """The old cause is mended: its group must not go on to count the letter as open."""
        store.bury(letter())
        store.bury(failed("l-2"))
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        other = second_burial()
        store.bury(other)

        assert ({"open": 1}, 2) == (store.get_group(GROUP).counts, store.get_group(GROUP).failures)
        assert ({"open": 1}, 1) == (
            store.get_group(other.fingerprint).counts,
            store.get_group(other.fingerprint).failures,
        )
        assert ["l-2"] == [each.id for each in store.list(fingerprint=GROUP).letters]
        assert ["l-1"] == [each.id for each in store.list(fingerprint=other.fingerprint).letters]

    def test_two_letters_that_change_groups_both_ways_at_once(self, store):
        """Two transactions that hold one group each and want the other's would wait for ever."""
        one, other = letter(), second_burial(burial=7)
        for number in range(RACERS):
            first = one if number % 2 else other
            store.bury(letter(f"l-{number}", kind=first.kind, error_type=first.error_type, error_message="x"))
        before = {each.fingerprint for each in store.groups().groups}

        def move(number):
            then = other if number % 2 else one
            store.bury(letter(f"l-{number}", kind=then.kind, error_type=then.error_type, error_message="x", burial=8))

        _, errors = race(RACERS, move)

        assert [] == errors
        assert [RACERS // 2] * 2 == [store.get_group(each).counts["open"] for each in before]
        assert [RACERS] * 2 == [store.get_group(each).failures for each in before]

    def test_a_failure_that_is_told_late_does_not_make_the_group_look_older(self, store):
        store.bury(failed("l-1", 500, error_message="order 1"))
        store.bury(failed("l-2", 100, error_message="order 2"))

        (group,) = store.groups().groups
        assert ("order 1", "l-1") == (group.sample, group.sample_letter_id)
        assert (NOON + 160, NOON + 560) == (group.first_failed_seconds, group.last_failed_seconds)

    def test_hours_are_kept_for_a_week(self, store):
        """A group that fails for years must not grow for years."""
        for number in range(MOST_HOURS + 5):
            store.bury(failed("l-1", number * HOUR_SECONDS, burial=7 + number))

        first = int((NOON + 60) // HOUR_SECONDS)
        assert list(range(first + 5, first + 5 + MOST_HOURS)) == sorted(store.get_group(GROUP).hours)

    def test_failures_are_counted_by_release(self, store):
        """Which deployment brought it is the first question of whoever can roll one back."""
        for number, release in enumerate(["4.1", "4.2", "4.1", "", "4.2 rc"]):
            store.bury(failed(f"l-{number}", number, release=release))

        group = store.get_group(GROUP)
        assert ("4.1", 5) == (group.first_release, group.failures)
        assert [
            ["4.2", 1, NOON + 61, NOON + 61],
            ["4.1", 2, NOON + 60, NOON + 62],
            ["4.2 rc", 1, NOON + 64, NOON + 64],
        ] == [each.plain for each in group.releases]
        assert [group] == list(store.groups().groups)

    def test_a_failure_that_is_told_late_says_which_release_was_first(self, store):
        """A letter may have lain in a spool while the next release was deployed."""
        for at, release in [(50, "2"), (10, "1"), (30, "2")]:
            store.bury(failed(f"l-{at}", at, release=release))

        group = store.get_group(GROUP)
        assert "1" == group.first_release
        assert [["1", 1, NOON + 70, NOON + 70], ["2", 2, NOON + 90, NOON + 110]] == [e.plain for e in group.releases]

    def test_a_failure_of_no_named_release_hides_no_earlier_one(self, store):
        store.bury(failed("l-1"))
        store.bury(failed("l-2", 1, release="2"))

        group = store.get_group(GROUP)
        assert ("", ["2"]) == (group.first_release, [each.release for each in group.releases])

    def test_the_releases_that_failed_last_are_kept(self, store):
        """A project that deploys ten times a day must not make its groups grow for years."""
        for number in range(MOST_RELEASES + 3):
            store.bury(failed("l-1", number, burial=7 + number, release=f"r{number}"))
        store.bury(failed("l-1", MOST_RELEASES + 3, burial=100, release="r3"))
        store.bury(failed("l-1", MOST_RELEASES + 4, burial=101, release="new"))

        group = store.get_group(GROUP)
        kept = [f"r{number}" for number in range(5, MOST_RELEASES + 3)]
        assert [*kept, "r3", "new"] == [each.release for each in group.releases]
        assert 2 == {each.release: each.failures for each in group.releases}["r3"]
        assert "r0" == group.first_release

    def test_the_release_that_reopens_a_resolved_group_is_named(self, store):
        """A mended cause that is back in an old release is a slow deployment; in a new one it was never mended."""
        store.bury(failed("l-1", release="1"))
        store.declare_group(GROUP, "resolved", "ana", "fixed by 2", at_seconds=NOON + 100)
        assert "" == store.get_group(GROUP).reopened_release
        store.bury(failed("l-2", 200, release="2"))
        store.bury(failed("l-3", 300, release="3"))
        store.declare_group(GROUP, "acknowledged", "ana")

        group = store.get_group(GROUP)
        assert ("1", "2", NOON + 260) == (group.first_release, group.reopened_release, group.reopened_seconds)

    def test_twenty_failures_of_two_releases_at_once_are_counted(self, store):
        """While one replaces the other both fail."""
        _, errors = race(RACERS, lambda number: store.bury(failed(f"l-{number}", release=f"r{number % 2}")))

        assert [] == errors
        assert [("r0", RACERS // 2), ("r1", RACERS // 2)] == [
            (each.release, each.failures) for each in store.get_group(GROUP).releases
        ]

    def test_only_a_failure_counts_in_a_release(self, store):
        store.bury(failed("l-1", release="1"))
        before = store.get_group(GROUP).releases
        store.add_note("l-1", "note", "ana")
        store.bury(failed("l-1", release="1"))
        store.discard("l-1", "ana", "obsolete")
        store.regroup("l-1")

        assert before == store.get_group(GROUP).releases

    @pytest.mark.parametrize("text", ["\x00\ud800", "x" * 100_000, "ä\u202e<script>"], ids=["nul", "long", "odd"])
    def test_any_text_can_be_grouped(self, store, text):
        """A group that cannot be written would keep the letter from being written."""
        odd = letter(text[:5_000], task=text, error_type=text, error_message=text, release=text)
        store.bury(odd)

        group = store.get_group(odd.fingerprint)
        assert (odd.task, odd.error_type, odd.id) == (group.task, group.error_type, group.sample_letter_id)
        assert [group] == list(store.groups().groups)

    def test_a_failure_reopens_what_was_resolved(self, store):
        """A cause that was mended and comes back is the one thing that must be seen."""
        store.bury(letter())
        store.declare_group(GROUP, "resolved", "ana", "fixed by 4.2", at_seconds=NOON + 100)
        store.bury(failed("l-2", 200))

        group = store.get_group(GROUP)
        assert ("open", NOON + 260) == (group.status, group.reopened_seconds)
        assert [("resolved", "ana", "fixed by 4.2")] == [(each.what, each.who, each.detail) for each in group.history]

    @pytest.mark.parametrize("status", ["acknowledged", "muted"])
    def test_a_failure_leaves_what_else_was_said(self, store, status):
        store.bury(letter())
        store.declare_group(GROUP, status, "ana")
        store.bury(failed("l-2", 200))

        assert (status, None) == (store.get_group(GROUP).status, store.get_group(GROUP).reopened_seconds)

    def test_a_letter_that_changes_its_state_reopens_nothing(self, store):
        store.bury(letter())
        store.declare_group(GROUP, "resolved", "ana")
        store.discard("l-1", "ana", "obsolete")

        assert "resolved" == store.get_group(GROUP).status

    def test_nobody_resolves_a_failure_that_he_has_not_seen(self, store):
        store.bury(letter())
        seen = store.get_group(GROUP).failures
        store.bury(failed("l-2"))

        with pytest.raises(GroupHasMoved, match="1 time since"):
            store.declare_group(GROUP, "resolved", "ana", failures_seen=seen)
        assert "open" == store.get_group(GROUP).status
        assert "resolved" == store.declare_group(GROUP, "resolved", "ana", failures_seen=seen + 1).status

    def test_what_people_say_is_kept_with_their_names(self, store):
        store.bury(letter())
        store.assign_group(GROUP, "bob", "ana", NOON + 1)
        store.annotate_group(GROUP, "see the bank's page", "bob", NOON + 2)
        changed = store.annotate_group(GROUP, "they are back", "bob", NOON + 3)

        assert changed == store.get_group(GROUP)
        assert ("bob", "they are back") == (changed.assignee, changed.note)
        assert [
            (NOON + 1, "assigned", "ana", "bob"),
            (NOON + 2, "noted", "bob", ""),
            (NOON + 3, "noted", "bob", "was: see the bank's page"),
        ] == [(each.at_seconds, each.what, each.who, each.detail) for each in changed.history]

    def test_of_twenty_sayings_at_once_none_is_lost(self, store):
        store.bury(letter())

        def say(number):
            if number % 2:
                return store.declare_group(GROUP, "acknowledged", f"w{number}")
            return store.bury(failed(f"l-{number}", 1))

        _, errors = race(RACERS, say)

        assert [] == errors
        group = store.get_group(GROUP)
        assert {f"w{number}" for number in range(1, RACERS, 2)} == {each.who for each in group.history}
        assert 1 + RACERS // 2 == group.failures

    def test_the_history_is_bounded(self, store):
        store.bury(letter())
        for number in range(MAX_HISTORY + 3):
            store.assign_group(GROUP, str(number), "ana", NOON)

        history = store.get_group(GROUP).history
        assert (MAX_HISTORY, str(MAX_HISTORY + 2)) == (len(history), history[-1].detail)

    @pytest.mark.parametrize(
        "change",
        [
            lambda store, who: store.declare_group("absent", "resolved", who),
            lambda store, who: store.assign_group("absent", "bob", who),
            lambda store, who: store.annotate_group("absent", "note", who),
        ],
        ids=["declare", "assign", "annotate"],
    )
    def test_a_change_needs_a_group_and_a_name(self, store, change):
        with pytest.raises(NoSuchGroup, match="absent"):
            change(store, "ana")
        with pytest.raises(ConfigurationError, match="under a name"):
            change(store, " ")

    def test_groups_are_listed_newest_failure_first(self, store):
        tasks = ["shop.a", "shop.b", "shop.c", "shop.d", "shop.e"]
        letters = [failed(f"l-{n}", n // 2, task=task) for n, task in enumerate(tasks)]
        for each in letters:
            store.bury(each)

        found = walk_groups(store, limit=2)

        assert {each.fingerprint for each in letters} == set(found)
        assert len(letters) == len(found)
        assert letters[4].fingerprint == found[0]
        assert {each.fingerprint for each in letters[:2]} == set(found[3:])
        store.bury(failed("l-0", 50, task="shop.a", burial=9))
        assert letters[0].fingerprint == walk_groups(store, limit=1)[0]

    def test_groups_are_filtered(self, store):
        bug = failed("l-1", 1)
        data = failed("l-2", 2, kind=FailureKind.DATA)
        ship = failed("l-3", 3, task="shop.ship")
        for each in (bug, data, ship):
            store.bury(each)
        store.declare_group(data.fingerprint, "muted", "ana")

        assert [data.fingerprint] == walk_groups(store, status="muted")
        assert [ship.fingerprint, bug.fingerprint] == walk_groups(store, limit=1, status="open")
        assert [data.fingerprint, bug.fingerprint] == walk_groups(store, limit=1, task="shop.charge")
        assert [data.fingerprint] == walk_groups(store, kind=FailureKind.DATA)
        assert [] == walk_groups(store, kind=FailureKind.DATA, status="open")

    def test_a_wrong_page_of_groups_is_refused(self, store):
        with pytest.raises(ConfigurationError, match="next_cursor"):
            store.groups(before="nonsense")
        with pytest.raises(ConfigurationError, match="limit=0"):
            store.groups(limit=0)

    def test_counting_a_letter_again_counts_nothing(self, store):
        store.bury(letter())
        before = store.get_group(GROUP)

        assert store.regroup("l-1") is True
        assert store.regroup("absent") is False
        assert before == store.get_group(GROUP)

    @pytest.mark.parametrize("seed", range(3))
    def test_counts_are_those_of_the_letters_whatever_happens(self, store, seed):
        """A counter that drifts is worse than none: nobody counts a second time."""
        choose = random.Random(seed)
        deaths = Counter()
        for step in range(STEPS):
            id_ = f"l-{choose.randrange(6)}"
            try:
                one_step(store, choose, id_, step, deaths)
            except LetterNotOpen:
                continue
        letters = store.list(limit=100).letters
        for group in store.groups(limit=100).groups:
            mine = [each for each in letters if each.fingerprint == group.fingerprint]
            assert Counter(each.state for each in mine) == group.counts, f"seed {seed}"
            assert {each.id for each in mine} == {
                each.id for each in store.list(fingerprint=group.fingerprint, limit=100).letters
            }
            assert deaths[group.fingerprint] == group.failures == sum(group.hours.values()), f"seed {seed}"


def one_step(store, choose, id_, step, deaths):
    """Do one thing to one letter, and note a failure that is written."""
    found = store.get(id_)
    what = choose.randrange(8) if found else 0
    if what == 0:
        kind = choose.choice([FailureKind.BUG, FailureKind.DATA, FailureKind.INFRASTRUCTURE])
        dead = failed(id_, step, kind=kind, burial=step + 1)
        if store.bury(dead):
            deaths[dead.fingerprint] += 1
    elif what == 1:
        store.begin_replay(id_, f"t-{step}", "ana", NOON)
    elif what == 2:
        store.mark_replayed(id_, found.replay_task_id or "none", NOON)
    elif what == 3:
        store.close(id_, "done", NOON)
    elif what == 4:
        store.discard(id_, "ana", "obsolete", NOON)
    elif what == 5:
        store.archive([id_], "ana", "old", NOON)
    elif what == 6:
        store.restore([id_], "ana", NOON)
    else:
        store.add_note(id_, "note", "ana", "", NOON)
