"""
The key of an operation on its way: made once, carried by every copy, and refused where it names nothing.

Whoever publishes, however the call is spelt and however often it is retried, one operation has one key.
"""

import celery
import pytest

from celery_safeguards import Idempotent, Outcome, Safeguards
from celery_safeguards.errors import ConflictingPayload, DeadLettered, KeyRefused
from celery_safeguards.ledger.record import State
from celery_safeguards.outcome import FailureKind

REPEATABLE = Safeguards(repeatable=True)
KEYED = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))


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


@pytest.mark.parametrize("is_keyed", [True, False])
def test_retry_is_encoded_as_its_message_was(bench, is_keyed):
    """What only pickle carries could not be published again: the body would run at each redelivery, for ever."""
    bench.app.conf.accept_content = ["json", "pickle"]
    seen = []

    def body(self, number, part):
        seen.append(part)
        if len(seen) == 1:
            raise ConnectionRefusedError("gateway is down")

    task = bench.keyed(body, idempotent={"fingerprint": ("number",)}) if is_keyed else bench.task(body, REPEATABLE)
    task.apply_async((42, 1j), serializer="pickle")

    first, second = bench.drain()

    assert seen == [1j, 1j]
    assert (first.state, second.state) == ("RETRY", "SUCCESS")
    assert first.message.content_type == second.message.content_type


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


@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
def test_headers_that_a_body_passes_on_say_nothing_of_its_own_past(bench, kind):
    """A project that hands its tenant on by its request's headers would send work that looks started, or replayed."""
    seen = []

    def follow(self, number):
        seen.append(self.request.headers)

    def body(self, number):
        if self.safe.attempt == 1:
            raise ConnectionRefusedError("gateway is down")
        child.apply_async((number,), headers=self.request.headers)

    child = bench.keyed(follow, on_unknown="quarantine") if kind == "keyed" else bench.task(follow, REPEATABLE)
    parent = bench.keyed(body) if kind == "keyed" else bench.task(body, REPEATABLE)
    parent.apply_async((42,), headers={"x-tenant": "a"})

    bench.drain()

    child.apply_async((43,), headers={"x-tenant": "a"})
    bench.drain()
    assert (bench.all_letters(), len(seen)) == ((), 2)
    assert seen[0].keys() == seen[1].keys()


@pytest.fixture
def takes_models(bench):
    """A keyed task with `pydantic=True`, the model that it takes, and what it was given."""
    pydantic = pytest.importorskip("pydantic")
    if not hasattr(celery.Task, "_dump_pydantic_arguments"):
        pytest.skip("models are sent as they are from celery 5.7 on")
    model, seen = pydantic.create_model("Order", sku=(str, ...), count=(int, 1)), []

    def body(self, number, order):
        seen.append(order)

    body.__annotations__ = {"number": int, "order": model}
    return bench.task(body, KEYED, pydantic=True), model, seen


def test_model_and_its_data_are_one_operation(bench, takes_models):
    """Celery sends pydantic's models as their data: a key that had to be refused for them could never be used there."""
    task, model, seen = takes_models
    task.delay(1, model(sku="a"))
    task.delay(1, {"sku": "a", "count": 1})
    task.delay(1, order=model(sku="b"))

    bench.drain()

    assert seen == [model(sku="a")]
    assert bench.outcomes == [Outcome.SUCCEEDED, Outcome.DEDUPLICATED, Outcome.DEAD_LETTERED]


def test_model_is_taken_where_nothing_is_sent(takes_models):
    task, model, seen = takes_models

    task.apply((1, model(sku="a")), throw=True)

    assert seen == [model(sku="a")]
