"""
Queues of SQS and the visibility timeout that each of them has, against a server of the same protocol on this host.
"""

import pytest

from celery_safeguards._compat import sqs_timeout_seconds
from celery_safeguards.diagnose.asking import ask
from celery_safeguards.diagnose.board import open_channel
from celery_safeguards.findings import Severity
from tests.integration.diagnose.conftest import guard

boto3 = pytest.importorskip("boto3")
pytest.importorskip("pycurl")
moto_server = pytest.importorskip("moto.server")
REGION = "eu-central-1"
WHO = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": REGION}


@pytest.fixture
def sqs():
    """A server on a free port; yields its client."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield boto3.client("sqs", endpoint_url=f"http://{host}:{port}", **WHO)
    finally:
        server.stop()


@pytest.fixture
def make_sqs_app(make_app, sqs, namespace):
    """Make an app that consumes one queue of this test."""

    def make(**options):
        place = sqs.meta.endpoint_url.removeprefix("http://")
        return make_app(
            f"sqs://key:secret@{place}",
            broker_transport_options={"region": REGION, "is_secure": False, **options},
            task_default_queue=namespace,
            worker_prefetch_multiplier=1,
        )

    return make


def test_queue_that_exists_is_asked_for_its_own_timeout(sqs, make_sqs_app, namespace):
    """Kombu's option says half an hour; what a dead worker held comes again after six seconds, renewed until then."""
    sqs.create_queue(QueueName=namespace, Attributes={"VisibilityTimeout": "6"})
    app = make_sqs_app()
    guard(app, "shop.slow", time_limit=18)
    answer = ask(app)
    found = {each.id: each.text for each in answer.findings}

    assert 6.0 == answer.visibility.timeout_seconds
    assert f"queue {namespace!r} has VisibilityTimeout=6, and visibility_timeout in" in found["SG149"]
    assert answer.visibility.is_renewed
    assert "SG104" not in found


def test_queue_that_has_the_same_timeout_has_nothing_to_be_said(sqs, make_sqs_app, namespace):
    """The set-up that is asked for."""
    sqs.create_queue(QueueName=namespace, Attributes={"VisibilityTimeout": "60"})
    app = make_sqs_app(visibility_timeout=60)
    guard(app, "shop.slow", time_limit=18)

    assert [] == [each for each in ask(app).findings if each.severity is not Severity.INFO]


@pytest.mark.parametrize(("option", "expected"), [({}, []), ({"visibility_timeout": 600}, ["SG149"])])
def test_predefined_queue_may_have_what_it_has(sqs, make_sqs_app, namespace, option, expected):
    """Kombu makes none of them, so that its default for new ones is nobody's wish; an option that is set is."""
    url = sqs.create_queue(QueueName=namespace, Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
    who = {"access_key_id": "key", "secret_access_key": "secret", "region": REGION}
    answer = ask(make_sqs_app(predefined_queues={namespace: {"url": url, **who}}, **option))

    assert 60.0 == answer.visibility.timeout_seconds
    assert expected == [each.id for each in answer.findings if each.severity is not Severity.INFO]


def test_queue_that_cannot_be_asked_is_not_known_to_be_fine(sqs, make_sqs_app, namespace):
    """It may be made by then, or be another account's."""
    unknown = [each for each in ask(make_sqs_app()).findings if each.severity is Severity.UNKNOWN]

    assert ["SG141"] == [each.id for each in unknown]
    assert f"queue {namespace!r} could not be asked" in unknown[0].text


def test_channel_knows_the_queue_by_its_name(sqs, make_sqs_app, namespace):
    """Kombu's own way to a queue's attributes, with its prefix and its replacements."""
    sqs.create_queue(QueueName=f"shop-{namespace}-mail", Attributes={"VisibilityTimeout": "7"})
    with open_channel(make_sqs_app(queue_name_prefix="shop-").connection_for_read()) as channel:
        assert 7.0 == sqs_timeout_seconds(channel, f"{namespace}.mail")
