"""
What command line and admin share of a release: it is over in time, and of two who release one of them is told so.
"""

import threading
import time

import pytest
from celery import Celery

from celery_safeguards.errors import LockLost
from celery_safeguards.locks.evidence import Shows
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.releasing import BROKER_SECONDS, look, release
from celery_safeguards.wiring import Wiring
from tests.support.sockets import Cutter

pytestmark = pytest.mark.redis
TASK = {"task": "shop.ship", "task_id": "t-1", "worker": "w1@far", "host": "far", "pid": 4711}
SLOW_MACHINE_SECONDS = 10


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request, redis_url):
    """A proxy before a broker."""
    url = redis_url if request.param == "redis" else request.getfixturevalue("rabbitmq_broker").url
    with Cutter(url) as cutter:
        yield cutter


@pytest.fixture
def app(broker, redis_url, namespace):
    """An app with a lock that a task of a worker holds which is not there."""
    with Celery("releasing", set_as_current=False) as app:
        app.conf.update(broker_url=broker.url, safeguards_store_url=redis_url, safeguards_namespace=namespace)
        ask = LockAsk(name="order:7", owner="first", lease_seconds=60, holder=TASK)
        Wiring.of(app).admission.declare_new()
        assert Wiring.of(app).locks.acquire(ask).held
        yield app


def test_look_is_over_in_time_whenever_the_broker_freezes(app, broker):
    """A web server would lose a thread to each click, on the night in which the broker is the trouble."""
    answered, frozen = look(app, "order:7"), []
    for after_seconds in (0.0, 0.5):
        broker.resume()
        freezing = threading.Timer(after_seconds, broker.stall)
        freezing.start()
        if not after_seconds:
            freezing.join()
        began = time.monotonic()
        frozen.append(look(app, "order:7"))
        took_seconds = time.monotonic() - began
        freezing.join()
        assert took_seconds < BROKER_SECONDS + SLOW_MACHINE_SECONDS

    assert answered.found.broker_answers
    assert not frozen[0].found.broker_answers
    for found in (answered, *frozen):
        assert {each.shows for each in found.evidence.findings} == {Shows.NOTHING}


def test_second_of_two_who_looked_is_told_that_it_was_released(app, broker):
    """A release that is sent twice is no error to the store, and both would write that it was they."""
    broker.refuse()
    first, second = look(app, "order:7"), look(app, "order:7")

    release(app, first, by="ann", reason="gone")
    with pytest.raises(LockLost, match="it was released"):
        release(app, second, by="bob", reason="gone")

    assert first.mark == second.mark
