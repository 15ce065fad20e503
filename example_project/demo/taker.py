"""
A consumer that dies between taking a message and noting it: `python -m example_project.demo.taker APP COUNT`.

It asks the broker as a worker of that app does, by the app's own transport, and is killed when the message has left the
queue and its answer has not been read.
"""

import contextlib
import os
import signal
import sys
import time
from queue import Empty

from celery.app.utils import find_app

_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 10.0


def take_and_die(app, count):
    """Take this many messages, each over a connection of its own, and be killed."""
    app.loader.import_default_modules()
    app.finalize()
    queue = app.conf.task_default_queue
    held = []
    for _ in range(count):
        channel = app.connection_for_read().default_channel
        left = channel._size(queue) - 1  # noqa: SLF001 - a queue that is empty does not exist for kombu
        app.amqp.TaskConsumer(channel, on_message=held.append, prefetch_count=1).consume()
        # Referred to, or it would be closed in order.
        held.append(channel)
        _wait_until_taken(channel, queue, left)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_until_taken(channel, queue, left):
    ends = time.monotonic() + _PATIENCE_SECONDS
    while True:
        channel.connection.cycle.on_poll_start()
        time.sleep(_POLL_SECONDS)
        if channel._size(queue) <= left:  # noqa: SLF001
            return
        if time.monotonic() > ends:
            raise TimeoutError(f"no message of {queue!r} was taken")
        # It answered, and with no message: it asks to be told the script.
        with contextlib.suppress(Empty, TimeoutError):
            channel.connection.client.drain_events(timeout=_POLL_SECONDS)


if __name__ == "__main__":
    take_and_die(find_app(sys.argv[1]), int(sys.argv[2]))
