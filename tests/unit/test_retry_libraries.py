"""The rules against real errors: each library talks to a tiny server that misbehaves in one way."""

import contextlib
import importlib
import socket
import struct
import threading
import urllib.error
import urllib.request

import httpx
import kombu
import pytest
import redis
import requests
import urllib3
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry._table import _GROUPS, RULES, TRANSLATORS
from celery_safeguards.retry.classify import Failure, classify

NOT_SENT = Failure(FailureKind.TRANSIENT, effect_possible=False, retryable=True)
AMBIGUOUS = Failure(FailureKind.DEPENDENCY_TIMEOUT, effect_possible=True, retryable=True)
DATA = Failure(FailureKind.DATA, effect_possible=False, retryable=False)

TIMEOUT_SECONDS = 0.2


@contextlib.contextmanager
def server(behave):
    """Listen on a free port of the loopback interface and hand each connection to `behave`."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    connections = []
    stopping = threading.Event()

    def accept():
        while True:
            connection, _ = listening.accept()
            if stopping.is_set():
                connection.close()
                return
            connections.append(connection)
            with contextlib.suppress(OSError):
                behave(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield port
    finally:
        stopping.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
        listening.close()
        for connection in connections:
            connection.close()


def reset(connection):
    connection.recv(65_536)
    # Lingering for no time makes close() send RST instead of FIN.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def hang_up(connection):
    connection.recv(65_536)
    connection.close()


def stay_silent(connection):
    pass


def answer(text):
    def behave(connection):
        connection.recv(65_536)
        connection.sendall(text)
        connection.close()

    return behave


def answer_status(status, headers=b""):
    return answer(b"HTTP/1.1 %d Status\r\n%sContent-Length: 0\r\n\r\n" % (status, headers))


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")


def by_requests(port):
    requests.post(f"http://127.0.0.1:{port}/", timeout=TIMEOUT_SECONDS).raise_for_status()


def by_httpx(port):
    httpx.post(f"http://127.0.0.1:{port}/", timeout=TIMEOUT_SECONDS).raise_for_status()


def by_urllib(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=b"", timeout=TIMEOUT_SECONDS) as response:
        response.read()


def by_urllib3(port):
    with urllib3.PoolManager() as pool:
        pool.request("POST", f"http://127.0.0.1:{port}/", timeout=TIMEOUT_SECONDS)


def by_redis(port):
    with redis.Redis(port=port, socket_timeout=TIMEOUT_SECONDS, retry=Retry(NoBackoff(), 0)) as client:
        client.get("key")


def by_kombu(scheme, port):
    options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    url = f"{scheme}://127.0.0.1:{port}//"
    with kombu.Connection(url, connect_timeout=TIMEOUT_SECONDS, transport_options=options) as connection:
        connection.default_channel.queue_declare("queue")


def by_kombu_redis(port):
    by_kombu("redis", port)


def by_kombu_amqp(port):
    by_kombu("amqp", port)


HTTP_CLIENTS = [by_requests, by_httpx, by_urllib, by_urllib3]


def failure_of(call, *args):
    """Classify what the call raises, in the handler, as the pipeline does."""
    try:
        call(*args)
    except Exception as error:
        failure = classify(error)
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        return failure
    pytest.fail("nothing was raised")


@pytest.mark.parametrize("call", [*HTTP_CLIENTS, by_redis, by_kombu_redis, by_kombu_amqp])
def test_a_refused_connection_leaves_no_effect(call, closed_port):
    """A dependency that is down would send all keyed work into quarantine."""
    assert failure_of(call, closed_port) == NOT_SENT


@pytest.mark.parametrize("call", [*HTTP_CLIENTS, by_redis])
def test_a_name_that_cannot_be_resolved_leaves_no_effect(call, closed_port, monkeypatch):
    """A name server that is away would send all keyed work into quarantine."""

    def fail(*_args, **_kwargs):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)

    assert failure_of(call, closed_port) == NOT_SENT


@pytest.mark.parametrize("call", [*HTTP_CLIENTS, by_redis])
@pytest.mark.parametrize("behave", [reset, hang_up, stay_silent])
def test_a_request_without_an_answer_leaves_an_effect_possible(call, behave):
    """A payment would be made twice after a timeout or a reset."""
    with server(behave) as port:
        assert failure_of(call, port) == AMBIGUOUS


@pytest.mark.parametrize("call", [by_kombu_redis, by_kombu_amqp])
@pytest.mark.parametrize("behave", [reset, hang_up])
def test_a_broker_connection_that_breaks_leaves_an_effect_possible(call, behave):
    """A message that may have been published would be taken for not sent, or be buried as a bug."""
    with server(behave) as port:
        failure = failure_of(call, port)

    assert (failure.effect_possible, failure.retryable) == (True, True)


@pytest.mark.parametrize("call", HTTP_CLIENTS)
@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
    ids=["body cut off", "chunk cut off"],
)
def test_half_an_answer_leaves_an_effect_possible(call, text):
    """A payment that was made would be made again because its receipt was cut off."""
    with server(answer(text)) as port:
        assert failure_of(call, port) == AMBIGUOUS


@pytest.mark.parametrize("call", [by_requests, by_httpx, by_urllib])
def test_a_rate_limit_is_read_with_its_wait(call):
    """The server's wait would be ignored (CERNDocumentServer/cds-videos#854)."""
    with server(answer_status(429, b"retry-after: 7\r\n")) as port:
        failure = failure_of(call, port)

    assert failure == Failure(FailureKind.RATE_LIMITED, False, True, 7.0)


