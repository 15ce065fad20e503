"""
The way of a delivery through its safeguards, on a bench: real messages, real requests and the memory store.

A message is published to kombu's memory broker, taken from it, and run by Celery's own request and tracer in this
thread, as a worker's main process and its child would. Time is injected, so nothing sleeps: a delay is a number in a
message, and the bench moves its clock to it. A body that raises `Killed` takes its child with it.
"""

import contextlib
import itertools
import os
import random
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import Celery
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.utils.imports import symbol_by_name
from celery.worker.request import create_request_cls

from celery_safeguards import (
    CannotTell,
    DidNotHappen,
    Happened,
    Idempotent,
    Outcome,
    RetryPolicy,
    Safeguards,
    SafeTask,
    Verify,
    current_safe,
)
from celery_safeguards.admission.epoch import PublisherEpoch
from celery_safeguards.admission.memory import MemoryAdmissionStore
from celery_safeguards.admission.starts import MemoryStartCounter
from celery_safeguards.admission.store import Change
from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.memory import MemoryLetterStore
from celery_safeguards.errors import (
    AttachedToLetter,
    ConflictingPayload,
    DeadBefore,
    DeadLettered,
    KeyRefused,
    Quarantined,
    Refused,
    StoreUnavailable,
)
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.signals import delivery_ended
from celery_safeguards.wiring import Wiring

LEASE_SECONDS = 30.0


class Killed(BaseException):
    """Raised by a body that takes its process with it; no `except Exception` sees it."""


class Clock:
    """Time that passes only when somebody waits; far from now, so that no message of the bench has expired."""

    def __init__(self):
        self.now = 4_000_000_000.0

    def wall_seconds(self):
        return self.now

    def monotonic_seconds(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Highest(random.Random):
    """Chance that always draws the upper end, so that a delay is its ceiling."""

    def uniform(self, a, b):
        return b


class Cable:
    """A store behind a cable that can be pulled: while it is out no method answers."""

    def __init__(self, store, clock):
        self._store = store
        self._clock = clock
        self.out_until = 0.0
        self.losing_answers_of = set()
        self.calls = []

    def pull(self, seconds):
        """Take the store away from now on."""
        self.out_until = self._clock.now + seconds

    def lose_answer_of(self, method):
        """Let the next call of a method arrive, and its answer be lost."""
        self.losing_answers_of.add(method)

    def __getattr__(self, name):
        found = getattr(self._store, name)
        return self._through(name, found) if callable(found) else found

    def _through(self, name, method):
        def call(*args, **kwargs):
            self.calls.append(name)
            if self._clock.now < self.out_until:
                raise StoreUnavailable(f"{name}: the cable is out")
            answer = method(*args, **kwargs)
            if name in self.losing_answers_of:
                self.losing_answers_of.remove(name)
                raise StoreUnavailable(f"{name}: the answer was lost")
            return answer

        return call


@dataclass
class Delivered:
    """What became of one message."""

    message: Any
    task_id: str
    fate: str = "kept"
    """What the broker was told: `acknowledged`, `put back`, `given up`; `kept`: nothing."""
    state: str = ""
    """What Celery's result back end said then."""
    result: Any = None
    """The result or the exception that it held."""


class Bench:
    """An app, its memory broker and one worker's way of running a message."""

    def __init__(self, name, **settings):
        self.clock = Clock()
        self.app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(task_default_queue=name, safeguards_store_url="memory://", **settings)
        self.app.now = lambda: datetime.fromtimestamp(self.clock.now, UTC)
        self.store = Cable(MemoryAdmissionStore(LEASE_SECONDS, self.clock.wall_seconds), self.clock)
        self.store.declare_new()
        self.letters = Cable(MemoryLetterStore(), self.clock)
        self.starts = MemoryStartCounter()
        self.wiring = Wiring(
            settings=Settings.of(self.app),
            admission=self.store,
            starts=self.starts,
            letters=self.letters,
            spool=None,
            epoch=PublisherEpoch(self.store, self.clock),
            clock=self.clock,
            chance=Highest(),
        )
        self.wiring.use_for(self.app)
        self.outcomes = []
        delivery_ended.connect(self._ended, weak=False)
        self._connection = self.app.connection_for_read()
        self._queue = self.app.amqp.queues[name](self._connection.default_channel)
        self._queue.declare()

    def close(self):
        """Give back what the app holds."""
        delivery_ended.disconnect(self._ended)
        self._queue.delete()
        self._connection.release()
        self.app.close()

    def task(self, body, safeguards=None, **options):
        """Register a bound task."""
        # Celery writes a function's name into source text, which a lambda's does not survive.
        body.__name__ = "body"
        given = {"name": f"bench.{uuid.uuid4().hex[:8]}", "bind": True, "shared": False, **options}
        task = self.app.task(base=SafeTask, safeguards=safeguards or Safeguards(), **given)(body)
        return self.app.tasks[task.name]

    def keyed(self, body, on_unknown="rerun", *, idempotent=None, **safeguards):
        """Register a task with the key `op:{number}`."""
        key = Idempotent("op:{number}", on_unknown=on_unknown, **(idempotent or {}))
        return self.task(body, Safeguards(idempotent=key, **safeguards))

    def waiting(self):
        """Return how many messages lie in the queue."""
        return self._queue.queue_declare(passive=True).message_count

    def receive(self):
        """Take a message from the queue, at its eta."""
        message = self._queue.get(accept=["json"])
        assert message is not None, "no message is waiting"
        # As kombu's Redis transport marks it; the memory transport has the mark, and keeps it to itself.
        message.delivery_info["redelivered"] = bool(message._raw.get("redelivered"))
        if message.headers["eta"]:
            self.clock.now = max(self.clock.now, datetime.fromisoformat(message.headers["eta"]).timestamp())
        return message

    def deliver(self, *, worker_dies=False):
        """
        Run the next message as a worker does.

        Args:
            worker_dies: the worker is gone before it could say anything; the broker puts the message back.

        """
        message = self.receive()
        delivered = Delivered(message, message.headers["id"])
        task = self.app.tasks[message.headers["task"]]
        kind = create_request_cls(symbol_by_name(task.Request), task, self, "bench", None, app=self.app)

        def on_ack(*args):
            delivered.fate = "acknowledged"
            message.ack_log_error(*args)

        def on_reject(logger, errors, requeue):
            delivered.fate = "put back" if requeue else "given up"
            message.reject_log_error(logger, errors, requeue)

        request = kind(message, on_ack=on_ack, on_reject=on_reject, app=self.app)
        self._worker_dies = worker_dies
        request.execute_using_pool(self)
        if worker_dies:
            message.requeue()
        stored = self.app.AsyncResult(delivered.task_id)
        delivered.state, delivered.result = stored.state, stored.result
        return delivered

    def apply_async(self, target, args, *, accept_callback, callback, error_callback, **_):
        """Be the pool: run the child's side in this thread."""
        accept_callback(os.getpid(), time.monotonic())
        try:
            answer = target(*args, app=self.app)
        except Killed as death:
            if not self._worker_dies:
                lost = WorkerLostError(repr(death))
                error_callback(ExceptionInfo((WorkerLostError, lost, death.__traceback__)))
        else:
            if not self._worker_dies:
                callback(answer)

    def drain(self, most=20):
        """Run messages until none is left; returns what became of each."""
        delivered = []
        while self.waiting():
            assert len(delivered) < most, "messages breed messages"
            delivered.append(self.deliver())
        return delivered

    def record(self, task, number):
        """Return the record of `op:{number}`."""
        return self.store.read(task.plan.record_key(task.plan.key((number,), {})))

    def all_letters(self):
        """Return every letter."""
        return self.letters.list().letters

    def _ended(self, sender, task_id, outcome, key, reason, **_):
        if sender.app is self.app:
            self.outcomes.append(outcome)


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace)) as bench:
        yield bench


