"""
The database of the records is away, or loses an answer, while the broker works: PostgreSQL behind a proxy.

The tests are those of the Redis store, to the letter; here they get another scene. What the database itself does when
it is stopped or ends a session is in `faults/`.
"""

import pytest

from tests.acceptance.faults_app import DATABASE_ALIAS, Scene
from tests.acceptance.test_store_faults import (  # noqa: F401 - collected here once more, with the fixtures below
    test_keyed_work_waits_for_its_store_and_runs_by_itself_when_it_is_back,
    test_letter_goes_to_the_spool_while_its_store_is_away,
    test_message_whose_letter_cannot_be_written_is_kept,
    test_outcome_is_written_when_the_store_is_back_within_the_lease,
    test_outcome_that_cannot_be_written_within_the_lease_is_asked_for_later,
    test_task_without_a_key_does_not_need_the_store,
    worker,
)
from tests.support import databases
from tests.support.sockets import Cutter

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True),
]
STORE_URL = f"django://{DATABASE_ALIAS}"


@pytest.fixture
def way_to_store(postgres_url):
    """The workers' way to the database; the test itself asks it directly."""
    with Cutter(postgres_url) as cutter:
        cutter.url = STORE_URL
        yield cutter


@pytest.fixture
def workers_database(database, way_to_store):
    """The database as the workers reach it; the test has its own way there."""
    with databases.added(DATABASE_ALIAS, database):
        yield {**database, "PORT": str(way_to_store.port)}


@pytest.fixture
def scene(workers_database, redis_url, namespace, gateway, announcements, start_worker):
    """The broker on the session's server, and the store in the database."""
    return Scene(
        broker_url=redis_url,
        store_url=STORE_URL,
        namespace=namespace,
        gateway=gateway,
        announcements=announcements,
        start_worker=start_worker,
        workers_database=workers_database,
    )


@pytest.mark.parametrize("word", [b"INSERT INTO", b"done"], ids=["admit", "settle"])
def test_answer_of_the_database_that_is_lost_on_the_way_changes_nothing(
    worker,  # noqa: F811 - the fixture
    scene,
    way_to_store,
    gateway,
    announcements,
    word,
):
    """The database has done what was asked, and who asked again would be taken for a stranger to its own claim."""
    announcements.hold("after_charge", order_id="A1")
    if word == b"done":
        task_id = scene.send("charge", "A1")
        announcements.wait_for("after_charge", 10)
    way_to_store.lose_next_answer(containing=word)
    if word != b"done":
        task_id = scene.send("charge", "A1")
    announcements.open("after_charge")

    scene.wait_ended("succeeded", task_id=task_id)
    scene.wait_quiet()
    assert 1 == way_to_store.lost_answers
    assert ["succeeded"] == [outcome for outcome, _reason in scene.ended(task_id=task_id)]
    assert 1 == len(gateway.charges("A1"))
    assert 0 == scene.record("charge", "A1").lost_starts
