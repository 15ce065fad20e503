"""
What every store of dead letters must do about letters that are put away: give a `store` fixture that is empty.
"""

import pytest

from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.refusals import LetterNotOpen, NoSuchLetter
from celery_safeguards.errors import ConfigurationError
from tests.conformance.deadletter_contract import NOON, RACERS, bring_to, letter, race, second_burial, walk

GROUP = letter().fingerprint
ARCHIVABLE = ["open", "replayed", "closed", "discarded"]


def archived(store, letter_id="l-1", who="ana", at_seconds=NOON + 200):
    """Put a letter away, and return what became of it."""
    return store.archive([letter_id], who, "an old incident", at_seconds)[letter_id]


class LetterArchiveContract:
    @pytest.mark.parametrize("state", ARCHIVABLE)
    def test_a_letter_is_put_away_and_comes_back_to_where_it_was(self, store, state):
        """Archived by mistake, an open letter that came back as closed would be work that nobody does."""
        bring_to(store, state)
        before = store.get("l-1")

        away = archived(store)
        assert away == store.get("l-1")
        assert ("archived", state, state) == (away.state, away.archived_from, away.work_state)
        assert away.history[-1].plain == [NOON + 200, "archived", "ana", "an old incident"]
        assert {"archived": 1} == store.get_group(GROUP).counts

        back = store.restore(["l-1"], "bob", NOON + 300)["l-1"]
        said = [
            HistoryEntry(at_seconds=NOON + 200, what="archived", who="ana", detail="an old incident"),
            HistoryEntry(at_seconds=NOON + 300, what="restored", who="bob", detail=f"to {state}"),
        ]
        assert back == store.get("l-1") == before.noted(said[0]).noted(said[1])
        assert {state: 1} == store.get_group(GROUP).counts

    def test_why_a_letter_is_brought_back_is_kept(self, store):
        """The next one who wonders looks at the letter, and not at the log of an admin that they may not see."""
        bring_to(store, "archived")

        back = store.restore(["l-1"], "bob", NOON + 300, reason="the bank is back")["l-1"]

        assert "to open: the bank is back" == back.history[-1].detail == store.get("l-1").history[-1].detail

    def test_a_letter_that_is_being_replayed_is_not_put_away(self, store):
        """Its message is about to leave, and the mark that it has left would find another state."""
        bring_to(store, "replaying")

        assert isinstance(archived(store), LetterNotOpen)
        assert store.get("l-1").state == "replaying"

    def test_whoever_is_second_is_told_whose_reason_stands(self, store):
        store.bury(letter())
        archived(store)
        before = store.get("l-1")

        refused = store.archive(["l-1"], "bob", "noise", NOON + 201)["l-1"]

        assert "letter l-1 is archived: by ana, an old incident" == str(refused)
        assert before == store.get("l-1")

    def test_a_step_whose_answer_was_lost_is_made_once(self, store):
        store.bury(letter())

        assert archived(store) == archived(store) == store.get("l-1")
        assert 1 == len(store.get("l-1").history)

    @pytest.mark.parametrize("state", ["open", "replaying", "replayed", "closed", "discarded"])
    def test_only_an_archived_letter_is_restored(self, store, state):
        bring_to(store, state)
        before = store.get("l-1")

        assert isinstance(store.restore(["l-1"], "ana", NOON)["l-1"], LetterNotOpen)
        assert before == store.get("l-1")

    def test_a_replay_of_an_archived_letter_is_refused(self, store):
        """Who put it away has said that it is not to run for now."""
        bring_to(store, "archived")

        with pytest.raises(LetterNotOpen, match="l-1 is archived: restore it first"):
            store.begin_replay("l-1", "t-2", "ana", NOON)
        assert isinstance(store.begin_replays({"l-1": "t-2"}, "ana", NOON)["l-1"], LetterNotOpen)
        assert store.get("l-1").state == "archived"

    def test_of_twenty_who_archive_and_replay_at_once_one_wins(self, store):
        """A message would be out of a letter that everybody believes to rest."""
        store.bury(letter())

        def act(number):
            if number % 2:
                return archived(store, who=f"w{number}")
            try:
                return store.begin_replay("l-1", f"t-{number}", "ana", NOON)
            except LetterNotOpen as error:
                return error

        became, errors = race(RACERS, act)

        assert [] == errors
        assert 1 == sum(isinstance(each, Letter) for each in became)
        assert 1 == len(store.get("l-1").history)

    def test_a_later_failure_of_the_same_work_opens_it(self, store):
        """An old incident that comes back must not lie in the archive."""
        bring_to(store, "archived")

        assert store.bury(second_burial()) is True

        found = store.get("l-1")
        assert ("open", None) == (found.state, found.archived_from)
        assert "was archived" in found.history[-1].detail
        assert {"open": 1} == store.get_group(found.fingerprint).counts

    def test_a_slow_writer_of_the_same_failure_does_not_open_it(self, store):
        bring_to(store, "archived")

        assert store.bury(letter()) is False
        assert store.get("l-1").state == "archived"

    def test_a_replay_without_a_fence_that_dies_opens_it(self, store):
        """Put away while nobody knows how the replay ends: its death must be seen."""
        store.bury(letter(burial=0))
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        store.mark_replayed("l-1", "t-2", NOON + 101)
        archived(store)

        assert store.bury(second_burial(burial=0)) is True
        assert store.get("l-1").state == "open"

    @pytest.mark.parametrize("state", ARCHIVABLE)
    def test_a_success_closes_what_was_not_over(self, store, state):
        """Restored a month later, it would be offered for a replay."""
        bring_to(store, state)
        archived(store)
        is_over = state in {"closed", "discarded"}

        assert store.close("l-1", "task t-5 succeeded", NOON + 300) is not is_over
        found = store.get("l-1")
        assert ("archived" if is_over else "closed", state if is_over else None) == (found.state, found.archived_from)

    def test_several_go_in_one_step_and_each_is_told_of(self, store):
        for number in range(3):
            store.bury(letter(f"l-{number}"))
        store.begin_replay("l-2", "t-2", "ana", NOON)

        became = store.archive(["l-0", "absent", "l-2", "l-1", "l-0"], "ana", "old", NOON)

        assert {name: type(each) for name, each in became.items()} == {
            "l-0": Letter,
            "absent": NoSuchLetter,
            "l-2": LetterNotOpen,
            "l-1": Letter,
        }
        assert {"archived": 2, "replaying": 1} == store.get_group(GROUP).counts
        assert ["l-0", "l-1"] == sorted(walk(store, state="archived"))
        assert ["l-0", "l-1"] == sorted(store.restore(["l-1", "l-0"], "ana", NOON))
        assert [] == walk(store, state="archived")
        assert {} == store.archive([], "ana", "old", NOON)

    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.archive(["l-1"], " ", "old"),
            lambda store: store.archive(["l-1"], "ana", ""),
            lambda store: store.restore(["l-1"], ""),
        ],
        ids=["nobody", "no reason", "nobody restores"],
    )
    def test_nobody_puts_away_or_brings_back_without_a_name(self, store, call):
        bring_to(store, "archived")

        with pytest.raises(ConfigurationError, match="name"):
            call(store)
