"""
Publishing after COMMIT: what a rollback takes back is never sent, and what the caller got wrong is told to the caller.

Real databases, and messages on kombu's memory broker. Where Celery's own on-commit methods lose something, the same is
shown with them.
"""

import contextlib
import json
import logging
import uuid

import pytest
from celery import Celery, _state, chain, chord, group, shared_task
from celery.contrib.django.task import DjangoTask
from django.db import transaction
from django.db.transaction import TransactionManagementError
from kombu.exceptions import EncodeError
from kombu.transport import memory

import celery_safeguards
from celery_safeguards import EntityLock, Idempotent, Safeguards
from celery_safeguards import headers as h
from celery_safeguards.errors import KeyRefused
from django_celery_safeguards import SafeTask, publish_on_commit
from tests.support import databases
from tests.support.bench import Bench


class RolledBack(Exception):
    pass


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace)) as bench:
        yield bench


@pytest.fixture
def ship(bench):
    """A task with the key `op:{number}`."""
    key = Idempotent("op:{number}", on_unknown="rerun")
    return bench.task(lambda self, number, lines=(): [number, *lines], Safeguards(idempotent=key), base=SafeTask)


@pytest.fixture
def celerys_ship(bench):
    """The same task as Celery's own class has it."""

    def body(number, lines=()):
        return [number, *lines]

    task = bench.app.task(body, base=DjangoTask, name=f"{bench.app.main}.ship", shared=False)
    return bench.app.tasks[task.name]


@pytest.fixture
def broker_away(bench, monkeypatch):
    """Have the broker cut off whoever publishes."""
    bench.app.conf.task_publish_retry = False

    def cut_off(*_args, **_kwargs):
        raise ConnectionResetError("cut off")

    @contextlib.contextmanager
    def broker_away():
        with monkeypatch.context() as broken:
            broken.setattr(memory.Channel, "_put", cut_off)
            yield

    return broker_away


def rolled_back(alias):
    """A transaction that ends in a rollback."""
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.suppress(RolledBack))
    stack.enter_context(transaction.atomic(using=alias))
    stack.callback(_roll_back)
    return stack


def _roll_back():
    raise RolledBack


# --- when


def test_id_is_known_at_once_and_is_that_of_the_message(bench, ship, alias):
    """An order could not be stored with the id of the task that ships it (celery/celery#8976)."""
    with transaction.atomic(using=alias):
        result = ship.apply_async_on_commit((7,), using=alias)
        assert 0 == bench.waiting()

    delivered = bench.deliver()
    assert (result.id, "SUCCESS") == (delivered.task_id, delivered.state)
    assert [7] == result.get()


def test_nothing_is_published_after_a_rollback(bench, ship, alias):
    """A task would run for an order that does not exist."""
    with rolled_back(alias):
        ship.apply_async_on_commit((7,), using=alias)

    assert 0 == bench.waiting()


def test_nothing_is_published_after_the_rollback_of_a_savepoint(bench, ship, alias):
    """The order that was taken back would be shipped beside the one that was kept."""
    with transaction.atomic(using=alias):
        with rolled_back(alias):
            ship.apply_async_on_commit((7,), using=alias)
        kept = ship.apply_async_on_commit((8,), using=alias)

    assert [kept.id] == [each.task_id for each in bench.drain()]


def test_outside_a_transaction_it_is_published_at_once(bench, ship, alias):
    """A view without a transaction would wait for a COMMIT that never comes."""
    result = ship.apply_async_on_commit((7,), using=alias)

    assert [result.id] == [each.task_id for each in bench.drain()]


def test_delay_waits_for_the_default_database(bench, ship):
    """`delay_on_commit` has no room for an alias among the task's own arguments."""
    with transaction.atomic():
        result = ship.delay_on_commit(7, lines=["a"])
        assert 0 == bench.waiting()

    assert [[7, "a"]] == [each.result for each in bench.drain()]
    assert [7, "a"] == result.get()


def test_the_named_database_decides(bench, ship, celerys_ship, alias):
    """Published while its own transaction is open, the task reads what is not there (getsentry/sentry PR#89284)."""
    with transaction.atomic(using=alias):
        ship.apply_async_on_commit((7,), using=alias)
        assert 0 == bench.waiting()
        celerys_ship.apply_async_on_commit((7,))
        assert 1 == bench.waiting()
        with rolled_back("default"):
            ship.apply_async_on_commit((8,), using=alias)

    assert 3 == bench.waiting()


