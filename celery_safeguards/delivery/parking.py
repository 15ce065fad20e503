"""
Parking: a message that has to wait is kept by the broker, not in a worker's memory.

    runs, must wait ──park──▶ parked ──due, or called──▶ back in its queue, as the next one
                one script     │       by whichever worker sweeps; by who ends what it waits for
                               └ nobody holds it: the death of any worker changes nothing

A copy for later would be published first and its original acknowledged then: two messages, if the worker dies between
the two. And whoever took the copy would hold it until its time, beyond its prefetch limit (kombu and celery 5.7 keep an
ETA in the worker that has received it). Here the message leaves `unacked` for the parked set in one step, under the
delivery's tag, so that a second try of the same step finds it done.

Messages that wait for one lock or key stand in one line: whoever ends calls the one that has waited longest. A call
that comes before its message is parked finds nobody; the message then comes back when it is due. Only the first of a
line comes back by itself, and so the next one after it: a hundred thousand that came back each on its own account would
find the same lock busy, before all other work of their queue. So a call that is lost, by a death or by a message that
was withdrawn, holds a line up for one wait.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.scripts import CALL_NEXT, PARK, RETURN_DUE, execute, run_script

logger = logging.getLogger(__name__)
_RETURNED_AT_ONCE = 100
_BEHIND_SECONDS = 3_600.0
"""How long one waits at least who stands behind another: until called or first, in the rule."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where a parked message stands: what it waits for, and since when, in seconds."""

    name: str
    since: float


def park(
    channel: HardenedChannel, tag: str, headers: Mapping[str, Any], wait_seconds: float, line: Line | None = None
) -> bool:
    """
    Have a message that is taken and not acknowledged come back later, with other headers.

    Args:
        channel: any of the broker's; it need not be the one that has taken the message.
        tag: of the delivery.
        headers: set on top of the message's own.
        wait_seconds: by the server's clock.
        line: where it stands, to be called before.

    Returns:
        False if another worker may have the message, or if it is a broadcast's: its copy has no queue to come back to.

    Safe when: called again after an answer that was lost.

    """
    keys = channel.keys
    with channel.conn_or_acquire() as client:
        entry = execute(client, "HGET", keys.unacked, tag)
        if entry is None:
            return execute(client, "ZSCORE", keys.parked, tag) is not None
        message, exchange, queue = loads(bytes_to_str(entry))
        if exchange:
            return False
        # Its own time has come already.
        message["headers"] = {**(message.get("headers") or {}), **headers, "eta": None}
        where, line_key = keys.of(channel.list_of(queue, message)), keys.line(line.name) if line else ""
        parked = json.dumps([where, keys.wake(queue), dumps(message), line_key, wait_seconds])
        names = [keys.unacked, keys.index, keys.parked, keys.parked_messages, line_key or keys.parked]
        since = f"{line.since:.6f}" if line else ""
        arguments = [tag, parked, f"{wait_seconds:.6f}", since, _BEHIND_SECONDS]
        return bool(run_script(client, PARK, names, arguments))


def call_next(channel: HardenedChannel, line_name: str, client: Any = None) -> bool:
    """Give back the message that has stood in a line for longest; returns whether there was one."""
    keys = channel.keys
    with channel.conn_or_acquire(client) as found:
        names = [keys.parked, keys.parked_messages, keys.line(line_name)]
        return bool(run_script(found, CALL_NEXT, names, []))


@dataclass(frozen=True, slots=True)
class Kept:
    """What the broker keeps beside queues and `unacked`."""

    returned: int
    """Parked messages that were given back now."""
    parked: int
    aside: int
    """Entries that are no messages."""


def return_due(channel: HardenedChannel, client: Any = None) -> Kept:
    """Give back the parked messages whose time has come."""
    count = 0
    names = [channel.keys.parked, channel.keys.parked_messages, channel.keys.aside]
    with channel.conn_or_acquire(client) as found:
        while True:
            returned, parked, aside, failed, why = run_script(found, RETURN_DUE, names, [_RETURNED_AT_ONCE])
            count += returned
            if failed:
                logger.warning("%s parked messages that are due stay parked: %s", failed, bytes_to_str(why))
            if returned + failed < _RETURNED_AT_ONCE:
                return Kept(count, parked, aside)
