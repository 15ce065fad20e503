"""
`self.retry()` in every form Celery knows, under the bench: who asks for a retry gets the same caps, the same order of
settle and publish, and the same letter as an automatic retry.
"""

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from celery import Task
from celery.exceptions import MaxRetriesExceededError, Retry
from kombu.exceptions import OperationalError

from celery_safeguards import Idempotent, Outcome, RetryPolicy, Safeguards, SafeTask
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from tests.support.bench import Bench

KEYED = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))
ONE_SECOND = RetryPolicy(attempts=3, base_seconds=1, factor=1, cap_seconds=1)


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace)) as bench:
        yield bench


@pytest.fixture(params=["keyed", "unkeyed"])
def register(bench, request):
    """Register a body as a task with or without a key: both must treat a retry alike."""

    def register(body, retry=ONE_SECOND, **safeguards):
        if request.param == "keyed":
            return bench.keyed(body, retry=retry, **safeguards)
        return bench.task(body, Safeguards(repeatable=True, retry=retry, **safeguards))

    return register


def retries_once(bench, ask):
    """Return a body that asks for one retry, and the moments of its starts."""
    began = []

    def body(self, number):
        began.append(bench.clock.now)
        if len(began) == 1:
            ask(self)
        return "done"

    return body, began


# --- when


@pytest.mark.parametrize(
    ("options", "delay"),
    [({"countdown": 7}, 7), ({"countdown": 0}, 0), ({"countdown": -3}, 0), ({}, 1)],
    ids=["countdown", "at once", "negative", "by the policy"],
)
def test_retry_comes_when_it_was_asked_for(bench, register, options, delay):
    """Without a countdown Celery waits three minutes whatever the task's back-off says."""
    body, began = retries_once(bench, lambda self: self.retry(**options))
    register(body).delay(1)

    delivered = bench.drain()

    assert began[1] - began[0] == delay
    assert [each.state for each in delivered] == ["RETRY", "SUCCESS"]


@pytest.mark.parametrize("odd", ["soon", float("inf"), float("nan"), timedelta(seconds=3)])
def test_countdown_that_is_no_number_of_seconds_gives_way_to_the_policy(bench, register, odd):
    """An error raised over it, after the body, would acknowledge the message and leave its claim behind."""
    body, began = retries_once(bench, lambda self: self.retry(countdown=odd))
    register(body).delay(1)

    delivered = bench.drain()

    assert (began[1] - began[0], delivered[-1].state) == (1, "SUCCESS")


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9)), None], ids=["utc", "elsewhere", "naive"])
def test_retry_comes_at_its_eta(bench, register, zone):
    """An eta that is read in the wrong zone is hours early or late."""
    due = datetime.fromtimestamp(bench.clock.now + 90, zone or UTC)
    eta = due if zone else due.replace(tzinfo=None)
    body, began = retries_once(bench, lambda self: self.retry(eta=eta))
    register(body).delay(1)

    bench.drain()

    assert began[1] - began[0] == 90


def test_retry_comes_at_an_eta_that_is_text(bench, register):
    """Celery takes one that came with the arguments as it is: the policy's seconds would be days early."""
    eta = datetime.fromtimestamp(bench.clock.now + 90, timezone(timedelta(hours=9))).isoformat()
    body, began = retries_once(bench, lambda self: self.retry(eta=eta))
    register(body).delay(1)

    bench.drain()

    assert began[1] - began[0] == 90


def test_retry_asked_without_throwing_follows_when_the_body_returns(bench, register):
    """Celery publishes at once: the copy could run beside the body that asked for it."""
    seen = []

    def body(self, number):
        seen.append(bench.waiting())
        if len(seen) == 1:
            self.retry(countdown=5, throw=False)
            seen.append(bench.waiting())
        return "done"

    register(body).delay(1)

    first, second = bench.drain()

    assert seen == [0, 0, 0]
    assert (first.state, second.state, second.result) == ("RETRY", "SUCCESS", "done")


def test_postcondition_is_not_asked_of_a_body_that_asks_for_a_retry(bench, register):
    """It has said itself that it is not finished: burying it as failed would lose the retry."""
    body, _ = retries_once(bench, lambda self: self.retry(countdown=5, throw=False))
    checked = []
    register(body, ensure=checked.append).delay(1)

    delivered = bench.drain()

    assert [each.state for each in delivered] == ["RETRY", "SUCCESS"]
    assert checked == ["done"]


