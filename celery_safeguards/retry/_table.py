"""
The rules: class name → failure kind, whether an effect is possible, whether another start can help.

A class is known by its top-level package and its qualified name: `redis.ConnectionError` stands for
`redis.exceptions.ConnectionError` and for wherever a later release keeps it. Nothing is imported, so a rule costs
nothing where its library is absent. The first class in an exception's MRO that has a rule decides.

Checked against redis 8.1, kombu 5.7, amqp 5.4, billiard 4.3, requests 2.34, urllib3 2.8, httpx 0.28, httpcore 1.0; the
names of Django, the database drivers and the validation libraries come from their documentation.

"No effect" is said only where the error proves it of the try it reports; in doubt an effect is possible. What a client
had tried before, out of sight, no error tells: see `classify`.
"""

from dataclasses import dataclass

from celery_safeguards.outcome import FailureKind


@dataclass(frozen=True, slots=True)
class Rule:
    """What one class of error means."""

    kind: FailureKind
    effect_possible: bool
    retryable: bool


_NOT_SENT = Rule(FailureKind.TRANSIENT, effect_possible=False, retryable=True)
_OUT_OF_ORDER = Rule(FailureKind.INFRASTRUCTURE, effect_possible=False, retryable=True)
_OUT_OF_ORDER_MIDWAY = Rule(FailureKind.INFRASTRUCTURE, effect_possible=True, retryable=True)
_AMBIGUOUS = Rule(FailureKind.DEPENDENCY_TIMEOUT, effect_possible=True, retryable=True)
_INTERRUPTED = Rule(FailureKind.TRANSIENT, effect_possible=True, retryable=True)
_WORKER_TIMEOUT = Rule(FailureKind.WORKER_TIMEOUT, effect_possible=True, retryable=True)
_WORKER_LOST = Rule(FailureKind.WORKER_LOST, effect_possible=True, retryable=True)
_CLAIM_LOST = Rule(FailureKind.UNKNOWN_OUTCOME, effect_possible=True, retryable=False)
_DATA = Rule(FailureKind.DATA, effect_possible=False, retryable=False)
_ANSWER_UNREADABLE = Rule(FailureKind.DATA, effect_possible=True, retryable=False)
_UNKNOWN_TASK = Rule(FailureKind.UNKNOWN_TASK, effect_possible=False, retryable=False)
_BUG = Rule(FailureKind.BUG, effect_possible=False, retryable=False)

