"""
The table of answers in `ledger.decide`, a row a test.

Times are microseconds of the store's clock; `NOW` is the moment of the answer.
"""

import pytest

from celery_safeguards.clock import to_us
from celery_safeguards.ledger.decide import (
    Accept,
    Arrival,
    Ask,
    Bury,
    Defer,
    Fail,
    FinishBurial,
    Go,
    LedgerPolicy,
    OnDead,
    OnUnknown,
    Refusal,
    Resume,
    Return,
    StoreView,
    decide,
    start,
)
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.outcome import FailureKind

NOW = to_us(1_700_000_000)
LEASE = to_us(30)
AFTER_SECONDS = 10
AFTER = to_us(AFTER_SECONDS)
LONG_AGO = NOW - to_us(3_600)
ALL_UNKNOWN = list(OnUnknown)
ALL_STATES = list(State)
HAPPENED = {"happened": True, "result": 42}
DID_NOT_HAPPEN = {"happened": False}


def policy(on_unknown=OnUnknown.VERIFY, **changes):
    values = {"quiet_seconds": AFTER_SECONDS, "attempts": 3, "max_lost_starts": 3}
    return LedgerPolicy(on_unknown=on_unknown, **{**values, **changes})


def arrival(**changes):
    return Arrival(**{"task_id": "t-2", "owner": "B", "fingerprint": "f", "epoch": "e", **changes})


def view(**changes):
    return StoreView(**{"now_us": NOW, "epoch": "e", **changes})


def record(state, **changes):
    values = {
        "owner": "A",
        "fence": LONG_AGO,
        "attempt": 1,
        "lost_starts": 1,
        "task_id": "t-1",
        "series": ("t-1",),
        "fingerprint": "f",
    }
    return Record(state=state, **{**values, **changes})


def live(**changes):
    return record(State.IN_PROGRESS, lease_until_us=NOW + 1, **changes)


def lapsed(**changes):
    return record(State.IN_PROGRESS, **{"lease_until_us": LONG_AGO, **changes})


def retry_due(**changes):
    return record(State.RETRY_DUE, **{"lost_starts": 0, "not_before_us": NOW, **changes})


def buried(state, **changes):
    return record(state, letter_id="l-1", **{"doubt_us": LONG_AGO, **changes})


REPLAY = arrival(letter_id="l-1")


# ------------------------------------------------------------------------------------------------------- no record


def test_a_first_message_goes():
    """Nothing would ever run."""
    assert Go("no record") == decide(None, arrival(), policy(), view())


def test_nobody_is_admitted_within_one_lease_of_a_new_epoch():
    """Owners of records that a wiped store lost would be doubled before they have written them back."""
    born = view(admit_from_us=NOW + 1)

    assert Defer("the store is new or was wiped", NOW + 1) == decide(None, arrival(), policy(), born)


def test_a_message_with_a_verdict_waits_for_a_new_store_like_any_other():
    """A person's word knows nothing of the owner that is about to write its claim back."""
    born = view(admit_from_us=NOW + 1)

    assert isinstance(decide(None, arrival(verdict=DID_NOT_HAPPEN), policy(), born), Defer)


def test_admission_begins_at_the_very_end_of_the_pause():
    """A copy that is put off until then would be put off again."""
    assert isinstance(decide(None, arrival(), policy(), view(admit_from_us=NOW)), Go)


@pytest.mark.parametrize("proof", [{"seen": LONG_AGO}, {"epoch": "older"}], ids=["seen", "epoch"])
def test_a_message_that_proves_an_earlier_start_is_unknown(proof):
    """The store has forgotten a start whose effect may have happened: running again would double it."""
    assert isinstance(decide(None, arrival(**proof), policy(), view(admit_from_us=LONG_AGO)), Ask)
    quarantined = decide(None, arrival(**proof), policy(OnUnknown.QUARANTINE), view())
    assert (State.QUARANTINED, True) == (quarantined.final, quarantined.effect_possible)
    assert isinstance(decide(None, arrival(**proof), policy(OnUnknown.RERUN), view()), Go)


