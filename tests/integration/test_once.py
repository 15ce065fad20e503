"""
`once`: a body with several outside calls, killed, retried, buried and replayed between and within them.

A body that was started before gets the noted result of a step, and does not call again; a step that was begun and has
no result is in doubt, and the task's own `on_unknown` decides.
"""

import pytest

from celery_safeguards import CannotTell, DidNotHappen, Happened, RetryPolicy, Safeguards, Verify
from celery_safeguards.admission.store import Change
from celery_safeguards.errors import DeadLettered, LeaseLost, Quarantined, SafeguardsError
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind, Outcome
from celery_safeguards.replay import replay
from tests.support.bench import LEASE_SECONDS, Killed

AT_ONCE = RetryPolicy(attempts=4, base_seconds=0.1, factor=1.0, cap_seconds=0.1)


def charge_and_ship(outside, *, between=lambda self: None):
    """Return a body that charges, then ships."""

    def body(self, number):
        charge = self.safe.once("charge", outside, "charge")
        between(self)
        return [charge, self.safe.once("ship", outside, "ship")]

    return body


def raising(*errors):
    """Return what raises each of these in turn, and nothing where one is None."""
    left = list(errors)

    def act(_self):
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return act


# --- killed


def test_step_that_is_done_is_not_called_again_after_a_kill(bench, outside):
    """
    A customer would be charged again because the process died while it shipped.

    triggerdotdev/trigger.dev#4627: idempotency at the queue alone leaves the effects inside a body repeatable.
    """
    task = bench.keyed(charge_and_ship(outside, between=raising(Killed())))
    task.delay(1)

    _lost, second = bench.drain()

    assert ["charge", "ship"] == outside.calls
    assert ["charge-1", "ship-2"] == second.result


def test_step_that_was_killed_on_the_way_is_called_again_where_twice_is_harmless(bench, outside):
    """A step whose end nobody knows would be taken for done, and never be done."""
    outside.troubles = [None, Killed()]
    task = bench.keyed(charge_and_ship(outside))
    task.delay(1)

    _lost, second = bench.drain()

    assert ["charge", "ship", "ship"] == outside.calls
    assert ["charge-1", "ship-3"] == second.result


def test_step_that_was_killed_on_the_way_waits_for_a_person_with_quarantine(bench, outside):
    """A step that may have happened would be done again, against the word of the team."""
    outside.troubles = [Killed()]
    task = bench.keyed(charge_and_ship(outside), "quarantine")
    task.delay(1)

    *_lost, last = bench.drain()

    assert ["charge"] == outside.calls
    assert Quarantined is type(last.result)
    assert {"charge": None} == bench.record(task, 1).steps


# --- verify


class Witness:
    """A function for `Verify` that says of the whole that nothing happened, and of a step what it is told."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def __call__(self, number, step, idempotency_key):
        self.asked.append(step)
        return self.answers.pop(0) if step else DidNotHappen()


def verified(bench, outside, witness):
    """Register the body under a `Verify` that needs not wait."""
    policy = Verify(witness, after_seconds=0.0)
    return bench.keyed(charge_and_ship(outside), policy, retry=AT_ONCE)


def test_verify_is_asked_about_the_step_that_was_begun(bench, outside):
    """Without the name of the step, one answer would stand for all outside systems of a body."""
    outside.troubles = [None, Killed()]
    witness = Witness(DidNotHappen())
    verified(bench, outside, witness).delay(1)

    bench.drain()

    assert [None, "ship"] == witness.asked


@pytest.mark.parametrize(
    "answer, calls, result",
    [
        (Happened("ship-seen"), ["charge", "ship"], ["charge-1", "ship-seen"]),
        (DidNotHappen(), ["charge", "ship", "ship"], ["charge-1", "ship-3"]),
    ],
)
def test_answer_about_a_step_decides_whether_it_is_called(bench, outside, answer, calls, result):
    """A parcel would be shipped twice, or not at all."""
    outside.troubles = [None, Killed()]
    verified(bench, outside, Witness(answer)).delay(1)

    _lost, second = bench.drain()

    assert calls == outside.calls
    assert result == second.result


def test_step_that_verify_knows_of_is_noted_and_not_asked_about_again(bench, outside):
    """Every later start would depend on the other side's memory."""
    outside.troubles = [None, Killed()]
    witness = Witness(Happened("ship-seen"))
    task = verified(bench, outside, witness)
    task.delay(1)

    bench.drain()

    assert {"charge": '"charge-1"', "ship": '"ship-seen"'} == bench.record(task, 1).steps


