"""
The rules of locks, for every store that can hold a lock still for the length of one step.

A store says how it keeps locks (`LockRoom`) and how a step is carried out (`LockRules.step`); what a step does stands
here, once. Redis alone has the same rules in its scripts, which run there and cannot ask Python.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from celery_safeguards._store_view import StoreView
from celery_safeguards.clock import to_seconds, to_us
from celery_safeguards.locks.store import GIVEN_SECONDS, Grant, HeldLock, LockAsk, LockState, Waiting, lost

HEARD_SECONDS = 2.5
"""For how long after its last question an acquisition counts as waiting."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An acquisition's place in the line; `is_kept`: the lock is to be kept for it, in place of being given."""

    owner: str
    since_us: int
    heard_us: int
    is_kept: bool
    holder: Mapping[str, Any]


class LockRoom(Protocol):
    """What one step sees and changes: all of it or nothing, and what it has read stays as it is until it is over."""

    @property
    def view(self) -> StoreView:
        """The store's time, epoch and pauses; the time is from after the caller's question."""
        ...

    def lock(self, name: str) -> LockState | None:
        """Return how a lock stands; None: nobody has held it, or the store has lost it."""
        ...

    def put_lock(self, state: LockState) -> None:
        """Write how a lock stands."""
        ...

    def freed(self, name: str) -> tuple[str, int] | None:
        """Return who freed a lock last, and at which fence; None: it is not known any more."""
        ...

    def note_freed(self, name: str, owner: str, fence: int) -> None:
        """Note who frees a lock, for a release that is sent twice: by then, whoever waited may have it."""
        ...

    def line(self, name: str) -> Sequence[Place]:
        """Return who waits for a lock, in no order."""
        ...

    def put_place(self, name: str, place: Place) -> None:
        """Write one owner's place in the line."""
        ...

    def drop_place(self, name: str, owner: str) -> None:
        """Take an owner out of the line; nothing if it is not there."""
        ...

    def wake(self, name: str, owner: str, fence: int) -> None:
        """Tell an owner, once the step is done, that it was given the lock; fence 0: that it is kept for it."""
        ...


class LockRules(ABC):
    """A store of locks but for where they are kept; see `LockStore`."""

    @abstractmethod
    def step(self, act: Callable[[LockRoom], T]) -> T:
        """
        Carry out one step, and count the caller as heard.

        `act` may be called again where another step came between: it does nothing but by its room.

        Raises:
            StoreUnavailable: it may or may not have been done.

        """

    @abstractmethod
    def wait(self, ask: LockAsk, seconds: float) -> int:
        """See `LockStore.wait`."""

    @abstractmethod
    def names(self) -> Iterator[str]:
        """See `LockStore.names`."""

    def acquire(self, ask: LockAsk, *, reserve: bool = False, wait: bool = False, has_waited: bool = False) -> Grant:
        """See `LockStore.acquire`."""
        return self.step(lambda room: acquire(room, ask, reserve=reserve, wait=wait, has_waited=has_waited))

    def leave(self, ask: LockAsk) -> None:
        """See `LockStore.leave`."""
        self.step(lambda room: leave(room, ask))

    def release(self, held: HeldLock) -> None:
        """See `LockStore.release`."""
        self.step(lambda room: release(room, held))

    def renew(self, locks: Sequence[HeldLock]) -> list[bool]:
        """See `LockStore.renew`."""
        return self.step(lambda room: [bool(renew(room, held)) for held in locks])

    def read(self, name: str) -> tuple[LockState, int]:
        """See `LockStore.read`."""
        return self.step(lambda room: (_state(room, name), room.view.now_us))

    def waiting(self, name: str) -> list[Waiting]:
        """See `LockStore.waiting`."""
        return self.step(
            lambda room: [
                Waiting(owner=place.owner, since_us=place.since_us, holder=dict(place.holder))
                for place in _heard(room, name)
            ]
        )


def acquire(room: LockRoom, ask: LockAsk, *, reserve: bool = False, wait: bool = False, has_waited: bool) -> Grant:
    """Take a lock, have it kept, or get in line; see `LockStore.acquire`."""
    view = room.view
    until_us = barred_until_us(room, ask)
    if until_us:
        if wait:
            _stand_in_line(room, ask, is_kept=reserve)
        state = _state(room, ask.name)
        return Grant(now_us=view.now_us, epoch=view.epoch, barred_until_us=until_us, state=state)
    if has_waited:
        room.drop_place(ask.name, ask.owner)
    if reserve:
        state, kept_us = _state(room, ask.name), view.now_us + to_us(GIVEN_SECONDS)
        if state.owner != ask.owner:
            # A lapsed one is free from here on: as its last owner's it would be given to whoever asks next.
            free = replace(state, owner="", lease_until_us=0)
            room.put_lock(replace(free, reserved_for=ask.owner, reserved_until_us=kept_us))
        return Grant(now_us=view.now_us, epoch=view.epoch, is_reserved=True)
    return Grant(now_us=view.now_us, epoch=view.epoch, held=take(room, ask), lease_seconds=ask.lease_seconds)


