"""
The stores of replay jobs against their contract, and what is true of Redis and of tables alone.
"""

from collections import Counter

import pytest
from billiard.context import ForkContext

from celery_safeguards._redis import Client, Keys
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.jobs.redis import RedisJobStore
from celery_safeguards.jobs.refusals import JobUnderWay, JobUnreadable
from celery_safeguards.jobs.steps import declared, taken
from tests.conformance import stores
from tests.conformance.deadletter_contract import NOON
from tests.conformance.jobs_contract import LEASE_SECONDS, ReplayJobContract, job, picked
from tests.support.sockets import Cutter, free_port


@pytest.fixture(params=stores.ALL)
def jobs(request):
    with stores.opened(request, request.param) as under_test:
        yield under_test.jobs


class TestJobStores(ReplayJobContract):
    pass


# --- processes

PROCESSES, ROUNDS = 4, 25
# The pool of a worker forks as well, with threads in its main process.
may_fork = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def make_jobs(under_test, number, barrier, outcome):
    """Run in a forked child: make a job of each group, all children at the same instant."""
    for group in range(ROUNDS):
        made = job(f"j-{group}-{number}", fingerprint=f"{group:032}")
        barrier.wait(30)
        try:
            under_test.jobs.create(made, picked())
        except JobUnderWay as error:
            outcome.put((group, error.job_id, False))
        else:
            outcome.put((group, made.id, True))
    if hasattr(under_test, "house"):
        under_test.house.connection.close()


@may_fork
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("redis", marks=pytest.mark.redis),
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
    ],
)
def test_of_processes_that_make_a_job_of_one_group_at_once_one_does(request, name):
    """Two web processes have no lock in common but the store's: two jobs would send each letter of a group twice."""
    context = ForkContext()
    with stores.opened(request, name) as under_test:
        under_test.jobs.list()
        barrier, outcome = context.Barrier(PROCESSES), context.Queue()
        children = [
            context.Process(target=make_jobs, args=(under_test, number, barrier, outcome))
            for number in range(PROCESSES)
        ]
        for child in children:
            child.start()
        found = [outcome.get(timeout=60) for _ in range(PROCESSES * ROUNDS)]
        for child in children:
            child.join()
        kept = Counter(each.fingerprint for each in under_test.jobs.list(1000).jobs)

    assert [child.exitcode for child in children] == [0] * PROCESSES
    assert kept == {f"{group:032}": 1 for group in range(ROUNDS)}
    # All are told of the same one.
    assert len({(group, job_id) for group, job_id, _ in found}) == ROUNDS
    assert sum(is_made for _, _, is_made in found) == ROUNDS
    assert len({job_id.rpartition("-")[2] for _, job_id, is_made in found if is_made}) > 1


# --- Redis


def redis_store(url, namespace):
    return RedisJobStore(Client(url, timeout_seconds=5), Keys(namespace))


@pytest.fixture
def redis_jobs(redis_url, namespace):
    store = redis_store(redis_url, namespace)
    yield store
    store._client.close()


@pytest.fixture
def cut_store(redis_url, namespace):
    """A store behind a proxy, its scripts known to the server."""
    with Cutter(redis_url) as cutter:
        store = redis_store(cutter.url, namespace)
        store.create(job("warm"), picked())
        store.change("warm", taken("r", NOON, LEASE_SECONDS))
        yield store, cutter
        store._client.close()


@pytest.mark.redis
def test_a_creation_whose_answer_is_lost_is_made_once(cut_store):
    """The client sends the script again: it must not find its own job in the way, nor keep every letter twice."""
    store, cutter = cut_store
    cutter.lose_next_answer(b"EVALSHA")

    store.create(job(fingerprint="f" * 32), picked())

    assert cutter.lost_answers == 1
    assert store.picked("j-1", 0) == picked()
    assert list(store.picked("j-1", 1)) == []


@pytest.mark.redis
def test_a_change_whose_answer_is_lost_is_made(cut_store):
    """A runner would be told that somebody else has its job: itself."""
    store, cutter = cut_store
    cutter.lose_next_answer(b"by bob")

    changed = store.change("warm", declared("paused", "bob", NOON))

    assert cutter.lost_answers == 1
    assert changed == store.get("warm")
    assert changed.status == "paused"


@pytest.mark.redis
def test_a_damaged_job_does_not_hide_the_others(redis_jobs, redis_client, namespace):
    redis_jobs.create(job(), picked())
    redis_jobs.create(job("j-2"), picked())
    redis_client.hset(Keys(namespace).job("j-1"), "job", '{"status": "sleeping"}')

    page = redis_jobs.list()

    assert ([each.id for each in page.jobs], page.unreadable) == (["j-2"], ("j-1",))
    with pytest.raises(JobUnreadable):
        redis_jobs.get("j-1")


@pytest.mark.redis
def test_everything_of_jobs_is_kept_under_the_namespace(redis_jobs, redis_client, namespace):
    """A key outside the prefix is refused by an access list, and lands in another slot of a cluster."""
    redis_jobs.create(job(fingerprint="f" * 32), picked())

    keys = Keys(namespace)
    kept = {keys.jobs, keys.job("j-1"), keys.job_letters("j-1"), keys.job_of_group("f" * 32)}
    assert kept == set(redis_client.scan_iter(f"*{namespace}*"))


@pytest.mark.redis
def test_of_jobs_that_are_purged_nothing_is_kept(redis_jobs, redis_client, namespace):
    """A key for each replay there ever was is a leak that is found after years."""
    for number in range(3):
        redis_jobs.create(job(f"j-{number}", fingerprint=f"{number}" * 32), picked())
        redis_jobs.change(f"j-{number}", declared("cancelled", "bob", NOON))

    assert redis_jobs.purge(NOON + 1, 10) == 3
    assert set(redis_client.scan_iter(f"*{namespace}*")) == set()


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.create(job(), picked()),
        lambda store: store.get("j-1"),
        lambda store: store.list(),
        lambda store: store.change("j-1", taken("r", NOON, LEASE_SECONDS)),
        lambda store: store.picked("j-1", 0),
    ],
    ids=["create", "get", "list", "change", "picked"],
)
def test_an_absent_server_is_store_unavailable(call):
    with pytest.raises(StoreUnavailable):
        call(redis_store(f"redis://127.0.0.1:{free_port()}/0", "ns"))
