"""
Rows that carry a fencing token, in real databases: a late owner's write is refused, whatever else it may still do.
"""

import contextlib
import threading
from types import SimpleNamespace

import pytest
from celery import Celery
from django.db import connections, models, transaction
from django.db.models import F

from celery_safeguards import EntityLock, hold
from celery_safeguards.errors import ConfigurationError, FencedOut, LockLost
from celery_safeguards.wiring import Wiring
from django_celery_safeguards import fenced_enter, fenced_update
from tests.support.waiting import wait_until

LAPSES = EntityLock("stock:{sku}", lease_seconds=1, max_hold_seconds=1)
WAITS = EntityLock("stock:{sku}", busy="wait", wait_seconds=10)
PATIENCE_SECONDS = 20
OLD, NEW = SimpleNamespace(token=7), SimpleNamespace(token=8)


class Shelf(models.Model):
    name = models.CharField(max_length=20)

    class Meta:
        app_label = "fenced"

    def __str__(self):
        return self.name


class Stock(models.Model):
    shelf = models.ForeignKey(Shelf, null=True, on_delete=models.CASCADE)
    sku = models.CharField(max_length=20)
    free = models.IntegerField(default=10)
    fence = models.BigIntegerField(default=0)
    maybe = models.BigIntegerField(null=True)

    class Meta:
        app_label = "fenced"

    def __str__(self):
        return self.sku


class Pallet(Stock):
    weight = models.IntegerField(default=0)

    class Meta:
        app_label = "fenced"

    def __str__(self):
        return self.sku


@contextlib.contextmanager
def tables(alias):
    """Two rows in tables of this test."""
    every = (Shelf, Stock, Pallet)
    with connections[alias].schema_editor() as editor:
        for model in every:
            editor.create_model(model)
    rows = Stock.objects.using(alias)
    rows.create(sku="A-1")
    rows.create(sku="A-2")
    try:
        yield rows
    finally:
        with connections[alias].schema_editor() as editor:
            for model in reversed(every):
                editor.delete_model(model)
        connections[alias].close()


@pytest.fixture
def stock(alias):
    with tables(alias) as rows:
        yield rows


def one(stock):
    return stock.filter(sku="A-1")


def free(stock):
    return list(stock.order_by("sku").values_list("free", flat=True))


@pytest.fixture
def app(under_test):
    """A project whose locks are in the same database."""
    with Celery("fenced", set_as_current=False) as app:
        app.conf.update(safeguards_store_url=f"django://{under_test.alias}", safeguards_namespace=under_test.namespace)
        Wiring.of(app).admission.declare_new()
        yield app
        Wiring.of(app).admission.house.connection.close()


# --- two owners


@pytest.mark.parametrize("is_fenced", [True, False])
def test_late_owner_cannot_write_over_its_successor(app, stock, is_fenced):
    """Frozen between its checkpoint and its write, the first owner writes yesterday's count over today's."""

    def write(lock, count):
        if is_fenced:
            fenced_update(one(stock), lock, free=count)
        else:
            one(stock).update(free=count)

    with contextlib.suppress(LockLost, FencedOut), hold(app, LAPSES, sku="A-1") as late:
        write(late, 9)
        with hold(app, WAITS, sku="A-1") as lock:
            write(lock, 5)
        write(late, 8)

    assert [5 if is_fenced else 8, 10] == free(stock)


@pytest.mark.parametrize("enters", [True, False])
def test_successor_that_enters_before_it_reads_loses_nothing(alias, stock, enters):
    """Between its read and its write the late owner's booking would be lost, or be counted twice."""
    has_read, has_tried = threading.Event(), threading.Event()
    refused = []

    def late_owner():
        assert has_read.wait(PATIENCE_SECONDS)
        try:
            fenced_update(one(stock), OLD, free=F("free") - 1)
        except FencedOut:
            refused.append(True)
        finally:
            has_tried.set()
            connections[alias].close()

    late = threading.Thread(target=late_owner)
    late.start()
    if enters:
        fenced_enter(one(stock), NEW)
    seen = one(stock).get().free
    has_read.set()
    assert has_tried.wait(PATIENCE_SECONDS)
    fenced_update(one(stock), NEW, free=seen - 2)
    late.join()

    assert (enters, [8, 10]) == (bool(refused), free(stock))


