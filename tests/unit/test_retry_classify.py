import datetime as dt
import decimal
import email.utils
import json
import socket
import sqlite3
import ssl
import types
from contextlib import closing

import pytest
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from hypothesis import given
from hypothesis import strategies as st

from celery_safeguards.errors import Deferred
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.classify import Failure, classify

NOW_SECONDS = 1_700_000_000.0

NOT_SENT = Failure(FailureKind.TRANSIENT, effect_possible=False, retryable=True)
OUT_OF_ORDER = Failure(FailureKind.INFRASTRUCTURE, effect_possible=False, retryable=True)
OUT_OF_ORDER_MIDWAY = Failure(FailureKind.INFRASTRUCTURE, effect_possible=True, retryable=True)
AMBIGUOUS = Failure(FailureKind.DEPENDENCY_TIMEOUT, effect_possible=True, retryable=True)
DATA = Failure(FailureKind.DATA, effect_possible=False, retryable=False)
BUG = Failure(FailureKind.BUG, effect_possible=False, retryable=False)
UNRECOGNISED = Failure(FailureKind.BUG, effect_possible=True, retryable=True, recognised=False)


class GatewayDown(Exception):
    """An error class of the application, without a rule."""


def named(path, *bases):
    """Make a stand-in for a class of a library that is not installed."""
    module, _, name = path.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module})


def raised(body):
    """Return what `body` raises, with its traceback."""
    try:
        body()
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


def refuse():
    raise ConnectionRefusedError


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        socket.gaierror(-2, "Name or service not known"),
    ],
    ids=repr,
)
def test_errors_before_anything_was_sent_leave_no_effect(error):
    """Work would be quarantined because a name server was away."""
    assert classify(error) == NOT_SENT


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        socket.timeout(),  # noqa: UP041
        ConnectionResetError(),
        ConnectionAbortedError(),
        BrokenPipeError(),
        ssl.SSLEOFError(),
    ],
    ids=repr,
)
def test_errors_after_something_was_sent_leave_an_effect_possible(error):
    """A payment would be made twice after a timeout."""
    assert classify(error) == AMBIGUOUS


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        json.JSONDecodeError("Expecting value", "", 0),
        decimal.InvalidOperation(),
        OverflowError(),
        named("django.core.exceptions.ValidationError")(),
        named("django.core.exceptions.ObjectDoesNotExist")(),
        named("shop.models.Order.DoesNotExist", named("django.core.exceptions.ObjectDoesNotExist"))(),
        named("jsonschema.exceptions.ValidationError")(),
        named("rest_framework.exceptions.ValidationError")(),
        named("marshmallow.exceptions.ValidationError")(),
        named("pydantic_core._pydantic_core.ValidationError", ValueError)(),
        named("django.db.utils.IntegrityError")(),
        named("django.db.utils.DataError")(),
        named("psycopg.errors.UniqueViolation", named("psycopg.IntegrityError"))(),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
def test_wrong_input_is_data_and_not_retried(error):
    """Input that can never pass would be tried for hours (param20h/PDF-Assistant-RAG#664)."""
    assert classify(error) == DATA


@pytest.mark.parametrize(
    "error",
    [
        TypeError(),
        AttributeError(),
        NameError(),
        KeyError(),
        IndexError(),
        AssertionError(),
        NotImplementedError(),
        ModuleNotFoundError(),
        ZeroDivisionError(),
        RecursionError(),
        SyntaxError(),
        named("django.db.utils.ProgrammingError")(),
    ],
    ids=repr,
)
def test_wrong_code_is_a_bug_and_not_retried(error):
    """A typing slip would load the workers four times before anybody hears of it."""
    assert classify(error) == BUG


def test_a_soft_time_limit_is_a_worker_timeout_with_an_effect_possible():
    """A body that was cut short would be taken for one that never began."""
    assert classify(SoftTimeLimitExceeded()) == Failure(FailureKind.WORKER_TIMEOUT, True, True)


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_errors_of_a_dying_process_count_as_a_lost_worker(error):
    """A body that exhausts the memory would be reported as a bug in its own code."""
    assert classify(error) == Failure(FailureKind.WORKER_LOST, True, True)