# --- keys


def test_published_message_carries_key_and_fingerprint(bench):
    """Without them in the message a worker with newer code would compute another key for the same order."""
    task = bench.keyed(lambda self, number: number)

    task.apply_async((42,), headers={"x-tenant": "a"})

    headers = bench.receive().headers
    assert (headers["sg_key"], headers["x-tenant"]) == ("op:42", "a")
    assert headers["sg_fp"] == task.plan.fingerprint((42,), {})
    assert headers["sg_epoch"] == bench.store.view().epoch


def test_key_fingerprint_and_own_headers_survive_three_automatic_retries(bench):
    """Celery has lost custom headers on retry in several versions (celery/celery#7523): the key would go with them."""

    def body(self, number):
        if self.safe.attempt < 4:
            raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body)
    task.apply_async((42,), headers={"x-tenant": "a"})

    delivered = bench.drain()

    names = ("sg_key", "sg_fp", "sg_epoch", "x-tenant")
    seen = [tuple(each.message.headers[name] for name in names) for each in delivered]
    assert seen == [seen[0]] * 4
    assert [each.message.headers["retries"] for each in delivered] == [0, 1, 2, 3]
    assert delivered[-1].state == "SUCCESS"


def test_retry_keeps_queue_priority_time_limits_and_expiry(bench):
    """An urgent message that comes back as an ordinary one waits behind the backlog (celery/celery#5654)."""

    def body(self, number):
        if self.safe.attempt == 1:
            raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body)
    task.apply_async((42,), priority=7, time_limit=90, soft_time_limit=60, expires=3600)

    first, second = bench.drain()

    assert second.message.properties["priority"] == first.message.properties["priority"] == 7
    assert second.message.headers["timelimit"] == first.message.headers["timelimit"] == [90, 60]
    assert second.message.headers["expires"] == first.message.headers["expires"]
    assert second.task_id == first.task_id


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((), {"number": 1}), ((1, "EUR"), {}), ((1,), {"currency": "EUR"}), ((1,), None)],
)
def test_spellings_of_one_call_are_one_operation(bench, args, kwargs):
    """`f(1)` in one caller and `f(number=1)` in another would charge the same order twice."""
    runs = []
    task = bench.keyed(lambda self, number, currency="EUR": runs.append(number))
    task.delay(1)
    task.apply_async(args, kwargs)

    bench.drain()

    assert runs == [1]
    assert bench.outcomes == [Outcome.SUCCEEDED, Outcome.DEDUPLICATED]


