"""
Writes to Redis that a late owner cannot make.

A lock alone stops nobody who is late: an owner that was frozen between its checkpoint and its write wakes and writes.
Only the written thing can refuse it, by the fencing token of whoever wrote last:

    t0 A has the lock, token 7    t1 A is frozen past its lease    t2 B has it, token 8, enters, writes
    t3 A wakes and writes with token 7 → `FencedOut`

Between t2's lock and t2's entering, A may still write: so enter first, then read, then write. The newest token is kept
beside the value, under the same key with `:fence` behind it.
"""

from typing import Any

from celery_safeguards.errors import FencedOut

_ENTER = """
local newest = redis.call('GET', KEYS[1])
if newest and tonumber(newest) > tonumber(ARGV[1]) then
  return newest
end
redis.call('SET', KEYS[1], ARGV[1])
"""
_SET = (
    _ENTER
    + """
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
else
  redis.call('SET', KEYS[2], ARGV[2])
end
"""
)


def fenced_enter(client: Any, key: str, token: int) -> None:
    """
    Refuse from now on whatever an earlier owner of the lock writes to `key`.

    Args:
        client: a `redis.Redis`; on a cluster, `key` needs a hash tag.
        key: what the lock protects.
        token: `self.safe.lock.token`, or that of `hold`.

    Raises:
        FencedOut: a newer owner has entered.

    """
    _refuse_late(client.eval(_ENTER, 1, f"{key}:fence", token), key, token)


def fenced_set(client: Any, key: str, value: Any, token: int, *, ttl_seconds: float | None = None) -> None:
    """
    Set `key`, unless a newer owner of its lock has entered or written.

    Args:
        client: a `redis.Redis`; on a cluster, `key` needs a hash tag.
        key: what the lock protects.
        value: as `SET` takes it.
        token: `self.safe.lock.token`, or that of `hold`.
        ttl_seconds: of the value. The token is kept: it is what a late owner is compared with.

    Raises:
        FencedOut: a newer owner has entered; nothing was written.

    """
    ttl_ms = "" if ttl_seconds is None else max(1, round(ttl_seconds * 1000))
    _refuse_late(client.eval(_SET, 2, f"{key}:fence", key, token, value, ttl_ms), key, token)


def _refuse_late(newest: Any, key: str, token: int) -> None:
    if newest is not None:
        raise FencedOut(f"{key}: token {token} is older than {int(newest)}: another owner of the lock has entered")
