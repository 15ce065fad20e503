"""
An app whose bodies stand in a critical section, one for each entity: the app whose workers the tests of locks kill.

    visits          a list in Redis for each entity: `enter OP`, `leave OP`, `beat OP`, in the order the server saw them
    inside:E:OP     a gate: operation OP stands in the section of entity E

A task is named by its lock and by whether it has a key: `locks.wait.keyed`, `locks.none.unkeyed`, ...
"""

import itertools
import json
import os
import signal
import threading
import time
from collections import deque

import redis
from celery import Celery
from celery.exceptions import Ignore, Reject
from celery.signals import task_revoked

from celery_safeguards import EntityLock, Idempotent, RetryPolicy, Safeguards, SafeTask, fenced_enter, fenced_set, hold
from celery_safeguards.errors import FencedOut, LockLost
from celery_safeguards.signals import delivery_ended, lease_lost
from tests.support import apps
from tests.support.announce import announce, gate

SETTINGS = "LOCKS_SETTINGS"
LEASE_SECONDS = 3.0
LONG_LEASE_SECONDS = 20.0
MAX_HOLD_SECONDS = 3.0
GIL_SECONDS = 8
RETRY_SECONDS = 2.0
SKIP_RESULT = {"skipped": True}
VISIT_SECONDS = 0.03
_PATIENCE_SECONDS = 50.0
_SOME_TURNS = 10_000_000

ENTITY = "entity:{entity}"
LOCKS = {
    "none": None,
    "defer": EntityLock(ENTITY, lease_seconds=LEASE_SECONDS),
    "wait": EntityLock(ENTITY, lease_seconds=LEASE_SECONDS, busy="wait", wait_seconds=_PATIENCE_SECONDS),
    "impatient": EntityLock(ENTITY, lease_seconds=LEASE_SECONDS, busy="wait", wait_seconds=0.5),
    "skip": EntityLock(ENTITY, lease_seconds=LEASE_SECONDS, busy="skip", skip_result=SKIP_RESULT),
    # Whoever follows within seconds follows a release: the lease would keep them out for longer than a test waits.
    "long": EntityLock(ENTITY, lease_seconds=LONG_LEASE_SECONDS, busy="wait", wait_seconds=_PATIENCE_SECONDS),
    "bounded": EntityLock(
        ENTITY,
        lease_seconds=2.0,
        max_hold_seconds=MAX_HOLD_SECONDS,
        busy="wait",
        wait_seconds=_PATIENCE_SECONDS,
    ),
}
KINDS = {
    "keyed": Safeguards(idempotent=Idempotent("{op}", on_unknown="rerun")),
    "unkeyed": Safeguards(repeatable=True),
    "once": Safeguards(at_most_once=True),
}
TWICE = RetryPolicy(attempts=2, base_seconds=RETRY_SECONDS, factor=1.0, cap_seconds=RETRY_SECONDS, floor_seconds=1.0)


def settings(namespace, broker_url, store_url=None, **changes):
    """Return the Celery settings of a test: a short lease, and nothing is swept for ten minutes."""
    where = apps.queue_settings(namespace)
    options = {"visibility_timeout": 600, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
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
        "safeguards_deferral_base_seconds": 0.2,
        "safeguards_deferral_cap_seconds": 0.5,
        **changes,
    }


def build(celery_settings):
    """Return an app with all tasks of this module."""
    built = Celery("locks", set_as_current=False)
    built.conf.update(celery_settings)
    for kind, safeguards in KINDS.items():
        for name, lock in LOCKS.items():
            retry = {} if kind == "once" else {"retry": TWICE}
            asked = safeguards | Safeguards(lock=lock, **retry)
            built.task(work, name=f"locks.{name}.{kind}", bind=True, base=SafeTask, safeguards=asked)
    built.task(work_in_plain_code, name="locks.plain", bind=True, base=SafeTask, safeguards=Safeguards(repeatable=True))
    built.task(follow, name="locks.follow")
    return built


# --- the bodies


def work(self, entity, op, does="return"):
    """Visit the section of an entity, and end as told."""
    return _visit(self, entity, op, does, self.safe.lock)


def work_in_plain_code(self, entity, op, does="return"):
    """Do the same under a lock that a thread of this very process renews."""
    with hold(self.app, LOCKS["wait"], entity=entity):
        return _visit(self, entity, op, does, None)


def follow(result, entity):
    """Follow a success as its link."""
    announce("followed", entity=entity, result=result)


