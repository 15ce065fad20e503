"""
One key, driven at random: admission on a real server against a small model that knows nothing of its code.

    deliver, renew, settle, die, be marked lost, bury, replay, let time pass, cut the server off — in any order

After every step the record must be what the model says, and at most one owner may count itself in. The task reruns
unknown outcomes, so that no step needs an outside world; `verify` and `quarantine` are walked through elsewhere.

Time passes by 7 or 31 seconds only. No sum of these comes near a lease of 30 or a retry after 40, so a slow machine
cannot turn an answer round.
"""

import contextlib
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from celery_safeguards.admission.gate import Gate
from celery_safeguards.admission.hold import Ending, Hold
from celery_safeguards.admission.memory import MemoryAdmissionStore
from celery_safeguards.admission.plan import Plan
from celery_safeguards.admission.store import Renewal
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger.decide import Arrival, Bury, Defer, Fail, FinishBurial, Go, Return
from celery_safeguards.ledger.record import Record, ResultForm, State
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.burial import burial_fields, letter_of
from celery_safeguards.policy import Idempotent, Policy, Safeguards
from celery_safeguards.retry.policy import RetryPolicy
from tests.conformance import stores

ATTEMPTS = 3
MAX_LOST_STARTS = 2
LEASE_SECONDS = stores.LEASE_SECONDS
RETRY_SECONDS = 40.0
KEY = "charge:7"
PICK = st.integers(min_value=0, max_value=99)
SHORT = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def charge(order_id): ...


PLAN = Plan.of(
    "shop.charge",
    charge,
    Policy.of(
        Safeguards(
            idempotent=Idempotent("charge:{order_id}", on_unknown="rerun"),
            retry=RetryPolicy(attempts=ATTEMPTS),
            max_lost_starts=MAX_LOST_STARTS,
        )
    ),
)


@dataclass(eq=False, slots=True)
class Delivery:
    """A delivery that has claimed the key at some time; it may be stale, or dead, and not know it."""

    gate: Gate
    task_id: str
    hold: Hold | None = None
    dying: Record | None = None
    is_alive: bool = True
    has_settled: bool = False


@dataclass(slots=True)
class Expected:
    """What the record should be: the rules once more, in the fewest words."""

    state: str = "none"
    owner: Delivery | None = None
    lease_until: float = 0.0
    is_lost: bool = False
    attempt: int = 0
    lost_starts: int = 0
    not_before: float = 0.0
    series: set = field(default_factory=set)
    takeover_from: float = 0.0

    def answer(self, task_id, now, *, is_replay):
        """Say how a delivery is answered: go, new, defer, bury, finish, return, or fail."""
        match self.state:
            case "none":
                return "new"
            case "in_progress":
                is_live = now < self.lease_until and not self.is_lost
                is_paused = now < self.takeover_from and not self.is_lost
                return "defer" if is_live or is_paused else self._again()
            case "retry_due":
                return "defer" if now < self.not_before else self._again()
            case "dying":
                return "finish"
            case "done":
                return "return"
            case "dead":
                return "new" if is_replay and task_id not in self.series else "fail"

    def _again(self):
        return "bury" if self.lost_starts >= MAX_LOST_STARTS or self.attempt >= ATTEMPTS else "go"

    def begin(self, delivery, now, *, is_new):
        """A start of the body under a new claim."""
        self.attempt = 1 if is_new else self.attempt + 1
        self.lost_starts = 1 if is_new else self.lost_starts + 1
        self._claim("in_progress", delivery)
        self.lease_until = now + LEASE_SECONDS

    def bury(self, delivery):
        """A burial under a new claim."""
        self._claim("dying", delivery)

    def _claim(self, state, delivery):
        self.state, self.owner, self.is_lost = state, delivery, False
        self.series.add(delivery.task_id)


ANSWERS = {
    "new": Go,
    "go": Go,
    "defer": Defer,
    "bury": Bury,
    "finish": FinishBurial,
    "return": Return,
    "fail": Fail,
}


