"""
What a delivery writes into its record: whose it is, what its series carries on, and how each end leaves it.

A claim names the delivery and adds its id to the series; a settled start gives back the start that it had counted as
lost. Everything here is decided from the record as it was read; the store writes it only if that has not moved.
"""

from collections.abc import Mapping
from typing import Any

from celery_safeguards.admission.hold import Ending, Hold
from celery_safeguards.admission.plan import Plan
from celery_safeguards.admission.store import Change, RecordKey
from celery_safeguards.attempts import FailedAttempt, kept_in_record
from celery_safeguards.ledger.decide import Arrival, OnUnknown
from celery_safeguards.ledger.past import past_of
from celery_safeguards.ledger.record import Record, State

BEGINS = {"series_began_us": 0.0}
"""What a new series sets to the store's now."""


class Changes:
    """The changes by which one delivery claims its record."""

    def __init__(self, plan: Plan, key: RecordKey, arrival: Arrival) -> None:
        self._plan = plan
        self._key = key
        self._arrival = arrival

    def start(self, record: Record | None, *, new_series: bool) -> Change:
        """Return what a claim for one more start of the body writes."""
        if record is None:
            # A record that is made here has its defaults already: the usual start sends as little as it can.
            return self.taking(None, {"state": State.IN_PROGRESS, "attempt": 1, "lost_starts": 1}, BEGINS)
        rerun = self._plan.ledger.on_unknown is OnUnknown.RERUN
        doubted = record.effect_possible or record.state is State.IN_PROGRESS
        fields: dict[str, Any] = {
            "state": State.IN_PROGRESS,
            "asking": False,
            "asked": 0,
            "released": False,
            "attempt": 1 if new_series else record.attempt + 1,
            "lost_starts": 1 if new_series else record.lost_starts + 1,
            # A rerun settles nothing of the doubt that came before it; `verify` and a person's word do.
            "effect_possible": rerun and doubted and not new_series,
            **past_fields(record, new_series=new_series),
        }
        return self.taking(record, fields, BEGINS if new_series else {})

    def taking(
        self,
        record: Record | None,
        fields: Mapping[str, Any],
        after_seconds: Mapping[str, float] | None = None,
        *,
        keep: bool = False,
    ) -> Change:
        """
        Return what a claim writes.

        Args:
            record: as it was read.
            fields: what this claim is for.
            after_seconds: times that the store counts from its now.
            keep: nothing may forget the record while the claim is not settled.

        """
        series = record.series if record else ()
        if self._arrival.task_id not in series:
            series = (*series, self._arrival.task_id)
        fingerprint = (record.fingerprint if record else "") or self._arrival.fingerprint
        if record is not None and record.released:
            fingerprint = self._arrival.fingerprint or fingerprint
        own = {
            "scope": self._key.scope,
            "key": self._key.key,
            "task": self._plan.task_name,
            "task_id": self._arrival.task_id,
            "series": series,
            "fingerprint": fingerprint,
        }
        retention = None if keep else self._plan.idempotent.retention_seconds
        return Change(fields={**own, **fields}, after_seconds=after_seconds or {}, retention_seconds=retention)


def done_fields(ending: Ending) -> dict[str, Any]:
    """Return the fields of a record that is done."""
    return {
        "state": State.DONE,
        "result_form": ending.form,
        "result": ending.text,
        "effect_possible": False,
        "failure": {},
    }


def settled_fields(hold: Hold) -> dict[str, Any]:
    """Every settled start gives its lost start back; a claim held to ask had none."""
    lost = hold.record.lost_starts
    return {"lost_starts": lost if hold.record.asking else max(0, lost - 1)}


def attempt_fields(hold: Hold, attempt: FailedAttempt | None) -> dict[str, Any]:
    """Return what a record keeps of an attempt that has failed."""
    return {} if attempt is None else {"attempt_history": kept_in_record(hold.record.attempt_history, attempt)}


def past_fields(record: Record | None, *, new_series: bool) -> dict[str, Any]:
    """Return what becomes of a record's history of attempts: gone with its series, or with the start that was lost."""
    stands = record.attempt_history if record else ()
    becomes = () if record is None or new_series else past_of(record)
    return {} if becomes == stands else {"attempt_history": becomes}
