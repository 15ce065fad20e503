"""
The publish that is under way here: by when it must be over, and how large it may be.

It is found where the bytes are: in the sockets of the broker's connections and where kombu encodes a body (`_bounded`).
Nothing is passed down through Celery and kombu, which know neither. A publish inside another one has its deadline, too.

    within(seconds) → wait for a producer → encode → connect → declare → write → answer
                      each step is given what is left; after the last second the next step fails at once
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from celery_safeguards.clock import Clock
from celery_safeguards.errors import MessageTooLarge

logger = logging.getLogger("celery_safeguards")
_LEAST_SECONDS = 0.001
"""0 would make a socket one that does not block; the operation must fail by itself, and close what it has begun."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """
    One publish.

    Args:
        clock: monotonic seconds are what counts.
        seconds: how long it may take in all.
        ends: when it must be over, monotonic seconds.
        name: what is published, for people.
        max_bytes: of its encoded body; None: not asked, as for a copy of a message that is under way already.
        denies: whether a larger one is refused, and not only warned of.

    """

    clock: Clock
    seconds: float
    ends: float
    name: str
    max_bytes: int | None = None
    denies: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its time is up."""
        return self.clock.monotonic_seconds() >= self.ends

    def left_seconds(self) -> float:
        """Return what is left for one more operation; never 0."""
        return max(self.ends - self.clock.monotonic_seconds(), _LEAST_SECONDS)

    def measure(self, body: bytes | str) -> None:
        """
        Weigh an encoded body.

        Raises:
            MessageTooLarge: it is larger than is allowed, and that is denied.

        """
        if self.max_bytes is None:
            return
        # Text is as it goes out but for characters beyond ASCII, which are measured only where it matters.
        size_bytes = len(body)
        if isinstance(body, str) and size_bytes * 4 > self.max_bytes:
            size_bytes = len(body.encode(errors="surrogatepass"))
        if size_bytes <= self.max_bytes:
            return
        found = f"{self.name}: its message has {size_bytes} bytes, safeguards_max_message_bytes is {self.max_bytes}"
        if self.denies:
            raise MessageTooLarge(f"{found}: put the data where the body can fetch it, and send its id")
        logger.warning("%s", found)


_CURRENT: ContextVar[Publishing | None] = ContextVar("sg_publishing", default=None)


def current_publish() -> Publishing | None:
    """Return the publish that is under way in this thread or greenlet."""
    return _CURRENT.get()


def bounded(seconds: float | None) -> float | None:
    """Return the shorter of a timeout and what is left of the publish; None: no limit, and none is under way."""
    publishing = _CURRENT.get()
    if publishing is None:
        return seconds
    left_seconds = publishing.left_seconds()
    return left_seconds if seconds is None else min(seconds, left_seconds)


@contextmanager
def publish_under_way(publishing: Publishing) -> Iterator[Publishing]:
    """Let a publish be the one of this thread or greenlet; inside another one it ends with that at the latest."""
    outer = _CURRENT.get()
    if outer is not None and outer.ends < publishing.ends:
        publishing = replace(publishing, ends=outer.ends, seconds=outer.seconds)
    token = _CURRENT.set(publishing)
    try:
        yield publishing
    finally:
        _CURRENT.reset(token)
