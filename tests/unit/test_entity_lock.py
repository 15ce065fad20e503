"""An entity lock as a policy: what is refused when it is made or registered, and the name that all tasks agree on."""

import itertools

import pytest
from celery import Celery

from celery_safeguards import EntityLock, Safeguards, SafeTask
from celery_safeguards.errors import ConfigurationError, KeyRefused

BAD = {
    "no template": ({"key": ""}, "key=''"),
    "an expression": ({"key": "order:{order.id}"}, "key='order:{order.id}'"),
    "a scope with the separator": ({"key": "a", "scope": "x#y"}, "EntityLock.scope='x#y'"),
    "no lease": ({"key": "a", "lease_seconds": 0}, "EntityLock.lease_seconds=0: give a number >= 1"),
    "endless": ({"key": "a", "lease_seconds": float("inf")}, "EntityLock.lease_seconds=inf"),
    "a hold below its lease": (
        {"key": "a", "max_hold_seconds": 5},
        "EntityLock.max_hold_seconds=5: give a number >= 30",
    ),
    "an unknown way": ({"key": "a", "busy": "defered"}, "did you mean 'defer'?"),
    "a wait that is none": ({"key": "a", "wait_seconds": 5}, 'wait_seconds=5 needs busy="wait"'),
    "a result that is never returned": ({"key": "a", "skip_result": 1}, 'skip_result=1 needs busy="skip"'),
}


@pytest.mark.parametrize(("given", "says"), BAD.values(), ids=BAD.keys())
def test_a_lock_that_cannot_hold_is_refused_with_field_value_and_fix(given, says):
    """It would fail at three in the morning, in the first task that finds it busy."""
    with pytest.raises(ConfigurationError) as refused:
        EntityLock(**given)

    assert says in str(refused.value)


def test_safeguards_take_a_lock_and_nothing_else():
    """A lock's key alone would be taken for one, and nothing be locked."""
    with pytest.raises(ConfigurationError, match=r"Safeguards.lock='order': give EntityLock\(...\) or None"):
        Safeguards(lock="order")


def test_a_later_value_can_take_the_lock_away():
    """A class that inherits a lock could not be without."""
    locked = Safeguards(repeatable=True, lock=EntityLock("order:{order_id}"))

    assert (locked | Safeguards(lock=None)).lock is None


def test_locks_compare_by_what_they_ask():
    """Two tasks could not share one declared value, and know it."""
    assert EntityLock("order:{n}", busy="wait") == EntityLock("order:{n}", busy="wait")
    assert EntityLock("order:{n}") != EntityLock("order:{n}", scope="shop")


def test_a_field_that_is_no_parameter_is_refused_when_the_task_is_registered():
    """Every message of the task would be refused, one by one."""
    app = Celery(set_as_current=False)

    safeguards = Safeguards(repeatable=True, lock=EntityLock("order:{order}"))

    with pytest.raises(ConfigurationError, match="'order' is no parameter of the task; did you mean 'order_id'"):
        app.task(by_default, name="ship", lazy=False, shared=False, base=SafeTask, safeguards=safeguards)


def test_a_wait_that_the_time_limit_would_end_is_refused_when_the_task_is_registered():
    """The child would be killed while it waits, and start to wait anew, and never be told from poison."""
    app, safeguards = Celery(set_as_current=False), Safeguards(repeatable=True, lock=EntityLock("all", busy="wait"))

    with pytest.raises(ConfigurationError, match=r"EntityLock\(wait_seconds=10\) with time_limit=8"):
        app.task(by_default, name="ship", lazy=False, shared=False, base=SafeTask, safeguards=safeguards, time_limit=8)


@pytest.fixture
def name_of():
    """Return a function that names the lock of a call of a task with a given body and lock."""
    app, numbers = Celery(set_as_current=False), itertools.count()

    def named(lock, body, *args, **kwargs):
        safeguards = Safeguards(repeatable=True, lock=lock)
        task = app.task(
            body, name=f"task-{next(numbers)}", lazy=False, shared=False, base=SafeTask, safeguards=safeguards
        )
        return task.lock_plan.name(args, kwargs)

    return named


def by_default(order_id, part="all"): ...
def by_keyword(*, part, order_id): ...
def with_more(order_id, *others, **named): ...
def after_others(*others, order_id): ...


def test_every_task_that_locks_an_order_names_the_same_lock(name_of):
    """Two tasks on one order would each hold a lock of their own, and overlap."""
    lock = EntityLock("order:{order_id}")

    names = {
        name_of(lock, by_default, 7),
        name_of(EntityLock("order:{order_id}"), by_default, order_id=7),
        name_of(EntityLock("order:{order_id}", lease_seconds=60), by_keyword, part=1, order_id=7),
        name_of(EntityLock("order:{order_id}", busy="skip"), with_more, 7, 8, 9, more=1),
        name_of(lock, after_others, 1, 2, 3, 4, order_id=7),
    }

    assert names == {"order:7"}


def test_a_default_is_part_of_the_name(name_of):
    """A call that leaves it out would lock something else than one that gives it."""
    lock = EntityLock("order:{order_id}:{part}")

    assert name_of(lock, by_default, 7) == 'order:7:"all"'


def test_a_scope_separates_equal_keys(name_of):
    """An order's shipment and its invoice could not be locked apart."""
    assert name_of(EntityLock("order:{order_id}", scope="invoice"), by_default, 7) == "invoice#order:7"


def test_a_lock_without_a_field_is_one_for_all_calls(name_of):
    """A nightly report could not be kept from overlapping itself."""
    assert name_of(EntityLock("nightly-report"), by_default, 7) == "nightly-report"


@pytest.mark.parametrize("order_id", [None, "", float("nan"), object()], ids=["none", "empty", "nan", "object"])
def test_a_call_that_names_no_entity_is_refused_at_publish(name_of, order_id):
    """All calls without an order would wait for each other, or none for any."""
    with pytest.raises(KeyRefused, match="order_id"):
        name_of(EntityLock("order:{order_id}"), by_default, order_id)


def test_arguments_that_do_not_fit_are_refused_at_publish(name_of):
    """The worker would find out, where nobody looks."""
    with pytest.raises(KeyRefused):
        name_of(EntityLock("order:{order_id}"), by_default)


def test_a_very_long_name_is_bounded_and_still_its_own(name_of):
    """A megabyte of text would be sent with each renewal."""
    lock = EntityLock("order:{order_id}")
    names = {
        name_of(lock, by_default, "x" * 100_000),
        name_of(EntityLock("order:{order_id}"), by_default, "x" * 99_999),
    }

    assert len(names) == 2
    assert max(map(len, names)) <= 512
