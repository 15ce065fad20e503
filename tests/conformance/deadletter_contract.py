"""
What every store of dead letters must do: subclass it, and give a `store` fixture that is empty.
"""

import threading
import uuid
from dataclasses import replace

import pytest

from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.deadletter.changes import look_at
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter, LetterTruncated
from celery_safeguards.deadletter.refusals import LetterChanged, LetterNotOpen, NoSuchLetter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind

RACERS = 20
NOON = 1_700_000_000.25


def letter(letter_id="l-1", **changes):
    values = {
        "id": letter_id,
        "task": "shop.charge",
        "task_id": "t-1",
        "wire": WireMessage(body=b'[[], {"order_id": 7}, {}]', headers={"task": "shop.charge", "id": "t-1"}),
        "kind": FailureKind.BUG,
        "effect_possible": False,
        "reason": "attempt 4 of 4",
        "error_type": "builtins.ValueError",
        "error_message": "first",
        "first_seen_seconds": NOON,
        "last_failed_seconds": NOON + 60,
        "burial": 7,
    }
    return Letter(**{**values, **changes})


def second_burial(**changes):
    """The letter that a replay of `letter()` leaves when it dies again."""
    values = {
        "task_id": "t-2",
        "burial": 9,
        "kind": FailureKind.DATA,
        "error_type": "builtins.KeyError",
        "error_message": "second",
        "first_seen_seconds": NOON + 500,
        "last_failed_seconds": NOON + 600,
    }
    return letter(**{**values, **changes})


def race(count, call):
    """Call from `count` threads at the same instant; return the results and the errors."""
    barrier = threading.Barrier(count)
    results, errors = [], []

    def run(number):
        barrier.wait()
        try:
            results.append(call(number))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


def walk(store, **options):
    """Return the ids of all pages."""
    found, cursor = [], None
    while True:
        page = store.list(before=cursor, **options)
        found += [each.id for each in page.letters]
        cursor = page.next_cursor
        if cursor is None:
            return found


