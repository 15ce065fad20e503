"""
Claim and outcome, again and again: through the store, and as the same statements without it.

What is said without the store is what the store was heard to say, with the ids of another key in it. psycopg prepares
its statements by itself, as the safeguards' connection does; Django's cursors do not.
"""

import time
import uuid
from contextlib import contextmanager

import psycopg
from django.db import connection, transaction

from celery_safeguards.admission.store import Change, RecordKey
from celery_safeguards.clock import to_us
from celery_safeguards.conf import Settings
from celery_safeguards.ledger.record import Record, State
from django_celery_safeguards.stores import open_stores

PATIENCE_SECONDS = 60
RETENTION_SECONDS = 604_800.0
EFFECT = "INSERT INTO effects (number) VALUES (7)"
FIELDS = {"attempt": 1, "lost_starts": 1, "task_id": uuid.uuid4().hex, "series": (uuid.uuid4().hex,)}
START = Change(
    fields={"state": State.IN_PROGRESS, "asking": False, **FIELDS},
    after_seconds={"series_began_us": 0.0},
    retention_seconds=RETENTION_SECONDS,
)
DONE = Change(fields={"state": State.DONE, "result": "42", "lost_starts": 0}, retention_seconds=RETENTION_SECONDS)


@contextmanager
def heard(wrapper):
    """Yield the list of what a connection is told from here on, as `(statement, values)`."""
    told = []

    def note(execute, sql, params, many, context):
        told.append((sql, list(params or ())))
        return execute(sql, params, many, context)

    with wrapper.execute_wrapper(note):
        yield told


def variants(url):
    """Return by name a function that does one pair."""
    store = open_stores(Settings(store_url="django://default", namespace="bench-pairs")).admission
    store.declare_new()

    def orm(name=None):
        owner = name or uuid.uuid4().hex
        key = RecordKey("bench.charge", f"payment:{owner}")
        record = store.admit(key, owner, START, unproven=True, epoch=None).record
        store.settle(key, record, State.IN_PROGRESS, DONE)
        return record

    def atomic(name=None):
        owner = name or uuid.uuid4().hex
        key, work = RecordKey("bench.charge", f"payment:{owner}"), store.transaction()
        seen = work.begin(key)
        with connection.cursor() as cursor:
            cursor.execute(EFFECT)
        record = Record(state=State.DONE).having(**FIELDS, result="42", owner=owner, fence=seen.now_us, rev=1)
        work.write(key, record, seen.now_us + to_us(RETENTION_SECONDS))
        work.commit()

    orm()
    return {"orm": orm, "raw": raw(url, store, orm), "atomic": atomic, "raw_transaction": raw_transaction(atomic)}


def raw(url, store, orm):
    name = uuid.uuid4().hex
    with heard(store.house.connection.wrapper()) as told:
        record = orm(name)
    (claim, claim_values), (outcome, outcome_values) = told
    id_ = claim_values[0]
    cursor = psycopg.connect(url, autocommit=True).cursor()

    def pair():
        names = {id_: uuid.uuid4().hex * 2, name: uuid.uuid4().hex}
        fence = cursor.execute(claim, changed(claim_values, names)).fetchone()[0]
        cursor.execute(outcome, changed(outcome_values, {**names, record.fence: fence})).fetchone()

    return pair


def raw_transaction(atomic):
    name = uuid.uuid4().hex
    with heard(connection) as told:
        atomic(name)
    (claim, (lock, id_)), _, (outcome, outcome_values) = told

    def pair():
        names = {id_: uuid.uuid4().hex * 2, lock: uuid.uuid4().int >> 66, name: uuid.uuid4().hex}
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(claim, changed([lock, id_], names))
            cursor.fetchone()
            cursor.execute(EFFECT)
            cursor.execute(outcome, changed(outcome_values, names))

    return pair


def changed(values, names):
    return [names.get(value, value) for value in values]


def work(url, rounds, seconds, barrier, answers):
    """Be one of the processes: in each round each variant for some seconds, all processes the same one at a time."""
    of_this_process = variants(url)
    for round_number in range(rounds + 1):
        for name, pair in of_this_process.items():
            barrier.wait(PATIENCE_SECONDS)
            pairs, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                pair()
                pairs += 1
            answers.put((round_number, name, pairs / (time.perf_counter() - began)))
