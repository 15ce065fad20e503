"""
A body that fails and is started again: how often, after which pause, and what does not count against it.

Also what `Ignore` and `Reject` come to, and that no way to end leaves the key held.
"""

import itertools

import pytest
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import replay
from tests.support.bench import Killed

# --- caps and pauses


def test_third_attempt_is_the_last_where_the_policy_says_three(bench):
    """A cap that is off by one charges a customer once too often."""
    runs = []

    def body(self, number):
        runs.append(self.safe.attempt)
        raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body, retry=RetryPolicy(attempts=3))
    task.delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert runs == [1, 2, 3]
    assert [each.state for each in delivered] == ["RETRY", "RETRY", "FAILURE"]
    assert (letter.reason, letter.attempts, letter.kind) == ("attempt 3 of 3", 3, FailureKind.TRANSIENT)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_message_whose_retries_are_null_has_none_behind_it(bench, is_keyed):
    """Producers in other languages send null: Celery runs it, and a start that cannot be counted would never come."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    retry = RetryPolicy(attempts=2)
    task = bench.keyed(body, retry=retry) if is_keyed else bench.task(body, Safeguards(repeatable=True, retry=retry))
    task.apply_async((1,), retries=None)

    first, second = bench.drain()

    assert first.message.headers["retries"] is None
    assert (first.state, second.state, second.message.headers["retries"]) == ("RETRY", "FAILURE", 1)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_error_of_the_hook_before_the_body_is_the_attempts(bench, is_keyed):
    """Such a message was acknowledged, or came back for ever: no retry, and no letter that anybody could replay."""
    ran, hooks = [], []

    class Opens(SafeTask):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            hooks.append(self.request.retries)
            raise hook_errors.pop(0)

    key = Idempotent("op:{number}", on_unknown="rerun")
    safeguards = Safeguards(idempotent=key) if is_keyed else Safeguards(repeatable=True)
    task = bench.task(lambda self, number: ran.append(number), safeguards, base=Opens)
    hook_errors = [ConnectionRefusedError("directory is down"), KeyError("tenant")]
    task.delay(1)

    first, second = bench.drain()

    (letter,) = bench.all_letters()
    assert (first.state, first.fate, second.state, second.fate) == ("RETRY", "acknowledged", "FAILURE", "acknowledged")
    assert (letter.kind, letter.error_type, ran, hooks) == (FailureKind.BUG, "builtins.KeyError", [], [0, 1])


def test_hook_before_the_body_that_succeeds_in_the_end_lets_it_run(bench):
    ran = []

    class Opens(SafeTask):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            if self.request.retries == 0:
                raise ConnectionRefusedError("directory is down")

    key = Idempotent("op:{number}", on_unknown="rerun")
    task = bench.task(lambda self, number: ran.append(number), Safeguards(idempotent=key), base=Opens)
    task.delay(1)

    assert [each.state for each in bench.drain()] == ["RETRY", "SUCCESS"]
    assert ran == [1]


@pytest.mark.parametrize("is_keyed", [True, False])
def test_no_retry_begins_after_the_total_time(bench, is_keyed):
    """A payment that is retried the next day surprises everybody."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    retry = RetryPolicy(attempts=9, base_seconds=40, factor=1, total_seconds=100)
    task = bench.keyed(body, retry=retry) if is_keyed else bench.task(body, Safeguards(repeatable=True, retry=retry))
    task.delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert (len(delivered), letter.reason) == (3, "would begin after total_seconds")


def test_each_delay_is_the_backoff_of_its_attempt(bench):
    """Retries that all come after the same pause knock a recovering service over again."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body, retry=RetryPolicy(attempts=5, base_seconds=2, factor=3, cap_seconds=30))
    task.delay(1)
    moments = [bench.clock.now]

    for _ in range(5):
        bench.deliver()
        moments.append(bench.clock.now)

    assert [b - a for a, b in itertools.pairwise(moments[1:])] == [2, 6, 18, 30]


# --- `Ignore` and `Reject`


def test_body_that_raises_ignore_is_done_and_reports_nothing(bench):
    """`Ignore` says that there is nothing to report; a duplicate must neither run the body nor invent a result."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise Ignore

    task = bench.keyed(body)
    task.delay(1)
    task.delay(1)

    first, second = bench.drain()

    assert runs == [1]
    assert (first.fate, first.state) == ("acknowledged", "PENDING")
    assert (second.fate, second.result) == ("acknowledged", {"sg_result": "ignored", "key": "op:1"})