class LedgerMachine(RuleBasedStateMachine):
    """See the module; `open_store` is given by the test."""

    open_store = None

    def __init__(self):
        super().__init__()
        self._context = type(self).open_store()
        self.world = self._context.__enter__()
        self.expected = Expected()
        self.claimants = []
        self.count = 0
        self.replays = []
        self.fences = [0]
        self.was_done = False

    def teardown(self):
        self._context.__exit__(None, None, None)

    # ---------------------------------------------------------------------------------------------------- deliveries

    @rule(number=st.integers(min_value=0, max_value=2))
    def deliver(self, number):
        """A publication, or one more copy of it."""
        self._deliver(f"t-{number}", None)

    @precondition(lambda self: self.replays)
    @rule(pick=PICK)
    def deliver_replay(self, pick):
        self._deliver(self.replays[pick % len(self.replays)], "l-1")

    def _deliver(self, task_id, letter_id):
        self.count += 1
        arrival = Arrival(task_id=task_id, owner=f"owner-{self.count}", fingerprint="f", letter_id=letter_id)
        delivery = Delivery(Gate(self.world.store, PLAN, KEY, arrival, self.world.clock), task_id)
        answer = self.expected.answer(task_id, self._now(), is_replay=letter_id is not None)
        question = delivery.gate.ask()
        assert ANSWERS[answer] is type(question.decision)
        if answer in {"new", "go"}:
            assert not self.was_done
            delivery.hold = question.hold or delivery.gate.start(question.decision, question.record)
            self.expected.begin(delivery, self._now(), is_new=answer == "new")
            self.claimants.append(delivery)
        elif answer == "bury":
            fields = burial_fields(letter_for(delivery))
            delivery.hold = delivery.gate.hold_to_bury(question.decision, question.record, fields)
            delivery.dying = delivery.hold.record
            self.expected.bury(delivery)
            self.claimants.append(delivery)
        elif answer == "finish":
            self._inter(delivery.gate, question.record)

    # -------------------------------------------------------------------------------------------------- what owners do

    @precondition(lambda self: self.claimants)
    @rule(pick=PICK)
    def renew(self, pick):
        """A parent renews: also of an owner that is stale, or has settled."""
        delivery = self.claimants[pick % len(self.claimants)]
        _view, renewed = self.world.store.renew({delivery.hold.record.owner: delivery.gate.key})
        answer = renewed[delivery.hold.record.owner].renewal
        if self.expected.owner is not delivery:
            assert Renewal.TAKEN is answer
        elif self.expected.state != "in_progress":
            assert Renewal.ABSENT is answer
        elif self.expected.is_lost:
            assert Renewal.TAKEN is answer
        else:
            assert Renewal.RENEWED is answer
            self.expected.lease_until = self._now() + LEASE_SECONDS

    @precondition(lambda self: self.claimants)
    @rule(pick=PICK)
    def checkpoint(self, pick):
        """A child renews by itself."""
        delivery = self.claimants[pick % len(self.claimants)]
        if not delivery.is_alive or delivery.has_settled or delivery.dying is not None:
            return
        renewed = delivery.gate.renew(delivery.hold)
        assert (renewed is not None) is self._holds(delivery)
        if renewed is not None:
            delivery.hold = renewed
            self.expected.lease_until = self._now() + LEASE_SECONDS

    @precondition(lambda self: self.claimants)
    @rule(pick=PICK, twice=st.booleans())
    def settle_done(self, pick, twice):
        def write(delivery):
            return delivery.gate.settle_done(delivery.hold, Ending(ResultForm.STORED, "42"))

        if self._settle(pick, write, twice=twice):
            self.expected.state = "done"
            self.expected.lost_starts -= 1
            self.was_done = True

    @precondition(lambda self: self.claimants)
    @rule(pick=PICK, twice=st.booleans())
    def settle_retry(self, pick, twice):
        def write(delivery):
            failure = {"kind": "transient"}
            return delivery.gate.settle_retry(
                delivery.hold, RETRY_SECONDS, failure, effect_possible=False, ambiguous=False
            )

        if self._settle(pick, write, twice=twice):
            self.expected.state = "retry_due"
            self.expected.not_before = self._now() + RETRY_SECONDS
            self.expected.lost_starts -= 1

    @precondition(lambda self: self.claimants)
    @rule(pick=PICK, twice=st.booleans())
    def settle_dying(self, pick, twice):
        def write(delivery):
            fields = burial_fields(letter_for(delivery))
            return delivery.gate.settle_dying(delivery.hold, State.DEAD, fields, effect_possible=False)

        delivery = self._settle(pick, write, twice=twice)
        if delivery:
            self.expected.state = "dying"
            self.expected.lost_starts -= 1

    def _settle(self, pick, write, *, twice):
        """Write an outcome, or be refused; return the delivery whose write counts."""
        delivery = self.claimants[pick % len(self.claimants)]
        if delivery.has_settled or delivery.dying is not None:
            return None
        may_write = self.expected.owner is delivery and self.expected.state == "in_progress"
        if not may_write:
            with pytest.raises(NotOurs):
                write(delivery)
            return None
        written = write(delivery)
        if twice:
            assert written.state is write(delivery).state
        delivery.has_settled = True
        if written.state is State.DYING:
            delivery.dying = written
        return delivery

    @precondition(lambda self: any(each.dying for each in self.claimants))
    @rule(pick=PICK)
    def inter(self, pick):
        """A burier goes on: perhaps late, after somebody else has finished, or a replay has begun."""
        buriers = [each for each in self.claimants if each.dying]
        delivery = buriers[pick % len(buriers)]
        self._inter(delivery.gate, delivery.dying, is_ours=self.expected.owner is delivery)

    def _inter(self, gate, dying, *, is_ours=True):
        self.world.letters.bury(letter_of(dying))
        if is_ours and self.expected.state in {"dying", "dead"}:
            gate.finish_burial(dying)
            self.expected.state = "dead"
        else:
            with pytest.raises(NotOurs):
                gate.finish_burial(dying)

    @precondition(lambda self: self.claimants)
    @rule(pick=PICK, is_seen=st.booleans())
    def die(self, pick, is_seen):
        """A child dies; its parent sees it, or dies with it."""
        delivery = self.claimants[pick % len(self.claimants)]
        delivery.is_alive = False
        if is_seen:
            marked = self.world.store.mark_lost(delivery.gate.key, delivery.hold.record.owner, {"kind": "worker_lost"})
            is_claim = self.expected.owner is delivery and self.expected.state == "in_progress"
            assert is_claim is marked
            self.expected.is_lost = self.expected.is_lost or marked

    # --------------------------------------------------------------------------------------------------- the world

    @rule()
    def replay(self):
        """A person clicks; whoever is first wins."""
        letter = self.world.letters.get("l-1")
        if letter is not None and letter.state == "open":
            self.replays.append(f"r-{len(self.replays)}")
            self.world.letters.begin_replay("l-1", self.replays[-1], "ana", self.world.clock.wall_seconds())

    @rule(seconds=st.sampled_from([7.0, 31.0]))
    def pass_time(self, seconds):
        """Time passes while some worker of the fleet is heard."""
        while seconds > 0:
            some = min(seconds, LEASE_SECONDS / 3)
            seconds -= some
            self.world.advance(some)
            self.world.store.renew({})

    @rule()
    def cut_off(self):
        """The server is away from everybody, and back."""
        self.world.advance(31.0)
        self.world.store.renew({})
        self.expected.takeover_from = self._now() + LEASE_SECONDS

    # -------------------------------------------------------------------------------------------------- invariants

    @invariant()
    def the_record_is_what_the_model_says(self):
        record, expected = self._record(), self.expected
        if record is None:
            assert expected.state == "none"
            return
        assert (expected.state, expected.attempt, expected.lost_starts, expected.is_lost) == (
            record.state,
            record.attempt,
            record.lost_starts,
            bool(record.lost_us),
        )
        assert expected.owner.hold.record.owner == record.owner
        assert expected.series == set(record.series)

    @invariant()
    def at_most_one_owner_counts_itself_in(self):
        """By its own clock: that is what its checkpoints rest on."""
        assert sum(each.is_alive and not each.has_settled and self._is_in_lease(each) for each in self.claimants) <= 1

    @invariant()
    def starts_keep_to_their_caps(self):
        assert self.expected.attempt <= ATTEMPTS
        assert 0 <= self.expected.lost_starts <= MAX_LOST_STARTS

    @invariant()
    def the_fence_never_goes_back(self):
        record = self._record()
        if record is not None:
            self.fences.append(record.fence)
        assert sorted(self.fences) == self.fences

    @invariant()
    def a_dead_record_has_its_letter(self):
        if self.expected.state == "dead":
            assert self.world.letters.get("l-1") is not None

    def _holds(self, delivery):
        return self.expected.owner is delivery and self.expected.state == "in_progress" and not self.expected.is_lost

    def _is_in_lease(self, delivery):
        return delivery.dying is None and self._now() < delivery.hold.lease_ends

    def _now(self):
        return self.world.clock.monotonic_seconds()

    def _record(self):
        return self.world.store.read(PLAN.record_key(KEY))