def test_retry_raised_by_hand_is_a_retry(bench, register):
    """`raise Retry(when=...)` says the same as `self.retry(countdown=...)`, and must be published by somebody."""

    def ask(self):
        raise Retry("later", when=7)

    body, began = retries_once(bench, ask)
    register(body).delay(1)

    delivered = bench.drain()

    assert (began[1] - began[0], delivered[-1].state) == (7, "SUCCESS")


@pytest.mark.parametrize("is_given", [False, True], ids=["as handled", "as given"])
def test_retry_asked_while_an_earlier_one_is_handled_is_a_retry(bench, register, is_given):
    """`except Exception as exc: raise self.retry(exc=exc)` also catches the retry that the code within asks for."""

    def ask(self):
        try:
            self.retry(countdown=60)
        except Exception as error:
            self.retry(exc=error if is_given else None, countdown=7)

    body, began = retries_once(bench, ask)
    register(body).delay(1)

    delivered = bench.drain()

    assert (began[1] - began[0], delivered[-1].state, bench.all_letters()) == (7, "SUCCESS", ())


def test_error_behind_a_retry_that_is_asked_for_twice_is_in_the_letter(bench, register):
    """The letter would tell of a retry, and not of what went wrong."""

    def body(self, number):
        try:
            try:
                raise ConnectionRefusedError("no answer")
            except OSError as error:
                self.retry(exc=error, countdown=1)
        except Retry as earlier:
            self.retry(exc=earlier, countdown=1)

    register(body).delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert [each.state for each in delivered] == ["RETRY", "RETRY", "FAILURE"]
    assert (letter.error_type, letter.reason) == ("builtins.ConnectionRefusedError", "attempt 3 of 3")


# --- what


def test_other_arguments_change_neither_key_nor_fingerprint_and_are_no_conflict(bench):
    """A retry with new arguments was once re-wrapped and ran with the old ones (celery/celery PR#6138)."""
    runs = []

    def body(self, number, page=0):
        runs.append((number, page, self.request.retries))
        if number == 1:
            raise self.retry(args=[2])
        return "done"

    task = bench.keyed(body)
    task.delay(1, page=9)

    first, second = bench.drain()

    names = ("sg_key", "sg_fp")
    assert runs == [(1, 9, 0), (2, 9, 1)]
    assert [second.message.headers[name] for name in names] == [first.message.headers[name] for name in names]
    assert (second.state, bench.all_letters(), bench.record(task, 1).state) == ("SUCCESS", (), State.DONE)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"args": (2,)}, (2, "b")),
        ({"args": (2, "c")}, (2, "c")),
        ({"kwargs": {"page": "c"}}, (1, "c")),
        ({"kwargs": {"number": 2}}, (2, "a")),
        ({"args": (2,), "kwargs": {}}, (2, "a")),
    ],
)
def test_arguments_that_are_not_changed_stay(bench, register, changed, expected):
    """What the retry does not name must come back as it was, and not twice."""
    runs = []

    def body(self, number, page="a"):
        runs.append((number, page))
        if len(runs) == 1:
            raise self.retry(**changed)

    register(body).delay(1, page="b")

    bench.drain()

    assert runs == [(1, "b"), expected]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"kwargs": {"rest": "c"}}, (1, ("a",), {"rest": "c"})),
        ({"args": (2, "c")}, (2, ("c",), {"rest": "b"})),
    ],
)
def test_arguments_without_a_name_are_not_replaced_by_keywords_of_it(bench, changed, expected):
    """A retry that such a keyword ended as a bug would make a letter of work that plain Celery retries."""
    runs = []

    def body(self, number, *rest, **more):
        runs.append((number, rest, more))
        if len(runs) == 1:
            raise self.retry(**changed)

    task = bench.task(body, Safeguards(repeatable=True))
    task.delay(1, "a", rest="b")

    bench.drain()

    assert runs[1:] == [expected]


def test_retry_of_a_keyed_task_in_a_deeper_call_keeps_its_own_record(bench):
    """A task that retries from its own body under an enforced key meets its own lock (celery-once PR#37)."""
    task = bench.keyed(lambda self, number: number if self.request.retries == 2 else self.retry(countdown=1))
    task.delay(1)

    delivered = bench.drain()

    assert bench.outcomes == [Outcome.RETRIED, Outcome.RETRIED, Outcome.SUCCEEDED]
    assert (delivered[-1].result, len({each.message.headers["sg_key"] for each in delivered})) == (1, 1)


