"""The table of endings: what a worker's main process makes of what a child raised, or of its death."""

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject

from celery_safeguards import FailureKind, Idempotent, RetryPolicy, Safeguards
from celery_safeguards.errors import DeadLettered, DroppedLocally
from celery_safeguards.policy import Policy
from celery_safeguards.worker.endings import STEPS, Circumstances, Ending, Fate, ending_of, kind_of

KEYED = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))
ATOMIC = Safeguards(idempotent=Idempotent("op:{number}", atomic="default"))
REPEATABLE = Safeguards(repeatable=True)
UNDECLARED = Safeguards()
RETRIED = Safeguards(retry=RetryPolicy())
AT_MOST_ONCE = Safeguards(at_most_once=True)

DEATHS = (WorkerLostError("signal 9"), SystemExit(1), KeyboardInterrupt())
OVER = TimeLimitExceeded(1)


def ending(error, safeguards, *, has_record=None, was_called_off=False):
    policy = Policy.of(safeguards)
    has_record = policy.idempotent is not None if has_record is None else has_record
    return ending_of(error, Circumstances(policy=policy, has_record=has_record, was_called_off=was_called_off))


@pytest.mark.parametrize("death", [*DEATHS, OVER], ids=repr)
@pytest.mark.parametrize(
    ("safeguards", "expected"),
    [
        (KEYED, Ending.LOST),
        (ATOMIC, Ending.LOST_ATOMIC),
        (REPEATABLE, Ending.LOST_UNKEYED),
        (RETRIED, Ending.LOST_UNKEYED),
        (AT_MOST_ONCE, Ending.CALLED_OFF),
    ],
)
def test_death_of_a_process_is_a_loss_unless_the_task_may_be_lost(death, safeguards, expected):
    """Taken for an ordinary failure, Celery would acknowledge a message whose outcome nobody knows."""
    assert expected is ending(death, safeguards)


def test_task_that_declares_nothing_is_started_again_after_a_death_and_not_after_its_limit():
    """A killed process says nothing about the task; a body over its limit would be over it again."""
    assert {Ending.LOST_UNKEYED} == {ending(death, UNDECLARED) for death in DEATHS}
    assert Ending.OVER_LIMIT is ending(OVER, UNDECLARED)


def test_key_that_cannot_be_made_leaves_no_claim_to_mark():
    """Marked under no record, the loss would be counted nowhere, and the message started for ever."""
    assert Ending.LOST_UNKEYED is ending(DEATHS[0], KEYED, has_record=False)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_process_that_celery_has_ended_itself_is_no_lost_start(error):
    """celery/celery#3085: revoked or cancelled work would add up to poison."""
    assert Ending.CALLED_OFF is ending(error, KEYED, was_called_off=True)
    assert Ending.CALLED_OFF is ending(Terminated(15), KEYED)


def test_own_words_of_the_safeguards_and_of_celery_are_reported_as_they_are():
    """A letter, a retry or a rejection that is taken for a broken result back end would come again and again."""
    said = (DeadLettered("L1", "bug", "x"), Ignore(), Reject(), ValueError("x"))

    assert {Ending.REPORTED} == {ending(error, KEYED) for error in said}


def test_passing_error_around_a_keyed_body_is_one_of_handing_on():
    """Its own errors are letters and retries: what else passes is the result back end's, and the work is done."""
    refused = ConnectionRefusedError("no result back end")

    assert (Ending.NOT_HANDED_ON, Ending.REPORTED) == (ending(refused, KEYED), ending(refused, REPEATABLE))


def test_delivery_without_a_right_is_dropped_whatever_its_task_declares():
    """Acknowledged, it would take the message from the owner that has the right."""
    every = (KEYED, ATOMIC, REPEATABLE, UNDECLARED, AT_MOST_ONCE)

    assert {Ending.DROPPED} == {ending(DroppedLocally("fenced"), each) for each in every}


def test_every_ending_has_its_row_and_no_loss_is_left_to_celery():
    """Celery acknowledges a lost message, or requeues it for ever."""
    assert set(Ending) == set(STEPS)
    lost = {each for each in Ending if STEPS[each].is_loss}
    assert {Ending.LOST, Ending.LOST_ATOMIC, Ending.LOST_UNKEYED, Ending.OVER_LIMIT} == lost
    assert Fate.CELERY not in {STEPS[each].fate_at_limit for each in Ending}


def test_death_is_named_in_the_letter():
    """A time limit is mended in the task, a killed process on the host."""
    assert (FailureKind.WORKER_TIMEOUT, FailureKind.WORKER_LOST) == (kind_of(OVER), kind_of(DEATHS[0]))
