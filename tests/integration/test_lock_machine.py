"""
One lock, driven at random: on a real server against a small model that knows nothing of its code.

    acquire, wait, have it kept, hear the word, renew, release, release again, leave, freeze and wake, let time pass,
    put the server's clock back, cut the server off, wipe it — in any order

After every step the lock must be what the model says, every fence that is granted must be higher than all before, and
at most one owner may count itself in by its own clock. A late owner never changes what is another's by then, and who
has waited longest and was heard lately is served before anybody who came later.

The model reads no clock of its own: what an answer says of the store's time decides, so a slow machine cannot turn an
answer round. After `advance` and `set_clock_back` the store's times are off by what these return.
"""

import time
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from celery_safeguards.errors import LockLost
from celery_safeguards.locks import rules
from celery_safeguards.locks.store import GIVEN_SECONDS, HeldLock, LockAsk
from tests.conformance import stores

NAME = "order:7"
LOCK_LEASE_SECONDS = 20.0
HEARD_US = 2_500_000
PICK = st.integers(min_value=0, max_value=99)
SHORT = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(eq=False, slots=True)
class Owner:
    """One acquisition; it may be late, and not know it."""

    ask: LockAsk
    reserve: bool
    asked_at: float = 0.0
    """When it asked last, by its own clock."""
    held: HeldLock | None = None
    counts_in_until: float = 0.0
    """Until when it holds the lock, by its own clock."""
    has_released: bool = False
    given: list = field(default_factory=list)
    """The fences that it was given while it waited and has not been told."""


@dataclass(slots=True)
class Place:
    since: int
    heard: int


@dataclass(slots=True)
class Expected:
    """What the lock should be: the rules once more, in the fewest words. Times in microseconds, the store's."""

    is_known: bool = False
    owner: Owner | None = None
    fence: int = 0
    lease_until: int = 0
    kept_for: Owner | None = None
    kept_until: int = 0
    takeover_from: int = 0
    admit_from: int = 0
    epoch: str = ""

    def barred_until(self, asker, away_from):
        """Until when this owner may not have the lock, as it stands; an outage counts that cut the lease off."""
        if not self.is_known:
            return self.admit_from
        if self.owner is not None:
            was_cut_off = self.lease_until > away_from
            return 0 if self.owner is asker else max(self.lease_until, self.takeover_from if was_cut_off else 0)
        return 0 if self.kept_for in {None, asker} else self.kept_until

    def take(self, owner, fence):
        self.is_known, self.owner, self.fence, self.kept_for = True, owner, fence, None

    def keep(self, owner):
        self.is_known, self.owner, self.kept_for = True, None, owner


