"""
A TCP proxy that can fail, and ports that nobody takes meanwhile.

    client ──▶ Cutter ──▶ server        requests
    client ◀── Cutter ◀── server        answers

Two proxies in front of one server let a test cut the broker and the store apart. Everything a `Cutter` does is done
when the call returns: after `cut()` both ends have been closed, after `refuse()` a connect is refused.
"""

import contextlib
import functools
import queue
import random
import selectors
import socket
import struct
import threading
from pathlib import Path
from urllib.parse import urlsplit

HOST = "127.0.0.1"
_CHUNK_BYTES = 65_536
_CALL_SECONDS = 5
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# Not the seeded generator: sessions that run side by side with one seed would all want the same ports.
_RANDOM = random.SystemRandom()


def free_port():
    """
    Return a port that can be bound now and that no outgoing connection is ever given.

    A port from the kernel's own range will not do for a server that is stopped and started again: while it is down, a
    client that reconnects can be handed that very port as its source, connects to itself, and keeps the server out.
    """
    lowest_ephemeral = 32_768
    with contextlib.suppress(OSError):
        lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(20_000, lowest_ephemeral) if lowest_ephemeral > 21_000 else range(61_000, 65_000)
    for _ in range(200):
        port = _RANDOM.choice(below)
        with contextlib.suppress(OSError):
            listen(port).close()
            return port
    raise OSError(f"no free port found in {below}")


def listen(port):
    """Return a listening socket on the loopback address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def is_listening(port):
    """Return whether anybody accepts connections on this port of the loopback address."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


class _Flow:
    """One direction of one connection."""

    def __init__(self, source, sink, direction):
        self.source, self.sink, self.direction = source, sink, direction
        self.buffer = bytearray()
        self.is_over = False


class _Connection:
    """A client, its server, and the two flows between them."""

    def __init__(self, client, server):
        self.sockets = (client, server)
        self.requests = _Flow(client, server, "requests")
        self.answers = _Flow(server, client, "answers")
        self.flows = (self.requests, self.answers)
        self.loses_answer = False


class Cutter:
    """
    A proxy that cuts, stalls and refuses on command; `url` leads through it to the server.

    One thread owns all sockets; the methods hand it their work and wait, so they may be called from any thread.

    Args:
        target_url: the server's URL, of any scheme; what stands beside host and port is kept in `url`.

    """

    def __init__(self, target_url):
        target = urlsplit(target_url)
        self._target = (target.hostname, target.port)
        self.lost_answers = 0
        self._connections = []
        self._stalled = frozenset()
        self._lose_answer_to = None
        self._commands = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._selector.register(self._wakened, selectors.EVENT_READ, self._obey)
        self.port = free_port()
        credentials = target.netloc.rpartition("@")[0]
        self.url = target._replace(netloc=f"{credentials}{'@' * bool(credentials)}{HOST}:{self.port}").geturl()
        self._listener = None
        self._is_closed = False
        self._allow()
        self._thread = threading.Thread(target=self._run, name=f"cutter-{self.port}", daemon=True)
        self._thread.start()

    def cut(self):
        """Reset every open connection on both sides and return how many there were; new ones are let through."""
        return self._call(self._cut)

    def stall(self, *, requests=True, answers=True):
        """Stop forwarding, for open and new connections, without closing anything."""
        wanted = {"requests": requests, "answers": answers}
        self._call(lambda: self._set_stalled(frozenset(name for name in wanted if wanted[name])))

    def resume(self):
        """Forward again, beginning with what was held back."""
        self._call(lambda: self._set_stalled(frozenset()))

    def refuse(self):
        """Cut everything and refuse new connections until `allow()`."""
        self._call(self._refuse)

    def allow(self):
        """Accept connections again, on the same port."""
        self._call(self._allow)

    def lose_next_answer(self, containing=b""):
        """Let the next request that contains these bytes through, swallow its answer and reset the connection."""
        self._call(lambda: setattr(self, "_lose_answer_to", containing))

    def close(self):
        """Close every socket and end the thread."""
        if not self._is_closed:
            self._call(self._shut)
            self._thread.join()
            for each in (self._waker, self._wakened, self._selector):
                each.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def _call(self, command):
        done = queue.SimpleQueue()
        self._commands.put((command, done))
        self._waker.send(b"!")
        result, error = done.get(timeout=_CALL_SECONDS)
        if error is not None:
            raise error
        return result

    def _run(self):
        while not self._is_closed:
            for key, events in self._selector.select():
                # An earlier event of the same round may have closed this one.
                if key.fileobj.fileno() >= 0:
                    key.data(events)

    def _obey(self, _events):
        self._wakened.recv(1)
        command, done = self._commands.get()
        try:
            done.put((command(), None))
        except Exception as error:
            done.put((None, error))

    def _allow(self):
        if self._listener is None:
            self._listener = listen(self.port)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _refuse(self):
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        return self._cut()

    def _shut(self):
        self._refuse()
        self._is_closed = True

    def _cut(self):
        count = len(self._connections)
        for connection in tuple(self._connections):
            self._drop(connection)
        return count

    def _set_stalled(self, directions):
        self._stalled = directions
        for connection in self._connections:
            self._watch(connection)

    def _accept(self, _events):
        client, _address = self._listener.accept()
        try:
            server = socket.create_connection(self._target, timeout=1)
        except OSError:
            _reset(client)
            return
        connection = _Connection(client, server)
        for each in connection.sockets:
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.append(connection)
        self._watch(connection)

    def _watch(self, connection):
        """Ask the selector for exactly what each socket has to do next."""
        for each in connection.sockets:
            events = 0
            for flow in connection.flows:
                if flow.direction in self._stalled:
                    continue
                if flow.source is each and not flow.is_over and len(flow.buffer) < _CHUNK_BYTES:
                    events |= selectors.EVENT_READ
                if flow.sink is each and flow.buffer:
                    events |= selectors.EVENT_WRITE
            is_known = each in self._selector.get_map()
            if is_known and events:
                self._selector.modify(each, events, functools.partial(self._forward, connection, each))
            elif is_known:
                self._selector.unregister(each)
            elif events:
                self._selector.register(each, events, functools.partial(self._forward, connection, each))

    def _forward(self, connection, each, events):
        try:
            for flow in connection.flows:
                if flow.source is each and events & selectors.EVENT_READ and self._read(connection, flow):
                    return
                if flow.sink is each and events & selectors.EVENT_WRITE:
                    del flow.buffer[: each.send(flow.buffer)]
        except OSError:
            self._drop(connection)
            return
        if any(flow.is_over and not flow.buffer for flow in connection.flows):
            self._drop(connection)
        else:
            self._watch(connection)

    def _read(self, connection, flow):
        """Take what one side sent; return whether the connection ended by it."""
        data = flow.source.recv(_CHUNK_BYTES)
        flow.is_over = not data
        flow.buffer += data
        if flow is connection.answers and connection.loses_answer:
            self.lost_answers += 1
            self._drop(connection)
            return True
        if flow is connection.requests and self._lose_answer_to is not None and self._lose_answer_to in data:
            self._lose_answer_to = None
            connection.loses_answer = True
        return False

    def _drop(self, connection):
        self._connections.remove(connection)
        for each in connection.sockets:
            if each in self._selector.get_map():
                self._selector.unregister(each)
            _reset(each)


def _reset(each):
    # A reset, not an orderly end: nothing still in flight arrives, and no port is left in TIME_WAIT.
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    each.close()
