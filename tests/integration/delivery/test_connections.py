"""
Which transport the connections of an app have, whoever makes them.
"""

import pytest
from celery import Celery
from kombu.transport.redis import SentinelTransport, Transport

from celery_safeguards import SafeTask
from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.transport import HardenedSentinelTransport, HardenedTransport


def make(broker, **settings):
    app = Celery("chosen", broker=broker, set_as_current=False)
    app.conf.update(settings)

    @app.task(base=SafeTask, shared=False)
    def nothing():
        pass

    app.finalize()
    return app


@pytest.mark.parametrize(
    ("broker", "transport"),
    [
        ("redis://localhost:1/0", HardenedTransport),
        ("rediss://localhost:1/0?ssl_cert_reqs=none", HardenedTransport),
        ("redis+socket:///tmp/none.sock", HardenedTransport),
        ("sentinel://localhost:1", HardenedSentinelTransport),
    ],
)
def test_each_address_of_redis_has_its_hardened_form(broker, transport):
    app = make(broker, safeguards_transport="hardened")

    assert transport is app.connection_for_read().get_transport_cls()
    assert transport is app.connection_for_write().clone().get_transport_cls()


@pytest.mark.parametrize(
    ("broker", "transport"), [("redis://localhost:1/0", Transport), ("sentinel://localhost:1", SentinelTransport)]
)
def test_without_the_setting_it_is_kombus_own(broker, transport):
    assert transport is make(broker).connection_for_read().get_transport_cls()


def test_another_broker_keeps_its_transport():
    app = make("memory://", safeguards_transport="hardened")

    assert "memory" == app.connection_for_read().transport.driver_type


def test_failover_to_another_address_keeps_it():
    app = make("redis://localhost:1/0;redis://localhost:2/0", safeguards_transport="hardened")
    connection = app.connection_for_read()

    connection.maybe_switch_next()

    assert 2 == connection.port
    assert HardenedTransport is connection.get_transport_cls()


@pytest.mark.parametrize("is_hardened", [True, False])
def test_publishers_and_pools_have_it_too(redis_url, namespace, is_hardened):
    options = {"global_keyprefix": f"{namespace}."}
    transport = "hardened" if is_hardened else "stock"
    with make(redis_url, safeguards_transport=transport, broker_transport_options=options) as app:
        app.tasks[next(name for name in app.tasks if name.endswith("nothing"))].delay()

        with app.producer_pool.acquire() as producer, app.pool.acquire() as connection:
            channels = [producer.channel, connection.default_channel]

            assert [is_hardened] * 2 == [isinstance(each, HardenedChannel) for each in channels]


def test_two_apps_of_one_address_have_a_pool_each(redis_url):
    """kombu keeps pools by the address."""
    stock, hardened = make(redis_url), make(redis_url, safeguards_transport="hardened")

    assert stock.pool is not hardened.pool
    assert stock.connection_for_write().__eqhash__() != hardened.connection_for_write().__eqhash__()