@pytest.mark.parametrize("number", [None, "", "  ", float("nan"), [1], object()])
def test_publish_refuses_a_key_that_names_nothing(bench, number):
    """All orders whose id is missing would be one operation: the first is charged, the others are not."""
    task = bench.keyed(lambda self, number: None)

    with pytest.raises(KeyRefused, match=r"key='op:\{number\}': field 'number' is"):
        task.delay(number)

    assert bench.waiting() == 0


def test_publish_refuses_arguments_that_do_not_fit(bench):
    """A call with a misspelt argument has no key, and would fail in the worker only."""
    task = bench.keyed(lambda self, number: None)

    with pytest.raises(KeyRefused):
        task.delay(nr=1)


def test_same_key_with_other_arguments_is_a_conflict_and_is_not_run(bench):
    """A second amount under the first one's key is neither a duplicate nor a new order: somebody must look."""
    runs = []
    task = bench.keyed(lambda self, number, amount: runs.append(amount))
    task.delay(1, 500)
    task.delay(1, 700)

    first, second = bench.drain()

    assert runs == [500]
    assert isinstance(second.result, ConflictingPayload)
    assert (second.state, second.fate) == ("FAILURE", "acknowledged")
    (letter,) = bench.all_letters()
    assert (letter.kind, letter.effect_possible, letter.id) == (FailureKind.CONFLICT, False, second.result.letter_id)
    assert (bench.store.read(task.plan.record_key("op:1")).state, first.state) == (State.DONE, "SUCCESS")


def test_fingerprint_of_named_fields_ignores_the_others(bench):
    """A trace id that differs between two publishes of one payment must not make them a conflict."""
    runs = []
    task = bench.keyed(
        lambda self, number, amount, trace: runs.append(trace), idempotent={"fingerprint": ("number", "amount")}
    )
    task.delay(1, 500, "a")
    task.delay(1, 500, "b")

    bench.drain()

    assert (runs, bench.outcomes) == (["a"], [Outcome.SUCCEEDED, Outcome.DEDUPLICATED])


def test_message_of_a_foreign_producer_gets_the_same_key_when_it_is_admitted(bench):
    """Work that another language or an older release publishes would run beside its duplicate."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(self.safe.idempotency_key))
    bench.app.send_task(task.name, (1,))
    task.delay(1)

    bench.drain()

    assert (runs, bench.outcomes) == (["op:1"], [Outcome.SUCCEEDED, Outcome.DEDUPLICATED])


def test_foreign_message_keeps_its_new_key_over_retries(bench):
    """A copy without the key would be given another one where the retry changed the arguments."""

    def body(self, number):
        if number == 1:
            raise self.retry(args=[2])

    task = bench.keyed(body)
    bench.app.send_task(task.name, (1,))

    first, second = bench.drain()

    assert "sg_key" not in first.message.headers
    assert (second.message.headers["sg_key"], second.state) == ("op:1", "SUCCESS")


def test_foreign_message_without_a_key_becomes_a_letter(bench):
    """In a worker there is no caller to refuse: the message must not be lost, nor run without protection."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number))
    bench.app.send_task(task.name, (None,))

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, delivered.fate, type(delivered.result)) == ([], "acknowledged", DeadLettered)
    assert (letter.kind, letter.task_id) == (FailureKind.DATA, delivered.task_id)


# --- results


def test_duplicate_gets_the_stored_result_and_the_body_runs_once(bench):
    """The caller of a repeated payment must see the receipt of the first, not nothing and not a second one."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number) or {"receipt": number})
    task.delay(1)
    task.delay(1)

    first, second = bench.drain()

    assert first.task_id != second.task_id
    assert (first.result, second.result, runs) == ({"receipt": 1}, {"receipt": 1}, [1])


def test_message_delivered_twice_sends_what_follows_once(bench):
    """The worker died before it acknowledged: the next task of the chain has been sent already."""
    seen = []
    after = bench.task(lambda self, receipt: seen.append(receipt))
    task = bench.keyed(lambda self, number: f"receipt {number}")
    (task.s(1) | after.s()).apply_async()
    bench.deliver(worker_dies=True)

    bench.drain()

    assert (seen, bench.outcomes.count(Outcome.DEDUPLICATED)) == (["receipt 1"], 1)


def test_publication_of_done_work_goes_on_with_its_own_chain(bench):
    """Another caller's chain waits for the same payment: it must continue as if it had run."""
    seen = []
    after = bench.task(lambda self, receipt, who: seen.append((receipt, who)))
    task = bench.keyed(lambda self, number: f"receipt {number}")
    (task.s(1) | after.s("first")).apply_async()
    (task.s(1) | after.s("second")).apply_async()

    bench.drain()

    assert seen == [("receipt 1", "first"), ("receipt 1", "second")]


@pytest.mark.parametrize("value", [(1, (2, 3)), {"at": datetime(2026, 1, 1, tzinfo=UTC)}, uuid.UUID(int=7), b"\x00"])
def test_first_run_and_duplicate_return_the_same_value(bench, value):
    """The next link of a chain would fail on a list where it got a tuple in every test."""
    task = bench.keyed(lambda self, number: value)

    first = task.apply(args=(1,)).result
    second = task.apply(args=(1,)).result

    assert (first, type(first)) == (second, type(second))


