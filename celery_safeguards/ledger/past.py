"""The failed attempts that a record keeps of its series; see `celery_safeguards.attempts`."""

from celery_safeguards.attempts import FailedAttempt, kept_in_record
from celery_safeguards.clock import to_seconds
from celery_safeguards.ledger.record import Record, State


def past_of(record: Record) -> tuple[str, ...]:
    """
    Return them as whoever takes a record over keeps them: a start that nobody has settled was lost.

    Args:
        record: as it was found; its claim is not the caller's own.

    """
    if record.state is not State.IN_PROGRESS or record.asking or not record.attempt:
        return record.attempt_history
    said = record.failure if record.lost_us else {}
    attempt = FailedAttempt(
        number=record.attempt,
        at_seconds=to_seconds(record.lost_us or record.lease_until_us),
        ended="lost: its process ended" if record.lost_us else "lost: its lease lapsed, nobody saw it end",
        message=str(said.get("error", "")),
        worker=str(said.get("worker", "")),
        release=str(said.get("release", "")),
        task_id=record.task_id,
    )
    return kept_in_record(record.attempt_history, attempt)
