"""
What should have come back to its queue long ago, and sending it again.

A message that nobody renews comes back a visibility timeout after its last word, and a parked one when it is due: by a
worker that sweeps. If none does (all workers are stopped, or the last hardened one was), both stay where they are. Sent
again, a message leaves that place and enters its queue in one step, under its own task id: two people who do so, or a
worker that comes up meanwhile, send it once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.scripts import OVERDUE, UNPARK_ONE, run_script

MOST = 1_000
"""How many of each place are looked at."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """One message that should have come back."""

    place: str
    """`"unacknowledged"` or `"parked"`."""

    tag: str
    """Of the delivery that took it."""

    over_seconds: float
    """Since its last renewal, or since it was due."""

    task: str
    task_id: str
    """Empty where the message cannot be read."""


def find_overdue(channel: HardenedChannel, unacknowledged_seconds: float, parked_seconds: float) -> list[Overdue]:
    """
    Return what is overdue, by the server's clock.

    Args:
        channel: of the broker.
        unacknowledged_seconds: how long a message may be without renewal.
        parked_seconds: how long a parked one may be due.

    """
    keys = channel.keys
    names = [keys.index, keys.unacked, keys.parked, keys.parked_messages]
    most_seconds = {"unacknowledged": unacknowledged_seconds, "parked": parked_seconds}
    with channel.conn_or_acquire() as client:
        answers = run_script(client, OVERDUE, names, [min(most_seconds.values()), MOST])
    found = [_overdue(*map(_text, answer)) for answer in answers]
    return [each for each in found if each.over_seconds >= most_seconds[each.place]]


def send_again(channel: HardenedChannel, overdue: Overdue) -> bool:
    """
    Put an overdue message back into its queue.

    Args:
        channel: of the broker; it knows the exchanges by which messages of the stock transport came.
        overdue: from `find_overdue`.

    Returns:
        Whether it was still where it was found; False as well if no queue is known for it: it is left, since nobody may
        be there to make a letter of it.

    """
    if overdue.place == "parked":
        names = [channel.keys.parked, channel.keys.parked_messages]
        with channel.conn_or_acquire() as client:
            return bool(run_script(client, UNPARK_ONE, names, [overdue.tag]))
    return channel.put_back(overdue.tag, sets_aside=False)


def _overdue(place: str, tag: str, over: str, entry: str) -> Overdue:
    headers = _headers_of(place, entry)
    return Overdue(place, tag, float(over), str(headers.get("task") or ""), str(headers.get("id") or ""))


def _headers_of(place: str, entry: str) -> Mapping[str, Any]:
    try:
        parts = loads(entry)
        message = loads(parts[2]) if place == "parked" else parts[0]
        headers: Mapping[str, Any] = message["headers"]
    except (ValueError, TypeError, LookupError):
        return {}
    return headers if isinstance(headers, Mapping) else {}


def _text(value: Any) -> str:
    return bytes_to_str(value) if isinstance(value, bytes) else str(value)
