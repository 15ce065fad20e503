"""
The hardened Redis channel: messages are taken in one step, put back once, and outlive a connection that is cut.
"""

import logging
from collections.abc import Sequence
from math import inf, nan
from typing import Any

from kombu.exceptions import InconsistencyError
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps
from redis.exceptions import ResponseError

from celery_safeguards._redis import is_away
from celery_safeguards.delivery.qos import Ending, HardenedQoS
from celery_safeguards.delivery.restoring import NoMessage, Returning, returning
from celery_safeguards.delivery.scripts import PUT, RESTORE, SWEEP, execute, run_script
from celery_safeguards.delivery.taking import TakingChannel

logger = logging.getLogger(__name__)
SWEPT_AT_ONCE = 100
"""After so many a worker renews first what it holds itself."""
RENEWALS_PER_TIMEOUT = 3


class HardenedChannel(TakingChannel):
    """kombu's Redis channel without its loss windows; see the package."""

    QoS = HardenedQoS
    # Without them a connection that was dropped silently is waited on for ever (celery/celery#8030).
    socket_timeout = 10.0
    socket_connect_timeout = 5.0
    socket_keepalive = True
    visibility_timeout: float = TakingChannel.visibility_timeout

    sweep_every_seconds = 1.0

    is_swept = False
    """Whether the worker sweeps by itself: then kombu's timer has nothing to do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.successor: HardenedChannel | None = None
        """The channel that carries on what this one held when it was closed."""
        self._left: set[str] = set()
        super().__init__(*args, **kwargs)
        if not self.ack_emulation:
            logger.warning("ack_emulation=False is ignored: without it every message that is taken may be lost")
            self.ack_emulation: bool = True
            self.QoS = HardenedQoS
        self.visibility_timeout = self._usable_timeout(self.visibility_timeout)

    def _usable_timeout(self, given: Any) -> float:
        """Return the visibility timeout as a number: by None or 0 nothing could be renewed or put back."""
        try:
            seconds = float(given)
        except (TypeError, ValueError, OverflowError):
            seconds = nan
        if 0 < seconds < inf and not isinstance(given, bool):
            return seconds
        default = float(type(self).visibility_timeout)
        logger.warning("visibility_timeout=%r is ignored: it is no number above 0, and %g s are taken", given, default)
        return default

    @property
    def renew_every_seconds(self) -> float:
        """The pause between two renewals of what this channel has taken."""
        return float(self.visibility_timeout) / RENEWALS_PER_TIMEOUT

    @property
    def last(self) -> "HardenedChannel":
        """The channel that carries on in the end: this one while it lives."""
        found = self
        while found.successor is not None:
            found = found.successor
        return found

    # --- putting

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        keys = [self.keys.of(self.list_of(queue, message)), self.keys.wake(queue)]
        batch = kwargs.get("_publish_batch")
        if batch is None and queue not in self._expires:
            with self.conn_or_acquire() as client:
                run_script(client, PUT, keys, [dumps(message)])
            return
        super()._put(queue, message, **kwargs)
        if batch is not None:
            batch.add("execute_command", "EVAL", PUT.source, 2, *keys, "")
        else:
            with self.conn_or_acquire() as client:
                run_script(client, PUT, keys, [""])

    def put_back(
        self, tag: str, *, client: Any = None, leftmost: bool = False, latest: str = "", sets_aside: bool = True
    ) -> bool:
        """
        Put an unacknowledged message back into its queue.

        Args:
            tag: of the delivery.
            client: a Redis client to use.
            leftmost: behind all others instead of next.
            latest: only if it was received or renewed no later than this, in seconds of the server's clock.
            sets_aside: whether what has no queue to go to is set aside, and not left where it is.

        Returns:
            False if it was acknowledged, put back or renewed meanwhile, or has no queue to go to, or none that can take
            it: then it is left where it is.

        """
        with self.conn_or_acquire(client) as found:
            entry = execute(found, "HGET", self.keys.unacked, tag)
            return entry is not None and self._return(
                found, tag, entry, leftmost=leftmost, latest=latest, sets_aside=sets_aside
            )

    def _return(
        self, client: Any, tag: str, entry: bytes, *, leftmost: bool, latest: str, sets_aside: bool = True
    ) -> bool:
        try:
            message = returning(entry, self._queues_of)
            keys = [self.keys.unacked, self.keys.index, *self._lists_of(message)]
            side = "LPUSH" if leftmost else "RPUSH"
            return bool(run_script(client, RESTORE, keys, [tag, message.text, side, latest]))
        except NoMessage as error:
            if sets_aside:
                self.set_aside(tag, entry, None, str(error), client)
            else:
                self._tell_left(tag, error)
        except ResponseError as error:
            if is_away(error):
                raise
            # Another worker may have the right that this one lacks.
            self._tell_left(tag, error)
        return False

    def _tell_left(self, tag: str, error: Exception) -> None:
        if tag not in self._left:
            logger.warning("delivery %s is left where it is: %s", tag, error)
        self._left.add(tag)

    def list_of(self, queue: str, message: Any) -> str:
        """Return the list of a queue for a message's priority."""
        return str(self._q_for_pri(queue, self._get_message_priority(message, reverse=False)))

    def _get_message_priority(self, message: Any, reverse: bool = False) -> Any:
        try:
            return super()._get_message_priority(message, reverse)
        except OverflowError:
            # JSON knows no infinity, but Python reads it: it is none, as kombu takes what else is no number.
            return super()._get_message_priority({}, reverse)

    def _lists_of(self, message: Returning) -> list[str]:
        lists = []
        for queue in message.queues:
            lists += [self.keys.of(self.list_of(queue, message.priority)), self.keys.wake(queue)]
        return lists

    def _queues_of(self, exchange: str, routing_key: str) -> Sequence[str]:
        if exchange and self.typeof(exchange).type == "fanout":
            # Each consumer had a copy of its own. Their queues are subscriptions: nobody reads a list of that name.
            return []
        try:
            return [queue for queue in self._lookup(exchange, routing_key) if queue]
        except InconsistencyError:
            return []

    # --- sweeping

    def sweep(self, client: Any = None, most: float = inf) -> int:
        """
        Put back what nobody has renewed for a visibility timeout; returns how many.

        Ends when so many are put back: after the death of a fleet there are more than a timeout is long.

        After a time in which no worker was heard, nothing is put back for one interval: who lives renews first.

        Safe when: several workers sweep at once; killed at any point.
        """
        count = passed = 0
        with self.conn_or_acquire(client) as found:
            while True:
                arguments = [str(self.visibility_timeout), SWEPT_AT_ONCE, str(self.renew_every_seconds), passed]
                keys = [self.keys.unacked, self.keys.index, self.keys.pulse]
                latest, *due = run_script(found, SWEEP, keys, arguments)
                pairs = list(zip(due[::2], due[1::2], strict=True))
                for tag, entry in pairs:
                    is_back = self._return(found, bytes_to_str(tag), entry, leftmost=False, latest=bytes_to_str(latest))
                    count += is_back
                    # What cannot go back keeps nothing from it that lapsed later.
                    passed += not is_back
                if len(pairs) < SWEPT_AT_ONCE or count >= most:
                    return count

    # --- the end

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge, through the live channel if this one is closed."""
        if self.successor is not None:
            self.successor.basic_ack(delivery_tag, multiple)
        elif self.closed:
            self.qos.leave(delivery_tag, Ending.GONE)
        else:
            super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject, through the live channel if this one is closed."""
        if self.successor is not None:
            self.successor.basic_reject(delivery_tag, requeue)
        elif self.closed:
            self.qos.leave(delivery_tag, Ending.PUT_BACK if requeue else Ending.GONE)
        else:
            super().basic_reject(delivery_tag, requeue)

    def take_over(self, before: "HardenedChannel") -> None:
        """Carry on what the running bodies of a closed channel hold, and say what it could not."""
        self.qos.adopt(before.qos)
        # From here on nothing is left to the closed one any more, so nothing is added to what is inherited next.
        before.successor = self
        self.qos.inherit(before.qos)

    def close(self) -> None:
        """Close; what no body runs of goes back to its queue."""
        if not self.closed:
            self.end_poll()
        try:
            super().close()
        except (*self.connection_errors, ResponseError) as error:
            # Also a replica that refuses to delete a queue: a channel that stays open would keep its messages for ever.
            logger.warning(
                "the broker was away while its channel was closed (%s): what it held goes on with the next connection, "
                "or comes back after the visibility timeout",
                error,
            )
            self._close_clients()
            virtual.Channel.close(self)
        finally:
            self._disconnect_pools()
