"""
What is not taken out of a queue: what has no durable letter, and what is no dead letter but work.
"""

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_safeguards.cli import safeguards
from tests.integration.replay.shop import make_app, make_shop
from tests.support.sockets import free_port

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


@pytest.fixture
def queue_type():
    """It makes no difference here."""
    return "classic"


def test_queue_that_the_apps_workers_consume_is_refused(shop, broker, cli, namespace, letters):
    """Its messages are work that somebody is about to do."""
    shop.mail.apply_async(kwargs={"order_id": 7})
    broker.waiting(1, namespace)

    refused = cli("dead", "ingest", namespace)

    assert (1, True) == (refused.exit_code, "SG156" in refused.stderr)
    assert f"queue {namespace!r}, which is to be made letters of, is consumed by this app's workers" in refused.stderr
    assert () == letters()
    broker.waiting(1, namespace)


def test_queue_that_is_not_there_is_refused(app, cli):
    """A name that is mistyped must not read as an empty queue."""
    refused = cli("dead", "ingest", "nowhere")

    assert (1, "there is no queue 'nowhere'\n") == (refused.exit_code, refused.stderr)


@pytest.mark.parametrize("lineage", [{}, {"sg_letter": "letter-1"}], ids=["first", "replay"])
def test_store_that_is_away_leaves_the_message(broker, app, ingest, tmp_path, lineage):
    """Acknowledged without a letter it would be gone; the queue keeps it as well as the spool would."""
    broker.put_raw("[]", headers={"task": "shop.mail", "id": "t-1", **lineage}, content_type="application/json")
    broker.reject()
    broker.waiting(1)
    away = f"redis://127.0.0.1:{free_port()}/0"
    options = {"safeguards_spool_directory": str(tmp_path), "task_queues": app.conf.task_queues}
    with make_app(broker.server.url, away, broker.queue, **options) as other:
        context = CLIContext(app=other, no_color=True, workdir=None)
        ended = CliRunner().invoke(safeguards, ["dead", "ingest", broker.dead, "--json"], obj=context)

    assert (3, '{\n  "ingested": 0,\n  "known": 0,\n  "left": 0\n}\n') == (ended.exit_code, ended.stdout)
    assert [] == list(tmp_path.iterdir())
    assert {"ingested": 1} == ingest()


def test_broker_that_is_away_ends_with_3(redis_url, namespace):
    """A script must tell it from an empty queue."""
    with make_app(f"amqp://127.0.0.1:{free_port()}//", redis_url, namespace) as app:
        context = CLIContext(app=app, no_color=True, workdir=None)

        assert 3 == CliRunner().invoke(safeguards, ["dead", "ingest", "dead"], obj=context).exit_code


def test_broker_without_dead_letter_queues_is_a_usage_error():
    """On Redis nothing ever arrives in such a queue."""
    with Celery("other", broker="memory://", set_as_current=False) as app:
        app.conf.safeguards_store_url = "memory://"
        context = CLIContext(app=app, no_color=True, workdir=None)
        refused = CliRunner().invoke(safeguards, ["dead", "ingest", "dead"], obj=context)

    assert (2, True) == (refused.exit_code, "has no dead-letter queues" in refused.stderr)


def test_other_broker_is_drained_into_the_apps_letters(shop, broker, redis_url, namespace):
    """The old broker of a project that has moved."""
    shop.mail.apply_async(kwargs={"order_id": 7})
    broker.reject()
    broker.waiting(1)
    with make_app(redis_url, redis_url, namespace) as moved:
        make_shop(moved)
        context = CLIContext(app=moved, no_color=True, workdir=None)
        words = ["dead", "ingest", broker.dead, "--broker-url", broker.server.url]
        done = CliRunner().invoke(safeguards, words, obj=context)

    assert (0, True) == (done.exit_code, "ingested  data  shop.mail" in done.stdout)
    broker.waiting(0)


def test_message_above_the_cap_of_letters_stays_in_its_queue(shop, broker, ingest, letters, cli):
    """A letter of it would hold the head of its body, and the rest would be gone with the acknowledgement."""
    broker.put_raw("x" * 17_000_000, headers={"task": "shop.mail", "id": "t-1"}, content_type="application/json")
    broker.reject()
    shop.mail.apply_async(kwargs={"order_id": 7})
    broker.reject()
    broker.waiting(2)

    assert {"ingested": 1, "left": 1} == ingest(code=1)

    assert ["shop.mail"] == [each.task for each in letters()]
    broker.waiting(1)
    assert "safeguards_max_letter_bytes" in cli("dead", "ingest", broker.dead).stderr
