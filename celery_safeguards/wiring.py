"""
What one Celery app's guarded tasks work with: settings, stores, clock and chance.

Made once for each app on first use, and cheap to make: a store connects when it is first asked. Nothing here is stored
on a task.

The scheme of `safeguards_store_url` chooses the stores. Those for Redis and for one process are here; every other comes
with a package that names them under the scheme, in the entry point group `celery_safeguards.stores`: a function that
takes `Settings` and returns `Stores`.
"""

import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, cast
from urllib.parse import urlsplit

from celery.local import Proxy
from celery.utils.imports import symbol_by_name

from celery_safeguards._redis import Client, Keys
from celery_safeguards.admission.atomic import AtomicStore
from celery_safeguards.admission.epoch import PublisherEpoch
from celery_safeguards.admission.memory import MemoryAdmissionStore
from celery_safeguards.admission.redis import RedisAdmissionStore
from celery_safeguards.admission.starts import MemoryStartCounter, RedisStartCounter, StartCounter
from celery_safeguards.admission.store import AdmissionStore
from celery_safeguards.clock import Clock, SystemClock
from celery_safeguards.conf import MEMORY_URL, Settings
from celery_safeguards.deadletter.memory import MemoryLetterStore
from celery_safeguards.deadletter.redis import RedisLetterStore
from celery_safeguards.deadletter.search import Search
from celery_safeguards.deadletter.shown.redaction import Redaction
from celery_safeguards.deadletter.spool import Spool
from celery_safeguards.deadletter.store import LetterStore
from celery_safeguards.errors import ConfigurationError, nearest
from celery_safeguards.jobs.memory import MemoryJobStore
from celery_safeguards.jobs.redis import RedisJobStore
from celery_safeguards.jobs.store import JobStore
from celery_safeguards.locks.redis import RedisLockStore
from celery_safeguards.locks.store import LockStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """One backend behind every port."""

    admission: AdmissionStore
    locks: LockStore
    starts: StartCounter
    letters: LetterStore
    jobs: JobStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The parts that the pipeline and the worker's main process share."""

    settings: Settings
    admission: AdmissionStore
    locks: LockStore
    starts: StartCounter
    letters: LetterStore
    jobs: JobStore
    spool: Spool | None
    epoch: PublisherEpoch
    clock: Clock
    chance: random.Random

    @classmethod
    def of(cls, app: Any) -> "Wiring":
        """
        Return an app's wiring.

        Raises:
            ConfigurationError: a setting cannot hold, or no store can be found.

        """
        if isinstance(app, Proxy):
            # `celery.current_app`, which is another app in each thread that has one.
            app = app._get_current_object()  # noqa: SLF001 - the app behind Celery's proxy
        found = _WIRED.get(app)
        if found is None:
            found = _WIRED.setdefault(app, cls.from_settings(Settings.of(app)))
        return found

    @property
    def search(self) -> Search:
        """What letters are found by."""
        return Search.of(self.settings)

    @property
    def redaction(self) -> Redaction:
        """What a person may see of letters."""
        return Redaction.of(self.settings, symbol_by_name)

    def atomic_store(self, alias: str, *, joined: bool) -> AtomicStore:
        """
        Return the store whose records are written in a body's transaction on a database.

        Args:
            alias: of the database.
            joined: by the caller's own connection: eager execution, which belongs to its caller. Then the store of the
                other records may be anywhere.

        Raises:
            ConfigurationError: the app's records are elsewhere, where no transaction of the body's reaches them.

        """
        store, url = self.admission, f"{_ATOMIC_SCHEME}://{alias}"
        if getattr(store, "alias", None) != alias:
            if not joined:
                raise ConfigurationError(
                    f"Idempotent(atomic={alias!r}): its record must be in that database, and safeguards_store_url is "
                    f"{self.settings.store_url!r}: name that database, or set {url!r}"
                )
            store = open_stores(replace(self.settings, store_url=url)).admission
        atomic = cast("AtomicStore", store)
        return atomic.joined() if joined else atomic

    def use_for(self, app: Any) -> None:
        """Give an app this wiring instead of the one its settings ask for."""
        _WIRED[app] = self

    @contextmanager
    def in_place_for(self, app: Any) -> Iterator[None]:
        """Give an app this wiring for the length of a `with`."""
        before = _WIRED.get(app)
        self.use_for(app)
        try:
            yield
        finally:
            del _WIRED[app]
            if before is not None:
                before.use_for(app)

    @classmethod
    def from_settings(cls, settings: Settings) -> "Wiring":
        """Return the wiring that these settings ask for, for no app yet; see `of`."""
        stores, clock = open_stores(settings), SystemClock()
        return cls(
            settings=settings,
            admission=stores.admission,
            locks=stores.locks,
            starts=stores.starts,
            letters=stores.letters,
            jobs=stores.jobs,
            spool=Spool(settings.spool_directory) if settings.spool_directory else None,
            epoch=PublisherEpoch(stores.admission, clock),
            clock=clock,
            # Not `Random()`: children that are forked from one parent would all draw the same jitter.
            chance=random.SystemRandom(),
        )


