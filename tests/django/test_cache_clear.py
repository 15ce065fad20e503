"""
`cache.clear()` while a task runs, on a real server (jazzband/django-redis#264, viewflow/viewflow PR#132).

In one database with the records it frees the claim and the lock of a body that is still at work, which is why the check
SG220 refuses that. The pause for a store that was wiped then keeps the duplicate waiting, not the claim.
"""

import contextlib
import threading

import pytest
from celery import Celery
from django.core.cache.backends.redis import RedisCache

from celery_safeguards import EntityLock, Idempotent, Safeguards
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.wiring import Wiring
from django_celery_safeguards import SafeTask
from django_celery_safeguards.clearable import clearable_findings
from tests.support import servers

KEY = RecordKey("shop.pay", "pay:7")
PATIENCE_SECONDS = 20


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """A server that nobody else has anything on: whole databases of it are wiped here."""
    with servers.redis_server() as server:
        yield server.url.rpartition("/")[0]


@pytest.fixture
def in_body(own_server, namespace):
    """A body in full flight in another thread, with claim and lock; ends when the test does."""
    inside, may_end = threading.Event(), threading.Event()
    with Celery("shop", set_as_current=False) as app:
        app.conf.update(task_always_eager=True, safeguards_store_url=f"{own_server}/1", safeguards_namespace=namespace)
        Wiring.of(app).admission.declare_new()

        @app.task(
            base=SafeTask,
            name="shop.pay",
            shared=False,
            safeguards=Safeguards(
                idempotent=Idempotent("pay:{order_id}", on_unknown="rerun"), lock=EntityLock("order:{order_id}")
            ),
        )
        def pay(order_id):
            inside.set()
            may_end.wait(PATIENCE_SECONDS)

        runs = threading.Thread(target=lambda: pay.delay(7))
        runs.start()
        assert inside.wait(PATIENCE_SECONDS)
        yield Wiring.of(app)
        may_end.set()
        runs.join()


def what_is_left(wiring):
    """Return whether the record and the lock of the running body are there."""
    return wiring.admission.read(KEY) is not None, bool(wiring.locks.read("order:7")[0].owner)


@pytest.mark.redis
@pytest.mark.parametrize(("number", "found", "left"), [(1, ["SG220"], False), (2, [], True)])
def test_clearing_a_cache_takes_what_the_check_says_it_takes(in_body, own_server, settings_caches, number, found, left):
    """A claim that vanishes under its body: the next delivery would find nothing that it has to wait for."""
    url = f"{own_server}/{number}"
    settings_caches(url)
    assert (True, True) == what_is_left(in_body)

    RedisCache(url, {}).clear()

    assert found == [each.id for each in clearable_findings(f"{own_server}/1", [])]
    assert (left, left) == what_is_left(in_body)


@pytest.fixture
def settings_caches():
    """Set the project's cache to a URL."""
    from django.test import override_settings

    with contextlib.ExitStack() as stack:

        def set_to(url):
            caches = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}}
            stack.enter_context(override_settings(CACHES=caches))

        yield set_to
