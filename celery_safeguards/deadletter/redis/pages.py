"""
Sorted sets in Redis, read from the newest failure on, page by page.

A page begins where the last one ended, by score and name, so it costs the same at any depth. The set orders equal
scores by their names' bytes; Lua would compare them by the server's locale, so that is done here.
"""

from collections.abc import Callable, Sequence
from typing import Any

from celery_safeguards._redis import Client, Script
from celery_safeguards.deadletter import changes

_PAGE = Script.of("deadletter/redis/page_names.lua")
_NAMES_A_TRIP = 200
_MAX_TRIPS_A_PAGE = 50

Place = tuple[float, str]
"""Where something stands in the set: last failure, stored name."""
Places = list[Place]


def page_of(
    client: Client,
    keys: Sequence[str],
    limit: int,
    before: str | None,
    matching: Callable[[Places], Places] = lambda places: places,
) -> tuple[list[str], str | None]:
    """
    Return the names of a page, and the cursor of the next.

    One call looks at no more than about 10,000 names: a rare match gets a short page and a cursor.

    Args:
        client: of the store.
        keys: of the sorted sets; what is in several is named once.
        limit: >= 1, names at most.
        before: cursor of an earlier page.
        matching: keeps some places of those it is given, in their order.

    """
    changes.require_limit(limit)
    place = None if before is None else changes.from_cursor(before)
    chosen: Places = []
    for _ in range(_MAX_TRIPS_A_PAGE):
        places, is_end = _merged([_places_after(client, key, place) for key in keys])
        chosen += matching(places) if places else []
        if len(chosen) > limit:
            chosen = chosen[:limit]
            place = chosen[-1]
            break
        place = None if is_end else places[-1]
        if is_end:
            break
    return [name for _seconds, name in chosen], None if place is None else changes.to_cursor(*place)


def as_bytes(name: str) -> bytes:
    """Return a name as Redis orders it."""
    return name.encode("utf-8", "surrogatepass")


def _merged(found: Sequence[tuple[Places, bool]]) -> tuple[Places, bool]:
    """Return the next places of several sets as those of one."""
    unfinished = [places[-1] for places, is_end in found if not is_end]
    # Beyond the nearest end of what was read, the set that ended there may hold more.
    horizon = max(map(_order, unfinished)) if unfinished else None
    places = {place for each, _ in found for place in each if horizon is None or _order(place) >= horizon}
    return sorted(places, key=_order, reverse=True), not unfinished


def _order(place: Place) -> tuple[float, bytes]:
    return place[0], as_bytes(place[1])


def _places_after(client: Client, key: str, place: Place | None) -> tuple[Places, bool]:
    """Return the next places, and whether they are the last."""
    score = "" if place is None else repr(place[0])
    ties, below = client.run(_PAGE, [key], [_NAMES_A_TRIP, score])
    later = [tie for tie in _places(ties) if place is not None and as_bytes(tie[1]) < as_bytes(place[1])]
    return [*later, *_places(below)], len(below) < 2 * _NAMES_A_TRIP


def _places(flat: Sequence[Any]) -> Places:
    return [(float(score), name) for name, score in zip(flat[::2], flat[1::2], strict=True)]
