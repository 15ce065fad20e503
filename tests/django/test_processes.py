"""
Threads and forked processes: each has a connection of its own, and none outlives its thread.
"""

import asyncio
import os
import threading

import pytest
from billiard.context import ForkContext
from celery import Celery

from celery_safeguards import Idempotent, Safeguards
from celery_safeguards import headers as h
from django_celery_safeguards import SafeTask
from django_celery_safeguards.connection import _Ending
from tests.conformance.admission.calls import KEY, admit, claimed
from tests.support.waiting import wait_until

PROCESSES = 4
THREADS = 8
# The pool of a worker forks as well, with threads in its main process.
may_fork = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def backend_pid(under_test):
    def act(cursor):
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]

    return under_test.house.connection.run(act)


def is_connected(under_test, pid):
    def act(cursor):
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0] == 1

    return under_test.house.connection.run(act)


@pytest.mark.postgres
def test_each_thread_has_a_connection_of_its_own_until_it_ends(on_postgres):
    """Two threads would read each other's answers; a server would fill with connections of threads that are gone."""
    barrier, pids = threading.Barrier(THREADS), []

    def run():
        barrier.wait(10)
        pids.extend(backend_pid(on_postgres) for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (THREADS, 20 * THREADS) == (len(set(pids)), len(pids))
    wait_until(
        lambda: not any(is_connected(on_postgres, pid) for pid in set(pids)), 10, "the threads' connections are closed"
    )


def identity(descriptor):
    """What tells a socket apart, whatever number it has in a process; None: there is none of this number."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def work(under_test, inherited, number, outcome):
    """Run in a forked child."""
    holds_it = inherited in {identity(number) for number in range(256)}
    pids = {backend_pid(under_test) for _ in range(20)}
    outcome.put((holds_it, pids, admit(under_test.store, f"owner-{number}").claimed))
    under_test.house.connection.close()


@may_fork
@pytest.mark.postgres
def test_a_forked_child_does_not_touch_its_parents_connection(on_postgres):
    """Two processes on one socket: answers crossed, and the first child to end closes the parent's session."""
    parents = backend_pid(on_postgres)
    inherited = identity(on_postgres.house.connection.raw().fileno())
    context = ForkContext()
    outcome = context.Queue()

    children = [
        context.Process(target=work, args=(on_postgres, inherited, number, outcome)) for number in range(PROCESSES)
    ]
    for child in children:
        child.start()
    found = [outcome.get(timeout=30) for _ in children]
    for child in children:
        child.join()

    pids = [pid for _, own, _ in found for pid in own]
    assert [0] * PROCESSES == [child.exitcode for child in children]
    assert PROCESSES == len(pids) == len({*pids} - {parents})
    assert [False] * PROCESSES == [holds_it for holds_it, _, _ in found]
    assert 1 == sum(claimed for _, _, claimed in found)
    assert parents == backend_pid(on_postgres)


def claim_in_child(under_test, outcome):
    outcome.put(under_test.store.read(KEY).owner)
    under_test.house.connection.close()


@may_fork
def test_a_forked_child_reads_what_its_parent_wrote(under_test):
    """A pool's child would know nothing of the claims, or break the file that its parent has open."""
    claimed(under_test.store)
    context = ForkContext()
    outcome = context.Queue()

    child = context.Process(target=claim_in_child, args=(under_test, outcome))
    child.start()
    owner = outcome.get(timeout=30)
    child.join()

    assert ("A", 0, "A") == (owner, child.exitcode, under_test.store.read(KEY).owner)


@pytest.mark.postgres
def test_a_connection_that_is_collected_under_an_event_loop_is_closed(on_postgres):
    """An asynchronous server would keep one for each thread that has ended, and log an error for it."""
    own = on_postgres.house.connection
    endings = [_Ending(own._open())]
    pid = endings[0]._opened.wrapper.connection.info.backend_pid
    assert is_connected(on_postgres, pid)

    async def collect():
        endings.clear()

    asyncio.run(collect())

    wait_until(lambda: not is_connected(on_postgres, pid), 20, "the server has seen its end")


def test_a_task_is_published_under_an_event_loop(under_test):
    """`delay` in an asynchronous view: Django lets it ask no database, and twice a minute it asked one."""
    key = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))
    queue, url = under_test.namespace, f"django://{under_test.alias}"
    with Celery(queue, broker="memory://", set_as_current=False) as app:
        app.conf.update(task_default_queue=queue, safeguards_store_url=url, safeguards_namespace=queue)

        @app.task(base=SafeTask, safeguards=key, name=f"{queue}.pay", shared=False)
        def pay(number):
            pass

        async def view():
            pay.delay(7)

        asyncio.run(view())
        with app.connection_for_read() as connection:
            message = connection.SimpleQueue(queue).get(timeout=5)

    assert under_test.store.view().epoch == message.headers[h.EPOCH]


@pytest.mark.postgres
def test_what_was_asked_for_under_an_event_loop_leaves_no_connection(on_postgres):
    """One would be left with each view that publishes."""

    async def view():
        return backend_pid(on_postgres)

    on_postgres.house.connection.close()
    pid = asyncio.run(view())

    wait_until(lambda: not is_connected(on_postgres, pid), 10, "it is closed")
