"""
A content type may be anything, and an app may accept any: neither ends the command with its message still there.
"""

import pytest
from kombu.message import Message

from celery_safeguards.ingest.letters import Fate, keep

HEADERS = {"task": "bench.gone", "id": "t-1"}


@pytest.mark.parametrize(
    ("content_type", "accepts", "kind"),
    [
        (["application/json"], ["json"], "undecodable"),
        ({"type": "json"}, ["json"], "undecodable"),
        (None, ["json"], "undecodable"),
        ("application/json", None, "unknown_task"),
    ],
)
def test_message_of_any_content_type_is_ingested(bench, content_type, accepts, kind):
    """SQS hands over what a producer has written into the envelope."""
    bench.app.conf.accept_content = accepts
    body = b"[[1], {}, {}]"
    message = Message(body, content_type=content_type, content_encoding="utf-8", headers=HEADERS, delivery_info={})

    assert Fate.INGESTED is keep(bench.app, message, "dead").fate

    (letter,) = bench.all_letters()
    assert (kind, content_type, body) == (letter.kind, letter.wire.content_type, letter.wire.body)