@pytest.mark.parametrize("proof", [{"seen": LONG_AGO}, {"epoch": "older"}])
def test_after_a_wipe_verify_waits_from_the_last_moment_an_owner_can_have_lived(proof):
    """A start from long ago may have sent its request just before the store was wiped."""
    wiped_lately = view(admit_from_us=NOW - 1)

    assert Defer("verify is not due", NOW - 1 + AFTER) == decide(None, arrival(**proof), policy(), wiped_lately)


def test_a_publisher_that_could_not_ask_the_epoch_proves_nothing():
    """Work that was published while the store was away would need a person."""
    assert isinstance(decide(None, arrival(epoch=None), policy(), view()), Go)


def test_without_a_record_a_verdict_decides():
    """A person's answer would be lost with the store."""
    assert Accept(42) == decide(None, arrival(verdict=HAPPENED), policy(), view())
    assert isinstance(decide(None, arrival(verdict=DID_NOT_HAPPEN), policy(), view()), Go)


# ----------------------------------------------------------------------------------------------------- in progress


def test_a_live_claim_defers():
    """Two bodies of one operation would run at once."""
    assert Defer("in progress elsewhere") == decide(live(), arrival(), policy(), view())


def test_a_lease_has_lapsed_at_its_very_end():
    """Nobody would take over a claim whose owner counts it as over."""
    assert not isinstance(decide(lapsed(lease_until_us=NOW), arrival(), policy(OnUnknown.RERUN), view()), Defer)


def test_a_delivery_that_finds_its_own_claim_resumes():
    """The answer to its first question was lost: it would wait for itself."""
    assert Resume() == decide(live(), arrival(owner="A"), policy(), view())


def test_a_delivery_that_finds_its_own_question_to_verify_does_not_start_the_body():
    """A claim that was taken to ask permits no start."""
    assert isinstance(decide(live(asking=True), arrival(owner="A"), policy(), view()), Defer)


def test_a_claim_marked_lost_is_unknown_although_its_lease_runs():
    """Everybody would wait for the lease of an owner that was seen to die."""
    dead_owner = live(lost_us=LONG_AGO)

    assert Ask("its owner was lost", LONG_AGO) == decide(dead_owner, arrival(), policy(), view())


def test_a_lapsed_claim_is_unknown():
    """The work of an owner that vanished would never be done."""
    assert Ask("its lease lapsed", LONG_AGO) == decide(lapsed(), arrival(), policy(), view())


def test_after_an_outage_of_the_store_nobody_takes_over_a_lapsed_claim():
    """The store was away, not the owners: their bodies run and would be doubled."""
    back = view(takeover_from_us=NOW + 1)

    expected = Defer("its lease lapsed while the store was away", NOW + 1)
    assert expected == decide(lapsed(), arrival(), policy(), back)


def test_after_an_outage_a_claim_marked_lost_is_taken_over_at_once():
    """A parent has seen that owner die: there is nobody to wait for."""
    back = view(takeover_from_us=NOW + 1)

    assert isinstance(decide(lapsed(lost_us=LONG_AGO), arrival(), policy(), back), Ask)


def test_a_lapsed_question_is_asked_again_from_the_older_doubt():
    """Each asker that dies would start the quiet period anew; or a claim that ran no body would count as a start."""
    asker_died = lapsed(asking=True, doubt_us=LONG_AGO, lease_until_us=NOW - 1)

    assert Ask("its lease lapsed", LONG_AGO) == decide(asker_died, arrival(), policy(), view())


# --------------------------------------------------------------------------------------------------------- unknown


def test_verify_is_not_asked_before_the_quiet_period_is_over():
    """The lost attempt's request may still be in flight: "it did not happen" would be false a second later."""
    just_lost = live(lost_us=NOW - AFTER + 1)

    assert Defer("verify is not due", NOW + 1) == decide(just_lost, arrival(), policy(), view())


def test_verify_is_asked_when_the_quiet_period_ends():
    """A copy that is put off until then would be put off again."""
    assert isinstance(decide(live(lost_us=NOW - AFTER), arrival(), policy(), view()), Ask)


