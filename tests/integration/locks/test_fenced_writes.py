"""
Writes that carry a fencing token, on a real server: a late owner's is refused, whatever else it may still do.
"""

import contextlib

import pytest
import redis

from celery_safeguards import EntityLock, fenced_enter, fenced_set, hold
from celery_safeguards.errors import FencedOut, LockLost

pytestmark = pytest.mark.redis
LAPSES = EntityLock("order:{order_id}", lease_seconds=1, max_hold_seconds=1)
WAITS = EntityLock("order:{order_id}", busy="wait", wait_seconds=10)


@pytest.fixture
def key(namespace):
    """What the lock protects."""
    return f"{{{namespace}}}:order:7:state"


def test_late_owner_cannot_write_over_its_successor(app, redis_client, key):
    """Frozen between its checkpoint and its write, the first owner writes yesterday's state over today's."""
    with contextlib.suppress(LockLost), hold(app, LAPSES, order_id=7) as late:
        fenced_set(redis_client, key, "picked", late.token)
        with hold(app, WAITS, order_id=7) as lock:
            fenced_set(redis_client, key, "shipped", lock.token)
            with pytest.raises(FencedOut, match=f"{late.token} is older than {lock.token}"):
                fenced_set(redis_client, key, "cancelled", late.token)
        with pytest.raises(FencedOut):
            fenced_set(redis_client, key, "cancelled", late.token)

    assert redis_client.get(key) == "shipped"


def test_entering_refuses_the_late_owner_before_anything_is_written(redis_client, key):
    """Read, computed and written back: what the late owner writes in between would be lost, or be read half."""
    fenced_set(redis_client, key, "picked", 7)

    fenced_enter(redis_client, key, 8)
    with pytest.raises(FencedOut):
        fenced_set(redis_client, key, "cancelled", 7)
    with pytest.raises(FencedOut):
        fenced_enter(redis_client, key, 7)

    assert redis_client.get(key) == "picked"


def test_owner_may_enter_and_write_as_often_as_it_likes(redis_client, key):
    """A lost answer is asked for again: the owner's own second write must not be refused."""
    for value in ("picked", "packed"):
        fenced_enter(redis_client, key, 7)
        fenced_set(redis_client, key, value, 7)

    assert redis_client.get(key) == "packed"


def test_value_may_expire_and_its_token_stays(redis_client, key):
    """With the token gone, too, the late owner would be the first again."""
    fenced_set(redis_client, key, "picked", 8, ttl_seconds=60)

    assert 0 < redis_client.ttl(key) <= 60
    assert redis_client.ttl(f"{key}:fence") == -1
    redis_client.delete(key)
    with pytest.raises(FencedOut):
        fenced_set(redis_client, key, "cancelled", 7)
    assert redis_client.get(key) is None


def test_client_may_answer_in_bytes(redis_url, key):
    """redis-py answers in bytes unless told otherwise."""
    with redis.Redis.from_url(redis_url) as client:
        fenced_set(client, key, b"\x00\xff", 8)
        with pytest.raises(FencedOut, match="7 is older than 8"):
            fenced_set(client, key, b"", 7)

        assert client.get(key) == b"\x00\xff"


def test_tokens_of_today_are_compared_exactly(redis_client, key):
    """Microseconds since 1970 are near the end of what Lua's numbers hold: off by one must still be refused."""
    today = 1_796_010_186_756_481
    fenced_set(redis_client, key, "picked", today)

    with pytest.raises(FencedOut):
        fenced_set(redis_client, key, "cancelled", today - 1)
    fenced_set(redis_client, key, "packed", today + 1)
