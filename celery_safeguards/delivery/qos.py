"""
The messages that one channel has taken and not acknowledged.

    delivered    taken by this channel; counts against the prefetch limit
    adopted      of a channel that was closed, while their bodies run on: acknowledged here, beyond the prefetch limit
    kept         left in `unacked` when this channel was closed, until the next channel adopts them
    unsent       acknowledged or rejected when the server could not be told: it is told later
    stray        to be put back when the server could not be told: a question without an answer, or what a close left

What could not be said is made up for by the worker's thread of renewal a second later, or by the next channel.

A message whose body runs is not put back when a connection is cut: its worker lives, and goes on renewing it. Put back,
it would run a second time at once (kombu 5.7, `virtual.Channel.close`; celery/celery#7185).
"""

import logging
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

from kombu.transport import redis as stock
from kombu.transport import virtual
from redis.exceptions import RedisError

from celery_safeguards.delivery.scripts import led_anew

logger = logging.getLogger(__name__)

_running: Callable[[], Collection[str]] = tuple


def name_what_runs(running: Callable[[], Collection[str]]) -> None:
    """Say for this process how to find the delivery tags whose bodies run and are to run on without a connection."""
    global _running  # noqa: PLW0603 - of the process, as its worker is
    _running = running


class Ending(Enum):
    """How a delivery ended while there was no connection to say so."""

    GONE = "gone"
    PUT_BACK = "put back"


class HardenedQoS(stock.QoS):  # type: ignore[misc]
    """Acknowledgement with one tag for each delivery."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adopted: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}
        self.unsent: dict[str, Ending] = {}
        self.stray: set[str] = set()
        self._ending: set[str] = set()

    @property
    def held(self) -> tuple[str, ...]:
        """The tags to renew: whatever this process still answers for."""
        taking = self.channel.taking
        mine = (*tuple(self._delivered), *tuple(self.adopted), *tuple(self.kept), *((taking,) if taking else ()))
        return tuple(tag for tag in mine if tag not in self._dirty)

    def holds(self, tag: str) -> bool:
        """Whether this process still answers for a delivery."""
        is_mine = tag in self._delivered or tag in self.adopted or tag in self.kept
        return is_mine and tag not in self._dirty

    def message_of(self, tag: str) -> Any | None:
        """Return a held message, or None: also if it is just being acknowledged."""
        if tag in self._ending or tag in self._dirty:
            return None
        return self._delivered.get(tag) or self.adopted.get(tag) or self.kept.get(tag)

    def forget(self, tag: str) -> None:
        """Hold a delivery no more, and say nothing: it comes back by the visibility timeout."""
        is_carried = self.adopted.pop(tag, None) is not None or self.kept.pop(tag, None) is not None
        # One that is not there would count as a free slot.
        if not is_carried and tag in self._delivered:
            self._quick_ack(tag)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivery; what a script has taken is noted in the server already."""
        if not self.channel.is_noted(delivery_tag):
            self.channel.note(delivery_tag, message)
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge; without a connection, the next channel does."""
        self._end(delivery_tag, Ending.GONE)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give up or put back; without a connection, the next channel does."""
        self._end(delivery_tag, Ending.PUT_BACK if requeue else Ending.GONE)

    def _end(self, tag: str, ending: Ending) -> None:
        # Gone from the server before it is gone from here, it would look like another worker's to who renews it now.
        self._ending.add(tag)
        try:
            self._say(tag, ending)
        except BaseException:
            # Whatever broke it (a close beside us, in another thread or greenlet, shows as many errors): its body has
            # ended. Put back at the close, it would run again; kept, it would be renewed for its whole budget.
            self.leave(tag, ending)
            raise
        finally:
            self.forget(tag)
            self.channel.last.qos.forget(tag)
            self._ending.discard(tag)

    def _say(self, tag: str, ending: Ending, client: Any = None) -> None:
        if ending is Ending.PUT_BACK:
            self.restore_by_tag(tag, client=client, leftmost=True)
            return
        with self.pipe_or_acquire(client=client) as pipe, led_anew(pipe):
            self._remove_from_indices(tag, pipe).execute()

    def make_up(self, client: Any = None) -> None:
        """
        Say what could not be said in time: how deliveries ended, and which go back.

        Raises:
            ConnectionError, redis.RedisError: the server did not answer; what is left waits for the next time.

        Safe when: several threads do so at once; a word may be said twice.
        """
        for tag, ending in tuple(self.unsent.items()):
            self._say(tag, ending, client)
            self.unsent.pop(tag, None)
        for tag in tuple(self.stray):
            self.restore_by_tag(tag, client=client)
            self.stray.discard(tag)

    def make_up_if_heard(self) -> None:
        """Say it now, or leave it for later."""
        try:
            self.make_up()
        except (*self.channel.connection_errors, RedisError) as error:
            count = len(self.unsent) + len(self.stray)
            logger.warning("%s messages are acknowledged or put back once the server answers: %s", count, error)

    def leave(self, tag: str, ending: Ending) -> None:
        """Leave an ending to be said later, by whoever has taken over from this channel or will."""
        self.forget(tag)
        self.unsent[tag] = ending
        # Looked up afterwards: who takes over from now on inherits it.
        last = self.channel.last.qos
        last.forget(tag)
        last.unsent[tag] = ending

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put back at the close, also where nothing is delivered: an answer may be outstanding."""
        del stderr
        self._on_collect.cancel()
        if self.channel.do_restore and not self._delivered.restored:
            self._delivered.restored = True
            self.restore_unacked()

    def restore_unacked(self, client: Any = None) -> None:
        """Put back what no body runs of; called once, when the channel is closed."""
        del client
        self._flush()
        running = set(_running())
        delivered = {**self.adopted, **self._delivered}
        self._delivered.clear()
        self.adopted.clear()
        for tag, message in delivered.items():
            if tag in self.unsent:
                continue
            if tag in running:
                self.kept[tag] = message
                continue
            self.stray.add(tag)
        if self.stray:
            logger.info("%s messages go back to their queues; %s run on", len(self.stray), len(self.kept))
        self.make_up_if_heard()

    def adopt(self, before: "HardenedQoS") -> None:
        """Hold what a closed channel has kept; that one goes on holding it until nobody renews through it any more."""
        for tag, message in tuple(before.kept.items()):
            self.adopted[tag] = message
            message.channel = self.channel

    def inherit(self, before: "HardenedQoS") -> None:
        """Say what a closed channel could not; it is this one's now, also if it cannot say it either."""
        for tag in tuple(before.unsent):
            self.forget(tag)
        self.unsent.update(before.unsent)
        self.stray.update(before.stray)
        self.make_up_if_heard()

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        """Put back what was not renewed for a visibility timeout, unless the worker's own sweep does."""
        del start, num, interval
        if not self.channel.is_swept:
            self.channel.sweep()

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Put one delivery back, at the end of its queue or, `leftmost`, behind all others."""
        self.channel.put_back(tag, client=client, leftmost=leftmost)