def test_without_autocommit_and_without_a_transaction_it_is_refused(bench, ship, alias):
    """Nobody tells Django of such a COMMIT: the message would wait for ever, or come too early."""
    transaction.set_autocommit(False, using=alias)
    try:
        with pytest.raises(TransactionManagementError):
            ship.apply_async_on_commit((7,), using=alias)
    finally:
        transaction.rollback(using=alias)
        transaction.set_autocommit(True, using=alias)

    assert 0 == bench.waiting()


# --- what


@pytest.mark.parametrize(
    ("args", "kwargs", "error"),
    [((None,), {}, KeyRefused), ((7,), {"weight": 3}, KeyRefused), ((7,), {"lines": [object()]}, KeyRefused)],
)
def test_a_call_without_a_stable_key_is_refused_where_it_is_made(bench, ship, alias, args, kwargs, error):
    """After COMMIT nobody would see it but the log, and the order stay unshipped."""
    with transaction.atomic(using=alias), pytest.raises(error):
        ship.apply_async_on_commit(args, kwargs, using=alias)

    assert 0 == bench.waiting()


def test_a_lock_without_a_name_is_refused_where_it_is_made(bench, alias):
    """As a key that is missing."""
    safeguards = Safeguards(repeatable=True, lock=EntityLock("order:{number}"))
    task = bench.task(lambda self, number=None: number, safeguards, base=SafeTask)

    with transaction.atomic(using=alias), pytest.raises(KeyRefused):
        task.apply_async_on_commit(using=alias)


def test_arguments_that_do_not_fit_are_refused_where_they_are_given(bench, alias):
    """A task without a key has only Celery's check, which comes with the publish: after COMMIT."""
    task = bench.task(lambda self, number: number, Safeguards(repeatable=True), base=SafeTask)

    with transaction.atomic(using=alias), pytest.raises(TypeError, match="number"):
        task.apply_async_on_commit((), using=alias)
    with transaction.atomic(using=alias), pytest.raises(EncodeError):
        task.apply_async_on_commit((object(),), using=alias)

    assert 0 == bench.waiting()


def test_arguments_are_those_of_the_call(bench, ship, celerys_ship, alias):
    """What a view does with its list afterwards would be shipped as well, under the key and digest of the old one."""
    lines, celerys_lines = ["a"], ["a"]
    with transaction.atomic(using=alias):
        ship.apply_async_on_commit((7,), {"lines": lines}, using=alias)
        lines.append("b")
    with transaction.atomic():
        celerys_ship.delay_on_commit(7, lines=celerys_lines)
        celerys_lines.append("b")

    assert [7, "a"] == bench.deliver().result
    assert ["a", "b"] == json.loads(bench.receive().body)[1]["lines"]


def test_message_is_the_one_that_a_plain_publish_sends(bench, ship, alias):
    """A duplicate that was published the other way would count as another payload."""
    ship.apply_async((7,), {"lines": ["a"]})
    with transaction.atomic(using=alias):
        ship.apply_async_on_commit((7,), {"lines": ("a",)}, using=alias, headers={"tenant": "acme"})

    plain, after_commit = bench.receive(), bench.receive()
    ours = (h.KEY, h.FINGERPRINT, h.EPOCH, h.VERSION, "argsrepr")
    assert {name: plain.headers[name] for name in ours} == {name: after_commit.headers[name] for name in ours}
    assert "acme" == after_commit.headers["tenant"]


def test_models_are_sent_as_by_a_plain_publish(bench, alias):
    """Celery sends pydantic's models as their data, from 5.7 on; after COMMIT nobody could send them otherwise."""
    pydantic = pytest.importorskip("pydantic")
    if not hasattr(SafeTask, "_dump_pydantic_arguments"):
        pytest.skip("models are sent as they are from celery 5.7 on")
    model, seen = pydantic.create_model("Order", sku=(str, ...)), []

    def body(self, number, order):
        seen.append(order)

    body.__annotations__ = {"order": model}
    key = Idempotent("op:{number}", on_unknown="rerun")
    task = bench.task(body, Safeguards(idempotent=key), base=SafeTask, pydantic=True)

    with transaction.atomic(alias):
        task.apply_async_on_commit((1, model(sku="a")), using=alias)
    task.delay(1, model(sku="a"))

    assert [each.state for each in bench.drain()] == ["SUCCESS", "SUCCESS"]
    assert seen == [model(sku="a")]


@pytest.mark.parametrize(("broker", "name"), [("amqp://", "message_id"), ("sqs://", "MessageDeduplicationId")])
def test_broker_is_told_the_operation_as_by_a_plain_publish(bench, ship, alias, monkeypatch, broker, name):
    """SQS would deliver a second publish of it, and RabbitMQ's people could not find it by its name."""
    sent = []
    monkeypatch.setattr(bench.app.amqp, "send_task_message", lambda *_, **options: sent.append(options))
    with bench.app.producer_or_acquire() as producer:
        monkeypatch.setattr(bench.app.conf, "broker_write_url", broker)
        ship.apply_async((7,), producer=producer, queue="orders.fifo")
        with transaction.atomic(using=alias):
            ship.apply_async_on_commit((7,), using=alias, producer=producer, queue="orders.fifo")

    plain, after_commit = sent
    assert plain[name] == after_commit.get(name)


