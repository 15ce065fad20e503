"""
The test's half of `tests.support.announce`: it hears what the processes under test say, and holds gates shut.

    with Announcements() as announcements:
        announcements.hold("after_effect", order_id="A1")
        ...                                                       start a worker, send the task
        said = announcements.wait_for(is_said("after_effect"), timeout=10)
        os.kill(said["pid"], SIGKILL)                             the body is exactly there
        announcements.open("after_effect")                        the next run passes

An event is a dict: `event` (its name), `pid`, `worker` (the worker's node name), `at` (monotonic seconds, comparable
between processes of one machine) and the fields that it was announced with.
"""

import json
import shutil
import socketserver
import tempfile
import threading
from pathlib import Path

from tests.support.waiting import patient


def is_said(name, **fields):
    """Return a predicate for events of this name whose fields have these values."""
    return lambda event: _matches(event, name, fields)


class Announcements:
    """A unix socket that records events in the order they come in, and a condition to wait on."""

    def __init__(self):
        self._changed = threading.Condition()
        self._events = []
        self._held = []
        self._is_closed = False
        # Not below pytest's tmp_path: a unix socket's address may not be longer than about 100 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="sg-"))
        self.address = str(self._directory / "announce")
        self._server = _Server(self.address, _Handler)
        self._server.announcements = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="announcements", daemon=True
        )
        self._thread.start()

    def wait_for(self, predicate, timeout, *, count=1):
        """
        Wait until `count` events match, and return the last of those.

        Args:
            predicate: takes an event, such as `is_said("effect", order_id="A1")`; a name stands for `is_said(name)`.
            timeout: seconds of a machine of one's own, see `patient`.
            count: events of the past count as well.

        Raises:
            AssertionError: the time is over; lists what was heard instead.

        """
        predicate, timeout = is_said(predicate) if isinstance(predicate, str) else predicate, patient(timeout)
        with self._changed:
            self._changed.wait_for(lambda: len(self._matching(predicate)) >= count, timeout)
            found = self._matching(predicate)
            if len(found) < count:
                heard = "\n".join(f"  {event}" for event in self._events) or "  nothing"
                raise AssertionError(
                    f"waited {timeout} s in vain for {count} event(s), got {len(found)}; heard\n{heard}"
                )
            return found[count - 1]

    def heard(self, predicate):
        """Return all events so far that match, in order."""
        predicate = is_said(predicate) if isinstance(predicate, str) else predicate
        with self._changed:
            return self._matching(predicate)

    def hold(self, name, **fields):
        """Shut the gates of this name (and with these fields): a body that comes to one waits there."""
        with self._changed:
            self._held.append((name, fields))

    def open(self, name):
        """Open all gates of this name, for those who wait there and for whoever comes later."""
        with self._changed:
            self._held = [held for held in self._held if held[0] != name]
            self._changed.notify_all()

    def record(self, event):
        """Add an event and, at a gate that is held, return only when it is open."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
            if event.pop("is_gate", False):
                self._changed.wait_for(lambda: self._is_closed or not self._is_held(event))

    def close(self):
        """Open every gate, end all threads and remove the socket."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        shutil.rmtree(self._directory)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def _matching(self, predicate):
        return [event for event in self._events if predicate(event)]

    def _is_held(self, event):
        return any(_matches(event, name, fields) for name, fields in self._held)


def _matches(event, name, fields):
    return event["event"] == name and all(event.get(field) == value for field, value in fields.items())


class _Server(socketserver.ThreadingUnixStreamServer):
    request_queue_size = 128


class _Handler(socketserver.StreamRequestHandler):
    timeout = 5

    def handle(self):
        try:
            line = self.rfile.readline()
            if line.endswith(b"\n"):
                self.server.announcements.record(json.loads(line))
                self.wfile.write(b".")
        except OSError:
            # Its process was killed in mid-sentence, or while it waited at a gate: that is what these tests do.
            return