def letter_for(delivery):
    """The one letter of the key, as this delivery would write it."""
    return Letter(
        id="l-1",
        task="shop.charge",
        task_id=delivery.task_id,
        wire=WireMessage(body=b"[[7], {}, {}]", headers={"id": delivery.task_id, "task": "shop.charge"}),
        kind=FailureKind.BUG,
        effect_possible=False,
        reason="last attempt",
        first_seen_seconds=1.0,
        last_failed_seconds=1.0,
    )


def test_any_history_in_memory_keeps_the_rules():
    """Tests against the memory store would tell of rules that no server keeps."""

    class InMemory(LedgerMachine):
        open_store = staticmethod(stores.memory_under_test)

    run_state_machine_as_test(InMemory, settings=SHORT)


@pytest.mark.redis
def test_any_history_on_redis_keeps_the_rules(redis_url):
    """Some order of steps, which nobody has thought of, would run work twice, never, or without end."""

    class OnRedis(LedgerMachine):
        open_store = staticmethod(lambda: stores.redis_under_test(redis_url))

    run_state_machine_as_test(OnRedis, settings=SHORT)


@pytest.mark.parametrize("alias", ["sqlite_alias", pytest.param("postgres_alias", marks=pytest.mark.postgres)])
def test_any_history_in_a_database_keeps_the_rules(request, alias):
    """Some order of steps, which nobody has thought of, would run work twice, never, or without end."""
    name = request.getfixturevalue(alias)

    class InDatabase(LedgerMachine):
        open_store = staticmethod(lambda: stores.orm_under_test(name))

    run_state_machine_as_test(InDatabase, settings=SHORT)