def is_waiting(alias):
    """Whether a session waits for this thread's."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return cursor.fetchone()[0] > 0


@pytest.mark.postgres
def test_late_owner_waits_for_an_open_transaction_and_is_refused_by_it(postgres_alias):
    """Compared with the row as it was before, the late write would come after the newer one and undo it."""
    alias, found = postgres_alias, []

    def late_owner():
        try:
            found.append(fenced_update(one(stock), OLD, free=0))
        except FencedOut as error:
            found.append(error)
        finally:
            connections[alias].close()

    with tables(alias) as stock:
        late = threading.Thread(target=late_owner)
        with transaction.atomic(using=alias):
            fenced_enter(one(stock), NEW)
            late.start()
            wait_until(lambda: is_waiting(alias), PATIENCE_SECONDS, "the late owner waits for the row")
            fenced_update(one(stock), NEW, free=5)
        late.join()
        assert ([FencedOut], [5, 10]) == ([type(each) for each in found], free(stock))


# --- one owner


def test_owner_may_enter_and_write_as_often_as_it_likes(stock):
    """A lost answer is asked for again: the owner's own second write must not be refused."""
    for count in (9, 8):
        assert 1 == fenced_enter(one(stock), NEW)
        assert 1 == fenced_update(one(stock), NEW, free=count)

    assert [8, 10] == free(stock)


def test_an_older_token_can_neither_enter_nor_write(stock):
    """Entered by the older one, the row would refuse its own owner."""
    fenced_enter(one(stock), NEW)

    with pytest.raises(FencedOut, match="Stock: token 7 is older than 8"):
        fenced_enter(one(stock), OLD)
    with pytest.raises(FencedOut):
        fenced_update(one(stock), OLD, free=0)

    assert (10, 8) == tuple(one(stock).values_list("free", "fence").get())


def test_of_several_rows_all_are_written_or_none(stock):
    """Half of a late owner's work would be done."""
    fenced_enter(one(stock), NEW)

    with pytest.raises(FencedOut):
        fenced_update(stock.all(), OLD, free=0)

    assert [10, 10] == free(stock)
    assert 2 == fenced_update(stock.all(), NEW, free=1)


def test_a_refusal_leaves_the_rest_of_a_transaction_to_its_owner(alias, stock):
    """Who catches it could do nothing more in the transaction."""
    fenced_enter(one(stock), NEW)
    with transaction.atomic(using=alias):
        stock.filter(sku="A-2").update(free=4)
        with pytest.raises(FencedOut):
            fenced_update(one(stock), OLD, free=0)

    assert [10, 4] == free(stock)


def test_no_row_to_enter_is_told_and_none_to_update_is_a_number(stock):
    """A row that is not there protects nothing; a condition that does not hold is an answer."""
    with pytest.raises(Stock.DoesNotExist, match="nothing is protected"):
        fenced_enter(stock.filter(sku="B-1"), NEW)

    assert 0 == fenced_update(one(stock).filter(free__gte=11), NEW, free=F("free") - 11)


def test_a_column_without_a_token_counts_as_never_entered(stock):
    """A nullable column was added to a table with rows."""
    fenced_enter(one(stock), NEW, fence_field="maybe")

    with pytest.raises(FencedOut):
        fenced_update(one(stock), OLD, fence_field="maybe", free=0)


def test_what_cannot_be_compared_in_one_statement_is_refused(stock, alias):
    """The comparison would be made with the row as it was, and a late write pass."""
    with pytest.raises(ConfigurationError, match="own table"):
        fenced_update(stock.filter(shelf__name="left"), NEW, free=0)
    with pytest.raises(ConfigurationError, match="no field 'fenze'"):
        fenced_enter(one(stock), NEW, fence_field="fenze")
    with pytest.raises(ConfigurationError, match="parent's table"):
        fenced_update(Pallet.objects.using(alias), NEW, weight=1)