def test_rerun_starts_again_at_once():
    """Harmless work would wait for nothing."""
    assert Go("its owner was lost") == decide(live(lost_us=NOW), arrival(), policy(OnUnknown.RERUN), view())


def test_quarantine_buries_with_a_possible_effect():
    """A person would never learn that they must decide, or decide without knowing the doubt."""
    answer = decide(live(lost_us=NOW), arrival(), policy(OnUnknown.QUARANTINE), view())

    expected = Bury(FailureKind.UNKNOWN_OUTCOME, State.QUARANTINED, "its owner was lost", effect_possible=True)
    assert expected == answer


def test_a_rerun_counts_its_lost_starts():
    """A message that kills its process would kill workers for ever."""
    answer = decide(lapsed(attempt=2, lost_starts=3), arrival(), policy(OnUnknown.RERUN, attempts=None), view())

    assert (FailureKind.WORKER_LOST, State.DEAD, True) == (answer.kind, answer.final, answer.effect_possible)


def test_a_rerun_keeps_to_the_cap_of_attempts():
    """Each lost start would be one attempt more than was allowed."""
    answer = decide(lapsed(attempt=3), arrival(), policy(OnUnknown.RERUN), view())

    assert (FailureKind.UNKNOWN_OUTCOME, State.DEAD, True) == (answer.kind, answer.final, answer.effect_possible)


def test_verify_is_asked_also_with_no_attempts_left():
    """Work that has happened would be buried as failed."""
    assert isinstance(decide(lapsed(attempt=3, lost_starts=3), arrival(), policy(), view()), Ask)


# ------------------------------------------------------------------------------------- one more start, after verify


def test_below_both_caps_a_verified_start_goes():
    """Nothing would ever be started again after a doubt."""
    assert Go("verified") == start("verified", lapsed(attempt=2, lost_starts=2), policy())


def test_work_is_poison_exactly_at_max_lost_starts():
    """It would be started once more or once less than was set."""
    below = start("verified", lapsed(attempt=1, lost_starts=2), policy(attempts=None))
    reached = start("verified", lapsed(attempt=1, lost_starts=3), policy(attempts=None))

    assert (Go, Bury) == (type(below), type(reached))
    assert (FailureKind.WORKER_LOST, State.DEAD) == (reached.kind, reached.final)


def test_a_verified_burial_at_the_cap_leaves_no_doubt():
    """A person would be asked about an effect that is known not to have happened."""
    asked = lapsed(attempt=3, asking=True, effect_possible=True)

    assert start("verified", asked, policy(), verified=True).effect_possible is False


def test_without_a_cap_of_attempts_only_lost_starts_count():
    """Orderly retries would end where nobody set an end."""
    assert isinstance(start("retry due", retry_due(attempt=1_000), policy(attempts=None)), Go)


def test_a_new_series_starts_from_nothing():
    """A replay of work that used up its attempts would be buried again at once."""
    used_up = buried(State.DEAD, attempt=3, lost_starts=3)

    assert Go("replay", new_series=True) == start("replay", used_up, policy(), new_series=True)


# ------------------------------------------------------------------------------------------------------------ retry


def test_a_retry_that_is_not_due_is_put_off_until_it_is():
    """An early copy, or any duplicate, would undo the backoff."""
    waiting = retry_due(not_before_us=NOW + 1)

    assert Defer("retry not due", NOW + 1) == decide(waiting, arrival(), policy(), view())


def test_a_due_retry_goes_whoever_brings_it():
    """A duplicate that comes when the retry's copy was lost would wait for ever."""
    assert Go("retry due") == decide(retry_due(), arrival(task_id="t-9"), policy(), view())


def test_a_due_retry_keeps_to_the_cap_of_attempts():
    """A left-over copy would start the body once more than was allowed."""
    used_up = retry_due(attempt=3, failure={"kind": "bug"})

    expected = Bury(FailureKind.BUG, State.DEAD, "attempt 3 of 3", effect_possible=False)
    assert expected == decide(used_up, arrival(), policy(), view())