class LockMachine(RuleBasedStateMachine):
    """See the module; `open_store` is given by the test. What owners do wrong, if anything, is given too."""

    open_store = None
    owners_count_from_the_word = False
    late_owners_say_their_fence = False

    def __init__(self):
        super().__init__()
        self._context = type(self).open_store()
        self.world = self._context.__enter__()
        self.locks = self.world.locks
        self.expected = Expected(epoch=self.world.store.view().epoch)
        self.owners = []
        self.line = {}
        self.fences = [0]
        self.off_us = 0
        self.was_put_back = False

    def teardown(self):
        self._context.__exit__(None, None, None)

    # ------------------------------------------------------------------------------------------------------- asking

    @rule(reserve=st.booleans(), wait=st.booleans())
    def acquire(self, reserve, wait):
        """Somebody new asks."""
        owner = f"owner-{len(self.owners)}"
        asker = Owner(LockAsk(name=NAME, owner=owner, lease_seconds=LOCK_LEASE_SECONDS, holder={"id": owner}), reserve)
        self.owners.append(asker)
        self._ask(asker, reserve=reserve, wait=wait)

    @precondition(lambda self: self.line)
    @rule(pick=PICK)
    def ask_again(self, pick):
        """Who waits shows that it lives, as each second."""
        asker = self._one_of(list(self.line), pick)
        self._ask(asker, reserve=asker.reserve, wait=True, has_waited=True)

    @precondition(lambda self: self.expected.kept_for)
    @rule()
    def claim(self):
        """Who has the lock kept takes it; perhaps late."""
        self._ask(self.expected.kept_for, reserve=False, wait=False)

    @precondition(lambda self: any(each.held for each in self.owners))
    @rule(pick=PICK)
    def acquire_once_more(self, pick):
        """An owner whose answer was lost asks again; or one that is late, and does not know it."""
        asker = self._one_of([each for each in self.owners if each.held], pick)
        if not asker.has_released:
            self._ask(asker, reserve=False, wait=False)

    def _ask(self, asker, *, reserve, wait, has_waited=False):
        self._tick()
        expected, asker.asked_at = self.expected, self._own_clock()
        before, away_from = self.locks.read(NAME)[0], self.world.away_from_us() + self.off_us
        grant = self.locks.acquire(asker.ask, reserve=reserve, wait=wait, has_waited=has_waited)
        now, until = grant.now_us + self.off_us, expected.barred_until(asker, away_from)
        assert (now < until) is (grant.held is None and not grant.is_reserved)
        if now < until:
            assert before == self.locks.read(NAME)[0]
            if wait:
                self._take_place(asker, now)
            return
        if has_waited:
            self.line.pop(asker, None)
        if grant.is_reserved:
            assert reserve
            if expected.owner is not asker:
                expected.keep(asker)
        elif expected.owner is asker:
            assert expected.fence == grant.held.fence
            self._begin_to_hold(asker, grant.held)
        else:
            self._note_grant(grant.held.fence)
            expected.take(asker, grant.held.fence)
            self._begin_to_hold(asker, grant.held)
        self._learn_times()

    def _take_place(self, asker, now):
        """The place of who asks again in time is the old one; who was silent for too long may have lost it."""
        (since,) = (each.since_us + self.off_us for each in self.locks.waiting(NAME) if each.owner == asker.ask.owner)
        old = self.line.get(asker)
        assert since in {now, old.since if old else now}
        if old is not None and now <= old.heard + HEARD_US:
            assert old.since == since
        self.line[asker] = Place(since, now)

    @precondition(lambda self: any(each.given for each in self.owners))
    @rule(pick=PICK)
    def hear(self, pick):
        """Who was given the lock hears of it; perhaps late."""
        owner = self._one_of([each for each in self.owners if each.given], pick)
        fence = self.locks.wait(owner.ask, 0.001)
        assert fence == 0 or fence in owner.given
        if fence:
            owner.given.remove(fence)
            owner.held = HeldLock(ask=owner.ask, fence=fence, epoch=self.expected.epoch)
            # Its question was answered before it was given the lock: the word may have been there for any time since.
            began = self._own_clock() if self.owners_count_from_the_word else owner.asked_at
            owner.counts_in_until = began + GIVEN_SECONDS

    @precondition(lambda self: self.owners)
    @rule(pick=PICK)
    def leave(self, pick):
        """Somebody gives up: who waits, who has the lock kept, or who does neither."""
        owner, before = self._one_of(self.owners, pick), self.locks.read(NAME)[0]
        is_kept = self.expected.owner is None and self.expected.kept_for is owner
        self.line.pop(owner, None)
        self.locks.leave(owner.ask)
        owner.given.clear()
        if is_kept:
            self._passed_on()
        else:
            assert before == self.locks.read(NAME)[0]

    # -------------------------------------------------------------------------------------------------- what owners do

    @precondition(lambda self: any(each.held for each in self.owners))
    @rule(pick=PICK, is_fence_known=st.booleans())
    def renew(self, pick, is_fence_known):
        """
        An owner renews, or its main process, which may know it by its token alone; perhaps late.

        Who is late by its own clock does not say its fence: it could have been followed before a wipe, and would write
        itself back over its successor.
        """
        owner, expected = self._one_of([each for each in self.owners if each.held], pick), self.expected
        if owner.has_released:
            return
        self._tick()
        before, sent = self.locks.read(NAME)[0], self._own_clock()
        is_late = sent >= owner.counts_in_until
        says_fence = is_fence_known and (not is_late or self.late_owners_say_their_fence)
        view, renewed = self.world.store.renew({}, [owner.held if says_fence else replace(owner.held, fence=0)])
        fence = renewed[owner.ask.owner].lock_fence
        is_pause = not expected.is_known or (
            view.now_us + self.off_us < expected.admit_from and expected.fence < owner.held.fence
        )
        if is_pause and says_fence and owner.held.epoch != expected.epoch:
            expected.take(owner, owner.held.fence)
        is_theirs = expected.owner is owner and owner.held.fence in {expected.fence, 0}
        assert (owner.held.fence if is_theirs else 0) == fence
        if is_theirs:
            owner.counts_in_until = sent + LOCK_LEASE_SECONDS
            self._learn_times()
        else:
            assert before == self.locks.read(NAME)[0]
            # Told that it is lost: it stops.
            owner.counts_in_until = 0.0

    @precondition(lambda self: any(each.held for each in self.owners))
    @rule(pick=PICK, is_fence_known=st.booleans(), twice=st.booleans())
    def release(self, pick, is_fence_known, twice):
        """An owner releases; perhaps late, perhaps once more after others have had the lock."""
        owner = self._one_of([each for each in self.owners if each.held], pick)
        for _ in range(2 if twice else 1):
            self._release(owner, owner.held if is_fence_known else replace(owner.held, fence=0))

    def _release(self, owner, held):
        expected, before = self.expected, self.locks.read(NAME)[0]
        is_theirs = expected.owner is owner and held.fence in {expected.fence, 0}
        is_anothers = expected.is_known and (expected.owner not in {None, owner} or expected.fence > held.fence)
        # A second release is no error, as long as the store remembers the first.
        may_be_refused = bool(held.fence) and is_anothers and not is_theirs
        must_be_refused = may_be_refused and not owner.has_released
        try:
            self.locks.release(held)
        except LockLost:
            assert may_be_refused
        else:
            assert not must_be_refused
        owner.has_released, owner.counts_in_until = True, 0.0
        if is_theirs:
            self._passed_on()
        else:
            assert before == self.locks.read(NAME)[0]

    def _passed_on(self):
        """The lock was freed a moment ago: whoever waited longest of those that were heard lately has it."""
        state, after_us = self.locks.read(NAME)
        expected, now = self.expected, after_us + self.off_us
        expected.owner = expected.kept_for = None
        if state.owner:
            now = state.since_us + self.off_us
        elif state.reserved_for:
            now = state.reserved_until_us + self.off_us - round(GIVEN_SECONDS * 1_000_000)
        heard = [each for each in self.line if now <= self.line[each].heard + HEARD_US]
        first = min(heard, key=lambda each: self.line[each].since, default=None)
        assert (first.ask.owner if first else "") == (state.owner or state.reserved_for)
        if first is None:
            return
        assert first.reserve is not bool(state.owner)
        if first.reserve:
            expected.keep(first)
        else:
            self._note_grant(state.fence)
            expected.take(first, state.fence)
            first.given.append(state.fence)
            del self.line[first]
        self._learn_times()

    # --------------------------------------------------------------------------------------------------- the world

    @rule(seconds=st.sampled_from([0.8, 1.3, 7.7, 21.0, 31.0]))
    def pass_time(self, seconds):
        """Time passes while some worker of the fleet is heard; owners that do not act in between are frozen."""
        while seconds > 0:
            some = min(seconds, stores.LEASE_SECONDS / 3)
            seconds -= some
            self.off_us += self.world.advance(some)
            self._be_heard()

    @rule()
    def cut_off(self):
        """The server is away from everybody, and back."""
        self.off_us += self.world.advance(31.0)
        view = self._be_heard()
        # A clock that was put back hides an outage until it has caught up.
        assert self.was_put_back or view.takeover_from_us > view.now_us

    @precondition(lambda self: self.expected.fence == max(self.fences) and not self.line)
    @rule()
    def put_clock_back(self):
        """
        The server's clock is corrected, or its role is taken by a machine whose clock is behind.

        Not while the store has forgotten the last fence, by a wipe: no store could go on above it. Nor while somebody
        waits: by the new time it was heard in the future, and is forgotten or served, as its line is.
        """
        moved_us = self.world.set_clock_back(40.0)
        self.off_us -= moved_us
        self.was_put_back = True
        if moved_us:
            self._move_fences(moved_us)

    def _move_fences(self, us):
        """The store's own fences were moved instead of its clock: so are those that owners know."""
        self.expected.fence += us if self.expected.fence else 0
        self.fences = [0, *(each + us for each in self.fences[1:])]
        for owner in self.owners:
            owner.given = []
            if owner.held is not None:
                owner.held = replace(owner.held, fence=owner.held.fence + us)

    @precondition(lambda self: not self.was_put_back)
    @rule()
    def wipe(self):
        """The server loses everything; its clock goes on, which is what keeps fences from going back."""
        self._tick()
        self.world.wipe()
        view = self.world.store.view()
        self.line.clear()
        for owner in self.owners:
            owner.given.clear()
        self.expected = Expected(epoch=view.epoch, admit_from=view.admit_from_us + self.off_us)
        self.expected.takeover_from = view.takeover_from_us + self.off_us

    def _be_heard(self):
        view, _ = self.world.store.renew({})
        self.expected.takeover_from = view.takeover_from_us + self.off_us if view.takeover_from_us else 0
        return view

    def _tick(self):
        """The memory store's clock stands still between two steps, as no server's does."""
        self.off_us += self.world.advance(0.001)

    # -------------------------------------------------------------------------------------------------- invariants

    @invariant()
    def the_lock_is_what_the_model_says(self):
        state, _ = self.locks.read(NAME)
        expected = self.expected
        assert (expected.owner.ask.owner if expected.owner else "") == state.owner
        assert expected.fence == state.fence
        if expected.owner is not None:
            assert {"id": expected.owner.ask.owner} == state.holder
        else:
            assert (expected.kept_for.ask.owner if expected.kept_for else "") == state.reserved_for

    @invariant()
    def at_most_one_owner_counts_itself_in(self):
        """By its own clock: that is what its checkpoints rest on."""
        now = self._own_clock()
        assert sum(now < each.counts_in_until for each in self.owners) <= 1

    def _note_grant(self, fence):
        assert fence > max(self.fences)
        self.fences.append(fence)

    def _begin_to_hold(self, owner, held):
        owner.held, owner.counts_in_until = held, owner.asked_at + LOCK_LEASE_SECONDS
        owner.given.clear()

    def _learn_times(self):
        """The ends of lease and keeping, as the store says; that they are as long as they should be, say others."""
        state, _ = self.locks.read(NAME)
        self.expected.lease_until = state.lease_until_us + self.off_us
        self.expected.kept_until = state.reserved_until_us + self.off_us

    def _own_clock(self):
        """A clock that no server's correction touches. Real time passes on a real server, too."""
        return self.world.clock.monotonic_seconds() + time.monotonic()

    @staticmethod
    def _one_of(several, pick):
        return several[pick % len(several)]


