"""
The messages that one channel has taken and not acknowledged.

    delivered    taken by this channel; counts against the prefetch limit
    adopted      of a channel that was closed, while their bodies run on: acknowledged here, beyond the prefetch limit
    kept         left in `unacked` when this channel was closed, until the next channel adopts them
    unsent       acknowledged or rejected while there was no connection; the next channel says so
    stray        not put back at the close, since the server was away; the next channel does

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
        """Return a held message, or None."""
        return self._delivered.get(tag) or self.adopted.get(tag) or self.kept.get(tag)

    def forget(self, tag: str) -> None:
        """Hold a delivery no more, and say nothing: it comes back by the visibility timeout."""
        if self.adopted.pop(tag, None) is None and self.kept.pop(tag, None) is None:
            self._quick_ack(tag)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivery; what a script has taken is noted in the server already."""
        if self.channel.is_noted(delivery_tag):
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge; without a connection, the next channel does."""
        self._end(delivery_tag, Ending.GONE)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give up or put back; without a connection, the next channel does."""
        self._end(delivery_tag, Ending.PUT_BACK if requeue else Ending.GONE)

    def _end(self, tag: str, ending: Ending) -> None:
        try:
            if ending is Ending.PUT_BACK:
                self.restore_by_tag(tag, leftmost=True)
            else:
                self._remove_from_indices(tag).execute()
        except (*self.channel.connection_errors, RedisError):
            # Its body has ended: put back at the close, it would run again.
            self.unsent[tag] = ending
            self.forget(tag)
            raise
        self.forget(tag)

    def end_by_next(self, tag: str, ending: Ending) -> None:
        """Leave an ending to the channel that follows this one, which is closed."""
        self.unsent[tag] = ending
        self.forget(tag)

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
        delivered, is_away = {**self.adopted, **self._delivered}, False
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
        for tag in tuple(self.stray):
            if is_away:
                break
            is_away = not self._restored(tag)

    def _restored(self, tag: str) -> bool:
        try:
            self.restore_by_tag(tag)
        except (*self.channel.connection_errors, RedisError) as error:
            logger.warning("%s messages are put back once the server answers: %s", len(self.stray), error)
            return False
        self.stray.discard(tag)
        return True

    def take_over(self, before: "HardenedQoS") -> None:
        """Carry on what a closed channel has left: its running bodies' messages, and what it could not say."""
        for tag in tuple(before.kept):
            message = before.kept.pop(tag, None)
            if message is not None:
                message.channel = self.channel
                self.adopted[tag] = message
        for tag, ending in tuple(before.unsent.items()):
            self._end(tag, ending)
            before.unsent.pop(tag, None)
        for tag in tuple(before.stray):
            self.restore_by_tag(tag)
            before.stray.discard(tag)

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        """Put back what was not renewed for a visibility timeout, unless the worker's own sweep does."""
        del start, num, interval
        if not self.channel.is_swept:
            self.channel.sweep()

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Put one delivery back, at the end of its queue or, `leftmost`, behind all others."""
        self.channel.put_back(tag, client=client, leftmost=leftmost)