def test_result_that_json_cannot_carry_is_returned_once_and_marked_for_duplicates(bench):
    """An odd return value must not undo a payment that has been made."""
    value = object()
    task = bench.keyed(lambda self, number: value)

    first, second = task.apply(args=(1,)), task.apply(args=(1,))

    assert first.result is value
    assert second.result == {"sg_result": "not_encodable", "key": "op:1"}


def test_result_above_the_limit_is_marked_for_duplicates(namespace):
    """A report of megabytes in every record would fill the store that all tasks depend on."""
    with contextlib.closing(Bench(namespace, safeguards_max_result_bytes=100)) as bench:
        task = bench.keyed(lambda self, number: "é" * 60)

        first, second = task.apply(args=(1,)), task.apply(args=(1,))

        assert first.result == "é" * 60
        assert second.result == {"sg_result": "too_large", "key": "op:1"}


def test_result_that_is_a_secret_is_not_stored(bench):
    """A one-time token in the record would be readable by everybody who can read the store."""
    task = bench.keyed(lambda self, number: "token", idempotent={"store_result": False})

    first, second = task.apply(args=(1,)), task.apply(args=(1,))

    assert (first.result, second.result) == ("token", {"sg_result": "withheld", "key": "op:1"})
    assert "token" not in repr(bench.record(task, 1))


# --- failures


class TwoArguments(Exception):
    """As SDKs have them: what pickle makes of it cannot be built again."""

    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