def test_any_history_in_memory_keeps_the_rules():
    """Tests against the memory store would tell of rules that no server keeps."""

    class InMemory(LockMachine):
        open_store = staticmethod(stores.memory_under_test)

    run_state_machine_as_test(InMemory, settings=SHORT)


@pytest.mark.redis
def test_any_history_on_redis_keeps_the_rules(redis_url):
    """Some order of steps, which nobody has thought of, would let two in, or nobody for ever."""

    class OnRedis(LockMachine):
        open_store = staticmethod(lambda: stores.redis_under_test(redis_url))

    run_state_machine_as_test(OnRedis, settings=SHORT)


@pytest.mark.parametrize("alias", ["sqlite_alias", pytest.param("postgres_alias", marks=pytest.mark.postgres)])
def test_any_history_in_a_database_keeps_the_rules(request, alias):
    """Some order of steps, which nobody has thought of, would let two in, or nobody for ever."""
    name = request.getfixturevalue(alias)

    class InDatabase(LockMachine):
        open_store = staticmethod(lambda: stores.orm_under_test(name))

    run_state_machine_as_test(InDatabase, settings=SHORT)


class Seen:
    """A room whose store's state is seen as something else."""

    def __init__(self, room, **view):
        self._room = room
        self.view = replace(room.view, **view)

    def __getattr__(self, name):
        return getattr(self._room, name)


