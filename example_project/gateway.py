"""
A payment gateway in a process of its own, so that a double charge is seen from outside.

It is what one fears of a partner: it IGNORES idempotency keys. Every `POST /charges` that comes through is one more
line in its ledger, an append-only file of JSON lines that is on disk before the answer is sent, and is read back at a
restart.

    POST   /charges {order_id, amount}     charge, and answer with the charge
    GET    /charges?order_id=A1            what was charged for this order: the look-up for `Verify`
    GET    /ledger                         everything
    POST   /faults  {kind, ...}            misbehave, see `Fault`
    GET    /faults                         how often each kind has fired
    DELETE /faults                         behave again; requests that are held stay held
    GET    /waiting?order_id=A1&timeout=5  the held requests; with a timeout, waits here until there is one
    POST   /release {order_id, point}      let held requests go on; {abandon: true} drops them where they stand

A worker that is killed while its request is held before the charge leaves the request in flight: a release then
charges, late, as the real world would; with `abandon` the request never arrives.

    python -m example_project.gateway --port 0 --port-file F --ledger F
"""

import argparse
import contextlib
import json
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from example_project.gateway_client import GatewayClient, GatewayError
from example_project.gateway_till import AFTER, BEFORE, Fault, Ledger, NoAnswer, Till

__all__ = ["AFTER", "BEFORE", "Fault", "Gateway", "GatewayClient", "GatewayError"]

HOST = "127.0.0.1"
_POLL_SECONDS = 0.02


class Gateway:
    """
    The server, in threads of the calling process: `with Gateway(ledger_path) as gateway: ... gateway.url`.

    Args:
        ledger_path: the ledger's file. Defaults to memory only.
        port: 0 for any.

    """

    def __init__(self, ledger_path=None, *, port=0):
        self._ledger = Ledger(ledger_path)
        self.till = Till(self._ledger)
        self._listeners = []
        self._timers = []
        try:
            self._listen(port)
        except OSError:
            self._ledger.close()
            raise
        self.port = self._listeners[0].server_address[1]
        self.url = f"http://{HOST}:{self.port}"

    def close(self):
        """End what is under way, close every socket and the ledger."""
        self.till.close()
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._listeners[-1].shutdown()
        for listener in self._listeners:
            listener.server_close()
        self._ledger.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def inject(self, fault):
        if fault.kind == "refuse":
            self._refuse(fault.seconds)
        else:
            self.till.inject(fault)

    def _listen(self, port):
        listener = _Listener((HOST, port), _Handler)
        listener.gateway = self
        self._listeners.append(listener)
        threading.Thread(target=listener.serve_forever, args=(_POLL_SECONDS,), name="gateway", daemon=True).start()

    def _refuse(self, seconds):
        self.till.count_refusal()
        listener = self._listeners[-1]
        listener.shutdown()
        # The socket alone: `server_close` waits for all requests, and the one that asks for this is among them.
        listener.socket.close()
        timer = threading.Timer(seconds, self._listen, (self.port,))
        self._timers.append(timer)
        timer.start()


class _Listener(ThreadingHTTPServer):
    # Not daemons: closing waits for every request, so that none leaves a socket behind.
    daemon_threads = False
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Stay silent: clients that are killed while they wait for an answer are what this gateway is for."""


class _Handler(BaseHTTPRequestHandler):
    # HTTP/1.0, the default: one connection for each request, so that closing never waits for an idle one.
    timeout = 10

    def do_POST(self):
        body_of = self._body
        self._answer(
            {
                "/charges": lambda: self._charge(**body_of()),
                "/faults": lambda: (200, self.server.gateway.inject(Fault(**body_of()))),
                "/release": lambda: (200, {"released": self._till.release(**body_of())}),
            }
        )

    def do_GET(self):
        asked = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        order_id, timeout = asked.get("order_id"), float(asked.get("timeout", 0))
        self._answer(
            {
                "/charges": lambda: (200, self._till.charges(order_id, int(asked.get("at_least", 0)), timeout)),
                "/ledger": lambda: (200, self._till.charges()),
                "/faults": lambda: (200, self._till.fired()),
                "/waiting": lambda: (200, self._till.waiting(order_id, asked.get("point"), timeout)),
            }
        )

    def do_DELETE(self):
        self._answer({"/faults": lambda: (200, self._till.clear_faults())})

    def log_message(self, *_):
        """Stay silent: the ledger is the record."""

    @property
    def _till(self):
        return self.server.gateway.till

    def _charge(self, order_id, amount):
        if not isinstance(order_id, str) or not order_id:
            raise ValueError(f"order_id={order_id!r}: give a text")
        if not isinstance(amount, int) or isinstance(amount, bool) or amount <= 0:
            raise ValueError(f"amount={amount!r}: give a whole number of cents above 0")
        return self._till.charge(order_id, amount)

    def _body(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if not isinstance(body, dict):
            raise TypeError("the body must be a JSON object")
        return body

    def _answer(self, routes):
        route = routes.get(urlsplit(self.path).path)
        try:
            status, body = route() if route else (404, {"error": f"nothing at {self.path}"})
        except NoAnswer:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        except (ValueError, TypeError) as error:
            status, body = 422, {"error": str(error)}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", f"{body['retry_after']:g}")
        self.end_headers()
        self.wfile.write(data)


def main():
    parser = argparse.ArgumentParser(prog="python -m example_project.gateway", description=__doc__.splitlines()[1])
    parser.add_argument("--port", type=int, default=0, help="0 for any (default)")
    parser.add_argument("--port-file", type=Path, help="where to write the port, once it is open")
    parser.add_argument("--ledger", type=Path, help="append-only file of JSON lines (default: memory only)")
    options = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with Gateway(options.ledger, port=options.port) as gateway:
        if options.port_file:
            # By a rename, so that whoever sees the file sees the whole number.
            unfinished = options.port_file.with_name(f"{options.port_file.name}.new")
            unfinished.write_text(f"{gateway.port}\n")
            unfinished.replace(options.port_file)
        print(gateway.url, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
