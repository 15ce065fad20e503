"""
How tests, demo and tasks speak to the payment gateway: standard library only, and never without a timeout.

An answer that is not 2xx raises `GatewayError`. What goes wrong on the way is left as it is, because it tells whether
the charge may have happened: `ConnectionRefusedError` (nothing was sent), `TimeoutError` and `ConnectionResetError`
(it may have).
"""

import http.client
import json
from urllib.parse import urlencode, urlsplit

_MARGIN_SECONDS = 5


class GatewayError(Exception):
    """
    Raised when the gateway answers, but not with a success.

    Args:
        status: the HTTP status.
        retry_after: seconds that the gateway asks to wait, or None.
        message: its own words.

    """

    def __init__(self, status, retry_after=None, message=""):
        super().__init__(status, retry_after, message)
        self.status = status
        self.retry_after = retry_after
        self.message = message

    def __str__(self):
        wait = f", retry after {self.retry_after:g} s" if self.retry_after is not None else ""
        return f"gateway answered {self.status}{wait}: {self.message}"


class GatewayClient:
    """
    One gateway at a base URL; a connection for each call, so it may be shared by threads and survives forks.

    Args:
        base_url: such as `http://127.0.0.1:8080`.
        timeout_seconds: for connecting, and again for the answer.

    """

    def __init__(self, base_url, *, timeout_seconds=5.0):
        self.base_url = base_url
        self._address = urlsplit(base_url).netloc
        self._timeout_seconds = timeout_seconds

    def charge(self, order_id, amount, *, idempotency_key=None):
        """Charge `amount` cents and return the charge; the key is sent, and this gateway ignores it."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._call("POST", "/charges", {"order_id": order_id, "amount": amount}, headers=headers)

    def charges(self, order_id):
        """Return what was charged for an order, in order of time: an empty list says that nothing was."""
        return self._call("GET", "/charges", query={"order_id": order_id})

    def wait_for_charges(self, order_id, timeout, *, count=1):
        """Wait until an order has this many charges and return all it has; raises TimeoutError."""
        query = {"order_id": order_id, "at_least": count, "timeout": timeout}
        found = self._call("GET", "/charges", query=query, patience=timeout)
        if len(found) < count:
            raise TimeoutError(f"{len(found)} of {count} charges for {order_id!r} after {timeout} s")
        return found

    def ledger(self):
        """Return every charge."""
        return self._call("GET", "/ledger")

    def inject(self, kind, order_id=None, **options):
        """Let the gateway misbehave; kinds and options are those of `example_project.gateway_till.Fault`."""
        self._call("POST", "/faults", {"kind": kind, "order_id": order_id, **options})

    def clear_faults(self):
        """Let the gateway behave again; requests that are held stay held."""
        self._call("DELETE", "/faults")

    def fired(self):
        """Return how often each kind of fault has fired."""
        return self._call("GET", "/faults")

    def held(self):
        """Return the requests that are held now, as `{"order_id", "point"}`."""
        return self._call("GET", "/waiting")

    def wait_for_held(self, order_id, timeout, *, point=None):
        """Wait until a request of this order is held (at this point); raises TimeoutError."""
        query = {"order_id": order_id, "timeout": timeout} | ({"point": point} if point else {})
        if not self._call("GET", "/waiting", query=query, patience=timeout):
            raise TimeoutError(f"no request for {order_id!r} was held within {timeout} s")

    def release(self, order_id=None, *, point=None, abandon=False):
        """Let held requests go on, or drop them where they stand; return how many there were."""
        answer = self._call("POST", "/release", {"order_id": order_id, "point": point, "abandon": abandon})
        return answer["released"]

    def _call(self, method, path, body=None, *, query=None, headers=None, patience=0.0):
        timeout = self._timeout_seconds if not patience else patience + _MARGIN_SECONDS
        connection = http.client.HTTPConnection(self._address, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            target = f"{path}?{urlencode(query)}" if query else path
            connection.request(method, target, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status >= 300:
                retry_after = response.getheader("Retry-After")
                raise GatewayError(response.status, float(retry_after) if retry_after else None, answer["error"])
            return answer
        finally:
            connection.close()
