"""
All findings of an app, by what has to be asked for them.

    settings and tasks        nothing is connected       a worker before it connects; `check`; Django's system checks
    the open channel          its attributes             a worker at start and after each reconnect; `check`
    the broker, databases     a round trip each          a worker at its first start; `check`
"""

from typing import Any
from urllib.parse import urlsplit

from celery_safeguards.conf import Settings
from celery_safeguards.delivery.visibility import Visibility, effective_visibility
from celery_safeguards.diagnose.broker import broker_findings
from celery_safeguards.diagnose.looks import further_findings
from celery_safeguards.diagnose.settings import setting_findings
from celery_safeguards.diagnose.sqs import sqs_visibility
from celery_safeguards.diagnose.surroundings import Surroundings, by_settings
from celery_safeguards.diagnose.tasks import atomic_stores, declaration_findings, short_locks
from celery_safeguards.diagnose.timing import timing_findings
from celery_safeguards.findings import Finding
from celery_safeguards.redis_urls import REDIS_SCHEMES


def examine(app: Any, around: Surroundings | None = None) -> list[Finding]:
    """
    Return what a person should look at before a worker of this app runs; nothing is connected to.

    Args:
        app: with its tasks loaded.
        around: the worker's. Defaults to what the settings say.

    Raises:
        ConfigurationError: a worker could not run.

    """
    atomic_stores(app)
    around = around or by_settings(app)
    return [
        *declaration_findings(app),
        *timing_findings(app, around),
        *short_locks(app),
        *setting_findings(app, around),
        *further_findings(app),
    ]


def ask_broker(app: Any, channel: Any) -> tuple[Visibility, list[Finding]]:
    """Return what an open channel does with unacknowledged messages, and what its broker says; blocks for answers."""
    visibility = effective_visibility(channel)
    if visibility.broker == "sqs":
        return sqs_visibility(channel, visibility, sorted(dict(app.amqp.queues.consume_from)))
    if visibility.broker == "redis":
        return visibility, broker_findings(channel, has_records=_has_records(app, channel))
    return visibility, []


def _has_records(app: Any, channel: Any) -> bool:
    """Whether the records are in the server of a Redis broker, as far as their addresses tell."""
    store, broker = urlsplit(Settings.of(app).store_url or ""), channel.connection.client
    port = broker.transport.default_port
    is_here = (store.hostname or "localhost", store.port or port) == (
        broker.hostname or "localhost",
        broker.port or port,
    )
    return store.scheme == "unix" or (store.scheme in REDIS_SCHEMES and is_here)
