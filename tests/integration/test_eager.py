"""
Eager execution: `.apply()` and `task_always_eager`, with and without `task_eager_propagates`.

There is a caller who waits, and no broker: what a worker would defer waits for a bounded time here, a retry follows at
once, and nothing may be published. The records and the letters are the same.
"""

import contextlib

import pytest
from celery import Celery, chain
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry

from celery_safeguards import DidNotHappen, Happened, Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards.errors import (
    ConflictingPayload,
    DeadLettered,
    DeferralRefused,
    KeyRefused,
    SafeguardsError,
    StoreUnavailable,
)
from celery_safeguards.ledger.record import State
from celery_safeguards.pipeline.safe import current_safe
from tests.support.bench import Bench, Killed


@pytest.fixture
def bench(namespace):
    """A bench of its own queue, which must stay empty."""
    with contextlib.closing(Bench(namespace)) as bench:
        yield bench
        assert bench.waiting() == 0


def by_apply(bench, task, *args, **options):
    """Run by `.apply()`."""
    return task.apply(args=args, **options)


def by_delay(bench, task, *args, **options):
    """Run by `apply_async` while the app is always eager."""
    bench.app.conf.task_always_eager = True
    return task.apply_async(args, **options)


@pytest.fixture(params=[by_apply, by_delay])
def call(request, bench):
    """Call a task in one of the two eager ways, and return its result."""
    return lambda task, *args, **options: request.param(bench, task, *args, **options)


# --- what the body sees


def test_body_sees_its_request_and_its_safeguards(bench, call):
    """A body that reads its id or attempt must see the same in a test as in a worker (celery/celery#5643)."""

    def body(self, number):
        safe = current_safe()
        return self.request.id, self.request.retries, self.request.is_eager, safe.attempt, safe.idempotency_key

    task = bench.keyed(body)

    result = call(task, 1, task_id="t-1")

    assert result.get() == ["t-1", 0, True, 1, "op:1"]


def test_no_view_of_safeguards_is_left_behind(bench, call):
    """A view that outlives its body would give the next plain call a stranger's key."""
    call(bench.keyed(lambda self, number: None), 1)

    with pytest.raises(SafeguardsError, match="no guarded task runs here"):
        current_safe()


def test_nested_eager_task_has_its_own_view_and_gives_the_outer_back(bench, call):
    """In eager mode a task that calls another runs it inside itself."""
    seen = []

    def inner(self, number):
        seen.append((current_safe().idempotency_key, self.request.id))

    def outer(self, number):
        inner_task.apply((number + 1,), task_id="inner")
        seen.append((current_safe().idempotency_key, self.request.id))

    inner_task, outer_task = bench.keyed(inner), bench.keyed(outer)

    call(outer_task, 1, task_id="outer").get()

    assert seen == [("op:2", "inner"), ("op:1", "outer")]


def test_own_task_called_eagerly_from_its_body_is_a_delivery_of_its_own(bench, call):
    """A body that walks a tree by calling its own task for each child is guarded for each child."""
    seen = []

    def body(self, number):
        seen.append((current_safe().idempotency_key, self.request.called_directly))
        if number < 3:
            self.apply((number + 1,))
        return number

    call(bench.keyed(body), 1).get()

    assert seen == [("op:1", False), ("op:2", False), ("op:3", False)]


# --- duplicates and results