def test_step_that_verify_cannot_tell_of_is_asked_about_again_later(bench, outside):
    """One refused look-up would end in a second parcel, or in a letter."""
    outside.troubles = [None, Killed()]
    witness = Witness(CannotTell("not now"), Happened("ship-seen"))
    verified(bench, outside, witness).delay(1)

    _lost, put_off, third = bench.drain()

    assert ("acknowledged", "RETRY") == (put_off.fate, put_off.state)
    assert [None, "ship", None, "ship"] == witness.asked
    assert ["charge-1", "ship-seen"] == third.result
    assert ["charge", "ship"] == outside.calls


def test_step_that_verify_never_can_tell_of_becomes_a_letter_with_a_possible_effect(bench, outside):
    """The question would be asked for ever, or the doubt be lost with the last attempt."""
    outside.troubles = [None, Killed()]
    verified(bench, outside, Witness(*[CannotTell("not now")] * 10)).delay(1)

    *_, last = bench.drain()

    (letter,) = bench.all_letters()
    assert (FailureKind.UNKNOWN_OUTCOME, True) == (letter.kind, letter.effect_possible)
    assert letter.id == last.result.letter_id
    assert ["charge", "ship"] == outside.calls


# --- clean failures


def test_clean_failure_after_a_begun_step_is_quarantined(bench, outside):
    """The charge has happened; to retry the whole because the shipping was refused is what the team has ruled out."""
    outside.troubles = [None, ConnectionRefusedError("nobody listens")]
    task = bench.keyed(charge_and_ship(outside), "quarantine", retry=AT_ONCE)
    task.delay(1)

    (only,) = bench.drain()

    assert Quarantined is type(only.result)
    assert ["charge", "ship"] == outside.calls
    assert bench.record(task, 1).effect_possible


def test_clean_failure_before_any_step_is_retried_with_quarantine(bench, outside):
    """A person would be called for every refused connection."""

    def body(self, number):
        if self.safe.attempt == 1:
            raise ConnectionRefusedError("nobody listens")
        return self.safe.once("charge", outside, "charge")

    bench.keyed(body, "quarantine", retry=AT_ONCE).delay(1)

    _first, second = bench.drain()

    assert "charge-1" == second.result
    assert not bench.all_letters()


def test_steps_survive_a_retry(bench, outside):
    """The second attempt would charge again."""
    refused = ConnectionRefusedError("nobody listens")
    bench.keyed(charge_and_ship(outside, between=raising(refused, refused)), retry=AT_ONCE).delay(1)

    *_failed, last = bench.drain()

    assert ["charge", "ship"] == outside.calls
    assert ["charge-1", "ship-2"] == last.result


def test_steps_survive_a_replay(bench, outside):
    """A person who mends the cause and replays the letter would charge the customer again."""
    task = bench.keyed(charge_and_ship(outside, between=raising(ValueError("no address"))), retry=None)
    task.delay(1)
    bench.drain()
    (letter,) = bench.all_letters()

    replay(bench.app, letter.id, "ada", may_run_twice=True)
    (again,) = bench.drain()

    assert ["charge", "ship"] == outside.calls
    assert ["charge-1", "ship-2"] == again.result


def test_steps_survive_a_new_publication_of_dead_work(bench, outside):
    """With `on_dead="run"` a second click would charge what the first has charged."""
    body = charge_and_ship(outside, between=raising(ValueError("no address")))
    task = bench.keyed(body, retry=None, idempotent={"on_dead": "run"})
    task.delay(1)
    bench.drain()

    task.delay(1)
    (again,) = bench.drain()

    assert ["charge", "ship"] == outside.calls
    assert ["charge-1", "ship-2"] == again.result


# --- what a step returns


@pytest.mark.parametrize("value", [{"a": 1}, [1, [2, None]], None, "text", 0])
def test_call_and_note_return_the_same(bench, value):
    """The second start would see another value than the first, and decide differently."""
    seen = []

    def body(self, number):
        seen.append(self.safe.once("step", lambda: value))
        if self.safe.attempt == 1:
            raise ConnectionRefusedError("nobody listens")

    bench.keyed(body, retry=AT_ONCE).delay(1)
    bench.drain()

    assert [value, value] == seen


def test_result_that_json_cannot_carry_is_returned_once_and_then_missed_aloud(bench):
    """A later start would take None, or another call's result, for what the step has returned."""
    thing, seen, calls = object(), [], []

    def body(self, number):
        seen.append(self.safe.once("step", lambda: calls.append(1) or thing))
        raise ConnectionRefusedError("nobody listens")

    task = bench.keyed(body, retry=AT_ONCE)
    task.delay(1)
    *_, last = bench.drain()

    assert [thing] == seen
    assert 1 == len(calls)
    assert isinstance(last.result, DeadLettered)
    assert "step 'step' is done, but JSON could not carry its result" in str(last.result)