def test_own_headers_and_those_given_to_retry_arrive(bench, register):
    """Custom headers vanish on retry in several versions of Celery (celery/celery#7523)."""
    body, _ = retries_once(bench, lambda self: self.retry(headers={"x-reason": "busy"}))
    register(body).apply_async((1,), headers={"x-tenant": "a"})

    _, second = bench.drain()

    assert (second.message.headers["x-tenant"], second.message.headers["x-reason"]) == ("a", "busy")


def test_headers_given_to_retry_cannot_replace_the_key(bench):
    """A new key in the middle of a lineage would forget what the first attempts did."""
    body, _ = retries_once(bench, lambda self: self.retry(headers={"sg_key": "op:9", "sg_fp": "0"}))
    bench.keyed(body).delay(1)

    first, second = bench.drain()

    assert second.message.headers["sg_key"] == "op:1"
    assert second.message.headers["sg_fp"] == first.message.headers["sg_fp"]


def test_options_of_retry_are_those_of_the_copy(bench, register):
    """A retry that asks for another priority or expiry must get it."""
    body, _ = retries_once(bench, lambda self: self.retry(priority=2, expires=600))
    register(body).apply_async((1,), priority=7)

    _, second = bench.drain()

    assert second.message.headers["expires"] is not None
    assert second.message.properties["priority"] == 2


# --- how often


def test_asked_retries_end_at_the_policys_cap(bench, register):
    """A body that always asks again would go round for ever."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise self.retry(countdown=1)

    register(body).delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert (len(runs), letter.reason, delivered[-1].state) == (3, "attempt 3 of 3", "FAILURE")


@pytest.mark.parametrize(("asked", "starts"), [(0, 1), (1, 2), (9, 3), (-1, 1)])
def test_max_retries_lowers_the_cap_and_never_raises_it(bench, register, asked, starts):
    """Keyed or not, one number must hold: admission would bury what the retry had promised."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise self.retry(countdown=1, max_retries=asked)

    register(body).delay(1)

    bench.drain()

    assert (len(runs), len(bench.all_letters())) == (starts, 1)


