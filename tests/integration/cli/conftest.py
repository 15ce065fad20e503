"""
A shop at the command line: its tasks, its letters, and a way to run a command in this process.
"""

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu.utils.json import dumps

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards.cli import safeguards
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.outcome import FailureKind
from celery_safeguards.policy import CannotTell
from celery_safeguards.wiring import Wiring
from tests.integration.replay.shop import VALUES, make_app


@pytest.fixture
def app(redis_url, namespace):
    """A shop with an idempotent task, a plain one, and a store that is declared new."""
    with make_app(redis_url, redis_url, namespace) as app:
        Wiring.of(app).admission.declare_new()

        @app.task(
            shared=False,
            base=SafeTask,
            name="shop.charge",
            safeguards=Safeguards(
                idempotent=Idempotent("order:{order_id}", on_unknown="quarantine", quiet_seconds=0),
                retry=RetryPolicy(attempts=1),
            ),
        )
        def charge(order_id, is_broken=False):
            if is_broken:
                raise ValueError("no such order")
            return order_id

        @app.task(
            shared=False,
            base=SafeTask,
            name="shop.pay",
            safeguards=Safeguards(
                idempotent=Idempotent("order:{order_id}", scope="payments", on_unknown=Verify(CannotTell))
            ),
        )
        def pay(order_id):
            return order_id

        yield app


@pytest.fixture
def cli(app):
    """Run a command as `cli("dead", "list")`."""

    def run(*words, text=None):
        context = CLIContext(app=app, no_color=True, workdir=None)
        return CliRunner().invoke(safeguards, [*words], obj=context, input=text)

    return run


@pytest.fixture
def bury(app, namespace):
    """Put a letter into the store."""

    def put(letter_id="letter-1", *, headers=None, body=None, content_type="application/json", **changes):
        wire = WireMessage(
            body=str(dumps([[], VALUES, {"chain": [{"task": "shop.ship"}]}])).encode() if body is None else body,
            content_type=content_type,
            content_encoding=changes.pop("content_encoding", "utf-8"),
            headers={"task": "shop.note", "id": "t-1", "root_id": "t-1", **(headers or {})},
            properties={"correlation_id": "t-1"},
            delivery_info=changes.pop("delivery_info", {"exchange": "", "routing_key": namespace}),
        )
        given = {
            "id": letter_id,
            "task": "shop.note",
            "task_id": "t-1",
            "wire": wire,
            "kind": FailureKind.BUG,
            "effect_possible": False,
            "reason": "attempt 4 of 4",
            "error_type": "builtins.ValueError",
            "error_message": "no such order",
            "first_seen_seconds": 1_750_000_000.0,
            "last_failed_seconds": 1_750_000_060.0,
        }
        letter = Letter(**{**given, **changes})
        Wiring.of(app).letters.bury(letter)
        return letter

    return put
