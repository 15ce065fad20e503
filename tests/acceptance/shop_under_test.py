"""
A shop under test: its store, its gateway, its workers, and what is seen of an order from outside.

The truth is the gateway's ledger, which no worker can touch up.
"""

import contextlib
import json
import os
import signal
import sys
import uuid

import pytest
import redis
from celery import Celery

from celery_safeguards.errors import Quarantined
from celery_safeguards.wiring import Wiring
from example_project.gateway import Gateway, GatewayClient
from tests.acceptance import shop_app
from tests.acceptance.kill_points import HELD_BY_GATEWAY, KEYED, Aftermath, Order
from tests.support import apps, databases, servers, workers
from tests.support.announcements import Announcements, is_said
from tests.support.processes import processes
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 40
SHOP_APP = "tests.acceptance.shop_app:app"


class Shop:
    """
    Everything of one test, on a namespace of its own; a context manager that leaves nothing behind.

    Args:
        redis_url: of the broker, and of the store unless a database is given.
        directory: where logs go.
        database: Django's settings of a migrated database for the store.

    """

    def __init__(self, redis_url, directory, database=None):
        self._database = database
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._redis_url = redis_url

    def __enter__(self):
        enter = self._stack.enter_context
        self.redis = enter(redis.Redis.from_url(self._redis_url, decode_responses=True, socket_timeout=5))
        self._stack.callback(lambda: servers.forget(self.redis, self.namespace))
        gateway = enter(Gateway())
        self.gateway = GatewayClient(gateway.url, timeout_seconds=10)
        self.announcements = enter(Announcements())
        where = {apps.BROKER_URL: self._redis_url, apps.STORE_URL: self._redis_url, apps.NAMESPACE: self.namespace}
        self._env = {**where, apps.GATEWAY_URL: gateway.url}
        if self._database is not None:
            self._env[shop_app.DATABASE] = json.dumps(self._database)
            # Of two shops at a time, one may be open for a whole module.
            enter(databases.kept(shop_app.DATABASE_ALIAS))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._env.items():
                patch.setenv(name, value)
            self.app = enter(shop_app.make_app(result_backend="disabled://"))
        reader = enter(Celery("reader", backend=self._redis_url, set_as_current=False))
        reader.conf.result_backend_transport_options = apps.queue_settings(self.namespace)["broker_transport_options"]
        self._results = reader.backend
        self._stack.callback(self._results.client.close)
        self.wiring = Wiring.of(self.app)
        self.wiring.admission.declare_new()
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def start_worker(
        self,
        concurrency,
        *,
        app_module=SHOP_APP,
        visibility_seconds=600,
        broker_url=None,
        extra_args=(),
    ):
        """Start a worker; nothing is swept for ten minutes unless a visibility timeout is given."""
        env = {**self._env, shop_app.VISIBILITY: str(visibility_seconds)}
        env |= {apps.BROKER_URL: broker_url} if broker_url else {}
        worker = workers.start_worker(
            app_module,
            env,
            announcements=self.announcements,
            directory=self._directory,
            concurrency=concurrency,
            extra_args=extra_args,
        )
        self._stack.callback(lambda: sys.stdout.write(f"--- log of {worker.name}\n{worker.log()}\n"))
        self._stack.callback(worker.kill_all)
        return worker

    # --- orders

    def publish(self, policy, order_id, **options):
        """Publish an order's payment and return the task's id."""
        task_id = options.pop("task_id", None) or uuid.uuid4().hex
        self.app.tasks[f"shop.{policy}"].apply_async(kwargs={"order_id": order_id}, task_id=task_id, **options)
        return task_id

    def place(self, policy, point=None, **options):
        """Publish a new order that will stop at `point`, if one is given, once."""
        order_id = f"{policy}-{point}-{uuid.uuid4().hex[:6]}"
        if point in HELD_BY_GATEWAY:
            self.gateway.inject("hold", order_id, point=HELD_BY_GATEWAY[point])
        elif point:
            self.announcements.hold(point, order_id=order_id)
        return Order(policy, point, order_id, self.publish(policy, order_id, **options))

    def wait_until_there(self, order):
        """Wait until an order is at its point and return the pid of its process."""
        if order.point in HELD_BY_GATEWAY:
            self.gateway.wait_for_held(order.id, PATIENCE_SECONDS)
            return self.wait_for("after_admit", order)["pid"]
        return self.wait_for(order.point, order)["pid"]

    def let_go(self, *orders):
        """Let what was held go on; whoever waited there should be dead by now."""
        for order in orders:
            if order.point in HELD_BY_GATEWAY:
                self.gateway.release(order.id, abandon=order.point != "call_lands_late")
            else:
                self.announcements.open(order.point)

    def kill_children(self, *orders):
        """Kill the processes of these orders at their points, all of them, then let go."""
        for pid in [self.wait_until_there(order) for order in orders]:
            os.kill(pid, signal.SIGKILL)
        self.let_go(*orders)

    def kill_worker(self, worker, *orders):
        """Kill a whole worker while all these orders are at their points, then let go."""
        for order in orders:
            self.wait_until_there(order)
        worker.kill_all()
        self.let_go(*orders)

    def let_messages_time_out(self):
        """
        Make every message that is taken and not acknowledged older than the visibility timeout.

        Its age is the only thing the broker's sweep looks at. A short timeout instead would strike the living, too, on
        a machine that is slow today.
        """
        index = f"{self.namespace}.unacked_index"
        servers.make_older_than_any_timeout(self.redis, index)

    def wait_until_takeovers_begin(self):
        """
        Wait until only its lease protects a claim.

        Whoever finds that no worker was heard for a while, as before the first one, keeps all claims for one lease.
        """

        def is_over():
            view = self.wiring.admission.view()
            return view.now_us > view.takeover_from_us

        wait_until(is_over, PATIENCE_SECONDS, "lapsed claims may be taken")

    # --- what is seen

    def wait_for(self, event, order, **fields):
        """Wait until a worker says this of an order."""
        return self.announcements.wait_for(is_said(event, order_id=order.id, **fields), PATIENCE_SECONDS)

    def heard(self, event, order, **fields):
        """Return what workers have said of an order."""
        return self.announcements.heard(is_said(event, order_id=order.id, **fields))

    def wait_for_end(self, task_id):
        """Wait until a task has its final state and return `(state, result)`."""

        def ended():
            meta = self._results.get_task_meta(task_id, cache=False)
            return (meta["status"], meta["result"]) if meta["status"] in ("SUCCESS", "FAILURE") else None

        return wait_until(ended, PATIENCE_SECONDS, f"task {task_id} has ended")

    def end_of(self, order):
        """Wait until an order has ended, for good, and return `(state, result)`."""
        if order.point == "before_ack":
            # Its result was stored before the kill: the end is that of the delivery that comes after it.
            again = is_said("before_ack", task_id=order.task_id)
            self.announcements.wait_for(again, PATIENCE_SECONDS, count=2)
        return self.wait_for_end(order.task_id)

    def charge_ids(self, order):
        """Return the ids of an order's charges, from the gateway's ledger."""
        return [charge["id"] for charge in self.gateway.charges(order.id)]

    def record(self, order):
        """Return the record of a keyed order."""
        plan = self.app.tasks[f"shop.{order.policy}"].plan
        return self.wiring.admission.read(plan.record_key(plan.key((), {"order_id": order.id})))

    def aftermath(self, order):
        """Wait until an order has ended and return what it has left behind."""
        state, result = self.end_of(order)
        charged, letters = self.charge_ids(order), self.letters_of(order)
        record = self.record(order) if order.policy in KEYED else None
        if state == "SUCCESS" and result in charged:
            end = "paid"
        elif isinstance(result, Quarantined) and [result.letter_id] == [letter.id for letter in letters]:
            end = "letter"
        else:
            end = f"{state} {result!r}"
        kept = {"record": record.state, "lost_starts": record.lost_starts} if record else {}
        return Aftermath(charges=len(charged), end=end, letters=tuple(letter.kind for letter in letters), **kept)

    def letters(self):
        """Return all dead letters."""
        return self.wiring.letters.list(limit=1000).letters

    def letters_of(self, order):
        """Return the dead letters of one order's messages."""
        return [letter for letter in self.letters() if order.id.encode() in letter.wire.body]

    def assert_broker_is_empty(self):
        """Wait until nothing is queued, and nothing is taken and not acknowledged."""
        prefix = f"{self.namespace}."

        def is_empty():
            names = (self.namespace, "unacked", "unacked_index", "unacked_parked")
            return not self.redis.exists(*(f"{prefix}{name}" for name in names))

        wait_until(is_empty, PATIENCE_SECONDS, "the queue and `unacked` are empty")

    def assert_is_whole(self, worker):
        """Wait until a worker has reaped its dead, and let it do one more order."""

        def zombies():
            return [pid for pid, _parent, group, state in processes() if group == worker.pid and state == "Z"]

        wait_until(lambda: not zombies(), PATIENCE_SECONDS, "the worker has reaped its children")
        order = self.place("verify")
        state, result = self.end_of(order)
        assert ("SUCCESS", [result]) == (state, self.charge_ids(order))