def test_max_retries_is_the_cap_where_the_policy_has_none(bench, register):
    """With `retry=None` nothing is retried by itself; a body may still ask, and say how often."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise self.retry(countdown=1, max_retries=6)

    register(body, retry=None).delay(1)

    bench.drain()

    assert len(runs) == 7


def test_limit_of_one_run_does_not_leak_into_the_next(bench, register):
    """Celery keeps `max_retries` of one run on the task object (celery/celery#10456)."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise self.retry(countdown=1, max_retries=0 if number == 1 else None)

    task = register(body)
    task.delay(1)
    task.delay(2)

    bench.drain()

    assert (runs.count(1), runs.count(2)) == (1, 3)


# --- in the end


def asks_with_error(self):
    """Ask with the error at hand."""
    raise self.retry(exc=ValueError("no stock"), countdown=1)


def asks_in_handler(self):
    """Ask while an error is handled."""
    try:
        int("no stock")
    except ValueError as error:
        error.args = ("no stock",)
        self.retry(countdown=1)


def asks_with_error_but_does_not_throw(self):
    """Ask with an error, and return."""
    self.retry(exc=ValueError("no stock"), countdown=1, throw=False)


def fails(self):
    """Do not ask at all."""
    raise ConnectionRefusedError("no stock")


@pytest.mark.parametrize("end", [asks_with_error, asks_in_handler, asks_with_error_but_does_not_throw, fails])
def test_exhausted_retry_is_a_letter_of_its_error_however_it_was_asked(bench, register, end):
    """Hooks that wait for one exception type miss the other ways to run out of retries (celery/celery#5061)."""

    def body(self, number):
        end(self)

    register(body).delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert (letter.error_message, letter.attempts, len(delivered)) == ("no stock", 3, 3)
    assert letter.error_type in {"builtins.ValueError", "builtins.ConnectionRefusedError"}
    last = delivered[-1]
    if letter.key:
        assert last.result.letter_id == letter.id
    else:
        used_up = end is asks_in_handler  # as in Celery, which is given no error there
        stored = "celery.exceptions.MaxRetriesExceededError" if used_up else letter.error_type
        assert stored == f"{type(last.result).__module__}.{type(last.result).__name__}"
        assert f"dead letter {letter.id} " in last.traceback


class NoStock(Exception):
    """Its class cannot be called with its arguments again."""

    def __init__(self, item, shop):
        super().__init__(f"{item} in {shop}")


@pytest.fixture(params=["plain", "keyed", "unkeyed"])
def twice(bench, request):
    """Register a body that may start twice: as a plain task, whose behaviour the guarded ones must have."""

    def twice(body):
        if request.param == "plain":
            return bench.task(body, base=Task, acks_late=True, max_retries=1)
        policy = RetryPolicy(attempts=2)
        return (
            bench.keyed(body, retry=policy) if request.param == "keyed" else bench.task(body, Safeguards(retry=policy))
        )

    return twice


@pytest.mark.parametrize(
    ("ask", "caught"),
    [
        ({}, MaxRetriesExceededError),
        ({"throw": False}, MaxRetriesExceededError),
        ({"exc": ValueError("no stock")}, ValueError),
        ({"exc": NoStock("pen", "Bern")}, NoStock),
    ],
    ids=["no error", "not thrown", "error", "odd error"],
)
def test_body_catches_that_no_retry_is_left_and_cleans_up(bench, twice, ask, caught):
    """`except MaxRetriesExceededError:` around `self.retry()` would never be entered, and nothing be cleaned up."""
    cleaned = []

    def body(self, number):
        try:
            self.retry(countdown=1, **ask)
        except caught as error:
            cleaned.append(type(error))

    twice(body).delay(1)

    delivered = bench.drain()

    assert [caught] == cleaned
    assert ["acknowledged", "acknowledged"] == [each.fate for each in delivered]
    assert ("SUCCESS", ()) == (delivered[-1].state, bench.all_letters())


def test_limit_of_one_run_is_told_to_the_body_as_well(bench, twice):
    """The body would be told by the policy's cap, which it has lowered."""
    cleaned = []

    def body(self, number):
        try:
            self.retry(countdown=1, max_retries=0)
        except MaxRetriesExceededError:
            cleaned.append(self.request.retries)

    twice(body).delay(1)

    assert (["SUCCESS"], [0]) == ([each.state for each in bench.drain()], cleaned)


def test_error_of_a_refused_retry_is_not_retried_after_all(bench, register):
    """A body that has lowered its own cap would be started by the policy's, since its error is one that passes."""

    def body(self, number):
        self.retry(exc=ConnectionRefusedError("no stock"), countdown=1, max_retries=0)

    register(body).delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert ("FAILURE", "attempt 1 of 1") == (delivered.state, letter.reason)


def test_error_that_pickle_refuses_is_in_the_letter_as_itself(bench, register):
    """Celery's `Retry` makes another class of it, and a person would look for that one (celery/celery#6990)."""

    def body(self, number):
        self.retry(exc=NoStock("pen", "Bern"), countdown=1, max_retries=0)

    register(body).delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert (letter.error_type.rpartition(".")[2], letter.error_message) == ("NoStock", "pen in Bern")


def test_eager_caller_is_told_that_no_retry_is_left(bench, register):
    """A test of the team would see another error than the worker stores."""

    def body(self, number):
        self.retry(countdown=1, max_retries=0)

    result = register(body, retry=None).apply((1,))

    assert "attempt 1 of 1" in str(result.result)


def test_exhausted_retry_without_an_error_says_that_retries_are_used_up(bench, register):
    """There is no error to show: the letter must not show our own control flow instead."""

    def body(self, number):
        raise self.retry(countdown=1)

    register(body).delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert letter.error_type == f"{MaxRetriesExceededError.__module__}.{MaxRetriesExceededError.__qualname__}"
    assert letter.kind is FailureKind.TRANSIENT


def test_retry_stores_the_error_that_it_was_asked_for(bench, register):
    """Who looks at a task that waits for its retry wants to see why."""
    body, _ = retries_once(bench, lambda self: self.retry(exc=ValueError("no stock"), countdown=1))
    register(body).delay(1)

    first, _ = bench.drain()

    assert (first.state, repr(first.result)) == ("RETRY", "ValueError('no stock')")


def test_retry_without_an_error_tells_of_none(bench, register):
    """A body that waits for something outside has not failed: its callers and `on_retry` would be told it had."""
    body, _ = retries_once(bench, lambda self: self.retry(countdown=1))
    told = []
    task = register(body)
    type(task).on_retry = lambda _self, error, *_: told.append(error)
    task.delay(1)

    first, _ = bench.drain()

    assert (first.state, first.result, told) == ("RETRY", None, [None])


def test_asked_retry_of_work_in_doubt_is_quarantined(bench):
    """The body's wish to try again does not answer whether the charge went through."""

    def body(self, number):
        raise self.retry(exc=TimeoutError("read timed out"))

    task = bench.keyed(body, "quarantine")
    task.delay(1)

    bench.drain()

    assert bench.record(task, 1).state is State.QUARANTINED


def test_asked_retry_outside_a_worker_raises_the_error_as_celery_does(bench):
    """A unit test that calls the body directly sees what it sees with a plain task."""

    def body(self, number):
        self.retry(exc=ValueError("no stock"))

    task = bench.keyed(body, idempotent={"scope": "direct"})

    with pytest.raises(ValueError, match="no stock"):
        task(1)


def test_task_that_must_not_repeat_may_still_ask(bench):
    """At most once bars automatic retries; the body knows whether it has done anything yet."""
    body, began = retries_once(bench, lambda self: self.retry(countdown=1))
    bench.task(body, Safeguards(at_most_once=True)).delay(1)

    bench.drain()

    assert len(began) == 2


def test_asked_retry_is_due_only_when_its_time_has_come(bench):
    """A copy that a broker brings early, or twice, must not start the body before the countdown."""
    body, began = retries_once(bench, lambda self: self.retry(countdown=100))
    key = Idempotent("op:{number}", on_unknown="rerun")
    task = bench.task(body, Safeguards(idempotent=key))
    task.delay(1)
    bench.deliver()

    task.delay(1)
    early = [bench.receive() for _ in range(2)]
    bench.clock.now = began[0] + 1
    for message in early:
        message.headers["eta"] = None
        message.requeue()

    bench.drain()

    assert began[1] - began[0] >= 100


@pytest.mark.parametrize("declared", [Safeguards(repeatable=True), KEYED], ids=["unkeyed", "keyed"])
def test_retry_asked_in_a_hook_before_the_body_is_published(bench, declared):
    """A hook that waits for something outside would lose the message: nobody publishes what is raised there."""
    began = []

    class Waits(SafeTask):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            began.append(bench.clock.now)
            if len(began) == 1:
                self.retry(countdown=7)

    task = bench.task(lambda self, number: number, declared, base=Waits)
    task.delay(1)

    first, second = bench.drain()

    assert (first.state, second.state, second.result) == ("RETRY", "SUCCESS", 1)
    assert (first.task_id, began[1] - began[0]) == (second.task_id, 7)


@pytest.mark.parametrize(
    "when", [{"countdown": 10**12}, {"eta": datetime.max.replace(tzinfo=UTC)}], ids=["countdown", "eta"]
)
def test_retry_beyond_the_calendar_is_a_letter(bench, register, when):
    """No copy of it can be published: its message would come back for ever, and never be due."""

    def body(self, number):
        self.retry(exc=ConnectionRefusedError("no answer"), **when)

    register(body).delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (delivered.fate, delivered.state) == ("acknowledged", "FAILURE")
    assert letter.reason.startswith("asked to wait for ")


def test_retry_that_can_never_be_published_is_a_letter(bench):
    """Kept, its message would come back and run the body once more at each visibility timeout, for ever."""

    def body(self, number):
        self.retry(args=[object()], exc=ConnectionRefusedError("no answer"))

    bench.task(body, Safeguards(repeatable=True)).delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (delivered.fate, delivered.state) == ("acknowledged", "FAILURE")
    assert letter.error_type == "builtins.ConnectionRefusedError"
    assert "its retry could not be published" in letter.reason


def test_retry_of_acknowledged_work_that_the_broker_does_not_take_is_a_letter(bench, monkeypatch):
    """At most once, its message does not come back: nobody would ever hear of it."""

    def body(self, number):
        self.retry(countdown=1)

    task = bench.task(body, Safeguards(at_most_once=True))
    task.delay(1)

    def away(*args, **kwargs):
        raise OperationalError("the broker is away")

    monkeypatch.setattr(task, "publish", away)
    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert delivered.state == "FAILURE"
    assert "the broker is away" in letter.reason