def frees_by_name_alone(release):
    return lambda room, held: release(room, of_whoever_has_it(room, held))


def renews_by_name_alone(renew):
    return lambda room, held: renew(room, of_whoever_has_it(room, held))


def of_whoever_has_it(room, held):
    state = room.lock(held.name)
    return replace(held, ask=replace(held.ask, owner=state.owner if state else ""), fence=0)


def fence_is_the_time(take):
    def broken(room, ask):
        held, state = take(room, ask), room.lock(ask.name)
        room.put_lock(replace(state, fence=state.since_us))
        return replace(held, fence=state.since_us)

    return broken


def writes_nothing_back(renew):
    return lambda room, held: renew(room, replace(held, epoch=room.view.epoch))


def no_pause_after_an_outage(barred_until_us):
    return lambda room, ask: barred_until_us(Seen(room, takeover_from_us=0), ask)


def no_pause_after_a_wipe(barred_until_us):
    return lambda room, ask: barred_until_us(Seen(room, admit_from_us=0), ask)


def newest_first(heard):
    return lambda room, name: heard(room, name)[::-1]


def serves_the_dead(_heard):
    return lambda room, name: sorted(room.line(name), key=lambda place: place.since_us)


def keeps_for_nobody(barred_until_us):
    def broken(room, ask):
        state = room.lock(ask.name)
        return 0 if state and not state.owner else barred_until_us(room, ask)

    return broken


BROKEN = [
    ("release", frees_by_name_alone),
    ("renew", renews_by_name_alone),
    ("take", fence_is_the_time),
    ("renew", writes_nothing_back),
    ("barred_until_us", no_pause_after_an_outage),
    ("barred_until_us", no_pause_after_a_wipe),
    ("_heard", newest_first),
    ("_heard", serves_the_dead),
    ("barred_until_us", keeps_for_nobody),
]


@pytest.mark.parametrize("rule, broken", BROKEN, ids=[broken.__name__ for _, broken in BROKEN])
def test_the_machine_notices_a_broken_rule(monkeypatch, rule, broken):
    """A machine that finds no fault in anything would prove nothing."""
    monkeypatch.setattr(rules, rule, broken(getattr(rules, rule)))

    class OnBroken(LockMachine):
        open_store = staticmethod(stores.memory_under_test)

    many = settings(SHORT, max_examples=2000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, pytest.fail.Exception, LockLost)):
        run_state_machine_as_test(OnBroken, settings=many)