class HoldsALock(Exception):
    """Cannot be pickled at all."""

    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class HasNoText(Exception):
    """Fails when it is looked at."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


ODD_ERRORS = [TwoArguments(402, "declined"), HoldsALock(), HasNoText()]


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("is_keyed", [True, False])
@pytest.mark.parametrize("odd", ODD_ERRORS, ids=lambda odd: type(odd).__name__)
def test_error_that_cannot_be_pickled_or_shown_becomes_a_letter(bench, odd, is_keyed, attempts):
    """Such errors have hung workers and lost failures (celery/celery#6990)."""

    def body(self, number):
        raise odd

    retry = RetryPolicy(attempts=attempts)
    task = bench.keyed(body, retry=retry) if is_keyed else bench.task(body, Safeguards(repeatable=True, retry=retry))
    task.delay(1)

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    last = delivered[-1]
    assert [each.fate for each in delivered] == ["acknowledged"] * attempts
    assert (last.state, type(last.result), last.result.letter_id) == ("FAILURE", DeadLettered, letter.id)
    assert letter.error_type.endswith(type(odd).__name__)
    assert type(odd).__name__ in letter.traceback
    assert (letter.attempts, letter.task_id) == (attempts, last.task_id)


def test_dead_lettered_error_says_where_and_why(bench):
    """Who reads only Celery's result must find the letter and the cause."""

    def body(self, number):
        raise ValueError("amount is negative")

    task = bench.keyed(body, retry=None)
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert str(delivered.result) == f"dead letter {letter.id} (data): builtins.ValueError: amount is negative"
    assert (letter.key, letter.scope, letter.reason) == ("op:1", task.name, "no retry policy")
    assert letter.wire.body == delivered.message.body


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


@pytest.mark.parametrize("is_keyed", [True, False])
def test_rejected_message_becomes_a_letter(bench, is_keyed):
    """Redis has no dead-letter exchange: a plain reject throws the message away."""

    def body(self, number):
        raise Reject("malformed", requeue=False)

    task = bench.keyed(body) if is_keyed else bench.task(body)
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (letter.kind, letter.reason) == (FailureKind.DATA, "the body rejected its message")
    assert (delivered.fate, delivered.state) == ("acknowledged", "FAILURE")


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


def test_unkeyed_body_that_fails_with_another_tasks_letter_gets_a_letter_of_its_own(bench):
    """The outer message would vanish behind the inner letter, which cannot be replayed into it."""

    def fails(self):
        raise ValueError("inner")

    inner = bench.keyed(lambda self, number: fails(self), retry=None)
    outer = bench.task(lambda self, number: inner.apply((number,), throw=True))
    outer.delay(1)

    (delivered,) = bench.drain()

    assert {letter.task for letter in bench.all_letters()} == {inner.name, outer.name}
    assert bench.letters.get(delivered.result.letter_id).task == outer.name


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


def test_retry_that_meets_its_own_record_is_no_duplicate(bench):
    """Where the key is enforced on publish, a retry is refused by its own lock and the task is lost (celery-once)."""
    held = []

    def body(self, number):
        held.append(bench.record(self, number).state)
        if len(held) < 3:
            raise ConnectionRefusedError("gateway is down")
        return "paid"

    task = bench.keyed(body)
    task.delay(1)

    delivered = bench.drain()

    assert held == [State.IN_PROGRESS] * 3
    assert (delivered[-1].result, bench.record(task, 1).state) == ("paid", State.DONE)


def test_publishing_its_own_task_from_the_body_is_deferred_until_it_is_done(bench):
    """A second publish of the running operation must neither run beside it nor be lost."""
    runs = []

    def body(self, number):
        runs.append(number)
        self.apply_async((number,))
        again = bench.deliver()
        return again.fate, again.state

    task = bench.keyed(body)
    task.delay(1)

    first, second = bench.drain()

    assert (runs, first.result) == ([1], ["acknowledged", "PENDING"])
    assert (second.result, second.message.headers["sg_deferrals"]) == (["acknowledged", "PENDING"], 1)


# --- post-conditions


@pytest.mark.parametrize("is_keyed", [True, False])
@pytest.mark.parametrize(
    ("ensure", "why"),
    [(lambda result: False, "is False"), (lambda result: 1 / 0, "ZeroDivisionError")],
    ids=["false", "raises"],
)
def test_failed_postcondition_is_a_letter_with_a_possible_effect(bench, ensure, why, is_keyed):
    """A body that returns although the order is not paid must not count as a success."""
    safeguards = {"ensure": ensure, "retry": RetryPolicy(attempts=4)}
    body = lambda self, number: "paid"  # noqa: E731
    task = bench.keyed(body, **safeguards) if is_keyed else bench.task(body, Safeguards(repeatable=True, **safeguards))
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (letter.kind, letter.effect_possible, delivered.state) == (FailureKind.INVARIANT, True, "FAILURE")
    assert why in letter.error_message


@pytest.mark.parametrize("is_keyed", [True, False])
def test_postcondition_gets_the_result_and_the_arguments_it_names(bench, is_keyed):
    """A check that cannot see the order can check nothing."""
    seen = []
    ensure = lambda result, currency, number: seen.append((result, number, currency))  # noqa: E731
    body = lambda self, number, currency="EUR": "paid"  # noqa: E731
    task = bench.keyed(body, ensure=ensure) if is_keyed else bench.task(body, Safeguards(ensure=ensure))
    task.delay(1)

    (delivered,) = bench.drain()

    assert (seen, delivered.state) == ([("paid", 1, "EUR")], "SUCCESS")


def test_postcondition_whose_error_has_no_text_is_still_a_failed_postcondition(bench):
    """The kind decides whether an effect is possible: an odd error class must not change it."""

    def ensure(result):
        raise HasNoText

    task = bench.keyed(lambda self, number: "paid", ensure=ensure)
    task.delay(1)

    bench.drain()

    (letter,) = bench.all_letters()
    assert letter.kind is FailureKind.INVARIANT


# --- unknown outcomes


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


@pytest.fixture
def watched(namespace):
    """A bench whose deferrals are short, so that the store hears a worker within every half lease."""
    with contextlib.closing(Bench(namespace, safeguards_deferral_cap_seconds=LEASE_SECONDS / 4)) as bench:
        yield bench


def test_claim_of_a_dead_worker_is_taken_over_after_its_lease_and_not_before(watched):
    """Before that the worker may be alive; after it nobody else will do the work."""
    bench, began = watched, []

    def body(self, number):
        began.append(bench.clock.now)
        if len(began) == 1:
            raise Killed

    task = bench.keyed(body)
    task.delay(1)
    bench.deliver(worker_dies=True)
    while bench.waiting():
        bench.deliver()
        # Other workers of the fleet are seen by the store all the while.
        bench.store.renew({})

    assert len(began) == 2
    assert began[1] - began[0] >= LEASE_SECONDS
    assert bench.outcomes[-1] is Outcome.SUCCEEDED


def killed_once(bench, verify, **options):
    """Register a task whose first start is killed, and lose that start."""
    runs = []

    def body(self, number):
        runs.append(self.safe.attempt)
        if len(runs) == 1:
            raise Killed
        return "done"

    task = bench.keyed(body, on_unknown=verify, **options)
    task.delay(1)
    bench.deliver()
    return task, runs


def test_verify_that_says_happened_finishes_the_work_without_a_start(bench):
    """The charge went through before the worker died: a second start would charge again."""
    asked = []

    def find(number, idempotency_key):
        asked.append((number, idempotency_key))
        return Happened({"receipt": number})

    task, runs = killed_once(bench, Verify(find, after_seconds=0))

    (delivered,) = bench.drain()

    assert (runs, asked) == ([1], [(1, "op:1")])
    assert (delivered.state, delivered.result) == ("SUCCESS", {"receipt": 1})
    assert (bench.outcomes, bench.record(task, 1).state) == ([Outcome.DEDUPLICATED], State.DONE)


def test_verify_that_says_did_not_happen_starts_the_body(bench):
    """Nothing was charged: the order must not stay unpaid."""
    _, runs = killed_once(bench, Verify(DidNotHappen, after_seconds=0))

    (delivered,) = bench.drain()

    assert (runs, delivered.result) == ([1, 2], "done")


def test_verify_is_not_asked_before_its_quiet_period_is_over(bench):
    """The dead worker's request may still be in flight: "not found" is no answer yet."""
    asked = []

    def find():
        asked.append(bench.clock.now)
        return DidNotHappen()

    killed_once(bench, Verify(find, after_seconds=60))
    died = bench.clock.now

    delivered = bench.drain()

    assert [each.fate for each in delivered] == ["acknowledged", "acknowledged"]
    assert len(asked) == 1
    assert asked[0] >= died + 60


class NoText(Exception):
    """Raised by a look-up whose error cannot be shown."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def _raises(error):
    raise error


@pytest.mark.parametrize(
    "find",
    [
        lambda: CannotTell("search is down"),
        lambda: _raises(ConnectionError("down")),
        lambda: _raises(NoText()),
        lambda: True,
    ],
    ids=["cannot_tell", "raises", "raises_without_text", "other_type"],
)
def test_verify_without_a_clear_answer_ends_in_quarantine(bench, find):
    """An unclear answer taken as "no" charges twice; taken as "yes" it loses the payment."""
    task, runs = killed_once(bench, Verify(find, after_seconds=0, asks=3))

    delivered = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, [each.state for each in delivered]) == ([1], ["PENDING", "PENDING", "FAILURE"])
    assert (letter.kind, letter.effect_possible) == (FailureKind.UNKNOWN_OUTCOME, True)
    assert isinstance(delivered[-1].result, Quarantined)
    assert bench.record(task, 1).state is State.QUARANTINED


@pytest.mark.parametrize(
    ("error", "quiet_seconds"), [(ConnectionRefusedError("no"), 0), (TimeoutError("read timed out"), 30)]
)
def test_verify_is_asked_after_any_failed_start(bench, error, quiet_seconds):
    """The last error may be harmless while an earlier call was not; only one in flight has to be waited for."""
    asked = []

    def find():
        asked.append(bench.clock.now)
        return DidNotHappen()

    def body(self, number):
        if self.safe.attempt == 1:
            raise error

    task = bench.keyed(body, on_unknown=Verify(find, after_seconds=30))
    task.delay(1)
    failed_at = bench.clock.now

    bench.drain()

    assert len(asked) == 1
    assert asked[0] - failed_at == pytest.approx(max(5, quiet_seconds), abs=4)


def test_work_in_quarantine_waits_for_a_person(bench):
    """Where only a person can tell, a second start is a gamble with the customer's money."""
    task, runs = killed_once(bench, "quarantine")
    (delivered,) = bench.drain()

    again = task.apply_async((1,), task_id=delivered.task_id)
    task.delay(1)
    same_id, new_id = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, again.id) == ([1], letter.task_id)
    assert [type(each.result) for each in (delivered, same_id, new_id)] == [Quarantined, DeadBefore, AttachedToLetter]
    assert {each.result.letter_id for each in (delivered, same_id, new_id)} == {letter.id}