class LetterStoreContract:
    def test_a_buried_letter_comes_back_equal(self, store):
        """A letter that lost something in the store could not be replayed as it came."""
        written = letter(
            key="payment:7",
            chord=True,
            history=(HistoryEntry(at_seconds=NOON, what="note"),),
            attempt_history=(FailedAttempt(number=1, at_seconds=NOON, ended="buried: x", message="ä \x00\ud800"),),
        )

        assert store.bury(written) is True
        assert written == store.get("l-1")

    def test_a_replay_that_dies_again_adds_its_attempts(self, store):
        """How it failed the first time is what the second time is compared with."""
        first = [FailedAttempt(number=number, at_seconds=NOON + number, ended="retried in 2 s") for number in (1, 2)]
        again = FailedAttempt(number=1, at_seconds=NOON + 500, ended="buried: no retry policy", task_id="t-2")
        store.bury(letter(attempt_history=tuple(first)))
        store.bury(second_burial(attempt_history=(first[1], again)))
        store.bury(second_burial(attempt_history=(again,)))

        assert (*first, again) == store.get("l-1").attempt_history

    def test_a_letter_that_is_not_there_is_none(self, store):
        """A wrong id must read as absent, not as a fault of the store."""
        assert store.get("absent") is None

    @pytest.mark.parametrize(
        "letter_id", ["a/../../b", "\x00\ud800", "x" * 5_000, "x" * 4_999 + "y", "{sg:other:0}", "a b:c"]
    )
    def test_any_text_is_an_id(self, store, letter_id):
        """A foreign producer chooses its task ids: none may keep its failure from being recorded."""
        store.bury(letter("x" * 5_000 + "another"))
        store.bury(letter(letter_id))

        assert letter(letter_id) == store.get(letter_id)

    def test_nul_and_surrogates_can_be_buried(self, store):
        """Recording the failure must not fail: django-celery-results#82, #74."""
        odd = letter(
            error_message="\x00\ud800",
            traceback="\x00" * 5_000_000,
            key="\x00",
            wire=WireMessage(body=bytes(range(256)), headers={"nul": "\x00", "surrogate": "\ud800"}),
        )

        store.bury(odd)

        assert odd == store.get("l-1")

    def test_a_burial_begins_open(self, store):
        """A letter born as replayed would never be seen by anybody."""
        store.bury(letter(state="replayed", replay_task_id="t-9"))

        found = store.get("l-1")
        assert (found.state, found.replay_task_id) == ("open", None)

    @pytest.mark.parametrize("attempts", [-5, 2**31, 2**70])
    def test_any_number_of_attempts_can_be_buried(self, store, attempts):
        """A producer says it; refused, its message would come back for ever."""
        assert store.bury(letter(attempts=attempts))

        assert attempts == store.get("l-1").attempts

    def test_the_same_burial_is_written_once(self, store):
        """A settle that is retried must not leave two letters for one failure."""
        store.bury(letter())

        assert store.bury(letter(error_message="written by the slow one")) is False
        assert letter() == store.get("l-1")

    def test_twenty_burials_at_once_write_one_letter(self, store):
        """All deliveries of one message may finish its burial at the same time."""
        results, errors = race(RACERS, lambda _number: store.bury(letter()))

        assert errors == []
        assert results.count(True) == 1
        assert walk(store) == ["l-1"]

    @pytest.mark.parametrize("is_replayed", [False, True])
    def test_a_slow_writer_of_the_same_burial_does_not_reopen_a_replay(self, store, is_replayed):
        """The letter would be offered for a second replay while the first one runs."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        if is_replayed:
            store.mark_replayed("l-1", "t-2", NOON + 101)
        before = store.get("l-1")

        assert store.bury(letter()) is False
        assert before == store.get("l-1")

    def test_an_older_burial_changes_nothing(self, store):
        """A spool drained late must not bring back an error that is long over."""
        store.bury(second_burial())

        assert store.bury(letter()) is False
        assert second_burial() == store.get("l-1")

    def test_a_replay_that_dies_again_reopens_its_letter(self, store):
        """One failure would become two letters, or the second death would be hidden."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        store.mark_replayed("l-1", "t-2", NOON + 101)

        assert store.bury(second_burial()) is True

        found = store.get("l-1")
        assert second_burial(first_seen_seconds=NOON, earlier_task_ids=("t-1",)) == replace(found, history=())
        assert [entry.what for entry in found.history] == ["replay begun", "replayed", "died again"]

    def test_a_reopened_letter_still_tells_the_first_error(self, store):
        """Nobody could see that the second death has another cause than the first."""
        store.bury(letter(history=(HistoryEntry(at_seconds=NOON, what="old"),)))

        store.bury(second_burial(history=(HistoryEntry(at_seconds=NOON, what="new"),)))

        history = store.get("l-1").history
        assert [entry.what for entry in history] == ["old", "new", "died again"]
        assert "builtins.ValueError: first" in history[-1].detail

    @pytest.mark.parametrize("is_replayed", [False, True])
    def test_a_replay_without_a_fence_that_dies_reopens_its_letter(self, store, is_replayed):
        """The replay of an unknown task dies unadmitted: its message would be acknowledged and its letter stay shut."""
        store.bury(letter(burial=0, effect_possible=True))
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        if is_replayed:
            store.mark_replayed("l-1", "t-2", NOON + 101)

        assert store.bury(second_burial(burial=0)) is True

        found = store.get("l-1")
        assert (
            *(found.state, found.replay_task_id),
            *(found.error_message, found.effect_possible),
        ) == ("open", None, "second", True)

    def test_a_replay_without_a_fence_reopens_its_letter_once(self, store):
        """A redelivery of a dead replay would reopen what somebody has discarded meanwhile."""
        store.bury(letter(burial=0))
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        store.bury(second_burial(burial=0))
        store.discard("l-1", "ana", "obsolete", NOON + 700)

        assert store.bury(second_burial(burial=0)) is False
        assert store.get("l-1").state == "discarded"

    def test_a_closed_letter_is_not_reopened_without_a_fence(self, store):
        """The replay has succeeded: a stale copy of its message must not offer the work again."""
        store.bury(letter(burial=0))
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        store.close("l-1", "task t-2 succeeded", NOON + 200)

        assert store.bury(second_burial(burial=0)) is False
        assert store.get("l-1").state == "closed"

    def test_a_slow_first_writer_without_a_fence_does_not_reopen_a_replay(self, store):
        """The original message is redelivered while its replay runs."""
        store.bury(letter(burial=0))
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)

        assert store.bury(letter(burial=0)) is False
        assert store.get("l-1").state == "replaying"

    def test_a_replay_takes_an_open_letter(self, store):
        """The sender must get the whole message and the id to send it under."""
        store.bury(letter())

        begun = store.begin_replay("l-1", "t-2", "ana", NOON + 100)

        entry = HistoryEntry(at_seconds=NOON + 100, what="replay begun", who="ana", detail="as task t-2")
        assert replace(letter(), state="replaying", replay_task_id="t-2", history=(entry,)) == begun
        assert begun == store.get("l-1")

    def test_of_twenty_replays_at_once_one_begins(self, store):
        """Two admins who press replay at once would run the work twice: sidekiq-unique-jobs#304."""
        store.bury(letter())

        begun, errors = race(RACERS, lambda number: store.begin_replay("l-1", f"r-{number}", f"w{number}", NOON))

        assert len(begun) == 1
        assert {("replaying", begun[0].replay_task_id)} == {(error.state, error.replay_task_id) for error in errors}
        assert len(errors) == RACERS - 1

    def test_a_replay_and_a_discard_at_once_have_one_winner(self, store):
        """Work that was given up would run all the same."""
        for number in range(RACERS):
            store.bury(letter(f"l-{number}"))

        def one(number):
            if number % 2:
                return store.begin_replay(f"l-{number // 2}", uuid.uuid4().hex, "ana", NOON)
            return store.discard(f"l-{number // 2}", "bob", "obsolete", NOON)

        done, errors = race(RACERS, one)

        assert {LetterNotOpen} == {type(error) for error in errors}
        assert RACERS // 2 == len({each.id for each in done}) == len(done)

    def test_a_second_replay_is_told_the_allocated_id(self, store):
        """The loser must be able to follow the replay that runs."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON)

        with pytest.raises(LetterNotOpen, match="letter l-1 is replaying, as task t-2"):
            store.begin_replay("l-1", "t-3", "bob", NOON)

    def test_a_truncated_letter_is_not_taken(self, store):
        """It would stay replaying for ever, since nothing can be sent."""
        store.bury(letter(wire=WireMessage(body=b"b" * 200_000)).capped(50_000))

        with pytest.raises(LetterTruncated, match="safeguards_max_letter_bytes"):
            store.begin_replay("l-1", "t-2", "ana", NOON)
        assert store.get("l-1").state == "open"

    def test_a_replay_cut_short_is_resumed_under_the_same_id(self, store):
        """After a crash between the compare-and-set and the publish, a new id would make a second operation."""
        store.bury(letter())
        begun = store.begin_replay("l-1", "t-2", "ana", NOON)

        assert begun == store.resume_replay("l-1")

    def test_a_letter_that_is_not_replaying_cannot_be_resumed(self, store):
        """A resend of what was published already would be a duplicate for unkeyed work."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON)
        store.mark_replayed("l-1", "t-2", NOON)

        with pytest.raises(LetterNotOpen, match="is replayed"):
            store.resume_replay("l-1")

    def test_a_published_replay_is_marked(self, store):
        """A letter that stays replaying would be sent again at the next resume."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON)

        assert store.mark_replayed("l-1", "t-2", NOON + 1) is True
        assert (store.get("l-1").state, store.get("l-1").replay_task_id) == ("replayed", "t-2")

    def test_a_mark_under_another_id_changes_nothing(self, store):
        """A late mark of the first replay would shut the letter that the second one has taken."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON)

        assert store.mark_replayed("l-1", "t-1", NOON) is False
        assert store.get("l-1").state == "replaying"

    def test_a_mark_after_the_replay_has_died_changes_nothing(self, store):
        """A fast death comes before the sender's mark: the reopened letter would be shut again."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON)
        store.bury(second_burial())

        assert store.mark_replayed("l-1", "t-2", NOON) is False
        assert store.get("l-1").state == "open"

    @pytest.mark.parametrize("state", ["open", "replaying", "replayed", "archived"])
    def test_a_success_closes_the_letter(self, store, state):
        """Work that is done would be replayed by whoever reads the list."""
        bring_to(store, state)

        assert store.close("l-1", "task t-5 succeeded", NOON + 200) is True

        found = store.get("l-1")
        assert found.state == "closed"
        assert f"was {state}; task t-5 succeeded" == found.history[-1].detail

    @pytest.mark.parametrize("state", ["closed", "discarded"])
    def test_a_letter_that_is_over_is_not_closed_again(self, store, state):
        """The history would be filled by every later success of the same key."""
        bring_to(store, state)
        before = store.get("l-1")

        assert store.close("l-1", "again", NOON + 300) is False
        assert before == store.get("l-1")

    def test_closing_a_missing_letter_is_no_error(self, store):
        """A success must never fail for want of a letter."""
        assert store.close("absent", "done", NOON) is False

    def test_marking_a_missing_letter_is_no_error(self, store):
        """The message is published already; there is nothing that the sender could do."""
        assert store.mark_replayed("absent", "t-2", NOON) is False

    def test_a_discarded_letter_stays_with_its_reason(self, store):
        """Nobody could tell later who gave the work up, and why."""
        store.bury(letter())

        discarded = store.discard("l-1", "ana", "order was cancelled", NOON + 5)

        entry = HistoryEntry(at_seconds=NOON + 5, what="discarded", who="ana", detail="order was cancelled")
        assert replace(letter(), state="discarded", history=(entry,)) == discarded == store.get("l-1")

    @pytest.mark.parametrize("state", ["replaying", "replayed", "closed", "discarded", "archived"])
    def test_only_an_open_letter_is_discarded(self, store, state):
        """Work that runs at this moment would be reported as given up."""
        bring_to(store, state)

        with pytest.raises(LetterNotOpen, match=state):
            store.discard("l-1", "ana", "obsolete", NOON)

    @pytest.mark.parametrize("who, reason", [("", "obsolete"), ("ana", " ")])
    def test_a_discard_needs_a_name_and_a_reason(self, store, who, reason):
        """An audit trail with empty lines is none."""
        store.bury(letter())

        with pytest.raises(ConfigurationError, match="a name and a reason"):
            store.discard("l-1", who, reason, NOON)

    @pytest.mark.parametrize("state", ["open", "discarded"])
    def test_an_edit_of_what_was_looked_at_is_noted(self, store, state):
        """The line stands before the copy is out: a copy without a trace is work that nobody has ordered."""
        bring_to(store, state)
        seen = store.get("l-1")

        begun = store.begin_edit("l-1", "t-9", "ann", "changes queue: why", look_at(seen), NOON)

        assert begun == store.get("l-1") == seen.noted(begun.history[-1])
        assert begun.history[-1].plain == [NOON, "edit begun", "ann", "as task t-9: changes queue: why"]

    def test_an_edit_that_is_begun_again_is_begun_once(self, store):
        """A step whose answer was lost is made again, and must not take its own line for somebody else's."""
        store.bury(letter())
        look = look_at(store.get("l-1"))

        first = store.begin_edit("l-1", "t-9", "ann", "why", look, NOON)

        assert first == store.begin_edit("l-1", "t-9", "ann", "why", look, NOON)

    def test_of_twenty_edits_at_once_of_one_look_one_begins(self, store):
        """Two people mend the same order: the second must be told of the first."""
        store.bury(letter())
        look = look_at(store.get("l-1"))

        results, errors = race(
            RACERS, lambda number: store.begin_edit("l-1", f"t-{number}", f"person {number}", "why", look, NOON)
        )

        assert (len(results), {type(error) for error in errors}) == (1, {LetterChanged})
        assert len(store.get("l-1").history) == 1

    @pytest.mark.parametrize(
        "act",
        [
            lambda store: store.add_note("l-1", "seen", "bob"),
            lambda store: store.discard("l-1", "bob", "why"),
            lambda store: store.begin_replay("l-1", "t-2", "bob", NOON),
            lambda store: store.bury(second_burial()),
        ],
        ids=["noted", "discarded", "replayed", "died again"],
    )
    def test_an_edit_of_what_has_changed_is_refused(self, store, act):
        """What was looked at is not there any more."""
        store.bury(letter())
        look = look_at(store.get("l-1"))
        act(store)
        changed = store.get("l-1")

        with pytest.raises(LetterChanged, match="look at it again"):
            store.begin_edit("l-1", "t-9", "ann", "why", look, NOON)
        assert changed == store.get("l-1")

    @pytest.mark.parametrize("state", ["replaying", "replayed", "closed", "archived"])
    def test_an_edit_of_what_is_under_way_or_over_is_refused(self, store, state):
        bring_to(store, state)

        with pytest.raises(LetterNotOpen):
            store.begin_edit("l-1", "t-9", "ann", "why", look_at(store.get("l-1")), NOON)

    def test_a_note_is_added_to_a_letter_that_is_over(self, store):
        """A late owner's success is the verdict that a person needs, whatever the state is."""
        bring_to(store, "closed")

        noted = store.add_note("l-1", "refused success", None, "owner was fenced", NOON + 9)

        expected = HistoryEntry(at_seconds=NOON + 9, what="refused success", detail="owner was fenced")
        assert expected == noted.history[-1]
        assert noted == store.get("l-1")

    def test_of_twenty_notes_at_once_none_is_lost(self, store):
        """A change that overwrites another one unseen loses evidence."""
        store.bury(letter())

        race(RACERS, lambda number: store.add_note("l-1", f"note {number}", "ana", "", NOON))

        assert {f"note {number}" for number in range(RACERS)} == {entry.what for entry in store.get("l-1").history}

    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.begin_replay("absent", "t-2", "ana", NOON),
            lambda store: store.resume_replay("absent"),
            lambda store: store.discard("absent", "ana", "obsolete", NOON),
            lambda store: store.add_note("absent", "note", "ana", "", NOON),
        ],
        ids=["begin_replay", "resume_replay", "discard", "add_note"],
    )
    def test_a_missing_letter_is_refused(self, store, call):
        """A person who mistypes an id must not believe that something was done."""
        with pytest.raises(NoSuchLetter, match="absent"):
            call(store)

    def test_times_default_to_now(self, store):
        """A history line without a time of its own would be useless."""
        store.bury(letter())

        assert store.add_note("l-1", "note", "ana").history[-1].at_seconds > NOON

    def test_letters_are_listed_newest_failure_first(self, store):
        """What failed this minute is what an operator looks for."""
        for number in (2, 5, 1):
            store.bury(letter(f"l-{number}", last_failed_seconds=NOON + number))

        assert [each.id for each in store.list().letters] == ["l-5", "l-2", "l-1"]

    def test_pages_walk_over_every_letter_once(self, store):
        """A letter between two pages would never be seen; equal times are common in a burst."""
        for number in range(25):
            store.bury(letter(f"l-{number}", last_failed_seconds=NOON + number // 10))

        found = walk(store, limit=4)

        assert 25 == len(found) == len(set(found))

    def test_a_walk_survives_letters_that_move(self, store):
        """While somebody pages through the list, replays die and new letters come."""
        for number in range(9):
            store.bury(letter(f"l-{number}", last_failed_seconds=NOON + number))
        first = store.list(limit=3)
        store.bury(letter("l-6", burial=9, last_failed_seconds=NOON + 100))
        store.bury(letter("l-new", last_failed_seconds=NOON + 101))

        rest = store.list(limit=50, before=first.next_cursor)

        assert [each.id for each in rest.letters] == ["l-5", "l-4", "l-3", "l-2", "l-1", "l-0"]

    def test_the_last_page_has_no_cursor(self, store):
        """Whoever walks by cursor must know when to end."""
        for number in range(4):
            store.bury(letter(f"l-{number}"))

        assert store.list(limit=4).next_cursor is None

    def test_an_empty_store_has_an_empty_page(self, store):
        """The first look into a healthy system must not be an error."""
        assert (store.list().letters, store.list().next_cursor, store.list().unreadable) == ((), None, ())

    @pytest.mark.parametrize(
        "wanted, expected",
        [
            ({"state": "open"}, ["l-3", "l-2"]),
            ({"task": "shop.ship"}, ["l-2"]),
            ({"kind": FailureKind.DATA}, ["l-3", "l-1"]),
            ({"kind": FailureKind.DATA, "state": "discarded"}, ["l-1"]),
            ({"task": "none"}, []),
        ],
        ids=["state", "task", "kind", "both", "none"],
    )
    def test_the_list_is_filtered(self, store, wanted, expected):
        """Ten thousand letters of one outage hide the one that matters."""
        store.bury(letter("l-1", kind=FailureKind.DATA, last_failed_seconds=NOON + 1))
        store.bury(letter("l-2", task="shop.ship", last_failed_seconds=NOON + 2))
        store.bury(letter("l-3", kind=FailureKind.DATA, last_failed_seconds=NOON + 3))
        store.discard("l-1", "ana", "obsolete", NOON)

        assert expected == walk(store, limit=1, **wanted)

    @pytest.mark.parametrize("cursor", ["nonsense", "x:y", "nan:x", ""])
    def test_a_wrong_cursor_is_refused(self, store, cursor):
        """A damaged link must not pass for an empty list."""
        with pytest.raises(ConfigurationError, match="next_cursor"):
            store.list(before=cursor)

    def test_a_page_without_room_is_refused(self, store):
        """A walk by pages of nothing would never end."""
        with pytest.raises(ConfigurationError, match="limit=0"):
            store.list(limit=0)


def bring_to(store, state):
    """Bury `letter()` and bring it to a state; "archived": from open."""
    store.bury(letter())
    if state in ("replaying", "replayed"):
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
    if state == "replayed":
        store.mark_replayed("l-1", "t-2", NOON + 101)
    if state == "closed":
        store.close("l-1", "succeeded", NOON + 102)
    if state == "discarded":
        store.discard("l-1", "ana", "obsolete", NOON + 103)
    if state == "archived":
        store.archive(["l-1"], "ana", "old", NOON + 104)