def test_a_teams_own_apply_async_is_passed_through(bench, alias):
    """What it adds to each message would be missing from those after COMMIT (maciej-gol/tenant-schemas-celery#133)."""

    class TenantTask(SafeTask):
        abstract = True

        def apply_async(self, args=None, kwargs=None, task_id=None, **options):
            options["headers"] = {**(options.get("headers") or {}), "tenant": "acme"}
            return super().apply_async(args, kwargs, task_id, **options)

    key = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))
    task = bench.task(lambda self, number: number, key, base=TenantTask)

    with transaction.atomic(using=alias):
        task.apply_async_on_commit((7,), using=alias)

    message = bench.receive()
    assert ("acme", "op:7") == (message.headers["tenant"], message.headers[h.KEY])


# --- a broker that refuses after COMMIT


def test_a_refused_message_becomes_a_letter_and_later_hooks_run(bench, ship, alias, broker_away, caplog):
    """The transaction is committed: an exception would lose the hooks behind it, and tell a caller it had failed."""
    ran = []
    with broker_away(), caplog.at_level(logging.ERROR), transaction.atomic(using=alias):
        result = ship.apply_async_on_commit((7,), using=alias)
        transaction.on_commit(lambda: ran.append("later"), using=alias)

    [letter] = bench.all_letters()
    assert ["later"] == ran
    assert (result.id, "op:7", False) == (letter.task_id, letter.key, letter.effect_possible)
    assert f"{result.id}] is committed and was not published: dead letter {letter.id}" in caplog.text


def test_celerys_own_loses_what_the_broker_refuses_and_the_hooks_behind_it(celerys_ship, broker_away):
    """What the test above would be without this package."""
    ran = []

    def order():
        with broker_away(), transaction.atomic():
            celerys_ship.delay_on_commit(7)
            transaction.on_commit(lambda: ran.append("later"))

    with pytest.raises(Exception, match="cut off"):
        order()

    assert [] == ran


def test_a_letter_that_cannot_be_written_is_told(bench, ship, alias, broker_away, caplog):
    """The message is lost, and somebody must know."""
    ran = []
    with broker_away(), caplog.at_level(logging.ERROR), transaction.atomic(using=alias):
        result = ship.apply_async_on_commit((7,), using=alias)
        bench.letters.pull(60)
        transaction.on_commit(lambda: ran.append("later"), using=alias)

    assert ["later"] == ran
    assert f"{result.id}] is committed and was not published, nor could its letter be written" in caplog.text


def test_outside_a_transaction_a_refusal_is_the_callers(bench, ship, alias, broker_away):
    """Nothing is committed yet: the caller can still decide."""
    with broker_away(), pytest.raises(Exception, match="cut off"):
        ship.apply_async_on_commit((7,), using=alias)

    assert () == bench.all_letters()


# --- signatures and canvas


def test_a_signature_is_published_under_the_id_that_was_told(bench, ship, alias):
    """The id of a canvas would be known to nobody before COMMIT."""
    with transaction.atomic(using=alias):
        result = publish_on_commit(ship.s(7, lines=["a"]), using=alias)
        assert 0 == bench.waiting()

    assert [(result.id, [7, "a"])] == [(each.task_id, each.result) for each in bench.drain()]


def test_every_part_of_a_canvas_has_the_id_that_was_told(bench, ship, alias):
    """Whoever waits for the result would wait for another task."""
    bench.app.set_current()
    last = bench.task(lambda self, value=None: value, Safeguards(repeatable=True), base=SafeTask)
    with transaction.atomic(using=alias):
        in_a_row = publish_on_commit(chain(ship.s(1), last.s()), using=alias)
        beside = publish_on_commit(group(ship.s(number) for number in (2, 3)), using=alias)
        joined = publish_on_commit(chord([ship.s(4), ship.s(5)], last.s()), using=alias)
        assert 0 == bench.waiting()

    ran = {each.task_id: each.result for each in bench.drain()}
    assert ([1], [[2], [3]]) == (in_a_row.get(), [each.get() for each in beside.results])
    assert {in_a_row.id, in_a_row.parent.id, joined.id, *(each.id for each in beside.results)} <= set(ran)
    assert [[4], [5]] == sorted(ran[joined.id])


