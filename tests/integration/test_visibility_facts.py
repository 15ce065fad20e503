"""
What the checks of the broker take for granted of Celery and kombu beneath their documented surface; see
`test_celery_facts.py`.
"""

import pytest
from celery import Celery
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Exchange, Queue
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import Transport as RedisTransport

from celery_safeguards._compat import broker_client, driver_type_of, worker_shape
from celery_safeguards.diagnose.surroundings import by_settings, of_worker, quorum_queues


@pytest.fixture
def make_connection(redis_url, namespace):
    """Return a connection to the session's server with these transport options."""

    def make(**options):
        app = Celery("facts", broker=redis_url, set_as_current=False)
        app.conf.broker_transport_options = {"global_keyprefix": f"{namespace}.", **options}
        return app.connection_for_read()

    return make


@pytest.mark.redis
@pytest.mark.parametrize(("options", "timeout"), [({}, 3600), ({"visibility_timeout": 61}, 61)])
def test_open_channel_has_the_timeout_that_its_sweep_uses(make_connection, options, timeout):
    """What is measured against another figure holds by luck (celery/celery#9339)."""
    with make_connection(**options) as connection:
        channel = connection.default_channel

        assert timeout == channel.visibility_timeout == channel.qos.visibility_timeout


def test_sweep_has_options_since_kombu_5_7_and_is_fixed_before():
    """The latest time of a redelivery is told by them (celery/kombu#2558)."""
    given = getattr(RedisChannel, "unacked_restore_interval", 10), getattr(RedisChannel, "unacked_restore_throttle", 10)

    assert (10, 10) == given


@pytest.mark.redis
def test_channel_leads_to_its_transport(make_connection):
    """Which broker it is decides what is asked and compared."""
    with make_connection() as redis, Celery("facts", broker="memory://").connection_for_read() as memory:
        assert ("redis", "memory") == (driver_type_of(redis.default_channel), driver_type_of(memory.default_channel))


@pytest.mark.redis
def test_keys_of_a_script_are_not_prefixed_by_kombu(make_connection, redis_client, namespace):
    """They would get the prefix twice, or none, and fleets that share a server would be one."""
    with make_connection() as connection, broker_client(connection.default_channel) as (client, prefix):
        client.execute_command("EVAL", "redis.call('SET', KEYS[1], 1)", 1, f"{prefix}script")
        client.set("command", 1)

        assert f"{namespace}." == prefix
    assert {f"{namespace}.script", f"{namespace}.command"} == set(redis_client.scan_iter(f"{namespace}*"))


@pytest.mark.redis
def test_copied_connection_has_the_options_of_the_first(make_connection, redis_url):
    """The board would be on another server, or under another prefix."""
    connection = make_connection(visibility_timeout=61)
    copied = connection.clone()

    assert connection.transport_options == copied.transport_options
    assert connection.as_uri(include_password=True) == copied.as_uri(include_password=True)


def test_kombu_counts_a_key_error_among_those_of_a_connection():
    """Since 5.7: errors of ours inside a block would be taken for a broker that is away."""
    assert KeyError in RedisTransport.connection_errors or not hasattr(RedisChannel, "unacked_restore_interval")


def test_consumer_knows_its_pool_its_size_and_its_multiplier():
    """How long a message waits in its worker is their product."""
    with Celery("facts", broker="memory://", set_as_current=False) as app:
        app.conf.safeguards_store_url = "memory://"
        consumer = app.WorkController(pool="threads", concurrency=3, prefetch_multiplier=7).consumer
        pool, concurrency, multiplier = worker_shape(consumer)
        around = of_worker(consumer)

    assert ("celery.concurrency.thread", 3, 7) == (type(pool).__module__, concurrency, multiplier)
    assert ("thread", 3, 7) == (around.pool, around.concurrency, around.prefetch_multiplier)


def test_pool_of_the_settings_has_the_name_of_its_module():
    """`threads` and `celery.concurrency.thread` are one pool, with one answer about limits."""
    with Celery("facts", broker="memory://", set_as_current=False) as app:
        app.conf.safeguards_store_url = "memory://"
        pools = []
        for name in ("threads", "prefork", "celery.concurrency.thread:TaskPool"):
            app.conf.worker_pool = name
            pools.append(by_settings(app).pool)

    assert ["thread", "prefork", "thread"] == pools


def test_celery_takes_delays_off_the_workers_as_soon_as_one_queue_is_a_quorum_queue():
    """Then the delay is no part of how long a message is held."""
    queue = Queue("work", exchange=Exchange("work", type="topic"), queue_arguments={"x-queue-type": "quorum"})
    with Celery("facts", broker="amqp://", set_as_current=False) as app:
        app.conf.update(task_queues=[queue], safeguards_store_url="memory://")

        assert (True, "work") == detect_quorum_queues(app, "amqp")
        assert ["work"] == list(quorum_queues(app))


@pytest.mark.redis
def test_kombu_cannot_compute_with_a_timeout_that_is_text(make_connection):
    """It is told as a finding, since the error tells nobody where it comes from."""
    with make_connection(visibility_timeout="310") as connection:
        channel = connection.default_channel

        with pytest.raises(TypeError):
            channel.qos.restore_visible()
