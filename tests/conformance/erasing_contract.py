"""
What every store of dead letters must do about a letter whose content is erased: give a `store` fixture that is empty.
"""

from dataclasses import replace

import pytest

from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.deadletter.changes import look_at
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import LetterErased
from celery_safeguards.deadletter.refusals import LetterChanged, LetterNotOpen
from celery_safeguards.deadletter.terms import argument_term, name_term
from celery_safeguards.errors import ConfigurationError
from tests.conformance.deadletter_contract import NOON, RACERS, letter, race, second_burial

CANARY = "ann@example.com"
LAST = letter().last_failed_seconds


def of_ann(letter_id="l-1", **changes):
    """Return a letter that holds the same text wherever it can hold one."""
    whole = letter(letter_id)
    wire = replace(
        whole.wire,
        body=f'[[], {{"email": "{CANARY}"}}, {{}}]'.encode(),
        headers={**whole.wire.headers, "x-for": CANARY},
    )
    given = {
        "wire": replace(wire, properties={"reply_to": CANARY, "correlation_id": CANARY}),
        "reason": f"refused for {CANARY}",
        "error_message": f"no order of {CANARY}",
        "traceback": f"ValueError: {CANARY}",
        "key": f"welcome:{CANARY}",
        "scope": "shop.welcome",
        "chord": CANARY,
        "terms": (argument_term("email", CANARY),),
        "terms_note": f"more than {CANARY}",
        "shown_error": f"no order of {CANARY}",
        "shown_reason": f"refused for {CANARY}",
        "history": (HistoryEntry(at_seconds=NOON, what="tried", who="bob", detail=f"for {CANARY}"),),
        "attempt_history": (
            FailedAttempt(number=2, at_seconds=NOON, ended=f"buried: {CANARY}", message=CANARY, task_id="t-1"),
        ),
    }
    return letter(letter_id, **{**given, **changes})


def bring_to(store, state, given):
    store.bury(given)
    if state in {"replayed", "closed"}:
        store.begin_replay(given.id, "t-2", "ana", NOON)
        store.mark_replayed(given.id, "t-2", NOON)
    if state == "closed":
        store.close(given.id, f"for {CANARY}", NOON)
    if state == "discarded":
        store.discard(given.id, "ana", f"for {CANARY}", NOON)


def found(store, *terms):
    return [each.id for each in store.list(terms=terms).letters]