def test_duplicate_gets_the_stored_result(bench, call):
    """A test suite in eager mode must show what a duplicate does, or nobody sees it before production."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number) or (number, "paid"))

    first, second = call(task, 1), call(task, 1)

    assert (runs, first.get(), second.get()) == ([1], [1, "paid"], [1, "paid"])


def test_chain_continues_with_the_stored_result(bench, call):
    """A chain that is started twice must end twice, and pay once."""
    runs, ends = [], []
    pay = bench.keyed(lambda self, number: runs.append(number) or f"receipt {number}")
    send = bench.task(lambda self, receipt: ends.append(receipt))
    bench.app.conf.task_always_eager = True

    for _ in range(2):
        chain(pay.s(1), send.s()).apply_async()

    assert (runs, ends) == ([1], ["receipt 1", "receipt 1"])


def test_other_payload_under_the_same_key_is_a_conflict(bench, call):
    """The mistake should be found in the test that makes it."""
    task = bench.keyed(lambda self, number, amount: amount)
    call(task, 1, 500)

    second = call(task, 1, 700)

    assert isinstance(second.result, ConflictingPayload)


def test_key_that_names_nothing_is_refused_before_the_body(bench):
    """`delay` refuses in the caller, eager or not."""
    bench.app.conf.task_always_eager = True
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number))

    with pytest.raises(KeyRefused):
        task.delay(None)

    assert (runs, bench.all_letters()) == ([], ())


def test_apply_without_a_key_is_a_letter_as_a_foreign_message_is(bench):
    """`.apply()` goes past the publisher: it is treated like a message whose producer knew no key."""
    task = bench.keyed(lambda self, number: None)

    result = task.apply((None,))

    (letter,) = bench.all_letters()
    assert (type(result.result), letter.task_id) == (DeadLettered, result.id)


# --- retries


@pytest.fixture(params=["keyed", "unkeyed"])
def register(bench, request):
    """Register a body as a task with or without a key."""

    def register(body, **safeguards):
        if request.param == "keyed":
            return bench.keyed(body, **safeguards)
        return bench.task(body, Safeguards(repeatable=True, **safeguards))

    return register


@pytest.mark.parametrize("asks", [True, False])
def test_retry_follows_at_once_with_the_next_number(bench, call, register, asks):
    """An eager test that slept through real back-offs would take minutes."""
    seen = []

    def body(self, number):
        seen.append((self.request.id, self.request.retries, current_safe().attempt))
        if len(seen) < 3:
            if asks:
                raise self.retry(countdown=600)
            raise ConnectionRefusedError("gateway is down")
        return "paid"

    before = bench.clock.now

    result = call(register(body), 1, task_id="t-1")

    assert (seen, result.get()) == ([("t-1", 0, 1), ("t-1", 1, 2), ("t-1", 2, 3)], "paid")
    # The store's clock may pass by the spread of a deferral, never by the countdown.
    assert bench.clock.now - before < 2


def test_own_headers_survive_an_eager_retry(bench, call, register):
    """A body that reads its tenant from a header would lose it with the first retry (celery/celery#7523)."""
    seen = []

    def body(self, number):
        seen.append((self.request.headers or {}).get("x-tenant"))
        if len(seen) < 3:
            raise ConnectionRefusedError("gateway is down")

    call(register(body), 1, headers={"x-tenant": "a"}).get()

    assert seen == ["a", "a", "a"]


def test_retry_with_other_arguments_is_run_with_them(bench, call, register):
    """`retry(args=[2])` must reach the second run in every mode (celery/celery PR#6138)."""
    seen = []

    def body(self, number):
        seen.append(number)
        if number == 1:
            raise self.retry(args=[2])

    call(register(body), 1).get()

    assert seen == [1, 2]


def test_exhausted_keyed_task_is_a_letter(bench, call):
    """The record would say *dead* and nobody could find out why."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    result = call(bench.keyed(body, retry=RetryPolicy(attempts=2)), 1)

    (letter,) = bench.all_letters()
    assert (result.state, type(result.result), letter.attempts) == ("FAILURE", DeadLettered, 2)


def test_exhausted_unkeyed_task_fails_with_its_own_error(bench, call):
    """There is no message to keep: the caller has the arguments, and gets the error itself."""

    def body(self, number):
        raise ValueError("no stock")

    result = call(bench.task(body, Safeguards(repeatable=True, retry=RetryPolicy(attempts=2))), 1)

    assert (result.state, repr(result.result), bench.all_letters()) == ("FAILURE", "ValueError('no stock')", ())


def test_exhausted_unkeyed_retry_without_an_error_is_a_failure(bench, call):
    """A result that stays in RETRY for ever looks like work that goes on."""

    def body(self, number):
        raise self.retry()

    result = call(bench.task(body), 1)

    assert (result.state, type(result.result)) == ("FAILURE", MaxRetriesExceededError)


# --- control flow


def test_ignore_and_reject_end_as_celery_says(bench, call, register):
    """Control flow is no failure: it must not be retried, classified or buried where nobody asked for it."""

    def ignores(self, number):
        raise Ignore

    def puts_back(self, number):
        raise Reject("not yet", requeue=True)

    assert [call(register(body), 1).state for body in (ignores, puts_back)] == ["IGNORED", "REJECTED"]


# --- propagation


@pytest.fixture
def propagating(bench):
    """The app raises what its eager tasks raise."""
    bench.app.conf.update(task_always_eager=True, task_eager_propagates=True)


@pytest.mark.usefixtures("propagating")
def test_propagated_failure_of_a_keyed_task_names_its_letter_and_its_cause(bench):
    """A test that expects the body's own error finds it as the cause."""

    def body(self, number):
        raise ValueError("no stock")

    with pytest.raises(DeadLettered, match="no stock") as raised:
        bench.keyed(body, retry=None).delay(1)

    assert repr(raised.value.__cause__) == "ValueError('no stock')"


@pytest.mark.usefixtures("propagating")
def test_propagated_failure_of_an_unkeyed_task_is_its_own_error(bench):
    """Test suites written for plain tasks go on working."""

    def body(self, number):
        raise ValueError("no stock")

    with pytest.raises(ValueError, match="no stock"):
        bench.task(body).delay(1)


@pytest.mark.usefixtures("propagating")
def test_propagation_returns_results_and_duplicates(bench):
    """Propagation concerns errors only."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number) or "paid")

    assert [task.delay(1).get(), task.delay(1).get(), runs] == ["paid", "paid", [1]]


@pytest.mark.usefixtures("propagating")
def test_propagated_retry_is_raised_as_for_a_plain_task(bench):
    """Celery raises the `Retry` itself here; the record says that the work is to be started again."""

    def body(self, number):
        raise self.retry(countdown=60)

    plain = bench.app.task(body, bind=True, shared=False, name="plain")
    guarded = bench.keyed(body)

    for task in (plain, guarded):
        with pytest.raises(Retry):
            task.delay(1)

    assert bench.record(guarded, 1).state is State.RETRY_DUE


# --- waiting instead of deferral


def held_elsewhere(bench, task):
    """Let another owner claim `op:1`, with a worker that stays alive."""

    def body(self, number):
        raise Killed

    task.apply_async((1,))
    bench.deliver(worker_dies=True)
    bench.receive().ack()


def test_busy_key_is_waited_for_a_bounded_time_and_then_refused(bench):
    """A caller that waits for a stranger's claim without an end hangs a web request or a test run."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise Killed

    task = bench.keyed(body)
    held_elsewhere(bench, task)
    before = bench.clock.now

    result = task.apply((1,))

    assert isinstance(result.result, DeferralRefused)
    assert (runs, bench.clock.now - before) == ([1], pytest.approx(5, abs=1))


def test_retry_that_is_due_within_the_wait_is_run(bench):
    """Work that another process is to start again in three seconds is worth these three seconds."""
    began = []

    def body(self, number):
        began.append(bench.clock.now)
        if len(began) == 1:
            raise self.retry(countdown=3)
        return "done"

    task = bench.keyed(body)
    task.apply_async((1,))
    bench.deliver()

    result = task.apply((1,))
    bench.drain()

    assert (result.get(), len(began)) == ("done", 2)
    assert began[1] - began[0] >= 3


def test_verify_is_asked_in_eager_mode_too(bench, call):
    """The unknown outcome of a worker's start may be met by an eager call."""
    task = bench.keyed(lambda self, number: None, Verify(lambda: Happened("receipt"), after_seconds=0))
    other = bench.task(
        kills,
        Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun", scope=task.name)),
    )
    other.apply_async((1,), headers={})
    bench.deliver()
    bench.receive().ack()

    assert call(task, 1).get() == "receipt"


def kills(self, number):
    """Take the child along."""
    raise Killed


def test_eager_retry_under_verify_asks_before_it_starts_again(bench, call):
    """Also a caller who waits must not charge twice."""
    asked = []

    def find(number):
        asked.append(number)
        return DidNotHappen()

    def body(self, number):
        if current_safe().attempt == 1:
            raise ConnectionRefusedError("gateway is down")
        return "paid"

    task = bench.keyed(body, Verify(find, after_seconds=2))

    assert (call(task, 1).get(), asked) == ("paid", [1])


# --- stores


def test_store_that_stays_away_is_the_callers_error(bench):
    """There is no message to put off: the caller must know that nothing was done."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number))
    bench.store.pull(seconds=600)

    result = task.apply((1,))

    assert (type(result.result), runs) == (StoreUnavailable, [])


def test_unprotected_eager_run_needs_no_store(bench):
    """Where late is worse than twice, this holds for a caller who waits, too."""
    bench.store.pull(seconds=600)
    task = bench.keyed(lambda self, number: current_safe().idempotency_key, on_store_down="run_unprotected")

    assert task.apply((1,)).get() == "op:1"


def test_letter_that_cannot_be_written_publishes_nothing(bench):
    """An eager call that leaves a message behind surprises a broker that nobody listens to."""

    def body(self, number):
        bench.letters.pull(seconds=600)
        raise ValueError("no stock")

    task = bench.keyed(body, retry=None)

    result = task.apply((1,))

    assert isinstance(result.result, DeferralRefused)
    assert bench.record(task, 1).state is State.DYING


def test_unkeyed_task_that_succeeds_needs_no_store_setting():
    """A project without Redis must be able to try a guarded task in its tests."""
    with Celery("no-store", broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True

        @app.task(base=SafeTask, shared=False)
        def double(number):
            return number * 2

        assert double.delay(4).get() == 8
