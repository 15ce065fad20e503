"""
A task's own rules and kinds under the bench: what they say decides on real messages, records and letters.
"""

from itertools import pairwise

import pytest

from celery_safeguards import RetryOverride, RetryPolicy, RetryRule, Safeguards
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from tests.support.bench import Killed


class GatewayError(Exception):
    """A client library's one class for everything; no built-in rule knows it."""


class TooMany(Exception):
    """The other side counts requests."""

    sg_failure_kind = FailureKind.RATE_LIMITED


@pytest.fixture(params=["keyed", "unkeyed"])
def register(bench, request):
    """Register a body as a task with or without a key."""

    def register(body, retry):
        if request.param == "keyed":
            return bench.keyed(body, retry=retry)
        return bench.task(body, Safeguards(repeatable=True, retry=retry))

    return register


def failing(bench, error, *, times=99):
    """Return a body that fails so many times, and the moments of its starts."""
    began = []

    def body(self, number):
        began.append(bench.clock.now)
        if len(began) <= times:
            raise error
        return "done"

    return body, began


# --- rules


def test_error_that_a_rule_gives_up_is_buried_at_its_first_start(bench, register):
    """A declined card would be charged four times; without the rule it is."""
    body, began = failing(bench, GatewayError("card_declined"))
    register(body, RetryPolicy(rules=[RetryRule(GatewayError, retryable=False)])).delay(1)
    bench.drain()

    (letter,) = bench.all_letters()
    assert (len(began), letter.reason, letter.error_message) == (1, "bug errors are not retried", "card_declined")


def test_error_that_no_rule_is_for_is_retried_as_ever(bench, register):
    """A rule would decide on what it does not name."""
    body, began = failing(bench, GatewayError())
    register(body, RetryPolicy(attempts=3, rules=[RetryRule(KeyError, retryable=False)])).delay(1)

    bench.drain()

    assert len(began) == 3


def test_task_that_is_retried_only_where_it_asks(bench, register):
    """What `max_retries` without `autoretry_for` says: README names this rule for whoever moves such a task over."""
    began = []

    def body(self, number):
        began.append(self.safe.attempt)
        if len(began) == 1:
            self.retry(countdown=1)
        raise ConnectionRefusedError("nobody asked")

    register(body, RetryPolicy(attempts=4, rules=[RetryRule(Exception, retryable=False)])).delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert ([1, 2], "transient errors are not retried") == (began, letter.reason)


def test_retry_comes_after_the_seconds_that_a_function_reads_from_the_error(bench, register):
    """The other side's own time, in a form that no classification knows, would be ignored."""

    def told(error):
        return RetryRule(kind="rate_limited", after_seconds=error.args[0]) if isinstance(error, GatewayError) else None

    body, began = failing(bench, GatewayError(40), times=1)
    register(body, RetryPolicy(rules=[told])).delay(1)

    delivered = bench.drain()

    assert 40 <= began[1] - began[0] <= 50
    assert delivered[-1].state == "SUCCESS"


def test_rule_that_breaks_loses_neither_the_message_nor_its_error(bench, register):
    """An error in the code that judges a failure would be stored as the failure, or acknowledge the message."""

    def broken(error):
        raise ZeroDivisionError("a slip in the rule")

    body, began = failing(bench, ConnectionRefusedError("gateway"))
    register(body, RetryPolicy(attempts=2, rules=[broken])).delay(1)
    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert (len(began), [each.fate for each in delivered]) == (2, ["acknowledged", "acknowledged"])
    assert (letter.error_message, letter.kind, letter.attempts) == ("gateway", FailureKind.TRANSIENT, 2)


@pytest.mark.parametrize(
    ("rules", "starts", "state"),
    [((), 1, State.QUARANTINED), ((RetryRule(GatewayError, effect_possible=False),), 2, State.DONE)],
    ids=["without the rule", "with it"],
)
def test_rule_says_that_an_error_leaves_no_doubt(bench, rules, starts, state):
    """Every error of an unknown library would wait for a person, though the request was refused before it was read."""
    body, began = failing(bench, GatewayError(), times=1)
    task = bench.keyed(body, "quarantine", retry=RetryPolicy(rules=rules))
    task.delay(1)

    bench.drain()

    assert (len(began), bench.record(task, 1).state) == (starts, state)


def test_rule_that_names_a_kind_does_not_lift_the_doubt_of_a_timeout(bench):
    """A charge that was sent before the time ran out would be sent again."""
    body, began = failing(bench, TimeoutError())
    task = bench.keyed(body, "quarantine", retry=RetryPolicy(rules=[RetryRule(TimeoutError, kind="transient")]))
    task.delay(1)

    bench.drain()

    assert (len(began), bench.record(task, 1).state) == (1, State.QUARANTINED)


# --- kinds


BY_KIND = RetryPolicy(
    attempts=2,
    base_seconds=1,
    factor=1,
    by_kind={"rate_limited": RetryOverride(attempts=5, base_seconds=60, floor_seconds=60)},
)


def test_kind_has_its_own_attempts_and_delays(bench, register):
    """Admission would bury at the third start what the kind's own cap allows five of."""
    body, began = failing(bench, TooMany())
    register(body, BY_KIND).delay(1)
    bench.drain()

    (letter,) = bench.all_letters()
    assert [later - earlier for earlier, later in pairwise(began)] == [60, 60, 60, 60]
    assert letter.reason == "attempt 5 of 5"


def test_kinds_share_one_number_of_attempts(bench, register):
    """Failures that take turns would have the attempts of both kinds together."""
    errors = [TooMany(), TooMany(), ConnectionRefusedError()]
    began = []

    def body(self, number):
        began.append(number)
        raise errors[len(began) - 1]

    register(body, BY_KIND).delay(1)
    bench.drain()

    (letter,) = bench.all_letters()
    assert (len(began), letter.reason) == (3, "attempt 3 of 2")


@pytest.mark.parametrize(("max_retries", "starts"), [(None, 5), (2, 3), (9, 5)])
def test_asked_retry_keeps_to_the_cap_of_its_errors_kind(bench, register, max_retries, starts):
    """`self.retry()` would have other caps and delays than the same error raised."""
    began = []

    def body(self, number):
        began.append(bench.clock.now)
        raise self.retry(exc=TooMany(), max_retries=max_retries)

    register(body, BY_KIND).delay(1)
    bench.drain()

    assert len(began) == starts
    assert began[1] - began[0] == 60


def test_start_that_was_lost_is_held_to_the_largest_cap_and_to_the_lost_starts(bench):
    """It has no kind that could decide, and must neither be buried too soon nor be started for ever."""
    began = []

    def body(self, number):
        began.append(number)
        if len(began) <= 2:
            raise TooMany
        raise Killed

    task = bench.keyed(body, retry=BY_KIND)
    task.delay(1)
    bench.drain(most=40)

    (letter,) = bench.all_letters()
    assert (len(began), letter.kind) == (5, FailureKind.WORKER_LOST)
    assert letter.reason == "started 3 times without an outcome"