@pytest.mark.parametrize("error", [Retry(), Ignore(), Reject("no", requeue=False), Deferred()], ids=repr)
def test_control_flow_is_never_classified(error):
    """Celery's own signals would be caught and wrapped as failures (celery/celery PR#6138)."""
    with pytest.raises(ValueError, match="control flow"):
        classify(error)


def test_a_class_of_the_application_is_judged_by_what_it_derives_from():
    """Every subclass would need a rule of its own."""

    class PriceInvalid(ValueError):
        pass

    assert classify(PriceInvalid()) == DATA


def test_a_class_is_known_wherever_a_release_keeps_it():
    """A library that moves a module would turn its errors into unknown ones."""
    moved = named("httpcore._some_new_module.ConnectError")

    assert classify(moved()) == NOT_SENT


def test_a_class_of_the_same_name_elsewhere_is_not_taken_for_it():
    """An application's own `ConnectError` would be believed to prove that nothing was sent."""
    assert classify(named("shop.gateway.ConnectError")()) == UNRECOGNISED


def test_an_error_that_nobody_knows_leaves_an_effect_possible():
    """An unknown error would silently be taken for harmless."""
    assert classify(GatewayDown()) == UNRECOGNISED


def test_the_cause_of_an_unknown_error_is_believed_in_full():
    """An application that wraps its gateway's errors would lose the classification."""

    def body():
        try:
            refuse()
        except ConnectionRefusedError as error:
            raise GatewayDown from error

    assert classify(raised(body)) == NOT_SENT


def test_a_cause_wins_over_the_context_it_was_raised_in():
    """The error that happened to be handled would be judged instead of the one that was named."""

    def body():
        try:
            {}["gateway"]
        except KeyError:
            raise GatewayDown from TimeoutError()

    assert classify(raised(body)) == AMBIGUOUS


def test_an_implicit_translation_gives_the_kind_but_leaves_an_effect_possible():
    """A handler that did something else before it raised would be believed to have done nothing."""

    def body():
        try:
            refuse()
        except ConnectionRefusedError:
            raise GatewayDown  # noqa: B904

    assert classify(raised(body)) == Failure(FailureKind.TRANSIENT, True, True)


def test_a_translation_by_a_subclass_of_oserror_leaves_an_effect_possible():
    """The same, hidden behind a base class that has a rule."""

    class GatewayError(OSError):
        pass

    def body():
        try:
            refuse()
        except ConnectionRefusedError:
            raise GatewayError  # noqa: B904

    assert classify(raised(body)) == Failure(FailureKind.TRANSIENT, True, True)


def test_an_accident_in_a_handler_is_not_judged_by_what_was_handled():
    """The backup gateway may have charged, although the first one had refused the connection."""

    def charge_by_the_backup():
        raise GatewayDown

    def body():
        try:
            refuse()
        except ConnectionRefusedError:
            charge_by_the_backup()

    assert classify(raised(body)) == UNRECOGNISED


def test_a_suppressed_context_is_not_followed():
    """`raise ... from None` would not mean what it says."""

    def body():
        try:
            refuse()
        except ConnectionRefusedError:
            raise GatewayDown from None

    assert classify(raised(body)) == UNRECOGNISED


def test_a_context_without_a_traceback_is_not_followed():
    """An error that was rebuilt from a message would be judged by a guess."""
    error = GatewayDown()
    error.__context__ = ConnectionRefusedError()

    assert classify(error) == UNRECOGNISED


def test_an_error_with_a_rule_is_not_judged_by_its_cause():
    """A validation error found while a connection failed would be retried."""
    error = ValueError()
    error.__cause__ = ConnectionRefusedError()

    assert classify(error) == DATA


def test_a_cycle_of_causes_ends():
    """A worker would hang, or die of recursion, over a failure."""
    first, second = GatewayDown(), GatewayDown()
    first.__cause__, second.__cause__ = second, first

    assert classify(first) == UNRECOGNISED


def test_a_long_chain_of_causes_is_followed_to_a_bound():
    """A chain of any length would decide how long a failure takes to handle."""
    error = ConnectionRefusedError()
    for _ in range(100):
        outer = GatewayDown()
        outer.__cause__ = error
        error = outer

    assert classify(error) == UNRECOGNISED