def barred_until_us(room: LockRoom, ask: LockAsk) -> int:
    """Return until when this owner may not have the lock; 0: it may now."""
    state, view = room.lock(ask.name), room.view
    if state is None:
        until_us = view.admit_from_us
    elif state.owner == ask.owner:
        return 0
    elif state.owner:
        # One that had lapsed before the store went away is nobody's: else who asks once in a while would find the store
        # silent each time, and wait for ever.
        was_cut_off = state.lease_until_us > view.away_from_us
        until_us = max(state.lease_until_us, view.takeover_from_us if was_cut_off else 0)
    else:
        until_us = state.reserved_until_us if state.reserved_for not in {"", ask.owner} else 0
    return until_us if until_us > view.now_us else 0


def take(room: LockRoom, ask: LockAsk) -> HeldLock:
    """Give the lock to an owner who may have it; taken once more, it is the same claim with a fresh lease."""
    state, view = _state(room, ask.name), room.view
    if state.owner != ask.owner:
        fence, now_us = max(state.fence + 1, view.now_us), view.now_us
        state = LockState(name=ask.name, owner=ask.owner, fence=fence, since_us=now_us, holder=dict(ask.holder))
    room.put_lock(replace(state, lease_until_us=view.now_us + to_us(ask.lease_seconds)))
    return HeldLock(ask=ask, fence=state.fence, epoch=view.epoch)


def leave(room: LockRoom, ask: LockAsk) -> None:
    """Get out of the line, and pass on what was kept; see `LockStore.leave`."""
    state = room.lock(ask.name)
    room.drop_place(ask.name, ask.owner)
    if state is not None and not state.owner and state.reserved_for == ask.owner:
        _free(room, state)


def release(room: LockRoom, held: HeldLock) -> None:
    """Free the lock and wake who is next; see `LockStore.release`."""
    state = room.lock(held.name)
    if state is not None and _is_theirs(state, held):
        room.note_freed(held.name, held.owner, state.fence)
        _free(room, state)
    elif held.fence and room.freed(held.name) != (held.owner, held.fence):
        check_not_passed_on(room, held)


def check_not_passed_on(room: LockRoom, held: HeldLock) -> None:
    """
    Refuse an owner that is late.

    Raises:
        LockLost: anybody else has the lock, or has had it since.

    """
    state = room.lock(held.name)
    if state is None:
        return
    if state.owner not in {"", held.owner} or (held.fence and state.fence > held.fence):
        raise lost(held, state)


def renew(room: LockRoom, held: HeldLock) -> int:
    """
    Renew one lock, or write it back if the store has lost it; returns its fence, 0 if it is not theirs.

    Of two that are written back, one was late before the store was lost: the higher fence has it, whoever comes first.
    """
    state, view = room.lock(held.name), room.view
    is_lost = state is None or (view.now_us < view.admit_from_us and state.fence < held.fence)
    if is_lost and held.fence and view.epoch != held.epoch:
        holder = dict(held.ask.holder)
        state = LockState(name=held.name, owner=held.owner, fence=held.fence, since_us=held.fence, holder=holder)
    if state is None or not _is_theirs(state, held):
        return 0
    room.put_lock(replace(state, lease_until_us=view.now_us + to_us(held.ask.lease_seconds)))
    return state.fence


def _state(room: LockRoom, name: str) -> LockState:
    return room.lock(name) or LockState(name=name)


def _is_theirs(state: LockState, held: HeldLock) -> bool:
    return state.owner == held.owner and held.fence in {0, state.fence}


def _stand_in_line(room: LockRoom, ask: LockAsk, *, is_kept: bool) -> None:
    now_us = room.view.now_us
    since_us = next((place.since_us for place in room.line(ask.name) if place.owner == ask.owner), now_us)
    place = Place(owner=ask.owner, since_us=since_us, heard_us=now_us, is_kept=is_kept, holder=dict(ask.holder))
    room.put_place(ask.name, place)


def _heard(room: LockRoom, name: str) -> list[Place]:
    now_us = room.view.now_us
    heard = [place for place in room.line(name) if to_seconds(now_us - place.heard_us) <= HEARD_SECONDS]
    return sorted(heard, key=lambda place: place.since_us)


def _free(room: LockRoom, held: LockState) -> None:
    now_us = room.view.now_us
    until_us = now_us + to_us(GIVEN_SECONDS)
    free = replace(held, owner="", lease_until_us=0, reserved_for="", reserved_until_us=0)
    for place in _heard(room, held.name)[:1]:
        if place.is_kept:
            room.put_lock(replace(free, reserved_for=place.owner, reserved_until_us=until_us))
            room.wake(held.name, place.owner, 0)
            return
        room.drop_place(held.name, place.owner)
        given = LockState(
            name=held.name,
            owner=place.owner,
            fence=max(held.fence + 1, now_us),
            lease_until_us=until_us,
            since_us=now_us,
            holder=dict(place.holder),
        )
        room.put_lock(given)
        room.wake(held.name, place.owner, given.fence)
        return
    room.put_lock(free)