def test_a_due_retry_after_an_ambiguous_attempt_is_unknown():
    """A charge whose answer timed out would be made twice."""
    doubtful = retry_due(effect_possible=True, doubt_us=LONG_AGO)

    assert Ask("the last attempt may have had an effect", LONG_AGO) == decide(doubtful, arrival(), policy(), view())


def test_a_due_retry_after_an_ambiguous_attempt_waits_for_the_quiet_period():
    """The request that timed out may land after the question."""
    doubtful = retry_due(effect_possible=True, doubt_us=NOW)

    assert Defer("verify is not due", NOW + AFTER) == decide(doubtful, arrival(), policy(), view())


# ------------------------------------------------------------------------------------------------ dying, done, dead


def test_a_dying_record_is_buried_by_whoever_comes():
    """A burial whose process died would never get its letter."""
    assert FinishBurial() == decide(record(State.DYING), arrival(), policy(), view())


def test_done_returns_what_is_stored():
    """A duplicate would run the body."""
    assert Return() == decide(record(State.DONE), arrival(), policy(), view())


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
@pytest.mark.parametrize("on_dead", list(OnDead))
def test_an_id_that_had_its_series_gets_the_stored_failure(state, on_dead):
    """A left-over copy of buried work would begin it anew."""
    old_id = buried(state, series=("t-1", "t-2"), effect_possible=True)

    assert Fail(Refusal.STORED) == decide(old_id, arrival(task_id="t-1"), policy(on_dead=on_dead), view())


def test_on_dead_refuse_fails_a_new_publication():
    """A producer would believe that dead work is under way."""
    answer = decide(buried(State.DEAD), arrival(), policy(on_dead=OnDead.REFUSE), view())

    assert Fail(Refusal.REFUSED) == answer


def test_on_dead_attach_joins_a_new_publication_to_the_letter():
    """Each publication of dead work would be one more thing to clear up."""
    answer = decide(buried(State.DEAD), arrival(), policy(on_dead=OnDead.ATTACH), view())

    assert Fail(Refusal.ATTACHED) == answer


def test_on_dead_run_begins_a_new_series():
    """Dead work would block its key although the task says that a new publication may run."""
    answer = decide(buried(State.DEAD), arrival(), policy(on_dead=OnDead.RUN), view())

    assert Go("a new publication of dead work", new_series=True) == answer


def test_on_dead_run_asks_first_where_an_effect_is_possible():
    """The last attempt may have charged: a new publication would charge again."""
    doubtful = buried(State.DEAD, effect_possible=True)

    expected = Ask("a new publication of dead work", LONG_AGO, new_series=True)
    assert expected == decide(doubtful, arrival(), policy(on_dead=OnDead.RUN), view())


@pytest.mark.parametrize("on_dead", list(OnDead))
def test_a_new_publication_of_quarantined_work_joins_its_letter(on_dead):
    """A person is deciding: nothing may run before, whatever `on_dead` says."""
    answer = decide(buried(State.QUARANTINED), arrival(), policy(on_dead=on_dead), view())

    assert Fail(Refusal.ATTACHED) == answer


# ---------------------------------------------------------------------------------------------------------- replays


@pytest.mark.parametrize("on_dead", list(OnDead))
def test_a_replay_of_dead_work_begins_a_new_series(on_dead):
    """A replay has a new task id: it would be refused, or attached to the letter that it came from."""
    answer = decide(buried(State.DEAD, attempt=3), REPLAY, policy(on_dead=on_dead), view())

    assert Go("replay", new_series=True) == answer


def test_a_replay_from_another_letter_is_a_new_publication():
    """The replay of a conflict's own letter would restart work that is none of its business."""
    answer = decide(buried(State.DEAD), arrival(letter_id="conflict-1"), policy(), view())

    assert Fail(Refusal.REFUSED) == answer


def test_a_replay_asks_first_where_an_effect_is_possible():
    """A person cannot know what the outside did: the replay would double it."""
    doubtful = buried(State.DEAD, effect_possible=True)

    assert Ask("replay", LONG_AGO, new_series=True) == decide(doubtful, REPLAY, policy(), view())


