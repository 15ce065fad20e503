"""
A Redis that fails over: its clients stay connected to the old primary, which is a replica now and takes no write.

The reports: a read-only replica is an error without an end, or the wrong node is written to (oss-aspen/8Knot#361,
jazzband/django-redis#616, celery/celery#6348, celery/kombu#1004).
"""

import contextlib
import uuid

import pytest
from celery import Celery

from celery_safeguards import Safeguards, SafeTask
from celery_safeguards._redis import Client, Keys
from celery_safeguards.admission.redis import RedisAdmissionStore
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.errors import StoreUnavailable
from tests.support import apps
from tests.support.servers import redis_server
from tests.support.sockets import HOST, Cutter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis


class Pair:
    """A primary and its replica behind one address."""

    def __init__(self, primary, replica, address):
        self.primary, self.replica, self.address = primary, replica, address

    def fail_over(self):
        """Make the replica the primary, and the other way round; whoever is connected stays where they are."""
        with self.replica.client() as new, self.primary.client() as old:
            new.replicaof("NO", "ONE")
            old.replicaof(HOST, self.replica.port)
        self.address._target = (HOST, self.replica.port)


@pytest.fixture
def pair(tmp_path):
    """A replica that has all its primary has."""
    with (
        redis_server(tmp_path=tmp_path) as primary,
        redis_server(tmp_path=tmp_path) as replica,
        Cutter(primary.url) as address,
    ):
        with replica.client() as client:
            client.replicaof(HOST, primary.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", 20, "the replica follows")
        yield Pair(primary, replica, address)


@pytest.fixture
def store(pair):
    """A store of records at the address of the pair."""
    client = Client(pair.address.url, 2.0)
    with contextlib.closing(client):
        store = RedisAdmissionStore(client, Keys(f"t{uuid.uuid4().hex[:8]}"), 30.0)
        store.declare_new()
        yield store


def test_store_goes_on_at_the_new_primary(pair, store):
    """One that stays with the old primary is away until its worker is restarted, and all keyed work waits."""
    epoch = store.view().epoch

    pair.fail_over()
    with pytest.raises(StoreUnavailable, match=str(pair.address.port)):
        store.declare_new()

    store.declare_new()
    assert store.read(RecordKey("scope", "key")) is None
    assert epoch == store.view().epoch, "the replica had it"


def test_scripts_are_loaded_again_after_a_failover(pair, store):
    """The new primary has never seen them."""
    with pair.primary.client() as client:
        client.script_flush()

    assert store.view().epoch


def test_replica_that_lost_its_primary_counts_as_away(pair):
    """What it says may be long over (`MASTERDOWN`)."""
    client = Client(pair.replica.url, 2.0)
    with contextlib.closing(client), pair.replica.client() as operator:
        operator.config_set("replica-serve-stale-data", "no")
        pair.primary.stop()
        wait_until(lambda: operator.info("replication")["master_link_status"] == "down", 20, "the link is down")

        with pytest.raises(StoreUnavailable):
            RedisAdmissionStore(client, Keys("t"), 30.0).view()


@pytest.fixture
def publisher(pair, namespace):
    """An app whose broker is at the address of the pair."""
    with Celery(namespace, broker=pair.address.url, set_as_current=False) as app:
        app.conf.update(apps.queue_settings(namespace), task_ignore_result=True, safeguards_store_url="memory://")
        app.task(_body, name="safe", shared=False, base=SafeTask, safeguards=Safeguards(repeatable=True))
        yield app


def _body(number):
    return number


def test_publish_reaches_the_new_primary(pair, publisher, namespace):
    """Kombu drops a connection to a server that takes no write; the bounded one must not keep it."""
    publisher.tasks["safe"].delay(1)
    with pair.replica.client() as client, pair.primary.client() as old:
        wait_until(lambda: client.llen(f"{namespace}.{namespace}") == 1, 10, "the replica has it")

        pair.fail_over()
        publisher.tasks["safe"].delay(2)
        publisher.tasks["safe"].delay(3)

        assert 3 == client.llen(f"{namespace}.{namespace}")
        assert old.info("replication")["role"] == "slave"
