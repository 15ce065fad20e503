"""
What the safeguards know is apart from the user's transactions, and costs no connection where nothing is asked.
"""

import contextlib

import pytest
from django.db import DatabaseError, connections, transaction

from celery_safeguards.conf import Settings
from celery_safeguards.ledger.record import State
from django_celery_safeguards.models import DeadLetter, StartCount
from django_celery_safeguards.stores import open_stores
from tests.conformance.admission.calls import DONE, DYING, KEY, claimed
from tests.conformance.deadletter_contract import letter


class BodyFailed(Exception):
    pass


def users_row(under_test):
    """What a task's body writes beside the safeguards."""
    return StartCount(id="u" * 64, namespace=under_test.namespace, task_id="user", count=1, expires_us=0)


@pytest.mark.postgres
def test_an_outcome_outlives_the_rollback_of_the_body(on_postgres):
    """The work would run again, or a retry begin at its first attempt."""
    alias = on_postgres.alias
    with contextlib.suppress(BodyFailed), transaction.atomic(using=alias):
        users_row(on_postgres).save(using=alias)
        record = claimed(on_postgres.store)
        on_postgres.store.settle(KEY, record, State.IN_PROGRESS, DONE)
        on_postgres.letters.bury(letter())
        on_postgres.starts.begin("t-1", 3)
        raise BodyFailed

    assert not StartCount.objects.using(alias).filter(id="u" * 64).exists()
    assert State.DONE is on_postgres.store.read(KEY).state
    assert (letter(), 1) == (on_postgres.letters.get("l-1"), on_postgres.starts.read("t-1"))


def test_a_claim_outlives_the_rollback_of_a_body_that_writes(under_test):
    """The start would be forgotten, and a task that kills its process be started for ever."""
    record = claimed(under_test.store)
    with contextlib.suppress(BodyFailed), transaction.atomic(using=under_test.alias):
        users_row(under_test).save(using=under_test.alias)
        raise BodyFailed

    under_test.store.settle(KEY, record, State.IN_PROGRESS, DYING)

    assert State.DYING is under_test.store.read(KEY).state


@pytest.mark.postgres
def test_the_store_works_while_the_users_transaction_is_aborted(on_postgres):
    """A failure inside `atomic()` could not be recorded by the very task that failed."""
    alias = on_postgres.alias
    with contextlib.suppress(DatabaseError), transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor, contextlib.suppress(DatabaseError):
            cursor.execute("SELECT 1 FROM no_such_table")
        with connections[alias].cursor() as cursor, pytest.raises(DatabaseError, match="aborted"):
            cursor.execute("SELECT 1")

        record = claimed(on_postgres.store)
        on_postgres.store.settle(KEY, record, State.IN_PROGRESS, DONE)

    assert State.DONE is on_postgres.store.read(KEY).state


@pytest.mark.postgres
def test_nothing_is_connected_to_before_something_is_asked(fresh_postgres):
    """Each worker child would hold a connection for tasks that need none."""
    alias, server = fresh_postgres
    stores = open_stores(Settings(store_url=f"django://{alias}"))
    assert [] == server.backends()

    stores.admission.view()

    assert 1 == len(server.backends())
    stores.admission.house.connection.close()


def test_closing_the_projects_connections_leaves_the_safeguards_own(under_test):
    """Celery closes them around each task: every task would connect anew."""
    before = under_test.house.connection.raw()

    connections.close_all()

    assert before is under_test.house.connection.raw()
    claimed(under_test.store)


def test_rows_can_be_found_by_what_people_search_for(under_test):
    """Lists would show digests."""
    under_test.letters.bury(letter(key="payment:\x00" + "7" * 500, group_id="g-1"))

    row = DeadLetter.objects.using(under_test.alias).get(namespace=under_test.namespace)

    assert ("open", "shop.charge", "bug", "g-1", "l-1") == (row.state, row.task, row.kind, row.group, row.letter_id)
    assert row.key.startswith("payment:\ufffd777")
    assert row.first_failed_us < row.last_failed_us