@pytest.mark.parametrize(
    ("status", "kind", "effect_possible", "retryable"),
    [
        (400, FailureKind.DATA, False, False),
        (401, FailureKind.DATA, False, False),
        (404, FailureKind.DATA, False, False),
        (408, FailureKind.DEPENDENCY_TIMEOUT, True, True),
        (409, FailureKind.TRANSIENT, True, True),
        (422, FailureKind.DATA, False, False),
        (425, FailureKind.TRANSIENT, False, True),
        (429, FailureKind.RATE_LIMITED, False, True),
        (500, FailureKind.DEPENDENCY_TIMEOUT, True, True),
        (501, FailureKind.DATA, False, False),
        (502, FailureKind.DEPENDENCY_TIMEOUT, True, True),
        (503, FailureKind.DEPENDENCY_TIMEOUT, True, True),
        (504, FailureKind.DEPENDENCY_TIMEOUT, True, True),
        (529, FailureKind.DEPENDENCY_TIMEOUT, True, True),
    ],
)
def test_a_status_code_decides(status, kind, effect_possible, retryable):
    """A rejected request would be repeated, or an ambiguous one be taken for harmless."""
    error = GatewayDown()
    error.status_code = status

    assert classify(error) == Failure(kind, effect_possible, retryable)


def test_a_status_is_found_where_aiohttp_has_it():
    """Half of the SDKs would not be understood."""
    error = GatewayDown()
    error.status = 429

    assert classify(error).kind == FailureKind.RATE_LIMITED


@pytest.mark.parametrize("status", [True, 200, 302, 600, "503", None, 503.0])
def test_an_attribute_that_is_no_error_status_says_nothing(status):
    """Any object with a `status` would be taken for a response."""
    error = GatewayDown()
    error.status = status

    assert classify(error) == UNRECOGNISED


def test_a_503_that_says_when_to_come_back_is_rate_limited_with_an_effect_possible():
    """The server's wait would be ignored, or the request of a proxy's backend be taken for not sent."""
    error = GatewayDown()
    error.response = types.SimpleNamespace(status_code=503, headers={"Retry-After": "7"})

    assert classify(error) == Failure(FailureKind.RATE_LIMITED, True, True, 7.0)


def test_attributes_that_raise_do_not_lose_the_failure():
    """An exception whose properties raise would be lost with its message (httpx: RuntimeError)."""

    class Hostile(ConnectionResetError):
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert classify(Hostile()) == AMBIGUOUS


def waits(value):
    error = GatewayDown()
    error.response = types.SimpleNamespace(status_code=429, headers={"retry-after": value})
    return classify(error, now_seconds=lambda: NOW_SECONDS).retry_after_seconds


@pytest.mark.parametrize(("value", "seconds"), [("120", 120.0), (" 5 ", 5.0), ("0", 0.0), ("1.5", 1.5), (30, 30.0)])
def test_retry_after_in_seconds_is_read(value, seconds):
    """The server's wait would be ignored."""
    assert waits(value) == seconds


@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0000"])
def test_retry_after_as_a_date_is_read_against_the_wall_clock(zone):
    """The server's wait would be ignored, or be off by the machine's time zone."""
    date = email.utils.format_datetime(dt.datetime.fromtimestamp(NOW_SECONDS + 90, dt.UTC))

    assert waits(date.replace("+0000", zone)) == 90.0


@pytest.mark.parametrize(
    "value",
    ["-1", "soon", "", "nan", "inf", True, None, b"5", -3, 10**400, "Mon, 01 Jan 2001 00:00:00 GMT"],
    ids=repr,
)
def test_a_retry_after_that_makes_no_sense_says_nothing(value):
    """Garbage from a server would become a delay, or an error in the handling of an error."""
    assert waits(value) is None


@given(st.text() | st.floats() | st.integers())
def test_any_retry_after_is_a_wait_or_nothing(value):
    """Garbage from a server would become an error in the handling of an error."""
    seconds = waits(value)

    assert seconds is None or 0.0 <= seconds < float("inf")