@pytest.mark.parametrize("call", [by_requests, by_httpx, by_urllib])
def test_a_refused_request_is_data(call):
    """A request that can never pass would be tried for hours (param20h/PDF-Assistant-RAG#664)."""
    with server(answer_status(422)) as port:
        assert failure_of(call, port) == DATA


@pytest.mark.parametrize("call", [by_requests, by_httpx, by_urllib])
def test_a_server_error_leaves_an_effect_possible(call):
    """A payment would be made twice because the answer to the first one failed."""
    with server(answer_status(500)) as port:
        assert failure_of(call, port) == AMBIGUOUS


@pytest.mark.parametrize("call", [by_requests, by_httpx])
def test_speaking_tls_to_a_plain_server_is_retried(call):
    """A load balancer that is being replaced would cost the jobs of that minute."""

    def over_tls(port):
        client = requests if call is by_requests else httpx
        client.post(f"https://127.0.0.1:{port}/", timeout=TIMEOUT_SECONDS)

    with server(answer_status(200)) as port:
        assert failure_of(over_tls, port).retryable


def test_an_answer_that_is_no_json_is_data_with_an_effect_possible():
    """A request that was answered would be taken for one without effect."""

    def read_json(port):
        requests.post(f"http://127.0.0.1:{port}/", timeout=TIMEOUT_SECONDS).json()

    with server(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n<p")) as port:
        assert failure_of(read_json, port) == Failure(FailureKind.DATA, True, False)


@pytest.mark.parametrize("client", [requests, httpx])
@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "127.0.0.1"])
def test_a_url_that_cannot_be_used_is_data(client, url):
    """A wrong address would be tried for hours (param20h/PDF-Assistant-RAG#664)."""
    assert failure_of(client.get, url) == DATA


def test_a_connection_that_breaks_while_a_refusal_is_handled_leaves_an_effect_possible(closed_port):
    """The backup server may have obeyed, although the first one had refused the connection."""

    def body(backup_port):
        try:
            by_redis(closed_port)
        except redis.ConnectionError:
            by_redis(backup_port)

    with server(hang_up) as backup_port:
        assert failure_of(body, backup_port) == AMBIGUOUS


@pytest.mark.parametrize(
    ("error", "kind", "effect_possible", "retryable"),
    [
        (redis.BusyLoadingError(), FailureKind.INFRASTRUCTURE, False, True),
        (redis.ReadOnlyError(), FailureKind.INFRASTRUCTURE, False, True),
        (redis.OutOfMemoryError(), FailureKind.INFRASTRUCTURE, False, True),
        (redis.exceptions.MaxConnectionsError(), FailureKind.TRANSIENT, False, True),
        (redis.ResponseError("WRONGTYPE"), FailureKind.BUG, False, False),
        (redis.DataError(), FailureKind.DATA, False, False),
        (redis.exceptions.LockNotOwnedError(), FailureKind.TRANSIENT, True, True),
        (httpx.PoolTimeout("full"), FailureKind.TRANSIENT, False, True),
        (httpx.ConnectTimeout("late"), FailureKind.TRANSIENT, False, True),
        (requests.ConnectTimeout(), FailureKind.TRANSIENT, False, True),
        (urllib3.exceptions.EmptyPoolError(None, "full"), FailureKind.TRANSIENT, False, True),
        (kombu.exceptions.EncodeError(), FailureKind.DATA, False, False),
        (kombu.exceptions.ContentDisallowed(), FailureKind.DATA, False, False),
        (kombu.exceptions.ConnectionLimitExceeded(), FailureKind.TRANSIENT, False, True),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else str(value),
)
def test_errors_that_name_their_reason_are_judged_by_it(error, kind, effect_possible, retryable):
    """A server that is loading would look like broken code, and wrong code like a server that is down."""
    assert classify(error) == Failure(kind, effect_possible, retryable)


@pytest.mark.parametrize(
    "module",
    [
        *("builtins", "socket", "ssl", "http.client", "urllib.error", "decimal", "asyncio", "concurrent.futures"),
        *("multiprocessing.context", "sqlite3", "celery_safeguards.errors", "celery.exceptions", "billiard.exceptions"),
        *("kombu.exceptions", "amqp.exceptions", "redis.exceptions", "valkey.exceptions", "requests.exceptions"),
        *("urllib3.exceptions", "httpx", "httpcore"),
    ],
)
def test_every_rule_names_a_class_that_exists(module):
    """A slip in a name, or a class that a release has renamed, would leave its errors unrecognised."""
    package = module.partition(".")[0]
    listed = {name for name in RULES if name.partition(".")[0] == package}

    classes = [thing for thing in vars(importlib.import_module(module)).values() if isinstance(thing, type)]

    existing = {f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}" for cls in classes}
    assert listed - existing == set()


def test_every_translator_has_a_rule_to_fall_back_on():
    """An error whose own cause is not known would be unrecognised in spite of its class."""
    assert TRANSLATORS - RULES.keys() == set()


def test_no_class_is_listed_twice():
    """The later of two rules would win, and the earlier be read."""
    listed = [name for _, names in _GROUPS for name in names.split()]

    assert sorted(listed) == sorted(set(listed))
