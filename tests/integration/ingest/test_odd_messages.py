"""
Whatever a stranger has published: it is kept as it came, and ends neither the command nor the list.
"""

import json
from datetime import UTC, datetime

import pytest

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]
NASTY = '<script>alert("x")</script>\x00\x1b[31m'
FINE = '[[], {"order_id": 7}, {"callbacks": null}]'
JSON = {"content_type": "application/json", "content_encoding": "utf-8"}
# Read, it ends the process.
PICKLE = b"cos\n_exit\n(I99\ntR."
DEEP = "[" * 100_000 + "]" * 100_000
HEADERS = {"task": "shop.mail", "id": "t-1"}
UNDECODABLE = {
    "no JSON": ("{", HEADERS, JSON),
    "not what its encoding says": (b"\xff\xfe\x00", HEADERS, JSON),
    "nested too deeply": (DEEP, HEADERS, JSON),
    "no list of three": ("[1]", HEADERS, JSON),
    "no headers": (FINE, {}, JSON),
    "task is no name": (FINE, {"task": [1], "id": "t-1"}, JSON),
    "not compressed as it says": (b"junk", {**HEADERS, "compression": "application/x-gzip"}, JSON),
}


@pytest.fixture
def queue_type():
    """It makes no difference here."""
    return "classic"


@pytest.fixture
def lay(broker):
    """Put a message where it is rejected."""

    def lay(body, headers, **properties):
        broker.put_raw(body, headers=headers, **properties)
        broker.take().reject()
        broker.waiting(1)

    return lay


@pytest.mark.parametrize("case", UNDECODABLE)
def test_what_no_worker_could_read_is_kept_as_it_came(shop, lay, ingest, letters, cli, case):
    """Its bytes are what its producer has to be shown."""
    body, headers, properties = UNDECODABLE[case]
    lay(body, headers, **properties)

    assert {"ingested": 1} == ingest()

    (letter,) = letters()
    assert ("undecodable", False) == (letter.kind, letter.effect_possible)
    assert (body.encode() if isinstance(body, str) else body) == letter.wire.body
    assert letter.reason.startswith("given up by queue ")
    assert 0 == cli("dead", "show", letter.id, "--json").exit_code


@pytest.mark.parametrize("content_type", ["application/x-python-serialize", "application/x-of-another-app"])
def test_body_that_this_app_does_not_accept_is_not_read(shop, lay, ingest, letters, content_type):
    """A pickle would be run with the rights of whoever drains the queue; another app may have read it, and begun."""
    lay(PICKLE, HEADERS, content_type=content_type)

    ingest()

    assert [("undecodable", True, PICKLE)] == [(each.kind, each.effect_possible, each.wire.body) for each in letters()]


def test_accepted_pickle_is_not_read_either(shop, lay, ingest, letters):
    """Workers do; who looks after the dead need not."""
    shop.app.conf.accept_content = ["json", "pickle"]
    lay(PICKLE, HEADERS, content_type="application/x-python-serialize", content_encoding="binary")

    ingest()

    assert [("data", PICKLE)] == [(each.kind, each.wire.body) for each in letters()]


def test_body_is_kept_byte_for_byte_whatever_its_encoding(shop, lay, ingest, letters):
    """py-amqp decodes a body; encoded again by another encoding, it would be another body."""
    body = FINE.encode("utf-16")
    lay(body, HEADERS, content_type="application/json", content_encoding="utf-16")

    ingest()

    assert [("data", body)] == [(each.kind, each.wire.body) for each in letters()]


def test_task_that_this_app_does_not_know_is_told_so(shop, lay, ingest, letters):
    """No worker may know it; or one of another app, which has rejected it after its effect."""
    lay(FINE, {"task": "shop.gone", "id": "t-1"}, **JSON)

    ingest()

    assert [("unknown_task", "shop.gone", True)] == [(each.kind, each.task, each.effect_possible) for each in letters()]


@pytest.mark.parametrize(
    "told",
    [
        {"x-death": NASTY},
        {"x-death": [NASTY, {"count": -1}, {"queue": {"a": 1}, "routing-keys": "work", "time": NASTY}]},
        {
            "x-death": [
                {"queue": NASTY, "reason": NASTY, "time": datetime(9999, 1, 1, tzinfo=UTC), "routing-keys": [NASTY]}
            ]
        },
        {"sg_key": {"a": 1}, "sg_letter": ["x"], "sg_seen": NASTY, "retries": NASTY},
        {"origin": NASTY * 1000, NASTY[:20]: NASTY},
    ],
    ids=["no list", "odd entries", "odd values", "odd lineage", "large"],
)
def test_what_a_producer_has_invented_says_nothing(shop, broker, ingest, letters, cli, told):
    """Headers are whatever somebody has written there; put there by hand, as RabbitMQ fails at such deaths itself."""
    broker.put_raw(FINE, broker.dead, headers={**HEADERS, **told}, **JSON)
    broker.waiting(1)

    assert {"ingested": 1} == ingest()

    (letter,) = letters()
    assert 0 < letter.first_seen_seconds <= letter.last_failed_seconds < 4e9
    shown = cli("dead", "show", letter.id)
    assert (0, False, False) == (shown.exit_code, "\x1b" in shown.output, "\x00" in shown.output)
    assert json.loads(cli("dead", "list", "--json").stdout)["letters"]


def test_large_message_is_whole(shop, lay, ingest, letters):
    """Five megabytes are no reason to cut one."""
    body = json.dumps([[], {"order_id": "x" * 5_000_000}, {}])
    lay(body, HEADERS, **JSON)

    ingest()

    assert [(body.encode(), False)] == [(each.wire.body, each.wire.truncated) for each in letters()]
