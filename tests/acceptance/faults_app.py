"""
An app whose bodies charge at the payment gateway, for tests in which everything around them fails.

    before_charge   a gate: the body has started and charged nothing
    after_charge    a gate: the charge is in the gateway's ledger, the outcome is not recorded

The gateway ignores idempotency keys, so its ledger counts what really happened. What the safeguards say is announced:
how each delivery ended (`ended`), lost leases, letters, and each wait for a store that is away (`waits`).

A worker imports `app`, made from what `Scene.worker` writes into its environment. The test publishes from an app of
its own with the same tasks.
"""

import json
import os
import threading
from dataclasses import replace
from signal import SIGKILL

import redis
import sentry_sdk
from celery import Celery
from celery.signals import task_revoked
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from celery_safeguards import DidNotHappen, Happened, Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.clock import SystemClock
from celery_safeguards.signals import delivery_ended, lease_lost, message_dead_lettered
from celery_safeguards.wiring import Wiring
from example_project.gateway_client import GatewayClient
from tests.support import apps, databases
from tests.support.announce import announce, gate
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

LEASE_SECONDS = 3.0
VISIBILITY_SECONDS = 4
VERIFY_AFTER_SECONDS = 0.5
DEFERRAL_BASE_SECONDS = 0.5
CENTS = 500
_SETTINGS = "SAFEGUARDS_TEST_SETTINGS"
_SENTRY = "SAFEGUARDS_TEST_SENTRY"
_DATABASE = "SAFEGUARDS_TEST_DATABASE"
DATABASE_ALIAS = "faults"
_PATIENCE_SECONDS = 30


