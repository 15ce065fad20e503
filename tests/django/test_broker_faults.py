"""
The broker is killed or cut off while a body runs, and the records are in a database that stays: PostgreSQL and SQLite.

The tests are those of the Redis store, to the letter; here they get another scene.
"""

import pytest

from tests.acceptance.faults_app import DATABASE_ALIAS, Scene
from tests.acceptance.test_broker_faults import (  # noqa: F401 - collected here once more, with the fixtures below
    test_connection_cut_in_mid_body_defers_the_second_delivery,
    test_redis_killed_while_a_body_runs_charges_once,
)
from tests.support import databases

pytestmark = pytest.mark.acceptance


@pytest.fixture
def scene(fresh_redis, database, namespace, gateway, announcements, start_worker):
    """A broker of its own, and the store in the database."""
    with databases.added(DATABASE_ALIAS, database):
        yield Scene(
            broker_url=fresh_redis.url,
            store_url=f"django://{DATABASE_ALIAS}",
            namespace=namespace,
            gateway=gateway,
            announcements=announcements,
            start_worker=start_worker,
            workers_database=database,
        )