class SettlesForAnybody(MemoryAdmissionStore):
    def settle(self, key, held, expected, change, **options):
        record = self.read(key)
        return super().settle(key, replace(held, owner=record.owner, fence=record.fence), expected, change, **options)


class LeaseAsTimeToLive(MemoryAdmissionStore):
    def admit(self, key, *args, **options):
        record = self.read(key)
        if record is not None and record.state is State.IN_PROGRESS and not record.is_live(self.view().now_us):
            del self._records[key]
        return super().admit(key, *args, **options)


class NoPauseAfterAnOutage(MemoryAdmissionStore):
    def admit(self, *args, **options):
        answer = super().admit(*args, **options)
        return replace(answer, view=replace(answer.view, takeover_from_us=0))


@pytest.mark.parametrize("broken", [SettlesForAnybody, LeaseAsTimeToLive, NoPauseAfterAnOutage])
def test_the_machine_notices_a_broken_store(broken):
    """A machine that finds no fault in anything would prove nothing."""

    @contextlib.contextmanager
    def open_broken():
        with stores.memory_under_test() as under_test:
            under_test.store.__class__ = broken
            yield under_test

    class OnBroken(LedgerMachine):
        open_store = staticmethod(open_broken)

    many = settings(SHORT, max_examples=2000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, pytest.fail.Exception, NotOurs, KeyError)):
        run_state_machine_as_test(OnBroken, settings=many)