def test_ambiguous_error_is_quarantined_at_once(bench):
    """A timeout after the request was sent leaves the charge in doubt: retrying it would be the double charge."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise TimeoutError("read timed out")

    task = bench.keyed(body, "quarantine")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, type(delivered.result), letter.effect_possible) == ([1], Quarantined, True)
    assert (letter.kind, bench.outcomes) == (FailureKind.DEPENDENCY_TIMEOUT, [Outcome.UNKNOWN])


def test_refused_connection_is_retried_although_doubt_would_be_quarantined(bench):
    """Nothing was sent: making a person look at every restart of the gateway wears people out."""

    def body(self, number):
        if self.safe.attempt == 1:
            raise ConnectionRefusedError("gateway is down")
        return "paid"

    task = bench.keyed(body, "quarantine")
    task.delay(1)

    assert [each.state for each in bench.drain()] == ["RETRY", "SUCCESS"]


def test_verify_that_says_did_not_happen_at_the_cap_leaves_no_doubt_on_the_letter(bench):
    """Whoever reads the letter would ask the bank again about a charge that is known not to exist."""
    task, runs = killed_once(bench, Verify(DidNotHappen, after_seconds=0), retry=RetryPolicy(attempts=1))

    bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, letter.effect_possible) == ([1], False)
    assert bench.record(task, 1).effect_possible is False


# --- dead work


def dead_work(bench, *, on_dead, error=None):
    """Register a task whose first series dies, and bury it."""
    runs = []

    def body(self, number):
        runs.append(self.safe.attempt)
        if len(runs) == 1:
            raise error or ValueError("bad data")
        return "done"

    task = bench.keyed(body, idempotent={"on_dead": on_dead}, retry=None)
    task.delay(1)
    bench.deliver()
    return task, runs


def test_new_publication_of_dead_work_is_refused_visibly(bench):
    """A silent drop would look like a payment on its way (sidekiq-unique-jobs)."""
    task, runs = dead_work(bench, on_dead="refuse")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, type(delivered.result), delivered.result.letter_id) == ([1], Refused, letter.id)
    assert letter.history[-1].detail == delivered.task_id


def test_new_publication_of_dead_work_runs_as_a_new_series(bench):
    """Where the caller's new publish is the repair, the old letter must not block it."""
    task, runs = dead_work(bench, on_dead="run")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, delivered.result, letter.state) == ([1, 1], "done", "closed")


def test_new_publication_of_dead_work_attaches_to_its_letter(bench):
    """Where a person decides, every further publish must be found on the one letter."""
    task, runs = dead_work(bench, on_dead="attach")
    task.delay(1)

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (runs, type(delivered.result)) == ([1], AttachedToLetter)
    assert letter.history[-1].detail == delivered.task_id


@pytest.mark.parametrize("on_dead", ["refuse", "run", "attach"])
def test_dead_message_delivered_again_fails_again_without_a_second_letter(bench, on_dead):
    """The worker died between the letter and the acknowledgement: that is no new publication."""
    task, runs = dead_work(bench, on_dead=on_dead)
    (letter,) = bench.all_letters()
    task.apply_async((1,), task_id=letter.task_id)

    (delivered,) = bench.drain()

    assert (runs, type(delivered.result), bench.all_letters()) == ([1], DeadBefore, (letter,))


