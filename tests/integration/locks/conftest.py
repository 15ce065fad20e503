"""
Plain code that holds locks of a shop, against a real server.
"""

import pytest

from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import make_app


@pytest.fixture
def app(redis_url, namespace):
    """A shop whose store is declared new: nobody waits for the owners of another epoch."""
    with make_app(redis_url, redis_url, namespace) as app:
        Wiring.of(app).admission.declare_new()
        yield app


@pytest.fixture
def state(app):
    """Read how a lock stands, as `state("order:7")`."""
    return lambda name: Wiring.of(app).locks.read(name)[0]