def test_name_of_a_step_is_used_once_in_a_body(bench, outside):
    """The second call would be skipped, because the first of the same name is done."""

    def body(self, number):
        self.safe.once("charge", outside, "charge")
        with pytest.raises(SafeguardsError, match="step 'charge' is used twice"):
            self.safe.once("charge", outside, "charge")
        return "done"

    bench.keyed(body).delay(1)

    (only,) = bench.drain()

    assert "done" == only.result
    assert ["charge"] == outside.calls


def test_step_passes_arguments_and_its_error_on(bench):
    """The outside call would be made with other arguments, or its error be hidden from the body."""

    def call(*args, **kwargs):
        raise KeyError(args, kwargs)

    def body(self, number):
        with pytest.raises(KeyError) as caught:
            self.safe.once("step", call, 1, 2, of="three")
        return repr(caught.value)

    bench.keyed(body).delay(1)

    (only,) = bench.drain()

    assert repr(KeyError((1, 2), {"of": "three"})) == only.result


def test_step_costs_one_round_trip_before_its_call_and_one_after(bench, outside):
    """The stated price; each more would be paid by every outside call."""
    bench.keyed(charge_and_ship(outside)).delay(1)
    bench.store.calls.clear()

    bench.deliver()

    assert ["admit", *["settle"] * 4, "settle"] == bench.store.calls


# --- the claim is gone


def test_step_is_not_begun_while_the_store_is_away(bench, outside):
    """A call that nobody has noted could be made again by the next start."""
    lost = []

    def body(self, number):
        bench.store.pull(seconds=LEASE_SECONDS * 2)
        try:
            self.safe.once("charge", outside, "charge")
        except LeaseLost as error:
            lost.append(error)
            raise

    bench.keyed(body).delay(1)

    delivered = bench.deliver()

    assert [] == outside.calls
    assert 1 == len(lost)
    assert ("kept", "PENDING", [Outcome.FENCED]) == (delivered.fate, delivered.state, bench.outcomes)


def test_step_whose_result_cannot_be_noted_is_in_doubt(bench, outside):
    """The call was made and is not noted: to acknowledge it would end the work half-way, without a trace."""

    def ship_and_lose_the_store(name):
        bench.store.pull(seconds=LEASE_SECONDS * 2)
        return outside(name)

    def body(self, number):
        return self.safe.once("charge", ship_and_lose_the_store, "charge")

    task = bench.keyed(body, "quarantine")
    task.delay(1)

    delivered = bench.deliver()
    bench.clock.sleep(LEASE_SECONDS * 2)
    steps = bench.record(task, 1).steps
    for _ in range(4):
        # Other workers of the fleet are seen by the store all the while.
        bench.store.renew({})
        bench.clock.sleep(LEASE_SECONDS / 3)
    delivered.message.requeue()
    again = bench.deliver()

    assert ("kept", {"charge": None}) == (delivered.fate, steps)
    assert Quarantined is type(again.result)
    assert ["charge"] == outside.calls


@pytest.mark.parametrize("is_taken", ["before", "within"])
def test_step_whose_claim_was_taken_ends_the_delivery(bench, outside, is_taken):
    """Two owners would call the same system, and both report."""

    def take(self):
        record = bench.record(self, 1)
        change = Change(fields={"state": State.IN_PROGRESS, "asking": False}, retention_seconds=None)
        bench.store.take(self.plan.record_key("op:1"), record.rev, "another", change)

    def body(self, number):
        if is_taken == "before":
            take(self)
        return self.safe.once("charge", lambda: (is_taken == "within" and take(self)) or outside("charge"))

    bench.keyed(body).delay(1)

    delivered = bench.deliver()

    assert ("kept", [Outcome.FENCED]) == (delivered.fate, bench.outcomes)
    assert ([] if is_taken == "before" else ["charge"]) == outside.calls


def test_step_after_the_end_of_the_lease_is_not_begun(bench, outside):
    """A process that was frozen would charge what another one has been told did not happen."""

    def body(self, number):
        bench.clock.sleep(LEASE_SECONDS + 1)
        bench.store.pull(seconds=LEASE_SECONDS)
        return self.safe.once("charge", outside, "charge")

    bench.keyed(body).delay(1)

    assert "kept" == bench.deliver().fate
    assert [] == outside.calls


# --- without a key


def test_step_of_a_task_without_a_key_is_a_plain_call(bench, outside):
    """Shared code could not use steps, or every task would need a store."""
    bench.task(charge_and_ship(outside), Safeguards(repeatable=True)).delay(1)
    bench.store.calls.clear()

    (only,) = bench.drain()

    assert ["charge-1", "ship-2"] == only.result
    assert [] == bench.store.calls