def test_publication_of_dead_work_is_refused_although_its_letter_is_still_in_the_spool(bench):
    """While letters wait on a disk, the answer must still name the letter and not an error of ours."""
    task, _ = dead_work(bench, on_dead="refuse")
    (letter,) = bench.all_letters()
    # What the store looks like until the spool is drained.
    bench.letters._store._letters.clear()
    task.delay(1)

    (delivered,) = bench.drain()

    assert (type(delivered.result), delivered.result.letter_id) == (Refused, letter.id)


# --- the store is away


def test_delivery_waits_for_a_store_that_is_away_for_a_moment(bench):
    """A failover of seconds must not send every message through the broker again."""
    task = bench.keyed(lambda self, number: "done")
    task.delay(1)
    bench.store.pull(seconds=4)

    (delivered,) = bench.drain()

    assert (delivered.fate, delivered.result) == ("acknowledged", "done")


def test_delivery_is_put_off_when_the_store_stays_away(bench):
    """Keyed work waits; it does not run unprotected and it is not lost."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number))
    task.delay(1)
    bench.store.pull(seconds=20)

    first = bench.deliver()
    ran_without_store = list(runs)
    later = bench.drain()

    assert (first.fate, first.state, ran_without_store) == ("acknowledged", "PENDING", [])
    assert (runs, later[-1].state) == ([1], "SUCCESS")
    assert bench.outcomes[0] is Outcome.DEFERRED


def test_publishing_does_not_depend_on_the_store(bench):
    """A web request must not fail because the store of records is away; the key needs no store."""
    bench.store.pull(seconds=60)
    task = bench.keyed(lambda self, number: "done")

    task.delay(1)

    headers = bench.receive().headers
    assert (headers["sg_key"], "sg_epoch" in headers) == ("op:1", False)


def test_task_that_may_run_unprotected_runs_without_the_store(bench):
    """Where late is worse than twice, the task has said so."""
    task = bench.keyed(lambda self, number: "done", on_store_down="run_unprotected")
    task.delay(1)
    bench.store.pull(seconds=3600)

    (delivered,) = bench.drain()

    assert (delivered.state, delivered.result) == ("SUCCESS", "done")


def test_unprotected_run_that_fails_is_retried_or_buried_like_any_other(bench):
    """Running without the record must not mean losing the failure."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body, on_store_down="run_unprotected", retry=RetryPolicy(attempts=2))
    task.delay(1)
    bench.store.pull(seconds=3600)

    first, *rest = bench.drain()

    assert first.state == "RETRY"
    assert rest[-1].state == "FAILURE"
    assert [letter.task_id for letter in bench.all_letters()] == [first.task_id]


def test_unprotected_run_checks_its_postcondition(bench):
    """The check is about the data, not about the record."""
    task = bench.keyed(lambda self, number: "paid", on_store_down="run_unprotected", ensure=lambda result: False)
    task.delay(1)
    bench.store.pull(seconds=3600)

    delivered = bench.drain()

    assert delivered[-1].state == "FAILURE"


def test_asked_retry_of_an_unprotected_run_is_published(bench):
    """`self.retry()` only raises: somebody must publish, with or without the store."""
    runs = []

    def body(self, number):
        runs.append(number)
        if len(runs) == 1:
            raise self.retry(countdown=5)

    task = bench.keyed(body, on_store_down="run_unprotected")
    task.delay(1)
    bench.store.pull(seconds=3600)

    delivered = bench.drain()

    assert (len(runs), delivered[-1].state) == (2, "SUCCESS")


def test_outcome_is_written_when_the_store_comes_back(bench):
    """The body has run: its success must not be thrown away because the store blinked."""

    def body(self, number):
        bench.store.pull(seconds=10)
        return "done"

    task = bench.keyed(body)
    task.delay(1)

    (delivered,) = bench.drain()

    assert (delivered.fate, delivered.result, bench.record(task, 1).state) == ("acknowledged", "done", State.DONE)


def test_delivery_whose_outcome_cannot_be_written_is_not_acknowledged(bench):
    """An acknowledgement without a record would turn "unknown" into "done, and nobody knows what"."""

    def body(self, number):
        bench.store.pull(seconds=100)
        return "done"

    task = bench.keyed(body)
    task.delay(1)

    delivered = bench.deliver()

    assert (delivered.fate, delivered.state, bench.outcomes) == ("kept", "PENDING", [Outcome.FENCED])
    assert bench.clock.now - 4_000_000_000 <= LEASE_SECONDS


def test_body_runs_once_when_the_answer_to_its_claim_was_lost(bench):
    """The claim was made and its answer was lost: asking again must find it, not wait for it to lapse."""
    runs = []
    task = bench.keyed(lambda self, number: runs.append(number))
    task.delay(1)
    bench.store.lose_answer_of("admit")

    (delivered,) = bench.drain()

    assert (runs, delivered.state) == ([1], "SUCCESS")
    assert bench.clock.now - 4_000_000_000 < LEASE_SECONDS