class LetterErasingContract:
    @pytest.mark.parametrize("state", ["replayed", "closed", "discarded"])
    def test_nothing_of_what_a_letter_held_is_left(self, store, state):
        bring_to(store, state, of_ann())

        assert store.erase("l-1", "eve", "ticket 7", LAST, NOON) is True

        kept = store.get("l-1")
        assert CANARY not in kept.to_json()
        assert (kept.erased, kept.state, kept.reason, kept.key) == (True, state, "erased", None)
        assert [(2, "buried", "t-1")] == [(each.number, each.ended, each.task_id) for each in kept.attempt_history]
        assert CANARY not in repr(store.list().letters)
        assert found(store, argument_term("email", CANARY)) == []
        assert found(store, name_term(f"welcome:{CANARY}"), name_term(CANARY)) == []

    def test_what_it_was_stays_and_who_did_what_with_it(self, store):
        """Counts, and the answer to a slow second burial, rest on the letter that is there."""
        given = of_ann()
        bring_to(store, "discarded", given)

        store.erase("l-1", "eve", "ticket 7", LAST, NOON + 1)

        kept = store.get("l-1")
        for name in (
            "task",
            "task_id",
            "kind",
            "error_type",
            "fingerprint",
            "burial",
            "first_seen_seconds",
            "attempts",
        ):
            assert getattr(kept, name) == getattr(given, name), name
        assert [(each.what, each.who) for each in kept.history] == [
            ("tried", "bob"),
            ("discarded", "ana"),
            ("erased", "eve"),
        ]
        assert [each.detail for each in kept.history] == ["", "", "ticket 7"]
        assert store.get_group(given.fingerprint).counts == {"discarded": 1}
        assert found(store, name_term("l-1")) == ["l-1"]

    def test_a_second_time_does_nothing(self, store):
        bring_to(store, "discarded", of_ann())
        store.erase("l-1", "eve", "ticket 7", LAST)
        once = store.get("l-1")

        assert store.erase("l-1", "bob", "again", LAST) is False
        assert store.erase("absent", "bob", "again", LAST) is False
        assert store.get("l-1") == once

    def test_of_twenty_at_once_one_erases(self, store):
        bring_to(store, "discarded", of_ann())

        erased, errors = race(RACERS, lambda number: store.erase("l-1", f"w{number}", "ticket 7", LAST))

        assert (sum(erased), errors) == (1, [])
        assert [each.what for each in store.get("l-1").history].count("erased") == 1

    @pytest.mark.parametrize("state", ["open", "replaying"])
    def test_a_letter_whose_message_is_needed_is_refused(self, store, state):
        store.bury(of_ann())
        if state == "replaying":
            store.begin_replay("l-1", "t-2", "ana", NOON)

        with pytest.raises(LetterNotOpen):
            store.erase("l-1", "eve", "ticket 7", LAST)

        assert CANARY in store.get("l-1").to_json()

    def test_a_letter_that_died_again_is_refused(self, store):
        """What it holds now, nobody has looked at."""
        bring_to(store, "replayed", of_ann())
        store.bury(second_burial())
        store.discard("l-1", "ana", "why")

        with pytest.raises(LetterChanged, match="died again"):
            store.erase("l-1", "eve", "ticket 7", LAST)

    @pytest.mark.parametrize("who, reason", [("", "why"), ("eve", " ")])
    def test_it_needs_a_name_and_a_reason(self, store, who, reason):
        with pytest.raises(ConfigurationError):
            store.erase("l-1", who, reason, LAST)

    def test_an_erased_letter_is_neither_replayed_nor_resumed_nor_edited(self, store):
        bring_to(store, "discarded", of_ann())
        store.erase("l-1", "eve", "ticket 7", LAST)
        look = look_at(store.get("l-1"))

        for act in (
            lambda: store.begin_replay("l-1", "t-3", "ana", NOON),
            lambda: store.resume_replay("l-1"),
            lambda: store.discard("l-1", "ana", "why"),
        ):
            with pytest.raises(LetterNotOpen):
                act()
        with pytest.raises(LetterErased):
            store.begin_edit("l-1", "t-3", "ana", "why", look)

    def test_a_slow_second_burial_does_not_bring_it_back(self, store):
        """The message is delivered again, or its letter lay in a spool."""
        bring_to(store, "discarded", of_ann())
        store.erase("l-1", "eve", "ticket 7", LAST)

        assert store.bury(of_ann()) is False
        assert CANARY not in store.get("l-1").to_json()

    def test_a_replay_that_was_out_and_dies_is_a_letter_as_any_other(self, store):
        bring_to(store, "replayed", of_ann())
        store.erase("l-1", "eve", "ticket 7", LAST)

        assert store.bury(second_burial()) is True

        kept = store.get("l-1")
        assert (kept.state, kept.erased, kept.error_message) == ("open", False, "second")
        assert CANARY not in kept.to_json()

    def test_a_group_forgets_what_such_a_letter_said_and_nothing_else(self, store):
        given = of_ann(error_type="", shown_error="", error_message=CANARY)
        store.bury(given)
        store.annotate_group(given.fingerprint, "known", "bob", NOON)
        before = store.get_group(given.fingerprint)
        assert CANARY in before.sample

        store.forget_sample(given.fingerprint, {"another"})
        assert store.get_group(given.fingerprint).sample == before.sample
        store.forget_sample(given.fingerprint, {"l-1"})
        store.forget_sample(given.fingerprint, {"l-1"})
        store.forget_sample("absent", {"l-1"})

        assert store.get_group(given.fingerprint) == replace(before, sample="")
        assert CANARY not in repr(store.groups().groups)

    def test_what_fails_meanwhile_is_not_forgotten(self, store):
        """Whoever forgets has read the group before: the sample of a later failure is another letter's."""
        given = letter("l-1", burial=0)
        store.bury(given)

        def act(number):
            if number % 2:
                store.forget_sample(given.fingerprint, {"l-1"})
            else:
                store.bury(letter(f"n-{number}", last_failed_seconds=LAST + 1 + number))

        _, errors = race(RACERS, act)

        group = store.get_group(given.fingerprint)
        assert errors == []
        assert (group.sample, group.sample_letter_id) == ("first", f"n-{RACERS - 2}")
        assert group.failures == 1 + RACERS // 2
