"""
Redis databases that a cache may wipe: `cache.clear()` sends FLUSHDB, and takes whatever else lies there.

    t0 a task claims its key    t1 somebody clears the cache    t2 the claim, its lock and all that was ever done are
    forgotten; if the broker lies there, every waiting message is gone as well

Told apart by host, port and database number, as they are written: two names of one host are not seen through.
"""

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.module_loading import import_string
from redis.connection import parse_url

from celery_safeguards.findings import Finding
from celery_safeguards.redis_urls import REDIS_SCHEMES, redis_url

# Both send FLUSHDB (Django 5.2 to 6.1, `core/cache/backends/redis.py`; django-redis 5 and 6, `client/default.py`).
_FLUSHES = {("django.core.cache.backends.redis", "RedisCache"), ("django_redis.cache", "RedisCache")}
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_REDIS_PORT = 6379

Place = tuple[str, int, int]
"""Host or socket, port, database."""


def clearable_findings(store_url: str | None, broker_urls: Iterable[str]) -> Iterator[Finding]:
    """Return what of the safeguards and of the broker a cache of the project would wipe."""
    caches = dict(_places_of_caches())
    alias = caches.get(_place(store_url)) if store_url else None
    if alias is not None:
        yield Finding(
            "SG220",
            f"records and locks lie in the Redis database of CACHES[{alias!r}], and cache.clear() wipes it: "
            "give them another database number by safeguards_store_url",
        )
    alias = next((caches[place] for each in broker_urls if (place := _place(each)) in caches), None)
    if alias is not None:
        yield Finding(
            "SG221",
            f"messages lie in the Redis database of CACHES[{alias!r}], and cache.clear() wipes it: "
            "give the cache another database number",
        )


def broker_urls(app: Any) -> list[str]:
    """Return the URLs of an app's brokers, for reading and for writing."""
    given = (app.conf.broker_read_url, app.conf.broker_write_url, app.conf.broker_url)
    several = [each if isinstance(each, list | tuple) else [each] for each in given]
    return [url for urls in several for each in urls if each for url in str(each).split(";")]


def _places_of_caches() -> Iterator[tuple[Place | None, str]]:
    for alias, given in settings.CACHES.items():
        if not _flushes(given.get("BACKEND", "")):
            continue
        locations = given.get("LOCATION") or ()
        several = locations.replace(";", ",").split(",") if isinstance(locations, str) else locations
        for each in several:
            place = _place(each.strip(), given.get("OPTIONS", {}).get("db"))
            if place is not None:
                yield place, alias


def _flushes(backend: str) -> bool:
    try:
        found = import_string(backend)
    except ImportError:
        # Django says so itself, with the name of the cache.
        return False
    return any((each.__module__, each.__name__) in _FLUSHES for each in found.__mro__)


def _place(url: str, database: Any = None) -> Place | None:
    try:
        if urlsplit(url).scheme not in REDIS_SCHEMES:
            return None
        found = parse_url(redis_url(url))  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    host = found.get("path") or found.get("host") or "localhost"
    number = found.get("db", database or 0)
    return ("localhost" if host in _LOCAL else host, found.get("port", _REDIS_PORT), int(number))