def test_unkeyed_body_that_ignores_a_redelivered_message_leaves_no_start_count(bench):
    """A count that stays would bury the replay of this message as poison."""

    def body(self, number):
        raise Ignore

    task = bench.task(body)
    task.delay(1)
    bench.receive().requeue()

    (delivered,) = bench.drain()

    assert delivered.message.delivery_info["redelivered"] is True
    assert bench.starts.read(delivered.task_id) == 0


@pytest.mark.parametrize("is_keyed", [True, False])
def test_replay_that_the_body_ignores_closes_its_letter(bench, is_keyed):
    """`Task.replace` ends a body so: its letter would stay replayed, and a job would wait for its end for ever."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise ValueError("bad") if len(runs) == 1 else Ignore

    task = bench.keyed(body) if is_keyed else bench.task(body)
    task.delay(1)
    bench.drain()
    (letter,) = bench.all_letters()
    replay(bench.app, letter.id, "ann", may_run_twice=True)

    bench.drain()

    (closed,) = bench.all_letters()
    assert (len(runs), closed.state) == (2, "closed")
    assert closed.history[-1].detail.endswith("was ignored by its body")


@pytest.mark.parametrize("is_keyed", [True, False])
def test_message_that_the_body_puts_back_is_no_poison(bench, is_keyed):
    """A body that puts its message back a few times has ended each start in order; burying it would lose work."""
    runs = []

    def body(self, number):
        runs.append(number)
        if len(runs) < 7:
            raise Reject("not yet", requeue=True)

    # No cap of attempts: what is tested is the count of lost starts.
    task = bench.keyed(body, retry=None) if is_keyed else bench.task(body)
    task.delay(1)

    delivered = bench.drain()

    assert [each.fate for each in delivered] == ["put back"] * 6 + ["acknowledged"]
    assert (len(runs), bench.all_letters()) == (7, ())


# --- killed


def test_killed_body_runs_again_where_rerun_is_harmless(bench):
    """A child that dies must not take its message with it."""
    runs = []

    def body(self, number):
        runs.append(self.safe.attempt)
        if len(runs) == 1:
            raise Killed
        return "done"

    task = bench.keyed(body)
    task.delay(1)

    delivered = bench.drain()

    assert (runs, [each.fate for each in delivered]) == ([1, 2], ["put back", "acknowledged"])
    assert delivered[-1].result == "done"


@pytest.mark.parametrize("is_keyed", [True, False])
def test_body_that_kills_every_child_is_dead_lettered_after_three_starts(bench, is_keyed):
    """One poisonous message would restart workers for ever."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise Killed

    task = bench.keyed(body) if is_keyed else bench.task(body)
    task.delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert (len(runs), letter.kind, letter.effect_possible) == (3, FailureKind.WORKER_LOST, True)
    assert delivered[-1].fate == "acknowledged"


# --- every ending


def refusing(error):
    def body(self, number):
        raise error

    return body


ENDINGS = {
    "success": lambda self, number: "done",
    "failure": refusing(ValueError("no such order")),
    "ignored": refusing(Ignore()),
    "rejected": refusing(Reject("no", requeue=False)),
    "retries used up": refusing(ConnectionRefusedError()),
    "asked retries used up": lambda self, number: self.retry(countdown=0, max_retries=1),
    "soft time limit": refusing(SoftTimeLimitExceeded()),
    "killed": refusing(Killed()),
}


@pytest.mark.parametrize("body", ENDINGS.values(), ids=ENDINGS)
def test_no_ending_of_a_body_leaves_its_key_held(bench, body):
    """
    A key that stays held drops or delays all later work of that order, and nobody sees why.

    steinitzu/celery-singleton#29, #40: the lock of a task that did not end by success or failure was never freed.
    """
    task = bench.keyed(body, retry=RetryPolicy(attempts=2, base_seconds=1))
    task.delay(1)
    bench.drain()

    later = task.delay(1)
    (answered,) = bench.drain()

    assert later.id == answered.message.headers["id"]
    assert "acknowledged" == answered.fate
    assert State.IN_PROGRESS is not bench.record(task, 1).state
