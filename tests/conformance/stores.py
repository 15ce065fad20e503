"""
The stores under test behind one interface, with time that passes on command.

The memory store reads an injected clock. A server has a clock of its own, so there the store is moved instead:
`advance(40)` shifts every stored time 40 seconds into the past, which is what 40 seconds of waiting would look like.
Nothing sleeps, and leases of half a minute keep a slow machine from mattering.

Fences are not shifted: claims and locks that are held compare with them. Who reads a fence as a time, as a copy's
`sg_seen` is read after a wipe, lowers it by what `advance` returns.
"""

import contextlib
import uuid
from abc import ABC, abstractmethod

import pytest
import redis

from celery_safeguards._redis import Client, Keys
from celery_safeguards.admission.memory import MemoryAdmissionStore
from celery_safeguards.admission.redis import RedisAdmissionStore
from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.memory import MemoryLetterStore
from celery_safeguards.deadletter.redis import RedisLetterStore
from celery_safeguards.jobs.memory import MemoryJobStore
from celery_safeguards.jobs.redis import RedisJobStore
from celery_safeguards.ledger.record import Record
from celery_safeguards.locks.redis import RedisLockStore
from tests.support import databases
from tests.support.record_text import text_of

# Models can be imported only once there is a project.
databases.set_up()

from django_celery_safeguards import rows  # noqa: E402
from django_celery_safeguards.admission import OrmAdmissionStore  # noqa: E402
from django_celery_safeguards.connection import OwnConnection  # noqa: E402
from django_celery_safeguards.house import House  # noqa: E402
from django_celery_safeguards.jobs import OrmJobStore  # noqa: E402
from django_celery_safeguards.letters import OrmLetterStore  # noqa: E402
from django_celery_safeguards.starts import OrmStartCounter  # noqa: E402

LEASE_SECONDS = 30.0
ALL = [
    "memory",
    pytest.param("redis", marks=pytest.mark.redis),
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
]
RECORD_TIMES = ("lease_until_us", "lost_us", "not_before_us", "doubt_us", "series_began_us")
META_TIMES = ("admit_from", "pulse", "takeover_from", "away_from")
# Of the words of a lock's head, as `locks/lock.lua` has them.
LOCK_FENCE, LOCK_TIMES = 2, (3, 4, 6)


class FakeClock:
    """A process's clocks; time passes by `advance` alone, and a sleep takes no time to run."""

    def __init__(self, wall_seconds=1_700_000_000.0):
        self._wall = wall_seconds
        self._monotonic = 1_000.0

    def wall_seconds(self):
        return self._wall

    def monotonic_seconds(self):
        return self._monotonic

    def sleep(self, seconds):
        self.advance(seconds)

    def advance(self, seconds):
        self._wall += seconds
        self._monotonic += seconds

    def set_back(self, seconds):
        """Put the wall clock back, as a correction of the machine's time does."""
        self._wall -= seconds


class StoreUnderTest(ABC):
    """
    A store of records with its locks and letters, and what the world may do to it.

    Attributes:
        store: the store of records.
        locks: the locks of the same backend.
        jobs: the replay jobs of the same backend.
        letters: the letters of the same backend. They survive a wipe: protocol and model assume so.
        clock: the clocks of the processes that use the store.

    """

    def __init__(self):
        self.clock = FakeClock()
        self.store = None
        self.locks = None
        self.letters = None
        self.jobs = None

    def advance(self, seconds):
        """Let time pass, for the store and for everybody; return by how many microseconds stored fences are now off."""
        self.clock.advance(seconds)
        return self._move_store(seconds)

    @abstractmethod
    def connect(self):
        """Return a store over the same records, as another process has it."""

    @abstractmethod
    def connect_locks(self):
        """Return a store over the same locks, as another process has it."""

    @abstractmethod
    def wipe(self):
        """Lose every record, claim and lock, and the epoch."""

    @abstractmethod
    def expire(self, key):
        """Lose one record, as its retention does."""

    @abstractmethod
    def lose_lock(self, name):
        """Lose one lock, as an eviction does."""

    @abstractmethod
    def set_clock_back(self, seconds):
        """Put the store's clock back; return by how many microseconds stored fences have moved."""

    @abstractmethod
    def away_from_us(self):
        """Return when somebody was heard last before the last outage, in the store's microseconds."""

    @abstractmethod
    def write_raw(self, key, **fields):
        """Write fields of a record behind the store's back."""

    @abstractmethod
    def _move_store(self, seconds): ...


