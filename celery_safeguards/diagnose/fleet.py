"""
Whether the workers of one broker namespace agree on what they all depend on.

On Redis, `unacked` and its sweep are of a database (and a `global_keyprefix`), not of an app or a queue, and whoever
sweeps uses its own visibility timeout and its own clock on what all others have taken (celery/kombu#337,
celery/celery#1112): one short timeout, or one clock that is ahead, decides for everyone. No worker can see that by
itself, so each says what it works with, and reads what the others say.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from celery_safeguards.diagnose.tasks import named
from celery_safeguards.findings import Finding
from celery_safeguards.stored_types import known_fields, require_types

_DRIFT_SHARE = 10
"""A clock may be off by one part of so many of the visibility timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What one worker says of itself; times in seconds."""

    worker: str
    queues: tuple[str, ...] = ()
    namespace: str = ""
    transport: str = ""
    """The class of its broker channel."""
    timeout_seconds: float | None = None
    """Its effective visibility timeout."""
    is_renewed: bool = False
    is_hardened: bool = False
    clock_offset_seconds: float = 0.0
    """How far its host's clock is ahead of the broker's."""
    clock_error_seconds: float = 0.0
    """How far that may be wrong: half the round trip."""
    stored_format: int = 0
    celery: str = ""
    kombu: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "queues": list(self.queues)}

    @classmethod
    def from_plain(cls, worker: str, plain: Any) -> "WorkerReport":
        """
        Read what a worker of another version may have written: what is not known here is left out.

        Raises:
            TypeError: a value that no worker says.

        """
        if not isinstance(plain, dict):
            raise TypeError("it is no mapping")
        given = {**known_fields(cls, plain), "worker": worker}
        require_types(cls, given)
        return cls(**{**given, "queues": tuple(given.get("queues", ()))})

    def __str__(self) -> str:
        timeout = "none" if self.timeout_seconds is None else f"{self.timeout_seconds:g} s"
        return (
            f"worker {self.worker}: visibility timeout {timeout}, renewed: {'yes' if self.is_renewed else 'no'}, clock "
            f"{self.clock_offset_seconds:+.3f} s, namespace {self.namespace!r}, format {self.stored_format}, "
            f"celery {self.celery}, kombu {self.kombu}, {self.transport}"
        )


def disagreements(reports: Sequence[WorkerReport]) -> list[Finding]:
    """Return on what these workers do not agree."""
    return [
        *_timeouts(reports),
        *_clocks(reports),
        *_transports(reports),
        *_namespaces(reports),
        *_differing(
            "SG164", reports, "stored_format", "the older put off what they cannot read; finish the deployment"
        ),
        *_differing("SG165", reports, "celery", "of Celery; finish the deployment"),
        *_differing("SG165", reports, "kombu", "of kombu; finish the deployment"),
    ]


def _timeouts(reports: Sequence[WorkerReport]) -> Iterator[Finding]:
    workers = _by((each, each.timeout_seconds) for each in reports if each.timeout_seconds is not None)
    if len(workers) > 1:
        shown = ", ".join(f"{timeout:g} s ({named(names)})" for timeout, names in sorted(workers.items()))
        yield Finding(
            "SG160",
            f"{shown}: what any of them has taken is put back after {min(workers):g} s; set one visibility_timeout in "
            "broker_transport_options, or give each app a database or a global_keyprefix of its own",
        )


def _clocks(reports: Sequence[WorkerReport]) -> Iterator[Finding]:
    shortest = min((each.timeout_seconds for each in reports if each.timeout_seconds is not None), default=None)
    if shortest is None:
        return
    for each in reports:
        if abs(each.clock_offset_seconds) - each.clock_error_seconds > shortest / _DRIFT_SHARE:
            way = "ahead of" if each.clock_offset_seconds > 0 else "behind"
            yield Finding(
                "SG161",
                f"{each.worker}: its clock is {abs(each.clock_offset_seconds):.0f} s {way} the broker's, more than a "
                f"tenth of the visibility timeout of {shortest:g} s: messages are put back too early or too late; "
                "synchronise it",
            )


def _transports(reports: Sequence[WorkerReport]) -> Iterator[Finding]:
    workers = _by((each, each.is_hardened) for each in reports)
    if len(workers) > 1:
        yield Finding(
            "SG162",
            f"{named(workers[True])} take messages by the hardened transport, and {named(workers[False])} do not: what "
            "those put back, or acknowledge late, the others lose; give all of them one safeguards_transport",
        )


def _namespaces(reports: Sequence[WorkerReport]) -> Iterator[Finding]:
    workers = _by((each, (queue, each.namespace)) for each in reports for queue in each.queues)
    spaces = _grouped(workers)
    for queue, found in sorted(spaces.items()):
        if len(found) > 1:
            shown = ", ".join(f"{space!r} ({named(names)})" for space, names in sorted(found.items()))
            yield Finding(
                "SG163",
                f"queue {queue!r} is consumed under {shown}: they share no record and no lock, so that work may be "
                "done once under each; set one safeguards_namespace",
            )


def _differing(finding_id: str, reports: Sequence[WorkerReport], name: str, about: str) -> Iterator[Finding]:
    workers = _by((each, getattr(each, name)) for each in reports)
    if len(workers) > 1:
        shown = ", ".join(f"{value} ({named(names)})" for value, names in sorted(workers.items()))
        yield Finding(finding_id, f"{shown}: {about}")


def _by(pairs: Iterable[tuple[WorkerReport, Any]]) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = defaultdict(list)
    for report, value in pairs:
        found[value].append(report.worker)
    return dict(found)


def _grouped(workers: dict[Any, list[str]]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (queue, namespace), names in workers.items():
        found[queue][namespace] = names
    return dict(found)