_GROUPS: tuple[tuple[Rule, str], ...] = (
    # The connection was never made, or none was free: no byte of the request has left.
    (
        _NOT_SENT,
        """
        builtins.ConnectionRefusedError  socket.gaierror  socket.herror
        requests.ConnectTimeout  httpx.ConnectError  httpx.ConnectTimeout  httpx.PoolTimeout
        httpcore.ConnectError  httpcore.ConnectTimeout  httpcore.PoolTimeout  httpcore.ConnectionNotAvailable
        urllib3.NewConnectionError  urllib3.NameResolutionError  urllib3.ConnectTimeoutError  urllib3.EmptyPoolError
        redis.MaxConnectionsError  kombu.LimitExceeded  psycopg_pool.PoolTimeout  sqlalchemy.TimeoutError
        """,
    ),
    # The server refused as a whole, and the same request may pass a moment later.
    (
        _NOT_SENT,
        """
        redis.WatchError  redis.TryAgainError  redis.AskError  redis.MovedError  amqp.MessageNacked
        psycopg.DeadlockDetected  psycopg.SerializationFailure  psycopg.LockNotAvailable
        psycopg2.DeadlockDetected  psycopg2.SerializationFailure  psycopg2.LockNotAvailable
        """,
    ),
    # The server is there but cannot serve anyone now; the command was refused. TLS and proxies: before the request.
    (
        _OUT_OF_ORDER,
        """
        redis.BusyLoadingError  redis.ReadOnlyError  redis.MasterDownError  redis.ClusterDownError
        redis.SlotNotCoveredError  redis.OutOfMemoryError  redis.AuthenticationError  redis.AuthorizationError
        psycopg.TooManyConnections  psycopg.CannotConnectNow  psycopg.ConnectionTimeout
        psycopg2.TooManyConnections  psycopg2.CannotConnectNow
        ssl.SSLCertVerificationError  httpx.ProxyError  httpcore.ProxyError  urllib3.ProxyError
        builtins.FileNotFoundError  builtins.FileExistsError  builtins.PermissionError
        builtins.IsADirectoryError  builtins.NotADirectoryError
        """,
    ),
    # Something broke below the application, and when it broke is not known.
    (
        _OUT_OF_ORDER_MIDWAY,
        """
        builtins.OSError  ssl.SSLError  urllib3.SSLError
        kombu.OperationalError  amqp.ConnectionError  amqp.ChannelError
        celery.BackendError  redis.RedisError  redis.ClusterError  redis.RedisClusterException
        concurrent.BrokenExecutor  celery_safeguards.StoreUnavailable
        """,
    ),
    # Sent, and then no answer or half an answer: the other side may have done it.
    (
        _AMBIGUOUS,
        """
        builtins.TimeoutError  builtins.ConnectionError  builtins.ConnectionResetError
        builtins.ConnectionAbortedError  builtins.BrokenPipeError
        ssl.SSLEOFError  ssl.SSLZeroReturnError  ssl.SSLSyscallError
        http.HTTPException  http.RemoteDisconnected  http.IncompleteRead  urllib.URLError  urllib.ContentTooShortError
        requests.RequestException  requests.ConnectionError  requests.Timeout  requests.ReadTimeout
        requests.ChunkedEncodingError  requests.SSLError  requests.ProxyError  requests.RetryError
        urllib3.HTTPError  urllib3.TimeoutError  urllib3.ReadTimeoutError  urllib3.ProtocolError  urllib3.MaxRetryError
        httpx.RequestError  httpx.ReadTimeout  httpx.WriteTimeout  httpx.ReadError  httpx.WriteError  httpx.CloseError
        httpx.RemoteProtocolError
        httpcore.TimeoutException  httpcore.NetworkError  httpcore.RemoteProtocolError
        redis.ConnectionError  redis.TimeoutError  redis.InvalidResponse
        celery.TimeoutError  multiprocessing.TimeoutError  concurrent.CancelledError
        asyncio.CancelledError  asyncio.IncompleteReadError
        """,
    ),
    # Cut short with no word on how far it came. A lock of redis-py complains at its end too, when the body has run.
    (_INTERRUPTED, "builtins.InterruptedError  redis.LockError"),
    # The task ran out of its own time, or out of its process.
    (_WORKER_TIMEOUT, "billiard.SoftTimeLimitExceeded  billiard.TimeLimitExceeded  celery_safeguards.DeadlineExceeded"),
    (_WORKER_LOST, "builtins.MemoryError  builtins.SystemExit  builtins.KeyboardInterrupt"),
    (_WORKER_LOST, "billiard.WorkerLostError  billiard.Terminated"),
    (_CLAIM_LOST, "celery_safeguards.LeaseLost"),
    # The input is wrong, and will be wrong again (param20h/PDF-Assistant-RAG#664). pydantic's is a ValueError.
    (
        _DATA,
        """
        builtins.ValueError  builtins.ArithmeticError  builtins.OverflowError  decimal.InvalidOperation
        django.ValidationError  django.ObjectDoesNotExist  django.MultipleObjectsReturned  django.PermissionDenied
        django.SuspiciousOperation  rest_framework.ValidationError  jsonschema.ValidationError
        marshmallow.ValidationError
        redis.DataError
        requests.InvalidURL  requests.InvalidSchema  requests.MissingSchema  requests.InvalidHeader
        requests.URLRequired  requests.InvalidJSONError  urllib3.LocationValueError  http.InvalidURL
        httpx.InvalidURL  httpx.UnsupportedProtocol  httpx.LocalProtocolError
        httpcore.UnsupportedProtocol  httpcore.LocalProtocolError
        kombu.SerializationError  kombu.SerializerNotInstalled  amqp.ContentTooLarge
        """,
    ),
    # The request was answered, so it may have been obeyed; only the answer makes no sense, and will not the next time.
    (
        _ANSWER_UNREADABLE,
        """
        requests.JSONDecodeError  requests.ContentDecodingError  requests.TooManyRedirects
        httpx.DecodingError  httpx.TooManyRedirects  urllib3.DecodeError
        """,
    ),
    (_UNKNOWN_TASK, "celery.NotRegistered"),
    # The code is wrong, or does not fit what is installed around it.
    (
        _BUG,
        """
        builtins.TypeError  builtins.AttributeError  builtins.NameError  builtins.LookupError  builtins.KeyError
        builtins.IndexError  builtins.AssertionError  builtins.NotImplementedError  builtins.ImportError
        builtins.ZeroDivisionError  builtins.RecursionError  builtins.SyntaxError
        celery_safeguards.ConfigurationError  celery.ImproperlyConfigured  django.ImproperlyConfigured
        django.FieldError  redis.ResponseError  amqp.IrrecoverableChannelError
        requests.StreamConsumedError  requests.UnrewindableBodyError
        """,
    ),
)

