"""Publishers with and without safeguards, and brokers that do not answer."""

import contextlib
import selectors
import socket
import threading
import time

import pytest
from celery import Celery
from kombu import pools

from celery_safeguards import Idempotent, Safeguards, SafeTask
from tests.support import apps
from tests.support.sockets import HOST, free_port

DEADLINE_SECONDS = 1.0
SLACK_SECONDS = 1.0
"""For a machine that is busy."""
HANGS_SECONDS = 3 * DEADLINE_SECONDS


@pytest.fixture
def publisher(namespace):
    """Make an app on a broker with one task of each kind: `safe`, `keyed` and `plain`."""
    # Of the whole process, and not to be made smaller while a control of another test hangs on with one of them.
    pools.reset()
    with contextlib.ExitStack() as stack:

        def make(broker_url, **settings):
            app = stack.enter_context(Celery(f"publisher-{namespace}", broker=broker_url, set_as_current=False))
            app.conf.update(apps.queue_settings(namespace), task_ignore_result=True)
            app.conf.update(
                safeguards_store_url="memory://",
                safeguards_namespace=namespace,
                safeguards_publish_timeout_seconds=DEADLINE_SECONDS,
            )
            app.conf.update(settings)
            keyed = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))
            for name, options in {
                "safe": {"base": SafeTask, "safeguards": Safeguards(repeatable=True)},
                "keyed": {"base": SafeTask, "safeguards": keyed},
                "plain": {},
            }.items():
                app.task(_body, name=name, shared=False, **options)
            app.finalize()
            return app

        yield make


def _body(number, text=""):
    return number


class Publishing(threading.Thread):
    """A publish in a thread of its own, so that a test outlives one that hangs."""

    def __init__(self, task, *args, **options):
        super().__init__(daemon=True)
        self._publish = lambda: task.apply_async(args, **options)
        self.error = None
        self.seconds = None
        self.start()

    def run(self):
        """Publish and note how it ended."""
        began = time.monotonic()
        try:
            self._publish()
        except Exception as error:
            self.error = error
        self.seconds = time.monotonic() - began

    def ended_within(self, seconds):
        """Wait for so long and return whether it has ended."""
        self.join(seconds)
        return not self.is_alive()


@contextlib.contextmanager
def silent_listener():
    """Yield the port of a server that takes connections and says nothing; they are reset when it ends."""
    listener = socket.create_server((HOST, free_port()))
    accepted, ends = [], threading.Event()

    def accept():
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while not ends.is_set():
                if selector.select(0.05):
                    accepted.append(listener.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        ends.set()
        thread.join()
        for each in (*accepted, listener):
            each.close()


@contextlib.contextmanager
def black_hole():
    """Yield a port whose connects are never answered, as of an address that is not routed: its queue is full."""
    with socket.create_server((HOST, free_port()), backlog=0) as listener, contextlib.ExitStack() as stack:
        address = listener.getsockname()
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield address[1]
