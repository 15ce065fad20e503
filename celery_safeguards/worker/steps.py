"""
What a worker does for its guarded tasks from start to end: check them, renew their claims, drain the spool, and go to
the store where its loop must not wait.

Both steps are consumer bootsteps, so they run in every pool, after the tasks are loaded. A reconnect starts them anew.
"""

import logging
from typing import Any

from celery import bootsteps

from celery_safeguards._compat import close_to_the_end, run_what_waits
from celery_safeguards.admission.atomic import AtomicStore
from celery_safeguards.conf import MEMORY_URL
from celery_safeguards.errors import ConfigurationError, StoreUnavailable
from celery_safeguards.policy import Declared, Safeguards
from celery_safeguards.retry.findings import Finding, budget_of, schedule_findings, visibility_timeout_seconds
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker import errands
from celery_safeguards.worker.keeper import Keeper, appoint, keeper_of, kill_child
from celery_safeguards.worker.liveness import forget_liveness, liveness_of
from celery_safeguards.worker.looks import further_findings

logger = logging.getLogger(__name__)
_PROCESS_POOLS = ("prefork",)
_TRIPS_AT_SHUTDOWN = 4
"""How many round trips to a store that does not answer a shutdown waits for."""


class CheckStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Say at start which tasks may run twice or have an odd schedule; with `safeguards_strict`, refuse to start."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        findings = [*worker_findings(parent.app), *unbounded_transactions(parent.app)]
        for finding in findings:
            logger.warning("%s", finding)
        if findings and Wiring.of(parent.app).settings.strict:
            found = "; ".join(str(finding) for finding in findings)
            raise ConfigurationError(f"{found}. safeguards_strict is set: mend it, or unset that")


def worker_findings(app: Any) -> list[Finding]:
    """
    Return what a person should look at before a worker of this app runs; no store is asked.

    Raises:
        ConfigurationError: it could not run.

    """
    atomic_stores(app)
    return [
        *unguarded_tasks(app),
        *undeclared_tasks(app),
        *odd_schedules(app),
        *short_locks(app),
        *further_findings(app),
    ]


def undeclared_tasks(app: Any) -> list[Finding]:
    """Return the guarded tasks that do not say what running them twice means."""
    return [
        Finding("SG101", f"may run twice: {name} declares neither idempotent, repeatable nor at_most_once")
        for name, task in _guarded(app)
        if task.policy.declared is Declared.NOTHING
    ]


def unguarded_tasks(app: Any) -> list[Finding]:
    """Return the tasks that declare safeguards and are not built on the class that keeps them."""
    return [
        Finding("SG103", f"not guarded: {name} has safeguards= and no base=SafeTask, so nothing of it holds")
        for name, task in sorted(app.tasks.items())
        if isinstance(getattr(task, "safeguards", None), Safeguards) and not hasattr(task, "policy")
    ]


def odd_schedules(app: Any) -> list[Finding]:
    """Return what is odd in the retry schedules of guarded tasks."""
    timeout = visibility_timeout_seconds(app)
    return [
        finding
        for name, task in _guarded(app)
        for finding in schedule_findings(name, task.policy.retry, budget_of(task, timeout))
    ]


def short_locks(app: Any) -> list[Finding]:
    """Return the locks whose lease may be over in an outage that is too short to be told."""
    lease_seconds = Wiring.of(app).settings.lease_seconds
    # An outage is told after half a lease of claims; a lock was last renewed up to a third of its own before it began.
    least_seconds = lease_seconds / 2 / (2 / 3)
    return [
        Finding(
            "SG120",
            f"its lock may pass on in a short outage of the store: {name} has a lock with "
            f"lease_seconds={task.policy.lock.lease_seconds:g}, below three quarters of "
            f"safeguards_lease_seconds={lease_seconds:g}; give {least_seconds:g} or more",
        )
        for name, task in _guarded(app)
        if task.policy.lock is not None and task.policy.lock.lease_seconds < least_seconds
    ]


def unbounded_transactions(app: Any) -> list[Finding]:
    """
    Return what lets the transactions of atomic tasks outlive a client that is gone; asks each database once.

    Raises:
        ConfigurationError: the records of an atomic task are not in its database, or that cannot carry it.

    """
    findings = []
    for alias, (store, names) in atomic_stores(app).items():
        try:
            found = store.unbounded()
        except StoreUnavailable as error:
            logger.warning("what bounds the transactions of database %r could not be asked: %s", alias, error)
            continue
        findings += [Finding("SG130", f"{', '.join(names)}: database {alias!r}: {each}") for each in found]
    return findings


def atomic_stores(app: Any) -> dict[str, tuple[AtomicStore, list[str]]]:
    """
    Return by database the store of the records of atomic tasks, and their names.

    Raises:
        ConfigurationError: the records of an atomic task are not in its database.

    """
    found: dict[str, tuple[AtomicStore, list[str]]] = {}
    is_eager = bool(app.conf.task_always_eager)
    for name, task in _guarded(app):
        alias = None if task.plan is None else task.plan.idempotent.atomic
        if alias is not None:
            try:
                store = Wiring.of(app).atomic_store(alias, joined=is_eager)
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {error}") from error
            found.setdefault(alias, (store, []))[1].append(name)
    return found


def _guarded(app: Any) -> list[tuple[str, Any]]:
    tasks = sorted(app.tasks.items())
    return [(name, task) for name, task in tasks if hasattr(task, "policy") and not task.is_celerys_own]


class LeaseStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Run the keeper and the errands while there is anything to do: through reconnects and through a warm shutdown."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._errands = errands.Errands(parent.call_soon)

    def start(self, parent: Any) -> None:
        """Start the keeper before the first message can be claimed."""
        keeper = keeper_of(parent.app)
        if keeper is None:
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


def _is_process_pool(pool: Any) -> bool:
    return type(pool).__module__.rpartition(".")[2] in _PROCESS_POOLS
