"""Locks in Redis: each step one script, one round trip; the scripts say why they are safe to run twice."""

import json
import uuid
from collections.abc import Iterator, Sequence

from celery_safeguards._redis import Client, Keys, Script
from celery_safeguards.clock import to_us
from celery_safeguards.locks.store import Grant, HeldLock, LockAsk, LockState, Waiting, lost, read_holder

HEARD_SECONDS = 2.5
"""For how long after its last question an acquisition counts as waiting."""
_ACQUIRE, _RELEASE, _RENEW = (
    Script.of("store.lua", "locks/lock.lua", f"locks/{name}.lua") for name in ("acquire", "release", "renew")
)
_NOW = Script.of("store.lua", "locks/read.lua")


class RedisLockStore:
    """
    Locks in Redis.

    Safe when: shared by threads and processes; created before a fork and used after it; the server is restarted,
    failed over or wiped in between. A server without persistence forgets, and its new epoch tells everyone.

    Args:
        client: for scripts and the one command that blocks.
        keys: the namespace.
        lease_seconds: how long a claim of a record is held, which is also how long the store waits after an outage.

    """

    def __init__(self, client: Client, keys: Keys, lease_seconds: float) -> None:
        self._client = client
        self._keys = keys
        self._lease_us = to_us(lease_seconds)

    def acquire(self, ask: LockAsk, *, reserve: bool = False, wait: bool = False, has_waited: bool = False) -> Grant:
        """See `LockStore.acquire`."""
        keys = [self._keys.meta, self._keys.lock(ask.name), self._keys.waiting(ask.name)]
        waits = to_us(HEARD_SECONDS) if wait else ""
        what = ["reserve" if reserve else "take", waits, "1" if has_waited else ""]
        args = [self._lease_us, uuid.uuid4().hex, ask.owner, to_us(ask.lease_seconds), holder_text(ask), *what]
        status, now, epoch, _, _, found = self._client.run(_ACQUIRE, keys, args).split("\n", 5)
        if status == "taken":
            held = HeldLock(ask=ask, fence=int(found), epoch=epoch)
            return Grant(now_us=int(now), epoch=epoch, held=held, lease_seconds=ask.lease_seconds)
        if status == "reserved":
            return Grant(now_us=int(now), epoch=epoch, is_reserved=True)
        until, text = found.split("\n", 1)
        return Grant(now_us=int(now), epoch=epoch, barred_until_us=int(until), state=state_of(ask.name, text))

    def wait(self, ask: LockAsk, seconds: float) -> int:
        """See `LockStore.wait`."""
        # Well within a round trip's timeout, or to wait in vain would be taken for a store that is away.
        most = min(seconds, 1.0, self._client.timeout_seconds / 2)
        # 0 would block for ever.
        woken = self._client.command("BLPOP", self._keys.wake(ask.owner), f"{max(0.001, most):.3f}")
        return int(woken[1]) if woken else 0

    def leave(self, ask: LockAsk) -> None:
        """See `LockStore.leave`."""
        self._release(ask.name, ask.owner, "")

    def release(self, held: HeldLock) -> None:
        """See `LockStore.release`."""
        found = self._release(held.name, held.owner, held.fence)
        if found != "1":
            raise lost(held, state_of(held.name, found))

    def renew(self, locks: Sequence[HeldLock]) -> list[bool]:
        """See `LockStore.renew`."""
        keys = [self._keys.meta, *(self._keys.lock(each.name) for each in locks)]
        args = [self._lease_us, uuid.uuid4().hex, *(word for each in locks for word in renewal_words(each))]
        return [fence != "0" for fence in self._client.run(_RENEW, keys, args)]

    def read(self, name: str) -> tuple[LockState, int]:
        """See `LockStore.read`."""
        now, text = self._client.run(_NOW, [self._keys.lock(name)], []).split("\n", 1)
        return state_of(name, text), int(now)

    def waiting(self, name: str) -> list[Waiting]:
        """See `LockStore.waiting`."""
        flat = self._client.command("HGETALL", self._keys.waiting(name))
        pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
        _, now_us = self.read(name)
        found = []
        for owner, text in pairs:
            since, heard_until, _, holder = text.split(" ", 3)
            if int(heard_until) >= now_us:
                found.append(Waiting(owner=owner, since_us=int(since), holder=read_holder(holder)))
        return sorted(found, key=lambda each: each.since_us)

    def names(self) -> Iterator[str]:
        """See `LockStore.names`."""
        prefix, cursor = self._keys.lock(""), "0"
        pattern = "".join(f"\\{char}" if char in "[]*?\\" else char for char in prefix) + "*"
        while True:
            cursor, keys = self._client.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            yield from (key.removeprefix(prefix) for key in keys)
            if str(cursor) == "0":
                return

    def _release(self, name: str, owner: str, fence: int | str) -> str:
        keys = [self._keys.lock(name), self._keys.waiting(name)]
        return str(self._client.run(_RELEASE, keys, [owner, fence, self._keys.wake("")]))


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def renewal_words(held: HeldLock) -> list[str | int]:
    """Return what the scripts need to renew a lock."""
    return [held.owner, held.fence, to_us(held.ask.lease_seconds), holder_text(held.ask), held.epoch]


def holder_text(ask: LockAsk) -> str:
    """Return who asks, as the lock keeps it."""
    return _to_json(ask.holder)


def state_of(name: str, text: str) -> LockState:
    """Return how a lock stands from its text; '' for one that nobody has held."""
    if not text:
        return LockState(name=name)
    head, _, holder = text.partition("\n")
    _, owner, fence, lease_until, since, reserved_for, reserved_until = head.split(" ")
    return LockState(
        name=name,
        owner="" if owner == "-" else owner,
        fence=int(fence),
        lease_until_us=int(lease_until),
        since_us=int(since),
        reserved_for="" if reserved_for == "-" else reserved_for,
        reserved_until_us=int(reserved_until),
        holder=read_holder(holder),
    )