_DATABASES = ("django", "psycopg", "psycopg2", "sqlalchemy", "MySQLdb", "pymysql", "sqlite3")
_DATABASE_GROUPS: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    # May be a COMMIT whose answer was lost; what `DATABASE_REFUSALS` recognises is taken out first.
    (_OUT_OF_ORDER_MIDWAY, ("OperationalError", "InterfaceError")),
    (_DATA, ("IntegrityError", "DataError")),
    (_BUG, ("ProgrammingError", "NotSupportedError")),
)

_LISTED = {name: rule for rule, names in _GROUPS for name in names.split()}

RULES = {
    **{f"{package}.{name}": rule for rule, names in _DATABASE_GROUPS for name in names for package in _DATABASES},
    # valkey-py is a fork of redis-py: every name but those of the two roots is the same.
    **{
        f"valkey.{name.removeprefix('redis.').replace('Redis', 'Valkey')}": rule
        for name, rule in _LISTED.items()
        if name.startswith("redis.")
    },
    **_LISTED,
}
"""What each class means."""

DATABASE_OPERATIONAL = frozenset(f"{package}.OperationalError" for package in _DATABASES)
"""Classes whose first argument is compared with `DATABASE_REFUSALS`."""

TRANSLATORS = DATABASE_OPERATIONAL | {
    *("builtins.OSError", "builtins.ConnectionError", "urllib.URLError"),
    *("requests.ConnectionError", "requests.SSLError", "requests.ProxyError", "requests.RetryError"),
    *("urllib3.MaxRetryError", "urllib3.SSLError", "redis.ConnectionError", "valkey.ConnectionError"),
    *("kombu.OperationalError", "celery.BackendError", "django.InterfaceError", "sqlalchemy.InterfaceError"),
}
"""Classes that stand for a more exact one: their own rule holds only where the error they translate has none."""

DATABASE_REFUSALS: tuple[int | str, ...] = (
    # MySQL and MariaDB, as first argument: too many connections, lock wait timeout, deadlock, cannot connect (two).
    1040,
    1205,
    1213,
    2002,
    2003,
    # Heads of messages: libpq as psycopg and psycopg2 pass it on, then SQLite. A translated libpq is not recognised.
    "connection failed",
    "connection is bad",
    "connection to server at",
    "connection to server on socket",
    "could not connect to server",
    "could not translate host name",
    "database is locked",
    "database table is locked",
)
"""What a database's OperationalError begins with when nothing was committed."""

DATABASE_REFUSED = _OUT_OF_ORDER

_STATUS_RULES = {
    408: _AMBIGUOUS,
    409: _INTERRUPTED,  # the same operation, or a rival one, is under way
    425: _NOT_SENT,  # too early: the server did not want to risk a replay
    429: Rule(FailureKind.RATE_LIMITED, effect_possible=False, retryable=True),
    501: _DATA,
    505: _DATA,
}


def rule_of_status(status: int, *, told_to_wait: bool) -> Rule:
    """
    Return what an HTTP status from 400 to 599 means.

    Args:
        status: the response's status code.
        told_to_wait: the response has a Retry-After. A 503 is then rate limited, and an effect stays possible: a
            proxy says 503 for a server behind it that had begun.

    """
    if status == 503 and told_to_wait:
        return Rule(FailureKind.RATE_LIMITED, effect_possible=True, retryable=True)
    return _STATUS_RULES.get(status, _DATA if status < 500 else _AMBIGUOUS)


_RETRYABLE_KINDS = frozenset(rule.kind for rule in (*RULES.values(), *_STATUS_RULES.values()) if rule.retryable)


def rule_of_kind(kind: FailureKind) -> Rule:
    """Return what a kind means where nothing else is known of the error."""
    return Rule(kind, effect_possible=kind.effect_possible, retryable=kind in _RETRYABLE_KINDS)
