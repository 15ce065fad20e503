"""
The shop of each test, over a real broker and store.
"""

import pytest

from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import make_app, make_shop


@pytest.fixture
def shop(redis_url, namespace):
    """A shop whose store is declared new."""
    with make_app(redis_url, redis_url, namespace) as app:
        Wiring.of(app).admission.declare_new()
        yield make_shop(app)