def _visit(self, entity, op, does, lock):
    with _redis(self.app) as client:
        note = lambda what: client.rpush(visits_key(self.app, entity), f"{what} {op}")  # noqa: E731
        note("enter")
        if lock is not None:
            fenced_enter(client, value_key(self.app, entity), lock.token)
        state = {"attempt": self.safe.attempt, "retries": self.request.retries}
        gate(f"inside:{entity}:{op}", entity=entity, op=op, task_id=self.request.id, **state)
        try:
            return _ACTS[does](self, client, entity, op)
        finally:
            note("leave")


def _return(self, client, entity, op):
    return op


def _stay(self, client, entity, op):
    """Work for a moment: long enough to be met by whoever comes in meanwhile."""
    time.sleep(VISIT_SECONDS)
    return op


def _fail(self, client, entity, op):
    raise ValueError(f"{entity} is not for sale")


def _ignore(self, client, entity, op):
    raise Ignore


def _reject(self, client, entity, op):
    raise Reject("not ours")


def _give_back(self, client, entity, op):
    """Put the message back at its first start."""
    if client.set(f"{value_key(self.app, entity)}:{op}", "given back", nx=True, ex=600):
        raise Reject("later", requeue=True)
    return op


def _be_refused(self, client, entity, op):
    """Fail in a way that is worth another attempt."""
    raise ConnectionRefusedError("nobody listens")


def _hang(self, client, entity, op):
    threading.Event().wait(_PATIENCE_SECONDS)


def _beat(self, client, entity, op):
    """Hang, take no hint to end, and be seen all the time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        client.rpush(visits_key(self.app, entity), f"beat {op}")
        time.sleep(0.002)


def _hold_the_interpreter(self, client, entity, op):
    """Spend seconds in one C call that does not let go of the interpreter's lock."""
    began = time.perf_counter()
    _count_in_c(_SOME_TURNS)
    turns = round(_SOME_TURNS * GIL_SECONDS / (time.perf_counter() - began))
    announce("holds_the_interpreter", entity=entity, op=op)
    _count_in_c(turns)
    return op


def _count_in_c(turns):
    # Asks neither for signals nor for other threads on its way, as a sleep in C would.
    deque(itertools.repeat(None, turns), maxlen=0)


def _obey(self, client, entity, op):
    """Write as a body should: checkpoint, then a write that is compared with the token."""
    try:
        self.safe.checkpoint()
    except LockLost as error:
        announce("told", entity=entity, op=op, error=str(error))
        raise
    fenced_set(client, value_key(self.app, entity), op, self.safe.lock.token)
    return op


def _insist(self, client, entity, op):
    """Do not listen: write whatever the checkpoint says, and return as if all were well."""
    try:
        self.safe.checkpoint()
    except LockLost as error:
        announce("told", entity=entity, op=op, error=str(error))
    try:
        fenced_set(client, value_key(self.app, entity), op, self.safe.lock.token)
    except FencedOut as error:
        announce("fenced_out", entity=entity, op=op, error=str(error))
    return op


def _write_blindly(self, client, entity, op):
    """Write without a checkpoint and without the token."""
    client.set(value_key(self.app, entity), op)
    announce("written", entity=entity, op=op)
    return op


_ACTS = {
    "return": _return,
    "stay": _stay,
    "fail": _fail,
    "ignore": _ignore,
    "reject": _reject,
    "give_back": _give_back,
    "be_refused": _be_refused,
    "hang": _hang,
    "beat": _beat,
    "hold_the_interpreter": _hold_the_interpreter,
    "obey": _obey,
    "insist": _insist,
    "write_blindly": _write_blindly,
}


# --- what bodies leave in Redis


def visits_key(app, entity):
    """Return the key of the list of visits."""
    return f"{app.conf.safeguards_namespace}:visits:{entity}"


def value_key(app, entity):
    """Return the key of what the lock protects."""
    return f"{app.conf.safeguards_namespace}:value:{entity}"


def _redis(app):
    # Away from the locks' own server, which some tests stop: the observer sees what happens all the same.
    return redis.Redis.from_url(app.conf.visits_url or app.conf.broker_url, decode_responses=True, socket_timeout=10)


# --- the worker's half


def _on_ended(sender, task_id, outcome, reason, **_):
    announce("ended", task_id=task_id, outcome=outcome, reason=reason)


def _on_lease_lost(task_id, key, reason, **_):
    announce("lease_lost", task_id=task_id, key=key, reason=reason)


def _on_revoked(request, terminated, **_):
    announce("revoked", task_id=request.id, terminated=terminated)


def _app_from_environment():
    for told, listener in ((delivery_ended, _on_ended), (lease_lost, _on_lease_lost), (task_revoked, _on_revoked)):
        told.connect(listener, weak=False)
    return build(settings(**json.loads(os.environ[SETTINGS])))


app = _app_from_environment() if SETTINGS in os.environ else None
