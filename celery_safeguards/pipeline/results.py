"""
Results as the record keeps them: JSON text in Celery's typed encoding, whatever the task's serializer; never pickle.

Both paths see the same value: the first run returns its result after one round trip through this form, and a duplicate
returns it from the record. So the next link of a chain cannot tell which of the two it follows. A result that does not
fit never fails a settle; the record says why it is not there.
"""

from typing import Any

from kombu.utils.json import dumps, loads

from celery_safeguards.admission.hold import Ending
from celery_safeguards.ledger.record import Record, ResultForm

_NOTHING = Ending(ResultForm.STORED, "null")


def encode_result(value: Any, *, store_result: bool, max_bytes: int) -> tuple[Any, Ending]:
    """Return the value as every reader will see it, and what the record keeps of it."""
    if value is None:
        return None, _NOTHING
    try:
        text = dumps(value)  # type: ignore[no-untyped-call]
        seen = loads(text)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001
        # What JSON cannot carry: Celery's own serializer may, so the first reader still gets it. An encoder of the
        # value's own class may raise anything, and the work is done all the same.
        return value, Ending(ResultForm.NOT_ENCODABLE)
    if not store_result:
        return seen, Ending(ResultForm.WITHHELD)
    if len(text.encode()) > max_bytes:
        return seen, Ending(ResultForm.TOO_LARGE)
    return seen, Ending(ResultForm.STORED, text)


def stored_result(record: Record) -> Any:
    """Return what a duplicate gets: the stored value, or a marker that says why there is none."""
    if record.result_form is ResultForm.STORED:
        return loads(record.result)  # type: ignore[no-untyped-call]
    return {"sg_result": record.result_form.value, "key": record.key}