def test_a_replay_waits_for_the_quiet_period():
    """A click right after the failure would ask while the request is in flight."""
    doubtful = buried(State.DEAD, effect_possible=True, doubt_us=NOW)

    assert Defer("verify is not due", NOW + AFTER) == decide(doubtful, REPLAY, policy(), view())


def test_a_replay_of_quarantined_work_asks_where_it_can():
    """`verify` may know by now what it could not tell before."""
    assert isinstance(decide(buried(State.QUARANTINED), REPLAY, policy(), view()), Ask)


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
def test_a_replay_without_a_verdict_cannot_decide_quarantined_work(state):
    """It would fall back into the letter it came from, as if it had decided something."""
    doubtful = buried(state, effect_possible=True)

    assert Fail(Refusal.STORED) == decide(doubtful, REPLAY, policy(OnUnknown.QUARANTINE), view())


@pytest.mark.parametrize("on_unknown", ALL_UNKNOWN)
def test_a_verdict_that_it_happened_is_recorded_without_a_start(on_unknown):
    """The body would run once more against the person's word."""
    told = arrival(letter_id="l-1", verdict=HAPPENED)

    assert Accept(42) == decide(buried(State.QUARANTINED, doubt_us=NOW), told, policy(on_unknown), view())


@pytest.mark.parametrize("on_unknown", ALL_UNKNOWN)
def test_a_verdict_that_it_did_not_happen_starts_a_new_series(on_unknown):
    """Quarantined work could never be done."""
    told = arrival(letter_id="l-1", verdict=DID_NOT_HAPPEN)

    answer = decide(buried(State.QUARANTINED), told, policy(on_unknown), view())

    assert Go("a person said that it did not happen", new_series=True) == answer


def test_a_verdict_that_it_did_not_happen_waits_for_the_quiet_period():
    """The person looked before the lost request landed."""
    told = arrival(letter_id="l-1", verdict=DID_NOT_HAPPEN)
    just_now = buried(State.QUARANTINED, doubt_us=NOW)

    assert Defer("the verdict is not due", NOW + AFTER) == decide(just_now, told, policy(), view())


def test_a_replay_that_died_again_does_not_begin_by_itself():
    """A redelivered replay would restart what was buried a second time."""
    died_again = buried(State.DEAD, series=("t-1", "t-2"))

    assert Fail(Refusal.STORED) == decide(died_again, REPLAY, policy(), view())


# --------------------------------------------------------------------------------------------------------- conflict


@pytest.mark.parametrize("state", ALL_STATES)
def test_other_arguments_under_the_same_key_are_a_conflict_in_every_state(state):
    """A second charge of another amount would be answered with the first one's result."""
    other = arrival(fingerprint="other", letter_id="l-1")

    assert Fail(Refusal.CONFLICT) == decide(buried(state), other, policy(), view())


@pytest.mark.parametrize("missing", ["record", "message"])
def test_without_both_fingerprints_nothing_conflicts(missing):
    """Messages and records from before there were fingerprints would all be refused."""
    done = record(State.DONE, fingerprint="" if missing == "record" else "f")
    message = arrival(fingerprint="" if missing == "message" else "f")

    assert Return() == decide(done, message, policy(), view())


# ----------------------------------------------------------------------------------- a discarded letter's key is free


OTHER = {"fingerprint": "other"}


def test_key_that_a_person_gave_free_takes_corrected_arguments():
    """The usual repair: the amount was wrong, nothing was done, and the letter is discarded."""
    record = buried(State.DEAD, fingerprint="f1", released=True)

    assert decide(record, arrival(**OTHER), policy(), view()) == Go("its letter was discarded", new_series=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"released": False},
        {"state": State.QUARANTINED},
        {"effect_possible": True},
        {"steps": {"charge": None}},
    ],
)
def test_key_under_which_something_may_have_happened_does_not(changes):
    """The old amount may have been charged; with the new one the order would be paid twice."""
    given = {"fingerprint": "f1", "released": True, "state": State.DEAD, **changes}
    record = buried(given.pop("state"), **given)

    assert decide(record, arrival(**OTHER), policy(), view()) == Fail(Refusal.CONFLICT)
