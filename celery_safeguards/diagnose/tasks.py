"""What guarded tasks declare, and what they rest on in their stores."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from celery_safeguards._names import is_built_in
from celery_safeguards.admission.atomic import AtomicStore
from celery_safeguards.errors import ConfigurationError, StoreUnavailable
from celery_safeguards.findings import Finding
from celery_safeguards.policy import Declared, Safeguards
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)
_MOST_NAMED = 5


def guarded(app: Any) -> list[tuple[str, Any]]:
    """Return the tasks that have safeguards, by name."""
    tasks = sorted(app.tasks.items())
    return [(name, task) for name, task in tasks if hasattr(task, "policy") and not task.is_built_in]


def unguarded(app: Any) -> list[tuple[str, Any]]:
    """Return the project's other tasks, by name."""
    tasks = sorted(app.tasks.items())
    return [(name, task) for name, task in tasks if not hasattr(task, "policy") and not is_built_in(name)]


def named(names: Iterable[str]) -> str:
    """Return a list of names that stays readable."""
    shown = list(names)
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more


def declaration_findings(app: Any) -> Iterator[Finding]:
    """Return the tasks that do not say what running them twice means, and those that only look guarded."""
    for name, task in unguarded(app):
        if isinstance(getattr(task, "safeguards", None), Safeguards):
            yield Finding("SG103", f"{name} has safeguards= and no base=SafeTask, so nothing of it holds")
    for name, task in guarded(app):
        if task.policy.declared is Declared.NOTHING:
            yield Finding("SG101", f"{name} declares neither idempotent, repeatable nor at_most_once")


def short_locks(app: Any) -> Iterator[Finding]:
    """Return the locks whose lease may be over in an outage that is too short to be told."""
    lease_seconds = Wiring.of(app).settings.lease_seconds
    # An outage is told after half a lease of claims; a lock was last renewed up to a third of its own before it began.
    least_seconds = lease_seconds / 2 / (2 / 3)
    for name, task in guarded(app):
        if task.policy.lock is not None and task.policy.lock.lease_seconds < least_seconds:
            yield Finding(
                "SG120",
                f"{name} has a lock with lease_seconds={task.policy.lock.lease_seconds:g}, below three quarters of "
                f"safeguards_lease_seconds={lease_seconds:g}; give {least_seconds:g} or more",
            )


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
            logger.info("what bounds the transactions of database %r could not be asked", alias, exc_info=True)
            asked = f"{named(names)}: database {alias!r} could not be asked: {error}"
            findings.append(Finding("SG130", asked, is_unknown=True))
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
    for name, task in guarded(app):
        alias = None if task.plan is None else task.plan.idempotent.atomic
        if alias is not None:
            try:
                store = Wiring.of(app).atomic_store(alias, joined=is_eager)
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {error}") from error
            found.setdefault(alias, (store, []))[1].append(name)
    return found
