"""
Locks in memory: for tests and for one process without a server.

It passes the conformance suite of the Redis store. Its clock, lock and view of the store are those of the records, so
that a claim and a lock are taken together.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from celery_safeguards._store_view import StoreView
from celery_safeguards.clock import to_seconds, to_us
from celery_safeguards.locks.store import GIVEN_SECONDS, Grant, HeldLock, LockAsk, LockState, Waiting, lost

HEARD_SECONDS = 2.5


class House(Protocol):
    """Where the locks live: one mutex and one clock for them and for the records."""

    mutex: threading.RLock

    def look(self) -> StoreView:
        """Return the store's own state, and count the caller as heard."""
        ...


@dataclass(slots=True)
class _Line:
    """Who waits for one lock."""

    asks: dict[str, LockAsk] = field(default_factory=dict)
    to_be_kept: set[str] = field(default_factory=set)
    """Those who have the lock kept for them, in place of being given it."""
    given: dict[str, int] = field(default_factory=dict)
    """The fences of those who were given the lock and do not know it yet."""
    since_us: dict[str, int] = field(default_factory=dict)
    heard_us: dict[str, int] = field(default_factory=dict)


class MemoryLockStore:
    """
    Locks in a dictionary.

    Safe when: shared by threads of one process.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._states: dict[str, LockState] = {}
        self._lines: dict[str, _Line] = {}
        self._freed: deque[tuple[str, int]] = deque(maxlen=1_000)
        self._woken = threading.Condition(house.mutex)

    def wipe(self) -> None:
        """Lose everything."""
        self._states, self._lines = {}, {}

    def acquire(self, ask: LockAsk, *, reserve: bool = False, wait: bool = False, has_waited: bool = False) -> Grant:
        """See `LockStore.acquire`."""
        with self._house.mutex:
            view, line = self._house.look(), self._lines.setdefault(ask.name, _Line())
            until_us = self.barred_until_us(ask, view)
            if until_us:
                if wait:
                    line.asks[ask.owner] = ask
                    (line.to_be_kept.add if reserve else line.to_be_kept.discard)(ask.owner)
                    line.since_us.setdefault(ask.owner, view.now_us)
                    line.heard_us[ask.owner] = view.now_us
                state = self._states.get(ask.name, LockState(name=ask.name))
                return Grant(now_us=view.now_us, epoch=view.epoch, barred_until_us=until_us, state=state)
            if has_waited:
                self._forget(line, ask.owner)
            if reserve:
                state = self._states.get(ask.name, LockState(name=ask.name))
                kept_us = view.now_us + to_us(GIVEN_SECONDS)
                if state.owner != ask.owner:
                    free = replace(state, owner="", lease_until_us=0)
                    self._states[ask.name] = replace(free, reserved_for=ask.owner, reserved_until_us=kept_us)
                return Grant(now_us=view.now_us, epoch=view.epoch, is_reserved=True)
            held = self.take(ask, view)
            return Grant(now_us=view.now_us, epoch=view.epoch, held=held, lease_seconds=ask.lease_seconds)

    def barred_until_us(self, ask: LockAsk, view: StoreView) -> int:
        """Return until when this owner may not have the lock; 0: it may now."""
        state = self._states.get(ask.name)
        if state is None:
            until_us = view.admit_from_us
        elif state.owner == ask.owner:
            return 0
        elif state.owner:
            was_cut_off = state.lease_until_us > view.away_from_us
            until_us = max(state.lease_until_us, view.takeover_from_us if was_cut_off else 0)
        else:
            until_us = state.reserved_until_us if state.reserved_for not in {"", ask.owner} else 0
        return until_us if until_us > view.now_us else 0

    def take(self, ask: LockAsk, view: StoreView) -> HeldLock:
        """Give the lock to an owner who may have it."""
        state = self._states.get(ask.name, LockState(name=ask.name))
        if state.owner != ask.owner:
            fence, now_us = max(state.fence + 1, view.now_us), view.now_us
            state = LockState(name=ask.name, owner=ask.owner, fence=fence, since_us=now_us, holder=dict(ask.holder))
        lease_until_us = view.now_us + to_us(ask.lease_seconds)
        self._states[ask.name] = replace(state, lease_until_us=lease_until_us)
        return HeldLock(ask=ask, fence=state.fence, epoch=view.epoch)

    def wait(self, ask: LockAsk, seconds: float) -> int:
        """See `LockStore.wait`."""
        with self._woken:
            line = self._lines.setdefault(ask.name, _Line())
            self._woken.wait_for(lambda: ask.owner in line.given or self._is_reserved_for(ask), min(seconds, 1.0))
            return line.given.pop(ask.owner, 0)

    def leave(self, ask: LockAsk) -> None:
        """See `LockStore.leave`."""
        with self._house.mutex:
            self._forget(self._lines.setdefault(ask.name, _Line()), ask.owner)
            if self._is_reserved_for(ask):
                self._free(ask.name)

    def release(self, held: HeldLock) -> None:
        """See `LockStore.release`."""
        with self._house.mutex:
            state = self._states.get(held.name)
            if state is not None and _is_theirs(state, held):
                self._freed.append((held.owner, state.fence))
                self._free(held.name)
            elif held.fence and (held.owner, held.fence) not in self._freed:
                self.check_not_passed_on(held)

    def check_not_passed_on(self, held: HeldLock) -> None:
        """Raise `LockLost` if anybody else has the lock, or has had it since."""
        state = self._states.get(held.name)
        if state is None:
            return
        if state.owner not in {"", held.owner} or (held.fence and state.fence > held.fence):
            raise lost(held, state)

    def renew(self, locks: Sequence[HeldLock]) -> list[bool]:
        """See `LockStore.renew`."""
        with self._house.mutex:
            view = self._house.look()
            return [bool(self.renew_one(held, view)) for held in locks]

    def renew_one(self, held: HeldLock, view: StoreView) -> int:
        """Renew one lock, or write it back if the store has lost it; returns its fence, 0 if it is not theirs."""
        state = self._states.get(held.name)
        is_lost = state is None or (view.now_us < view.admit_from_us and state.fence < held.fence)
        if is_lost and held.fence and view.epoch != held.epoch:
            holder = dict(held.ask.holder)
            state = LockState(name=held.name, owner=held.owner, fence=held.fence, since_us=held.fence, holder=holder)
        if state is None or not _is_theirs(state, held):
            return 0
        self._states[held.name] = replace(state, lease_until_us=view.now_us + to_us(held.ask.lease_seconds))
        return state.fence

    def read(self, name: str) -> tuple[LockState, int]:
        """See `LockStore.read`."""
        with self._house.mutex:
            return self._states.get(name, LockState(name=name)), self._house.look().now_us

    def waiting(self, name: str) -> list[Waiting]:
        """See `LockStore.waiting`."""
        with self._house.mutex:
            line = self._lines.get(name, _Line())
            return [
                Waiting(owner=owner, since_us=line.since_us[owner], holder=dict(line.asks[owner].holder))
                for owner in self._heard(line, self._house.look().now_us)
            ]

    def names(self) -> Iterator[str]:
        """See `LockStore.names`."""
        with self._house.mutex:
            return iter(list(self._states))

    def _free(self, name: str) -> None:
        view, line = self._house.look(), self._lines.setdefault(name, _Line())
        until_us = view.now_us + to_us(GIVEN_SECONDS)
        state = replace(self._states[name], owner="", lease_until_us=0, reserved_for="", reserved_until_us=0)
        for owner in self._heard(line, view.now_us)[:1]:
            if owner in line.to_be_kept:
                state = replace(state, reserved_for=owner, reserved_until_us=until_us)
                continue
            ask = line.asks[owner]
            self._forget(line, owner)
            fence = line.given[owner] = max(state.fence + 1, view.now_us)
            state = LockState(
                name=name,
                owner=owner,
                fence=fence,
                lease_until_us=until_us,
                since_us=view.now_us,
                holder=dict(ask.holder),
            )
        self._states[name] = state
        self._woken.notify_all()

    def _heard(self, line: _Line, now_us: int) -> list[str]:
        heard = [owner for owner, us in line.heard_us.items() if to_seconds(now_us - us) <= HEARD_SECONDS]
        return sorted(heard, key=lambda owner: line.since_us[owner])

    def _forget(self, line: _Line, owner: str) -> None:
        for each in (line.asks, line.since_us, line.heard_us, line.given):
            each.pop(owner, None)
        line.to_be_kept.discard(owner)

    def _is_reserved_for(self, ask: LockAsk) -> bool:
        state = self._states.get(ask.name)
        return state is not None and not state.owner and state.reserved_for == ask.owner


def _is_theirs(state: LockState, held: HeldLock) -> bool:
    return state.owner == held.owner and held.fence in {0, state.fence}
