"""
The project of one test module as it runs: a web server in a process of its own, a broker, and the store's database.

What a test does to the store is done in a thread of its own: while a browser is driven, Django lets the test's main
thread speak to no database.
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import redis
from celery import Celery
from django.db import connections
from kombu.utils.json import dumps

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.indexing import indexed
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.sql import row_id
from tests.browser.desk import where
from tests.browser.desk.celery import make_app
from tests.browser.desk.seed import PASSWORD
from tests.conformance.admission.calls import claimed
from tests.support import apps, databases, servers, workers
from tests.support.processes import end_group
from tests.support.sockets import HOST, free_port
from tests.support.waiting import wait_until

_START_SECONDS = 30


class Desk:
    """
    A context manager that leaves nothing behind.

    Args:
        redis_url: of the broker.
        database: Django's settings of an empty database for the store.
        directory: where the users' database and the logs go.
        store_url: of the store, where it is not that database.
        server_env: what the web server's environment has in place of the workers'.

    """

    def __init__(self, redis_url, database, directory, store_url=None, server_env=None):
        self._database, self._directory, self._redis_url = database, Path(directory), redis_url
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self.users_file = self._directory / "users.sqlite3"
        self.port = free_port()
        self.buried = []
        self._server_env = server_env or {}
        self._alias = f"desk{uuid.uuid4().hex[:8]}"
        self._stack = contextlib.ExitStack()
        self.env = {
            apps.BROKER_URL: redis_url,
            apps.NAMESPACE: self.namespace,
            where.USERS_FILE: str(self.users_file),
            where.DATABASE: json.dumps(database),
            "DJANGO_SETTINGS_MODULE": "tests.browser.desk.settings",
            **({apps.STORE_URL: store_url} if store_url else {}),
        }

    def __enter__(self):
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _set_up(self):
        enter = self._stack.enter_context
        self.redis = enter(redis.Redis.from_url(self._redis_url, decode_responses=True, socket_timeout=5))
        self._stack.callback(lambda: servers.forget(self.redis, self.namespace))
        self._run("tests.browser.desk.seed")
        self._start_server()
        enter(databases.added(self._alias, self._database))
        self._thread = enter(ThreadPoolExecutor(1))
        with pytest.MonkeyPatch.context() as patch:
            for name in (apps.BROKER_URL, apps.NAMESPACE):
                patch.setenv(name, self.env[name])
            self.app = enter(make_app(f"django://{self._alias}", set_as_current=False))
        self.store(lambda wiring: wiring.admission.declare_new())

    def __exit__(self, *exc_info):
        self._stack.close()

    @property
    def url(self):
        return f"http://{HOST}:{self.port}/admin/"

    # --- the store

    def store(self, act):
        """Return what `act` makes of the app's wiring."""
        return self._thread.submit(lambda: act(Wiring.of(self.app))).result()

    def publish(self, task, **kwargs):
        """Publish a task."""
        self.store(lambda _wiring: self.app.tasks[task].apply_async(kwargs=kwargs))

    def bury(self, letter_id=None, *, args=(), kwargs=None, body=None, headers=None, content_type=None, **changes):
        """Put a letter into the store and return it; `content_encoding` is of its message."""
        id_ = letter_id or f"letter-{uuid.uuid4().hex[:8]}"
        task = changes.get("task", "desk.note")
        wire = WireMessage(
            body=body if body is not None else str(dumps([list(args), kwargs or {}, {}])).encode(),
            content_type=content_type or "application/json",
            content_encoding=changes.pop("content_encoding", "utf-8"),
            headers={"task": task, "id": f"task-of-{id_}", "root_id": f"task-of-{id_}", **(headers or {})},
            properties={"correlation_id": f"task-of-{id_}"},
            delivery_info={"exchange": "", "routing_key": changes.pop("queue", self.namespace)},
        )
        given = {
            "id": id_,
            "task": task,
            "task_id": f"task-of-{id_}",
            "wire": wire,
            "kind": FailureKind.BUG,
            "effect_possible": False,
            "reason": "attempt 4 of 4",
            "error_type": "builtins.ValueError",
            "error_message": "no such order",
            "traceback": 'Traceback (most recent call last):\n  File "shop.py", line 7\nValueError: no such order',
            "attempts": 4,
            "first_seen_seconds": 1_750_000_000.0,
            "last_failed_seconds": 1_750_000_060.0,
            "host": "worker-3",
            "pid": 4711,
        }
        letter = self.store(lambda wiring: indexed(wiring, Letter(**{**given, **changes}), self.app.tasks))
        assert self.store(lambda wiring: wiring.letters.bury(letter))
        self.buried.append(letter.id)
        return letter

    def bury_elsewhere(self, letter):
        """Put a copy of a letter into another fleet's part of the same database; return its row's id."""
        namespace = f"{self.namespace}-other"
        self._in_namespace(namespace, lambda wiring: wiring.letters.bury(letter))
        return row_id(namespace, letter.id)

    def state_elsewhere(self, letter):
        """Return the state of that copy."""
        return self._in_namespace(f"{self.namespace}-other", lambda wiring: wiring.letters.get(letter.id).state)

    def claim(self, scope, key):
        """Have somebody start the work of a key."""
        self.store(lambda wiring: claimed(wiring.admission, "owner-1", RecordKey(scope, key)))

    def bury_unknown(self, order_id, **changes):
        """Put a quarantined payment into the store: nobody knows whether it was charged."""
        given = {
            "task": "desk.charge",
            "kwargs": {"order_id": order_id, "amount": 990},
            "key": f"payment:{order_id}",
            "scope": "desk.charge",
            "kind": FailureKind.WORKER_LOST,
            "effect_possible": True,
            "reason": "nobody knows whether it happened",
        }
        return self.bury(**{**given, **changes})

    def wait_until_buried(self, task, **fields):
        """Wait for a letter of a task, with these fields."""

        def is_there():
            letters = self.store(lambda wiring: wiring.letters.list(task=task, limit=100)).letters
            return any(all(getattr(each, name) == value for name, value in fields.items()) for each in letters)

        wait_until(is_there, 20, f"there is a letter of {task}")

    def letter(self, letter):
        """Return a letter as it stands."""
        return self.store(lambda wiring: wiring.letters.get(letter.id))

    def record(self, letter):
        """Return the record of a letter's key."""
        return self.store(lambda wiring: wiring.admission.read(RecordKey(letter.scope, letter.key)))

    def change(self, letter, **changes):
        """Put a letter into another state, as if it had been brought there."""
        self.store(lambda wiring: wiring.letters._apply(letter.id, lambda kept: replace(kept, **changes)))

    def overwrite(self, letter, text):
        """Put any text in a letter's place, as a newer version or a damaged disk does."""

        def act(wiring):
            table = wiring.letters._house.tables.letters
            values = [text, row_id(self.namespace, letter.id)]
            wiring.letters._house.connection.run(lambda cursor: cursor.execute(table.update(("letter",)), values))

        self.store(act)

    def damage_lock(self, id_, body):
        """Put any text in the place of what a lock's row holds."""

        def act(wiring):
            house, values = wiring.locks.house, [body, id_]
            house.connection.run(lambda cursor: cursor.execute(house.tables.locks.update(("body",)), values))

        self.store(act)

    def damage_record(self, letter, body):
        """Put any text in the place of what the record of a letter's key holds; return its row's id."""
        id_ = row_id(self.namespace, letter.scope, letter.key)

        def act(wiring):
            wiring.admission.declare_new()
            claimed(wiring.admission, "owner-1", RecordKey(letter.scope, letter.key))
            table = wiring.letters._house.tables.records
            wiring.letters._house.connection.run(lambda cursor: cursor.execute(table.update(("body",)), [body, id_]))

        self.store(act)
        return id_

    def queued(self):
        """Return how many messages wait."""
        return self.redis.llen(f"{self.namespace}.{self.namespace}")

    def forget_messages(self):
        """Empty the queue."""
        self.redis.delete(f"{self.namespace}.{self.namespace}")

    def _in_namespace(self, namespace, act):
        changes = {"safeguards_store_url": f"django://{self._alias}", "safeguards_namespace": namespace}
        with Celery("other", set_as_current=False) as app:
            app.conf.update(changes)
            return self._thread.submit(lambda: act(Wiring.of(app))).result()

    # --- the admin

    def path_of(self, letter):
        """Return the path of a letter's page, below the admin's."""
        return f"django_celery_safeguards/deadletter/{row_id(self.namespace, letter.id)}/change/"

    def path_of_group(self, letter, page="change"):
        """Return the path of a page of a letter's group, below the admin's."""
        return f"django_celery_safeguards/lettergroup/{row_id(self.namespace, letter.fingerprint)}/{page}/"

    def group(self, letter):
        """Return a letter's group as it stands."""
        return self.store(lambda wiring: wiring.letters.get_group(letter.fingerprint))

    def path_of_record(self, letter):
        id_ = row_id(self.namespace, letter.scope, letter.key)
        return f"django_celery_safeguards/idempotencyrecord/{id_}/change/"

    def picked(self, letter):
        """Return what a page sends to name a letter and its last failure."""
        return f"{row_id(self.namespace, letter.id)}:{round(letter.last_failed_seconds * 1_000_000)}"

    @contextlib.contextmanager
    def client(self, person):
        """Have an HTTP client in which somebody is logged in."""
        with Client(base_url=self.url, timeout=60) as client:
            client.get("login/").raise_for_status()
            # Not the admin's own page: that is for members of the staff.
            answer = client.post(
                f"http://{HOST}:{self.port}/accounts/login/", data={"username": person, "password": PASSWORD}
            )
            assert answer.status_code == 302, answer.text
            yield client

    def log(self):
        """Return the admin's log: who, which letter, what; the oldest first."""
        with contextlib.closing(sqlite3.connect(self.users_file)) as connection:
            select = "SELECT u.username, l.object_repr, l.change_message FROM django_admin_log l"
            return connection.execute(f"{select} JOIN auth_user u ON u.id = l.user_id ORDER BY l.id").fetchall()

    def offered(self):
        """Return what the admin offers: see `tests.browser.desk.offered`."""
        return json.loads(self._run("tests.browser.desk.offered"))

    def everything(self):
        """Return all that is stored and sent: each row of the store, the broker's keys, what waits, and the log."""
        broker = sorted(self.redis.keys(f"{self.namespace}*"))
        return {
            **self._thread.submit(self._rows).result(),
            "broker": broker,
            "queued": self.queued(),
            "log": self.log(),
        }

    def _rows(self):
        """Return a digest of each table's rows."""
        with connections[self._alias].cursor() as cursor:
            tables = connections[self._alias].introspection.table_names(cursor)
            digests = {}
            # When the store was asked last is in its state, which whoever only looks changes as well.
            for table in (each for each in tables if "safeguards" in each and not each.endswith("_storestate")):
                cursor.execute(f"SELECT md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM {table} t")
                digests[table] = cursor.fetchone()
        connections[self._alias].close()
        return digests

    def server_log(self):
        """Return what the web server has written, addresses included."""
        return (self._directory / "server.log").read_text()

    # --- processes

    def start_worker(self, announcements, **env):
        """Start a worker of the project, with more in its environment."""
        worker = workers.start_worker(
            "tests.browser.desk.celery:app",
            {**self.env, **env},
            announcements=announcements,
            directory=self._directory,
        )
        self._stack.callback(lambda: sys.stdout.write(f"--- log of {worker.name}\n{worker.log()}\n"))
        self._stack.callback(worker.kill_all)
        return worker

    def _run(self, module):
        command = [sys.executable, "-W", "error", "-m", module]
        done = subprocess.run(
            command, cwd=servers.ROOT, env={**os.environ, **self.env}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _start_server(self):
        log_path = self._directory / "server.log"
        # As a web server starts: `runserver` alone looks at the checks, and would refuse what the pages have to tell.
        options = ["--noreload", "--skip-checks"]
        command = [sys.executable, "-W", "error", "-m", "django", "runserver", *options, f"{HOST}:{self.port}"]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=servers.ROOT,
                env={**os.environ, **self.env, **self._server_env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stack.callback(lambda: sys.stdout.write(f"--- log of the server\n{log_path.read_text()}\n"))
        self._stack.callback(process.wait)
        self._stack.callback(lambda: end_group(process.pid))

        def answers():
            assert process.poll() is None, log_path.read_text()
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.url}login/").status_code == 200
            return False

        wait_until(answers, _START_SECONDS, "the server answers")


class Client(httpx.Client):
    """Sends the token of its cookie with each form, as a page of the admin does."""

    def post(self, url, *, data=None, **options):
        token = {"csrfmiddlewaretoken": self.cookies.get("csrftoken", "")}
        return super().post(url, data={**(data or {}), **token}, **options)

    def do(self, deed, *picked, **data):
        """Ask for a deed on letters."""
        return self.post(f"django_celery_safeguards/deadletter/do/{deed}/", data={"letter": list(picked), **data})