def settings(namespace, broker_url, store_url=None, **changes):
    """Return the Celery settings of a test: a short lease, a short visibility timeout, the store where it is told."""
    options = {"visibility_timeout": VISIBILITY_SECONDS, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    where = apps.queue_settings(namespace)
    return {
        **where,
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        "safeguards_transport": os.environ.get(apps.TRANSPORT, "stock"),
        "broker_transport_options": {**where["broker_transport_options"], **options},
        "task_ignore_result": True,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "safeguards_namespace": namespace,
        "safeguards_store_url": store_url or broker_url,
        "safeguards_lease_seconds": LEASE_SECONDS,
        "safeguards_store_timeout_seconds": 0.9,
        "safeguards_store_wait_seconds": 1.0,
        "safeguards_deferral_base_seconds": DEFERRAL_BASE_SECONDS,
        "safeguards_deferral_cap_seconds": 2.0,
        **changes,
    }


def build(celery_settings):
    """Return an app with all tasks of this module."""
    built = Celery("faults", set_as_current=False)
    built.conf.update(celery_settings)
    for name, (body, options) in TASKS.items():
        built.task(body, name=f"faults.{name}", bind=True, **options)
    return built


# --- the bodies


def find_payment(order_id):
    """Ask the gateway what became of an order."""
    found = gateway().charges(order_id)
    announce("verify", order_id=order_id, happened=bool(found))
    return Happened(found[0]["id"]) if found else DidNotHappen()


def gateway():
    """Return the client that bodies use; it waits longer than any test holds a request."""
    return GatewayClient(os.environ[apps.GATEWAY_URL], timeout_seconds=_PATIENCE_SECONDS)


def charge(self, order_id):
    """Charge as a body should: a checkpoint stands directly before the outside call."""
    gate("before_charge", order_id=order_id, task_id=self.request.id)
    self.safe.checkpoint()
    return _charge(self, order_id)


def charge_unchecked(self, order_id):
    """Charge without a checkpoint."""
    gate("before_charge", order_id=order_id, task_id=self.request.id)
    return _charge(self, order_id)


def _charge(self, order_id):
    found = gateway().charge(order_id, CENTS)
    gate("after_charge", order_id=order_id, task_id=self.request.id)
    return found["id"]


def refuse(self, order_id):
    """Fail for good, as soon as the test lets it."""
    gate("before_refusal", order_id=order_id, task_id=self.request.id)
    raise ValueError(f"{order_id} is no order")


def flaky(self, order_id, times=1, countdown=None):
    """Fail some times, before anything outside can have happened, then charge; with a countdown by `self.retry()`."""
    request = self.request
    sent = {name: getattr(request, name) for name in ("expires", "timelimit", "delivery_info")}
    # RabbitMQ adds headers of its own with dates in them.
    sent["headers"] = {name: value for name, value in request.headers.items() if not name.startswith("x-")}
    gate("begins", order_id=order_id, task_id=request.id, attempt=self.safe.attempt, sent=sent)
    if self.safe.attempt <= times:
        error = ConnectionRefusedError(f"{order_id}: nobody listens")
        raise error if countdown is None else self.retry(exc=error, countdown=countdown)
    return gateway().charge(order_id, CENTS)["id"]


def flaky_plain(self, order_id):
    """Do the same by Celery's own means."""
    gate("begins", order_id=order_id, attempt=self.request.retries + 1)
    if not self.request.retries:
        raise self.retry(exc=ConnectionRefusedError(f"{order_id}: nobody listens"), countdown=0.1)
    return gateway().charge(order_id, CENTS)["id"]


def pay(self, order_id):
    """Charge, and tell what the gateway answered instead."""
    gate("begins", order_id=order_id, task_id=self.request.id, attempt=self.safe.attempt)
    self.safe.checkpoint()
    try:
        return gateway().charge(order_id, CENTS)["id"]
    except Exception as error:
        announce("told", order_id=order_id, error=repr(error))
        raise


def fail_differently(self, order_id, killed=False):
    """Fail by another error with each attempt; with `killed` the second one ends its process."""
    announce("begins", order_id=order_id, attempt=self.safe.attempt)
    if self.safe.attempt == 2 and killed:
        os.kill(os.getpid(), SIGKILL)
    errors = (
        ConnectionRefusedError(f"{order_id} token=s3cret-word"),
        TimeoutError("slow"),
        ValueError("no such order"),
    )
    raise errors[self.safe.attempt - 1]


def fail_oddly(self, order_id, times=1):
    """Fail with an exception that does not survive its way to another process, and return in the end."""
    announce("begins", order_id=order_id, attempt=self.safe.attempt)
    if self.safe.attempt <= times:
        raise ODD.get(order_id) or ConnectionRefusedError(order_id)
    return order_id


class Unpicklable(ConnectionRefusedError):
    """Holds what pickle refuses."""

    def __init__(self):
        super().__init__("unpicklable")
        self.held = threading.Lock()


class Unbuildable(ConnectionRefusedError):
    """Cannot be made again from its own arguments, as pickle would."""

    def __init__(self, *, host="gateway", port=80):
        super().__init__(f"{host}:{port}")
        self.held = (host, port)

    def __reduce__(self):
        return type(self), (self.held, "one argument too many")


class Unprintable(ConnectionRefusedError):
    """Fails when somebody wants to know what it says."""

    def __str__(self):
        raise RuntimeError("not to be printed")

    __repr__ = __str__


ODD = {odd.__name__: odd for odd in (Unpicklable, Unbuildable, Unprintable)}
SOON = RetryPolicy(attempts=4, base_seconds=0.2, factor=1.0, cap_seconds=0.2)
PATIENT = RetryPolicy(attempts=8, base_seconds=1.0, factor=1.0, cap_seconds=1.0)
VERIFIED = Safeguards(
    idempotent=Idempotent("order:{order_id}", on_unknown=Verify(find_payment, after_seconds=VERIFY_AFTER_SECONDS)),
    retry=SOON,
)
# Longer than any test waits: a request that was sent may land all that time.
SLOWLY_VERIFIED = Safeguards(
    idempotent=Idempotent("order:{order_id}", on_unknown=Verify(find_payment, after_seconds=60)), retry=SOON
)
RERUN = Safeguards(idempotent=Idempotent("order:{order_id}", on_unknown="rerun"), retry=SOON)
UNPROTECTED = VERIFIED | Safeguards(on_store_down="run_unprotected")
TASKS = {
    "charge": (charge, {"base": SafeTask, "safeguards": VERIFIED}),
    "charge_unchecked": (charge_unchecked, {"base": SafeTask, "safeguards": VERIFIED}),
    "charge_unprotected": (charge, {"base": SafeTask, "safeguards": UNPROTECTED}),
    "charge_default": (charge, {"base": SafeTask}),
    "charge_plain": (charge_unchecked, {"acks_late": True}),
    "refuse": (refuse, {"base": SafeTask}),
    "refuse_keyed": (refuse, {"base": SafeTask, "safeguards": RERUN}),
    "flaky": (flaky, {"base": SafeTask, "safeguards": VERIFIED}),
    "flaky_slowly_verified": (flaky, {"base": SafeTask, "safeguards": SLOWLY_VERIFIED}),
    "flaky_plain": (flaky_plain, {"acks_late": True}),
    "pay": (pay, {"base": SafeTask, "safeguards": VERIFIED | Safeguards(retry=PATIENT)}),
    "pay_or_ask_a_person": (
        pay,
        {
            "base": SafeTask,
            "safeguards": Safeguards(idempotent=Idempotent("order:{order_id}", on_unknown="quarantine")),
        },
    ),
    "pay_unkeyed": (pay, {"base": SafeTask, "safeguards": Safeguards(repeatable=True, retry=SOON)}),
    "fail_differently": (
        fail_differently,
        {"base": SafeTask, "safeguards": RERUN},
    ),
    "fail_differently_unkeyed": (
        fail_differently,
        {"base": SafeTask, "safeguards": Safeguards(repeatable=True, retry=SOON)},
    ),
    "fail_oddly": (fail_oddly, {"base": SafeTask, "safeguards": Safeguards(repeatable=True, retry=SOON)}),
}


# --- the test's half


class Scene:
    """
    Broker, store, gateway and workers of one test, and what can be seen of them from outside.

    Args:
        workers_database: where the store is `django://faults`, Django's settings of that database for the workers; the
            test's own way there is its to add.
        changes: Celery settings that JSON can hold, of the publisher and of all workers.

    """

    def __init__(
        self,
        *,
        broker_url,
        store_url=None,
        namespace,
        gateway,
        announcements,
        start_worker,
        workers_database=None,
        **changes,
    ):
        self._workers_database = workers_database
        self.gateway = gateway
        self.announcements = announcements
        self._namespace = namespace
        self._where = {"namespace": namespace, "broker_url": broker_url, "store_url": store_url, **changes}
        self._start_worker = start_worker
        # Its own way to the store, whatever stands between the store and the workers.
        self.app = self.publisher()
        Wiring.of(self.app).admission.declare_new()

    def publisher(self):
        """Return another app to publish with; it has not asked the store for its epoch yet."""
        return build(settings(**self._where))

    def worker(self, *, concurrency=2, queues=None, sentry=False, **changes):
        """Start a worker and wait until it consumes; changes are Celery settings that JSON can hold."""
        env = self.environment(**changes)
        env |= {_SENTRY: "1"} if sentry else {}
        env |= {_DATABASE: json.dumps(self._workers_database)} if self._workers_database else {}
        module = f"{__name__}:app"
        return self._start_worker(module, env, concurrency=concurrency, queues=queues).wait_ready()

    def environment(self, **changes):
        """Return what a process needs to have this app as `faults_app.app`; changes: see `worker`."""
        return {apps.GATEWAY_URL: self.gateway.base_url, _SETTINGS: json.dumps({**self._where, **changes})}

    def send(self, task, order_id, *, app=None, **options):
        """Publish and return the message's id."""
        return (app or self.app).tasks[f"faults.{task}"].apply_async((order_id,), **options).id

    def wait_ended(self, outcome, timeout=12, *, count=1, **fields):
        """Wait until a delivery has ended so; the task id and the order are among the fields."""
        return self.announcements.wait_for(is_said("ended", outcome=outcome, **fields), timeout, count=count)

    def ended(self, **fields):
        """Return the deliveries that have ended, in order, as `(outcome, reason)`."""
        return [(said["outcome"], said["reason"]) for said in self.announcements.heard(is_said("ended", **fields))]

    def results(self, task_id):
        """Return what Celery was told by the deliveries of a message that succeeded: a set of texts."""
        is_success = is_said("task_postrun", task_id=task_id, state="SUCCESS")
        # Celery's word comes after that of the safeguards.
        self.announcements.wait_for(is_success, 5)
        return {said["result"] for said in self.announcements.heard(is_success)}

    def record(self, task, order_id):
        """Return an order's record, or None."""
        return Wiring.of(self.app).admission.read(RecordKey(f"faults.{task}", f'order:"{order_id}"'))

    def letters(self):
        """Return all letters."""
        return Wiring.of(self.app).letters.list(limit=100).letters

    def messages(self):
        """Return how many messages the broker holds as `(waiting, unacknowledged)`."""
        with redis.Redis.from_url(self._where["broker_url"], socket_timeout=5) as client:
            queues = list(client.scan_iter(match=f"{self._namespace}.*", _type="list"))
            return sum(map(client.llen, queues)), client.hlen(f"{self._namespace}.unacked")

    def wait_quiet(self, timeout=12):
        """Wait until the broker holds nothing more: nothing is to come, and nothing was kept by mistake."""
        wait_until(lambda: self.messages() == (0, 0), timeout, "the broker is empty")


# --- the worker's half


class _TellingClock(SystemClock):
    """The machine's clocks; announces what is slept, so that a test knows that a store was asked in vain."""

    @staticmethod
    def sleep(seconds):
        announce("waits", seconds=seconds)
        SystemClock.sleep(seconds)


def _on_ended(sender, task_id, outcome, key, reason, **_):
    announce("ended", task=sender.name, task_id=task_id, outcome=outcome, key=key, reason=reason)


def _on_lease_lost(task_id, key, reason, **_):
    announce("lease_lost", task_id=task_id, key=key, reason=reason)


def _on_letter(letter, **_):
    announce("letter", id=letter.id, task_id=letter.task_id, kind=letter.kind, effect_possible=letter.effect_possible)


def _on_revoked(request, expired, **_):
    announce("revoked", task_id=request.id, expired=expired)


class _TellingTransport(Transport):
    """Announces events instead of sending them to Sentry."""

    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            announce("sentry", errors=[error["type"] for error in event["exception"]["values"]])


def _app_from_environment():
    if os.environ.get(_SENTRY):
        sentry_sdk.init(dsn="http://key@127.0.0.1/1", transport=_TellingTransport, integrations=[CeleryIntegration()])
    if os.environ.get(_DATABASE):
        databases.add(DATABASE_ALIAS, json.loads(os.environ[_DATABASE]))
    worker_app = build(settings(**json.loads(os.environ[_SETTINGS])))
    replace(Wiring.of(worker_app), clock=_TellingClock()).use_for(worker_app)
    for signal, listener in _LISTENERS:
        signal.connect(listener, weak=False)
    return worker_app


_LISTENERS = (
    (delivery_ended, _on_ended),
    (lease_lost, _on_lease_lost),
    (message_dead_lettered, _on_letter),
    (task_revoked, _on_revoked),
)
app = _app_from_environment() if _SETTINGS in os.environ else None
