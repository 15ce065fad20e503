"""
What a worker does for its guarded tasks from start to end: check them, renew their claims, drain the spool, and go to
the store where its loop must not wait.

Both steps are consumer bootsteps, so they run in every pool, after the tasks are loaded. A reconnect starts them anew.
"""

import logging
from typing import Any

from celery import bootsteps

from celery_safeguards._compat import close_to_the_end, run_what_waits
from celery_safeguards.conf import MEMORY_URL
from celery_safeguards.delivery.visibility import Visibility, effective_visibility
from celery_safeguards.diagnose.examining import ask_broker, examine
from celery_safeguards.diagnose.surroundings import of_worker
from celery_safeguards.diagnose.tasks import guarded, unbounded_transactions
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.findings import Finding, Severity
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker import errands
from celery_safeguards.worker.fleet import FleetWatch, objections_to
from celery_safeguards.worker.keeper import Keeper, appoint, keeper_of, kill_child
from celery_safeguards.worker.liveness import forget_liveness, liveness_of

logger = logging.getLogger(__name__)
_PROCESS_POOLS = ("prefork",)
_TRIPS_AT_SHUTDOWN = 4
"""How many round trips to a store that does not answer a shutdown waits for."""
_LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.UNKNOWN: logging.WARNING}


class CheckStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """
    Say at start what a person should look at; with `safeguards_strict`, refuse to start.

    Twice: by the settings before the broker is connected, and once more by what the open channel says, since an option
    under a wrong name leaves the channel with another visibility timeout than the tasks were measured against.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._told: set[Finding] = set()
        self._fleet = FleetWatch(Wiring.of(parent.app).settings.renew_every_seconds)
        self._asked: Visibility | None = None
        self._effective = ""
        _limit_as_told(parent)
        self._tell(parent.app, [*examine(parent.app, of_worker(parent)), *unbounded_transactions(parent.app)])
        if Wiring.of(parent.app).settings.strict:
            self._tell(parent.app, objections_to(parent))

    def start(self, parent: Any) -> None:
        """Look at the open channel; the broker itself is asked at the first start only, before anything is consumed."""
        channel, found = parent.connection.default_channel, list[Finding]()
        visibility = effective_visibility(channel)
        if self._asked is None:
            visibility, found = ask_broker(parent.app, channel)
            self._asked = visibility
        elif visibility.broker == "sqs":
            visibility = self._asked
        if str(visibility) != self._effective:
            self._effective = str(visibility)
            logger.info("%s", visibility)
        self._tell(parent.app, [*examine(parent.app, of_worker(parent, visibility)), *found])
        if visibility.broker == "redis":
            self._fleet.join(parent, visibility)

    def stop(self, parent: Any) -> None:
        """Stay on the board: a reconnect restarts this step."""

    def shutdown(self, _parent: Any) -> None:
        """Leave the fleet."""
        self._fleet.stop()

    def _tell(self, app: Any, findings: list[Finding]) -> None:
        new = [each for each in findings if each not in self._told]
        self._told.update(new)
        for finding in new:
            logger.log(_LEVELS.get(finding.severity, logging.INFO), "%s", finding)
        refused = [each for each in new if each.is_refused]
        if refused and Wiring.of(app).settings.strict:
            found = "; ".join(str(finding) for finding in refused)
            raise ConfigurationError(f"{found}. safeguards_strict is set: mend it, or unset that")


class LeaseStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Run the keeper and the errands while there is anything to do: through reconnects and through a warm shutdown."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._errands = errands.Errands(parent.call_soon)

    def start(self, parent: Any) -> None:
        """Start the keeper before the first message can be claimed."""
        keeper = keeper_of(parent.app)
        if keeper is None or keeper.is_over:
            wiring, has_children = Wiring.of(parent.app), _is_process_pool(parent.pool)
            if has_children and wiring.settings.store_url == MEMORY_URL:
                raise ConfigurationError(
                    f"safeguards_store_url={MEMORY_URL!r} lives in one process, and this worker's pool has several: "
                    "give a Redis URL, or run --pool=threads or --pool=solo"
                )
            keeper = Keeper(wiring, kill_child if has_children else None)
            appoint(parent.app, keeper)
        keeper.start()
        self._errands.start()
        # The pool replaces a dead child while its loss is told: a lock held then would stay shut in the new one.
        holds_locks = getattr(Wiring.of(parent.app).admission, "holds_locks_across_forks", False)
        if not (holds_locks and _is_process_pool(parent.pool)):
            errands.appoint(parent.app, self._errands)
        close_to_the_end(parent.connection.default_channel)

    def stop(self, parent: Any) -> None:
        """Go on renewing: a reconnect restarts this step, and in a warm shutdown bodies run until the pool is empty."""

    def shutdown(self, parent: Any) -> None:
        """Do what still waits for the store, and stop the keeper: the pool has drained."""
        errands.dismiss(parent.app)
        self._errands.stop(_TRIPS_AT_SHUTDOWN * Wiring.of(parent.app).settings.store_timeout_seconds)
        keeper = keeper_of(parent.app)
        if keeper is not None:
            keeper.stop()
        run_what_waits(parent.hub)
        # Without a hub it waits here; Celery has looked before.
        parent.perform_pending_operations()


class HealthStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Write signs of life from the first connection to the end, through reconnects and a warm shutdown."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Leave it out where the broker is in this process's memory: nobody outside could ask."""
        return bool(parent.app.connection_for_read().transport.driver_type != "memory")

    def start(self, parent: Any) -> None:
        """Watch the connection that was just made."""
        liveness_of(parent).attach(parent)

    def stop(self, parent: Any) -> None:
        """Go on: a broker that is away is what the signs are to tell."""

    def shutdown(self, parent: Any) -> None:
        """End: the worker does."""
        forget_liveness(parent)


def _limit_as_told(consumer: Any) -> None:
    """
    Give each guarded task without limits of its own those of `celery worker --time-limit`, as the settings do.

    Celery gives them to the pool alone, where no lease, no deadline and no finding knows of them: a body that may run
    longer than an hour would be given to another worker after that. It is done before the pool forks its children.
    """
    told = consumer.controller
    for _, task in guarded(consumer.app):
        for name in ("time_limit", "soft_time_limit"):
            if getattr(told, name) and not getattr(task, name):
                setattr(task, name, getattr(told, name))


def _is_process_pool(pool: Any) -> bool:
    return type(pool).__module__.rpartition(".")[2] in _PROCESS_POOLS