_WIRED: "weakref.WeakKeyDictionary[Any, Wiring]" = weakref.WeakKeyDictionary()
_REDIS_SCHEMES = ("redis", "rediss", "unix")
_ATOMIC_SCHEME = "django"
"""Whose stores work in transactions of the body's: the aliases are Django's."""
_STORES_GROUP = "celery_safeguards.stores"


def open_stores(settings: Settings) -> Stores:
    """
    Return the stores that these settings ask for; nothing is connected to yet.

    Raises:
        ConfigurationError: there is no store of this URL.

    """
    url = settings.store_url
    if not url:
        raise ConfigurationError(
            "safeguards_store_url is not set and the broker is not Redis: give a Redis URL for records and letters, "
            f"or {MEMORY_URL!r} for tests in one process"
        )
    if url == MEMORY_URL:
        return _in_memory(settings)
    scheme = _scheme_of(url)
    if scheme in _REDIS_SCHEMES:
        return _on_redis(settings, url)
    given = {each.name: each for each in entry_points(group=_STORES_GROUP)}
    if scheme not in given:
        known = ", ".join(f"{each}://" for each in (*_REDIS_SCHEMES, *sorted(given)))
        hint = nearest(scheme, (*_REDIS_SCHEMES, *given))
        raise ConfigurationError(f"safeguards_store_url: {url.split('@')[-1]!r} is none of {known}{hint}")
    try:
        opener: Callable[[Settings], Stores] = given[scheme].load()
    except ImportError as error:
        raise ConfigurationError(
            f"safeguards_store_url: {scheme}:// needs what is not installed ({error}): "
            f"pip install 'celery-safeguards[{scheme}]'"
        ) from error
    return opener(settings)


def _scheme_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - read only now
    except ValueError as error:
        # Without the URL, which has a password.
        raise ConfigurationError(f"safeguards_store_url is no URL: {error}") from None
    return parts.scheme


def _in_memory(settings: Settings) -> Stores:
    store = MemoryAdmissionStore(settings.lease_seconds, SystemClock.wall_seconds)
    store.declare_new()
    return Stores(
        admission=store,
        locks=store.locks,
        starts=MemoryStartCounter(),
        letters=MemoryLetterStore(),
        jobs=MemoryJobStore(),
    )


def _on_redis(settings: Settings, url: str) -> Stores:
    client, keys = Client(url, settings.store_timeout_seconds), Keys(settings.namespace)
    return Stores(
        admission=RedisAdmissionStore(client, keys, settings.lease_seconds),
        locks=RedisLockStore(client, keys, settings.lease_seconds),
        starts=RedisStartCounter(client, keys),
        letters=RedisLetterStore(client, keys),
        jobs=RedisJobStore(client, keys),
    )
