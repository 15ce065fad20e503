"""All findings of an app outside of its workers: the settings, and what the open broker and the fleet answer."""

from dataclasses import dataclass, replace
from typing import Any

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.delivery.visibility import Visibility
from celery_safeguards.diagnose.board import Board, open_channel
from celery_safeguards.diagnose.examining import ask_broker, examine
from celery_safeguards.diagnose.fleet import WorkerReport, disagreements
from celery_safeguards.diagnose.surroundings import by_settings
from celery_safeguards.diagnose.tasks import guarded, unbounded_transactions
from celery_safeguards.errors import ConfigurationError, StoreUnavailable
from celery_safeguards.findings import Finding
from celery_safeguards.wiring import Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found, and what it was measured against."""

    visibility: Visibility
    fleet: tuple[WorkerReport, ...]
    findings: tuple[Finding, ...]


def ask(app: Any) -> Answer:
    """
    Look at an app with its tasks loaded, and ask its broker, its store and its databases.

    What did not answer is among the findings, as unknown.

    Raises:
        ConfigurationError: a worker could not run.

    """
    around = by_settings(app)
    fleet: list[WorkerReport] = []
    try:
        with open_channel(_connection(app)) as channel:
            visibility, asked = ask_broker(app, channel)
    except StoreUnavailable as error:
        asked = [Finding(each, str(error)) for each in ("SG141", "SG148", "SG166")]
    else:
        around = replace(around, visibility=visibility)
        if visibility.broker == "redis":
            fleet, disagreed = _ask_fleet(app)
            asked += disagreed
    findings = [*examine(app, around), *unbounded_transactions(app), *asked, *_ask_store(app)]
    return Answer(visibility=around.visibility, fleet=tuple(fleet), findings=tuple(dict.fromkeys(findings)))


def _ask_fleet(app: Any) -> tuple[list[WorkerReport], list[Finding]]:
    try:
        fleet = _board(app).read()
    except StoreUnavailable as error:
        return [], [Finding("SG166", str(error))]
    return fleet, disagreements(fleet)


def _ask_store(app: Any) -> list[Finding]:
    if not guarded(app):
        return []
    try:
        # Only read: what asks for the store's epoch would make a new store's begin.
        Wiring.of(app).admission.read(RecordKey("", ""))
    except StoreUnavailable as error:
        return [Finding("SG170", str(error))]
    return []


def _connection(app: Any) -> Any:
    try:
        connection = app.connection_for_read()
        connection.transport  # noqa: B018 - imported only now
    except (ImportError, KeyError) as error:
        raise ConfigurationError(f"the broker's transport is not here: {error}") from error
    return connection


def _board(app: Any) -> Board:
    wiring = Wiring.of(app)
    return Board(app.connection_for_read(), wiring.settings.lease_seconds, wiring.clock)