class MemoryUnderTest(StoreUnderTest):
    """The memory store on a clock of its own, so that a client's clock can be wrong."""

    def __init__(self):
        super().__init__()
        self._server = FakeClock()
        self.store = MemoryAdmissionStore(LEASE_SECONDS, self._server.wall_seconds)
        self.locks = self.store.locks
        self.letters = MemoryLetterStore()
        self.jobs = MemoryJobStore()

    def connect(self):
        return self.store

    def connect_locks(self):
        return self.locks

    def wipe(self):
        self.store.wipe()

    def expire(self, key):
        self.store._records.pop(key, None)

    def lose_lock(self, name):
        self.locks.states.pop(name, None)

    def set_clock_back(self, seconds):
        self._server.set_back(seconds)
        return 0

    def away_from_us(self):
        return self.store.view().away_from_us

    def write_raw(self, key, **fields):
        self.store._records[key] = Record.from_text(text_of(self.store._records[key].having(**fields)))

    def _move_store(self, seconds):
        self._server.advance(seconds)
        return 0


class RedisUnderTest(StoreUnderTest):
    """The Redis store in a namespace of its own."""

    def __init__(self, url, namespace):
        super().__init__()
        self._url = url
        self.keys = Keys(namespace)
        self._clients = []
        self.store = self.connect()
        self.locks = RedisLockStore(self.store._client, self.keys, LEASE_SECONDS)
        self.letters = RedisLetterStore(self.store._client, self.keys)
        self.jobs = RedisJobStore(self.store._client, self.keys)
        self.client = redis.Redis.from_url(url, decode_responses=True)

    def connect(self):
        return RedisAdmissionStore(self._connected(), self.keys, LEASE_SECONDS)

    def connect_locks(self):
        return RedisLockStore(self._connected(), self.keys, LEASE_SECONDS)

    def close(self):
        """Close every connection and delete what was stored."""
        for key in self._all("*"):
            self.client.delete(key)
        self.client.close()
        for client in self._clients:
            client.close()

    def wipe(self):
        lost = [key for kind in ("record", "lock", "waiting", "wake") for key in self._all(f"{kind}:*")]
        self.client.delete(self.keys.meta, *lost)

    def expire(self, key):
        self.client.delete(self.keys.record(key.scope, key.key))

    def lose_lock(self, name):
        self.client.delete(self.keys.lock(name))

    def set_clock_back(self, seconds):
        self._shift(-to_us(seconds), fences=True)
        return to_us(seconds)

    def away_from_us(self):
        return int(self.client.hget(self.keys.meta, "away_from") or 0)

    def write_raw(self, key, **fields):
        self._write(self.keys.record(key.scope, key.key), **fields)

    def _move_store(self, seconds):
        self._shift(to_us(seconds))
        return to_us(seconds)

    def _connected(self):
        client = Client(self._url, timeout_seconds=5)
        self._clients.append(client)
        return client

    def _shift(self, us, *, fences=False):
        names = (*RECORD_TIMES, "fence") if fences else RECORD_TIMES
        for key in self._all("record:*"):
            self._shift_record(key, names, us)
            self._shift_expiry(key, us)
        for key in self._all("lock:*"):
            self._shift_lock(key, (*LOCK_TIMES, LOCK_FENCE) if fences else LOCK_TIMES, us)
            self._shift_expiry(key, us)
        for key in self._all("waiting:*"):
            self._shift_waiting(key, us)
            self._shift_expiry(key, us)
        for key in self._all("wake:*"):
            self._shift_expiry(key, us)
        if self.client.exists(self.keys.meta):
            self._shift_fields(self.keys.meta, META_TIMES, us)

    def _shift_record(self, key, names, us):
        record = Record.from_text(self.client.get(key))
        # Never below 1: a 0 means never.
        self._write(key, **{name: max(1, old - us) for name in names if (old := getattr(record, name))})

    def _shift_lock(self, key, places, us):
        head, _, holder = self.client.get(key).partition("\n")
        words = head.split(" ")
        for place in places:
            words[place] = _shifted(words[place], us)
        self.client.set(key, f"{' '.join(words)}\n{holder}", keepttl=True)

    def _shift_waiting(self, key, us):
        for owner, text in self.client.hgetall(key).items():
            since, heard_until, rest = text.split(" ", 2)
            self.client.hset(key, owner, f"{_shifted(since, us)} {_shifted(heard_until, us)} {rest}")

    def _shift_expiry(self, key, us):
        left_ms = self.client.pttl(key)
        if left_ms >= 0:
            # A time that is over deletes the key, as it would have done by itself.
            self.client.pexpire(key, left_ms - us // 1000)

    def _write(self, key, **fields):
        self.client.set(key, text_of(Record.from_text(self.client.get(key)).having(**fields)), keepttl=True)

    def _shift_fields(self, key, names, us):
        values = self.client.hmget(key, names)
        # Never below 1: a 0 means never.
        moved = {name: max(1, int(text) - us) for name, text in zip(names, values, strict=True) if int(text or 0)}
        if moved:
            self.client.hset(key, mapping=moved)

    def _all(self, pattern):
        return list(self.client.scan_iter(match=f"{self.keys.tag}:{pattern}", count=1_000))


def _shifted(text, us):
    # Never below 1: a 0 means never.
    return str(max(1, int(text) - us)) if int(text) else text


class OrmUnderTest(StoreUnderTest):
    """The stores of the Django app in a namespace of their own, in one database of the project."""

    def __init__(self, alias, namespace, timeout_seconds=5.0):
        super().__init__()
        self.alias = alias
        self.namespace = namespace
        self._timeout_seconds = timeout_seconds
        self._connections = []
        self.store = self.connect()
        self.house = self.store.house
        self.locks = self.store.locks
        self.letters = OrmLetterStore(self.house)
        self.jobs = OrmJobStore(self.house)
        self.starts = OrmStartCounter(self.house)

    def connect(self):
        connection = OwnConnection(self.alias, self._timeout_seconds)
        self._connections.append(connection)
        return OrmAdmissionStore(House(connection, self.namespace, LEASE_SECONDS))

    def connect_locks(self):
        return self.connect().locks

    def close(self):
        """Delete what was stored and close every connection."""
        for table in vars(self.house.tables).values():
            self._execute(f"DELETE FROM {table.name} WHERE namespace = %s", [self.namespace])
        for connection in self._connections:
            connection.close()

    def wipe(self):
        for name in ("state", "records", "locks", "waiters"):
            table = getattr(self.house.tables, name)
            self._execute(f"DELETE FROM {table.name} WHERE namespace = %s", [self.namespace])

    def expire(self, key):
        self._execute(self.house.tables.records.delete(), [rows.record_id(self.namespace, key)])

    def lose_lock(self, name):
        self._execute(self.house.tables.locks.delete(), [rows.lock_id(self.namespace, name)])

    def set_clock_back(self, seconds):
        self._shift(-to_us(seconds), records=("fence",), locks=("fence", "freed_fence"))
        return to_us(seconds)

    def away_from_us(self):
        return self.store.view().away_from_us

    def write_raw(self, key, **fields):
        update = self.house.tables.records.update(list(rows.RECORD))
        row = rows.record_row(self.store.read(key).having(**fields))
        self._execute(update, [*row, rows.record_id(self.namespace, key)])

    def _move_store(self, seconds):
        self._shift(to_us(seconds))
        return to_us(seconds)

    def _shift(self, us, *, records=(), locks=()):
        self._shift_table("records", (*RECORD_TIMES, "expires_us", *records), us)
        self._shift_table("state", [f"{name}_us" for name in META_TIMES], us)
        self._shift_table("locks", ("lease_until_us", "since_us", "reserved_until_us", "used_us", *locks), us)
        self._shift_table("waiters", ("since_us", "heard_us"), us)
        self._shift_table("starts", ("expires_us",), us)

    def _shift_table(self, name, columns, us):
        table = getattr(self.house.tables, name)
        # Never below 1: a 0 means never.
        moved = (
            f"{column} = CASE WHEN {column} = 0 THEN 0 WHEN {column} - {us} < 1 THEN 1 ELSE {column} - {us} END"
            for column in columns
        )
        self._execute(f"UPDATE {table.name} SET {', '.join(moved)} WHERE namespace = %s", [self.namespace])

    def _execute(self, statement, values):
        self.house.connection.run(lambda cursor: cursor.execute(statement, values))


@contextlib.contextmanager
def memory_under_test():
    """Yield the memory store, empty and declared new."""
    under_test = MemoryUnderTest()
    under_test.store.declare_new()
    yield under_test


@contextlib.contextmanager
def redis_under_test(url, namespace=None):
    """Yield the Redis store in an empty namespace, declared new; the namespace is deleted at the end."""
    under_test = RedisUnderTest(url, namespace or f"t{uuid.uuid4().hex[:12]}")
    try:
        under_test.store.declare_new()
        yield under_test
    finally:
        under_test.close()


@contextlib.contextmanager
def orm_under_test(alias, namespace=None, **options):
    """Yield the stores of the Django app in an empty namespace, declared new; its rows are deleted at the end."""
    under_test = OrmUnderTest(alias, namespace or f"t{uuid.uuid4().hex[:12]}", **options)
    try:
        under_test.store.declare_new()
        yield under_test
    finally:
        under_test.close()


def opened(request, name):
    """Return the context of the store of this name, for a fixture."""
    if name == "memory":
        return memory_under_test()
    if name in {"sqlite", "postgres"}:
        return orm_under_test(request.getfixturevalue(f"{name}_alias"))
    return redis_under_test(request.getfixturevalue("redis_url"))
