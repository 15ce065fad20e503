"""
What one Celery app's guarded tasks work with: settings, stores, clock and chance.

Made once for each app on first use, and cheap to make: a Redis client connects when it is first asked. Nothing here is
stored on a task.
"""

import random
import time
import weakref
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from celery_safeguards._redis import Client, Keys
from celery_safeguards.admission.epoch import PublisherEpoch
from celery_safeguards.admission.memory import MemoryAdmissionStore
from celery_safeguards.admission.redis import RedisAdmissionStore
from celery_safeguards.admission.starts import MemoryStartCounter, RedisStartCounter, StartCounter
from celery_safeguards.admission.store import AdmissionStore
from celery_safeguards.clock import Clock, SystemClock
from celery_safeguards.conf import MEMORY_URL, Settings
from celery_safeguards.deadletter.memory import MemoryLetterStore
from celery_safeguards.deadletter.redis import RedisLetterStore
from celery_safeguards.deadletter.spool import Spool
from celery_safeguards.deadletter.store import LetterStore
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.locks.redis import RedisLockStore
from celery_safeguards.locks.store import LockStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The parts that the pipeline and the worker's main process share."""

    settings: Settings
    admission: AdmissionStore
    locks: LockStore
    starts: StartCounter
    letters: LetterStore
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
        found = _WIRED.get(app)
        if found is None:
            found = _WIRED.setdefault(app, cls._from(Settings.of(app)))
        return found

    def use_for(self, app: Any) -> None:
        """Give an app this wiring instead of the one its settings ask for."""
        _WIRED[app] = self

    @classmethod
    def _from(cls, settings: Settings) -> "Wiring":
        spool = Spool(settings.spool_directory) if settings.spool_directory else None
        # Not `Random()`: children that are forked from one parent would all draw the same jitter.
        shared: dict[str, Any] = {"settings": settings, "spool": spool, "chance": random.SystemRandom()}
        shared["clock"] = SystemClock()
        if settings.store_url == MEMORY_URL:
            store = MemoryAdmissionStore(settings.lease_seconds, time.time)
            store.declare_new()
            shared["epoch"] = PublisherEpoch(store, shared["clock"])
            return cls(
                admission=store, locks=store.locks, starts=MemoryStartCounter(), letters=MemoryLetterStore(), **shared
            )
        client = Client(_url(settings), settings.store_timeout_seconds)
        keys = Keys(settings.namespace)
        redis_store = RedisAdmissionStore(client, keys, settings.lease_seconds)
        return cls(
            admission=redis_store,
            locks=RedisLockStore(client, keys, settings.lease_seconds),
            epoch=PublisherEpoch(redis_store, shared["clock"]),
            starts=RedisStartCounter(client, keys),
            letters=RedisLetterStore(client, keys),
            **shared,
        )


_WIRED: "weakref.WeakKeyDictionary[Any, Wiring]" = weakref.WeakKeyDictionary()
_REDIS_SCHEMES = ("redis", "rediss", "unix")


def _url(settings: Settings) -> str:
    url = settings.store_url
    if not url:
        raise ConfigurationError(
            "safeguards_store_url is not set and the broker is not Redis: give a Redis URL for records and letters, "
            f"or {MEMORY_URL!r} for tests in one process"
        )
    if urlsplit(url).scheme not in _REDIS_SCHEMES:
        raise ConfigurationError(
            f"safeguards_store_url: {url.split('@')[-1]!r} is no redis://, rediss:// or unix:// URL"
        )
    return url