def test_nothing_of_a_canvas_is_published_after_a_rollback(bench, ship, alias):
    """A group whose order was taken back would run."""
    with rolled_back(alias):
        publish_on_commit(group(ship.s(number) for number in (2, 3)), using=alias)

    assert 0 == bench.waiting()


@pytest.mark.parametrize("form", ["signature", "chain", "group", "chord"])
def test_a_canvas_whose_first_task_has_no_key_is_refused_where_it_is_made(bench, ship, alias, form):
    """As a single call is."""
    parts = [ship.s(7), ship.s(None)]
    canvas = {
        "signature": lambda: ship.s(None),
        "chain": lambda: chain(ship.s(None), ship.s()),
        "group": lambda: group(parts),
        "chord": lambda: chord(group(parts), ship.s()),
    }[form]()

    with transaction.atomic(using=alias), pytest.raises(KeyRefused):
        publish_on_commit(canvas, using=alias)

    assert 0 == bench.waiting()


def test_arguments_of_a_signature_are_those_of_the_call(bench, ship, alias):
    """As those of a single call are."""
    lines = ["a"]
    signature = ship.s(7, lines)
    with transaction.atomic(using=alias):
        publish_on_commit(signature, using=alias)
        lines.append("b")

    assert [7, "a"] == bench.deliver().result
    assert "task_id" not in signature.options


@pytest.mark.parametrize("form", ["chain", "group of chains", "chain to a chord"])
def test_a_canvas_is_published_by_the_app_of_its_tasks(bench, ship, alias, form):
    """In a project of two apps a chain went to the other one's broker, without its key."""
    parts = [ship.si(1), ship.si(2)]
    canvas = {
        "chain": lambda: chain(parts),
        "group of chains": lambda: group([chain(parts)]),
        "chain to a chord": lambda: chain(ship.si(1), group(ship.si(2), ship.si(3)), ship.si(4)),
    }[form]()

    with transaction.atomic(using=alias):
        publish_on_commit(canvas, using=alias)

    assert "op:1" == bench.receive().headers[h.KEY]


@pytest.mark.parametrize("form", ["signature", "chain", "group"])
def test_a_signature_is_encoded_as_its_task_says(bench, alias, form):
    """A call that `apply_async` takes would be refused: a set is none of JSON's."""
    safeguards = Safeguards(repeatable=True)
    task = bench.task(lambda self, numbers: len(numbers), safeguards, base=SafeTask, serializer="pickle")
    parts = [task.si({1, 2}), task.si({3})]
    canvas = {"signature": parts[0], "chain": chain(parts), "group": group(parts)}[form]

    with transaction.atomic(using=alias):
        publish_on_commit(canvas, using=alias)

    assert len(parts) - (form != "group") == bench.waiting()


# --- how it is declared


def test_it_is_what_celery_makes_of_a_task_in_a_django_project(ship):
    """Code that asks for Celery's class would not find its methods."""
    assert isinstance(ship, DjangoTask)
    assert isinstance(ship, celery_safeguards.SafeTask)


def test_it_can_be_named_for_a_whole_app_or_a_shared_task(monkeypatch):
    """Teams name it where they have named Celery's class."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    with Celery(f"t{uuid.uuid4().hex}", task_cls="django_celery_safeguards:SafeTask", set_as_current=False) as app:

        @app.task(shared=False)
        def by_app():
            pass

        @shared_task(base=SafeTask, name=f"{app.main}.shared")
        def by_name():
            pass

        assert isinstance(app.tasks[by_app.name], SafeTask)
        assert isinstance(app.tasks[f"{app.main}.shared"], SafeTask)


def test_it_can_be_imported_without_a_project(run_python):
    """A project's Celery module is imported before its apps are ready, and often before its settings are."""
    code = "from django_celery_safeguards import SafeTask; from django.conf import settings; print(settings.configured)"

    assert "False\n" == run_python(code)


def test_a_named_database_must_exist(ship):
    """A typing error would publish at once."""
    with pytest.raises(Exception, match="nowhere"):
        ship.apply_async_on_commit((7,), using="nowhere")


def test_two_databases_keep_their_messages_apart(bench, ship, tmp_path):
    """The COMMIT of one would publish for the other, whose rollback may follow."""
    with (
        databases.added("east", databases.sqlite(tmp_path / "east.sqlite3")) as east,
        databases.added("west", databases.sqlite(tmp_path / "west.sqlite3")) as west,
    ):
        with rolled_back(west):
            with transaction.atomic(using=east):
                kept = ship.apply_async_on_commit((1,), using=east)
                ship.apply_async_on_commit((2,), using=west)
            assert 1 == bench.waiting()

        assert [kept.id] == [each.task_id for each in bench.drain()]