def test_lost_answer_to_a_written_outcome_is_asked_for_again(bench):
    """The record is done: the second try of the same write must not be taken for a stranger's."""
    task = bench.keyed(lambda self, number: "done")
    task.delay(1)
    bench.store.lose_answer_of("settle")

    (delivered,) = bench.drain()

    assert (delivered.fate, delivered.result) == ("acknowledged", "done")


def test_owner_that_was_fenced_out_neither_reports_nor_acknowledges(bench):
    """Its late success would overwrite what the new owner says."""

    def body(self, number):
        record = bench.record(self, number)
        bench.store.take(self.plan.record_key("op:1"), record.rev, "another", _in_progress())
        return "late"

    task = bench.keyed(body)
    task.delay(1)

    delivered = bench.deliver()

    assert (delivered.fate, delivered.state, bench.outcomes) == ("kept", "PENDING", [Outcome.FENCED])


def test_late_success_of_a_fenced_owner_is_noted_where_its_letter_is_not_written_yet(bench):
    """The note is a courtesy; that it cannot be written gives no right to acknowledge."""

    def body(self, number):
        record = bench.record(self, number)
        taken = _in_progress(letter_id="not-there-yet")
        bench.store.take(self.plan.record_key("op:1"), record.rev, "another", taken)
        return "late"

    task = bench.keyed(body)
    task.delay(1)

    assert bench.deliver().fate == "kept"


def _in_progress(**fields):
    return Change(fields={"state": State.IN_PROGRESS, "asking": False, **fields}, retention_seconds=None)


def test_message_is_put_off_while_its_letter_cannot_be_written(bench):
    """A failure whose letter is not durable must not be acknowledged away; the record holds the letter meanwhile."""

    def body(self, number):
        bench.letters.pull(seconds=20)
        raise ValueError("bad data")

    task = bench.keyed(body, retry=None)
    task.delay(1)

    first = bench.deliver()
    waiting = bench.record(task, 1).state
    later = bench.drain()

    (letter,) = bench.all_letters()
    assert (first.state, waiting) == ("PENDING", State.DYING)
    assert (later[-1].state, later[-1].result.letter_id) == ("FAILURE", letter.id)
    assert bench.record(task, 1).state is State.DEAD


def test_unkeyed_message_is_kept_while_its_letter_cannot_be_written(bench):
    """Without a record the message itself is all there is."""

    def body(self, number):
        bench.letters.pull(seconds=20)
        raise ValueError("bad data")

    task = bench.task(body)
    task.delay(1)

    assert bench.deliver().fate == "kept"


def test_message_is_kept_when_the_broker_does_not_take_its_copy(bench, monkeypatch):
    """Celery rejects a message whose retry it cannot publish: the task is lost."""

    def body(self, number):
        raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body)
    task.delay(1)
    monkeypatch.setattr(type(task), "publish", lambda *args, **kwargs: _raises(OSError("broker is down")))

    delivered = bench.deliver()

    assert (delivered.fate, delivered.state, bench.record(task, 1).state) == ("kept", "PENDING", State.RETRY_DUE)


# --- what a body sees


def test_unkeyed_task_asks_no_store(bench):
    """A task without a key must not stand still because of a store it does not need."""
    bench.store.calls.clear()
    task = bench.task(lambda self, number: (self.safe.attempt, self.safe.idempotency_key))
    task.delay(1)

    (delivered,) = bench.drain()

    assert (delivered.result, bench.store.calls) == ([1, None], [])


def test_first_run_of_a_keyed_task_costs_two_round_trips(bench):
    """Every further round trip is paid by every task of the fleet."""
    task = bench.keyed(lambda self, number: current_safe().checkpoint())
    task.delay(1)
    bench.store.calls.clear()

    bench.drain()

    assert bench.store.calls == ["admit", "settle"]


def test_task_that_must_not_repeat_is_acknowledged_before_its_body(bench):
    """At most once: a worker that dies with it must not bring it back."""
    runs = []

    def body(self, number):
        runs.append(number)
        raise Killed

    task = bench.task(body, Safeguards(at_most_once=True))
    task.delay(1)

    (delivered,) = bench.drain()

    assert (runs, delivered.fate, bench.all_letters()) == ([1], "acknowledged", ())


# --- continuations


def test_next_task_of_a_chain_whose_key_is_refused_becomes_its_own_letter(bench):
    """Raised while the chain goes on, the refusal would turn the finished payment into a failure."""
    after = bench.keyed(lambda self, number: number)
    task = bench.keyed(lambda self, number: None)
    (task.s(1) | after.s()).apply_async()

    (delivered,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (delivered.state, bench.record(task, 1).state) == ("SUCCESS", State.DONE)
    assert (letter.task, letter.kind) == (after.name, FailureKind.DATA)


def test_message_that_the_body_puts_back_is_asked_about_where_any_start_is(bench):
    """Under `verify` every further start is asked about, however the last one ended."""
    asked = []

    def find():
        asked.append(bench.clock.now)
        return DidNotHappen()

    def body(self, number):
        if self.safe.attempt == 1:
            raise Reject("not yet", requeue=True)

    task = bench.keyed(body, Verify(find, after_seconds=0))
    task.delay(1)

    bench.drain()

    assert len(asked) == 1
