"""What of a letter cannot be edited in a copy, and why: for the form and for the command line."""

from dataclasses import dataclass

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.replay.copies.edit import opened
from celery_safeguards.replay.copies.following import following


@dataclass(frozen=True, slots=True)
class Locked:
    """One thing that stays out of reach; `value` as a person may see it."""

    name: str
    value: str
    why: str


def locked_fields(letter: Letter, seen: WireMessage) -> tuple[Locked, ...]:
    """
    Return what an edit cannot change, with reasons.

    Args:
        letter: one that can be opened.
        seen: its message as a person may see it.

    Raises:
        EditRefused: it cannot.
        LetterTruncated: it is not whole.

    """
    headers, follows = seen.headers, following(opened(letter).embed)
    group = letter.group_id or headers.get("group") or ("of a chain in a chord" if follows.leaves_chord else "")
    key = f"{letter.key}, of {letter.scope}" if letter.key is not None else "none"
    rows = (
        Locked("task", letter.task, "other work is published anew, not edited"),
        Locked("key", key, "the task's policy makes the copy's own from its arguments"),
        Locked("task id", letter.task_id, "a copy has its own; this one becomes its parent"),
        Locked(
            "root id", letter.root_id or letter.task_id, "stays: whoever looks for all of one request finds the copy"
        ),
        Locked("group or chord", str(group), "left: it has counted the original as failed, and must not count twice"),
        Locked("what follows it", "; ".join(follows.words), "goes with the copy, under task ids of its own"),
        Locked("expires", str(headers.get("expires") or ""), "stays while it is ahead"),
        Locked("priority", str(seen.properties.get("priority") or ""), "stays, as time limits and headers do"),
    )
    return tuple(row for row in rows if row.value)