def test_the_wait_that_an_exception_offers_is_read():
    """SDKs that parse the header themselves would not be understood."""
    error = GatewayDown()
    error.status_code = 429
    error.retry_after = 12

    assert classify(error).retry_after_seconds == 12.0


def test_an_unknown_error_that_offers_a_wait_keeps_it():
    """The server's wait would be ignored because the class is not known."""
    error = GatewayDown()
    error.retry_after = 12

    assert classify(error) == Failure(FailureKind.BUG, True, True, 12.0, recognised=False)


def test_the_wait_of_a_wrapper_is_kept_with_the_kind_of_its_cause():
    """An application that wraps an error and adds a wait of its own would come back too early."""
    error = GatewayDown()
    error.retry_after = 12
    error.__cause__ = ConnectionRefusedError()

    assert classify(error) == Failure(FailureKind.TRANSIENT, False, True, 12.0)


@pytest.mark.parametrize("kind", FailureKind)
def test_an_exceptions_own_answer_wins_over_everything(kind):
    """Authors of exceptions could not say what they mean."""

    class Said(ValueError):
        sg_failure_kind = kind
        status_code = 404

    failure = classify(Said())

    assert (failure.kind, failure.effect_possible) == (kind, kind.effect_possible)


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        (FailureKind.TRANSIENT, True),
        (FailureKind.RATE_LIMITED, True),
        (FailureKind.DATA, False),
        (FailureKind.INVARIANT, False),
        (FailureKind.UNKNOWN_OUTCOME, False),
    ],
)
def test_an_exceptions_own_answer_tells_whether_it_is_retried(kind, retryable):
    """A body that says "data" would be retried all the same."""
    error = GatewayDown()
    error.sg_failure_kind = kind

    assert classify(error).retryable == retryable


def test_an_own_answer_of_another_type_is_ignored():
    """A slip in the attribute would put a free text into the closed list of kinds."""
    error = ValueError()
    error.sg_failure_kind = "transient"

    assert classify(error) == DATA


def test_a_locked_sqlite_database_leaves_no_effect(tmp_path):
    """Development on SQLite would quarantine work at every collision of two writers."""
    with (
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as first,
        closing(sqlite3.connect(tmp_path / "db", timeout=0)) as second,
    ):
        first.execute("BEGIN EXCLUSIVE")

        error = raised(lambda: second.execute("CREATE TABLE orders (id)"))

    assert classify(error) == OUT_OF_ORDER


@pytest.mark.parametrize("package", ["django.db.utils", "psycopg", "psycopg2", "MySQLdb._exceptions", "pymysql.err"])
@pytest.mark.parametrize(
    "arguments",
    [
        ('connection to server at "db", port 5432 failed: Connection refused',),
        ('connection failed: connection to server at "db", port 5432 failed',),
        (1213, "Deadlock found when trying to get lock; try restarting transaction"),
        (2003, "Can't connect to MySQL server on 'db'"),
    ],
    ids=str,
)
def test_a_database_that_refused_leaves_no_effect(package, arguments):
    """A database that restarts would send all keyed work into quarantine."""
    refused = named(f"{package}.OperationalError")

    assert classify(refused(*arguments)) == OUT_OF_ORDER


@pytest.mark.parametrize(
    "arguments",
    [("server closed the connection unexpectedly",), (2013, "Lost connection to server during query"), ()],
    ids=str,
)
def test_a_database_connection_that_breaks_midway_leaves_an_effect_possible(arguments):
    """A COMMIT whose answer was lost would be repeated as if it had not happened."""
    broken = named("django.db.utils.OperationalError")

    assert classify(broken(*arguments)) == OUT_OF_ORDER_MIDWAY


@pytest.mark.parametrize("name", ["DeadlockDetected", "SerializationFailure"])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_rolled_back_transaction_is_transient_through_django(driver, name):
    """Deadlocks, the ordinary price of concurrency, would be buried or quarantined."""
    error = named("django.db.utils.OperationalError")("deadlock detected")
    error.__cause__ = named(f"{driver}.errors.{name}", named(f"{driver}.OperationalError"))()

    assert classify(error) == NOT_SENT
