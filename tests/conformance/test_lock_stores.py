"""
The stores of locks against their contract, and what is true of Redis alone.
"""

import multiprocessing
from math import inf

import pytest
import redis

from celery_safeguards._redis import Client, Keys
from celery_safeguards.admission.redis import RedisAdmissionStore
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.errors import LockLost, StoreUnavailable
from celery_safeguards.ledger.record import Record, State
from celery_safeguards.locks.redis import RedisLockStore
from celery_safeguards.locks.renewer import Renewer, _Kept
from celery_safeguards.locks.store import HeldLock, LockAsk
from celery_safeguards.locks.turn import acquire_in_turn
from tests.conformance import stores
from tests.conformance.admission.calls import KEY, RETRY, start
from tests.conformance.locks.calls import NAME, acquired, ask, in_line, is_given, pass_time, waiters
from tests.conformance.locks.fused import admit_with, claimed_with, mark_lost_with, settle_with, take_with
from tests.conformance.locks_contract import LockStoreContract
from tests.support.sockets import Cutter, free_port

LOCKS_OF_EACH_PROCESS = 10
HELD = HeldLock(ask=ask("A"), fence=1, epoch="older")


@pytest.fixture(params=stores.ALL)
def under_test(request):
    with stores.opened(request, request.param) as under_test:
        yield under_test


class TestLockStores(LockStoreContract):
    pass


# --------------------------------------------------------------------------------------------- what owners rest on


class FrozenBeforeItWaits:
    """A process that is frozen between its question and its waiting, while its turn comes and goes."""

    def __init__(self, under_test, held):
        self._under_test = under_test
        self._held = held

    def __getattr__(self, name):
        return getattr(self._under_test.locks, name)

    def acquire(self, asked, **options):
        grant = self._under_test.locks.acquire(asked, **options)
        self._under_test.locks.release(self._held)
        self._under_test.advance(2.1)
        acquired(self._under_test.locks, "C")
        return grant


def test_who_hears_late_that_it_was_given_the_lock_does_not_count_itself_in(under_test):
    """
    Two would hold the lock, each by its own clock, and no checkpoint would tell.

    t0 B asks, and is frozen   t1 the lock is released, and given to B   t2 two seconds pass   t3 C takes it
    t4 B wakes, waits, and finds the word of t1
    """
    locks = FrozenBeforeItWaits(under_test, acquired(under_test.locks))

    grant = acquire_in_turn(locks, under_test.clock, ask("B"), 60.0)

    assert grant.asked_at + grant.lease_seconds <= under_test.clock.monotonic_seconds()


def test_who_wakes_after_its_lease_writes_nothing_back(under_test):
    """
    Until its successor renews, both would hold the lock, each by its own clock.

    t0 A is frozen past its lease   t1 B takes the lock   t2 the store is wiped   t3 A wakes and renews
    """
    renewer, late = Renewer(under_test.locks, under_test.clock), acquired(under_test.locks)
    asked_at = under_test.clock.monotonic_seconds()
    renewer._kept["A"] = _Kept(late, asked_at + 600, asked_at, late.ask.lease_seconds)
    pass_time(under_test, 21)
    acquired(under_test.locks, "B")
    under_test.wipe()

    renewer.tick()

    with pytest.raises(LockLost):
        renewer.check("A")
    assert "" == under_test.locks.read(NAME)[0].owner


def test_who_was_cut_off_past_its_lease_goes_on_if_nobody_has_followed(under_test):
    """An outage that is a little longer than a lease would end all work, for no other owner."""
    renewer, held = Renewer(under_test.locks, under_test.clock), acquired(under_test.locks)
    asked_at = under_test.clock.monotonic_seconds()
    renewer._kept["A"] = _Kept(held, asked_at + 600, asked_at, held.ask.lease_seconds)
    under_test.advance(21)

    renewer.tick()

    renewer.check("A")


# ---------------------------------------------------------------------------------------------- what does not hold yet


def asked_for(owner, lease_seconds):
    return LockAsk(name=NAME, owner=owner, lease_seconds=lease_seconds)


def test_after_an_outage_too_short_to_be_told_a_short_lock_goes_to_another_and_its_owner_is_told(under_test):
    """
    An outage is told by half a lease of claims; a lock's lease may be over sooner. SG120 warns of such leases.

    t0 A takes it, for 3 s   t1 the store is away for 5 s   t2 B asks first, and has it   t3 A is refused
    """
    held = under_test.locks.acquire(asked_for("A", 3.0)).held
    under_test.advance(5)

    assert under_test.locks.acquire(asked_for("B", 3.0)).held.fence > held.fence
    assert [False] == under_test.locks.renew([held])


def test_a_dead_owners_lock_is_given_although_nobody_is_heard_in_between(under_test):
    """
    Without a worker, a command that runs each minute would find a dead owner's lock busy until it is forgotten.

    t0 A takes it, for 20 s, and dies   t60 B asks: the store was silent since t0, nobody takes over until t90
    t120 C asks: it was silent since t60, but A's lease was over by then
    """
    acquired(under_test.locks)
    given = []
    for minute in range(2):
        under_test.advance(60)
        given.append(is_given(under_test.locks, f"asks at minute {minute + 1}"))

    assert [False, True] == given


def test_a_lock_with_a_long_lease_is_written_back_before_a_wiped_store_gives_it_away(under_test):
    """
    Renewed each third of its own lease, it would come too late: the pause of a new epoch is a lease of claims.

    t0 A takes it, for 120 s   t1 the store is wiped   t10 A renews   t31 B asks
    """
    renewer = Renewer(under_test.locks, under_test.clock, stores.LEASE_SECONDS)
    held = under_test.locks.acquire(asked_for("A", 120.0)).held
    renewer._kept[held.owner] = kept = _Kept(held, inf, under_test.clock.monotonic_seconds(), stores.LEASE_SECONDS)
    under_test.wipe()
    under_test.store.view()

    assert kept.due - under_test.clock.monotonic_seconds() <= stores.LEASE_SECONDS / 3
    pass_time(under_test, stores.LEASE_SECONDS / 3)
    renewer.tick()
    pass_time(under_test, stores.LEASE_SECONDS * 2 / 3 + 1)

    assert under_test.locks.acquire(asked_for("B", 120.0)).held is None


@pytest.fixture
def on_redis(redis_url, namespace):
    with stores.redis_under_test(redis_url, namespace) as under_test:
        yield under_test


def take_all(url, namespace, owner, barrier, outcome):
    """Run in a process of its own: try to take every lock."""
    locks = RedisLockStore(Client(url, 5), Keys(namespace), stores.LEASE_SECONDS)
    barrier.wait(30)
    outcome.put([name for name in map(str, range(LOCKS_OF_EACH_PROCESS)) if is_given(locks, owner, name)])


@pytest.mark.redis
def test_two_processes_take_each_lock_once(on_redis, redis_url, namespace):
    """Two workers would be in every critical section together."""
    context = multiprocessing.get_context("spawn")
    barrier, outcome = context.Barrier(2), context.Queue()

    processes = [
        context.Process(target=take_all, args=(redis_url, namespace, owner, barrier, outcome)) for owner in "AB"
    ]
    for process in processes:
        process.start()
    taken = outcome.get(timeout=30) + outcome.get(timeout=30)
    for process in processes:
        process.join()
    outcome.close()
    outcome.join_thread()

    assert sorted(map(str, range(LOCKS_OF_EACH_PROCESS))) == sorted(taken)


# --------------------------------------------------------------------------------------------------- the second try


class CutWorld:
    """A server that is asked through a proxy that loses answers, and directly; its scripts are known to it."""

    def __init__(self, direct, cutter, namespace):
        client, keys = Client(cutter.url, 5), Keys(namespace)
        self.cutter = cutter
        self.direct = direct
        self.locks = RedisLockStore(client, keys, stores.LEASE_SECONDS)
        self.store = RedisAdmissionStore(client, keys, stores.LEASE_SECONDS)

    def warm(self):
        key = RecordKey("shop.charge", "warm")
        settle_with(self.store, *claimed_with(self.store, "warm", key), RETRY, key)
        take_with(self.store, self.store.read(key).rev, "warm", key)
        mark_lost_with(self.store, "warm", key)
        self.locks.renew([acquired(self.locks, "warm", "warm")])
        self.locks.read("warm")
        self.store.renew({})


@pytest.fixture
def cut(redis_url, namespace):
    with stores.redis_under_test(redis_url, namespace) as direct, Cutter(redis_url) as cutter:
        cut = CutWorld(direct, cutter, namespace)
        cut.warm()
        yield cut
        cut.locks._client.close()


@pytest.mark.redis
def test_a_lock_whose_answer_is_lost_is_held(cut):
    """The owner would be told that the lock is busy, with itself, until its lease ends."""
    cut.cutter.lose_next_answer(b"EVALSHA")

    held = acquired(cut.locks)

    state, _ = cut.direct.locks.read(NAME)
    assert (1, "A", held.fence) == (cut.cutter.lost_answers, state.owner, state.fence)


@pytest.mark.redis
def test_a_place_in_the_line_whose_answer_is_lost_is_one_place(cut):
    """It would begin to wait at its second try, behind those who came between the two."""
    acquired(cut.direct.locks)
    cut.cutter.lose_next_answer(b"EVALSHA")

    in_line(cut.locks, "B")

    assert (1, ["B"]) == (cut.cutter.lost_answers, waiters(cut.direct.locks))


@pytest.mark.redis
@pytest.mark.parametrize("waits", [False, True], ids=["free", "given to another"])
def test_a_release_whose_answer_is_lost_is_no_loss(cut, waits):
    """
    Work that has ended well would be called fenced, and run again: by the second try, whoever waited has the lock.

    t0 A releases, B is given the lock, the answer is lost   t1 A's client sends the release once more
    """
    held = acquired(cut.locks)
    if waits:
        in_line(cut.direct.locks, "B")
    cut.cutter.lose_next_answer(b"EVALSHA")

    cut.locks.release(held)

    assert (1, "B" if waits else "") == (cut.cutter.lost_answers, cut.direct.locks.read(NAME)[0].owner)


@pytest.mark.redis
def test_a_renewal_whose_answer_is_lost_is_made_again(cut):
    """A body would be told that it has lost a lock that it holds."""
    held = acquired(cut.locks)
    cut.cutter.lose_next_answer(b"EVALSHA")

    assert [True] == cut.locks.renew([held])
    assert 1 == cut.cutter.lost_answers


@pytest.mark.redis
def test_a_leaving_whose_answer_is_lost_passes_the_lock_on_once(cut):
    """The second try would take the turn of the next one away."""
    held = acquired(cut.direct.locks)
    for owner in "BC":
        in_line(cut.direct.locks, owner, reserve=True)
        cut.direct.advance(0.1)
    cut.direct.locks.release(held)
    cut.cutter.lose_next_answer(b"EVALSHA")

    cut.locks.leave(ask("B"))

    assert (1, "C") == (cut.cutter.lost_answers, cut.direct.locks.read(NAME)[0].reserved_for)


@pytest.mark.redis
def test_a_word_that_is_lost_is_told_by_the_next_question(cut):
    """Who was given the lock would never know, and hold it in vain."""
    held = acquired(cut.direct.locks)
    in_line(cut.direct.locks, "B")
    cut.direct.locks.release(held)
    cut.cutter.lose_next_answer(b"BLPOP")

    assert 0 == cut.locks.wait(ask("B"), 0.1)

    fence = cut.direct.locks.read(NAME)[0].fence
    assert (1, fence) == (cut.cutter.lost_answers, acquired(cut.locks, "B").fence)


@pytest.mark.redis
def test_a_claim_with_a_lock_whose_answer_is_lost_is_held(cut):
    """Its lock would bar its own second try."""
    cut.cutter.lose_next_answer(b"EVALSHA")

    record, lock = claimed_with(cut.store)

    assert (1, record.fence) == (cut.cutter.lost_answers, cut.direct.store.read(KEY).fence)
    assert lock.fence == cut.direct.locks.read(NAME)[0].fence


@pytest.mark.redis
def test_a_take_over_with_a_lock_whose_answer_is_lost_is_held(cut):
    """The start would be counted, and nobody would run it."""
    settle_with(cut.store, *claimed_with(cut.store), RETRY)
    cut.cutter.lose_next_answer(b"EVALSHA")

    answer = take_with(cut.store, cut.direct.store.read(KEY).rev, attempt=2)

    assert (1, True, "B", 2) == (cut.cutter.lost_answers, answer.claimed, answer.record.owner, answer.record.attempt)
    assert answer.lock.fence == cut.direct.locks.read(NAME)[0].fence


@pytest.mark.redis
@pytest.mark.parametrize("waits", [False, True], ids=["free", "given to another"])
def test_an_outcome_with_a_lock_whose_answer_is_lost_is_written(cut, waits):
    """The owner would be told that it lost its lock, by its own release."""
    record, lock = claimed_with(cut.store)
    if waits:
        in_line(cut.direct.locks, "B")
    cut.cutter.lose_next_answer(b"EVALSHA")

    settle_with(cut.store, record, lock)

    assert (1, State.DONE) == (cut.cutter.lost_answers, cut.direct.store.read(KEY).state)
    assert ("B" if waits else "") == cut.direct.locks.read(NAME)[0].owner


# ---------------------------------------------------------------------------------------------------------- absence

LOCK_CALLS = {
    "acquire": lambda locks, _: locks.acquire(ask("A")),
    "acquire to wait": lambda locks, _: locks.acquire(ask("A"), wait=True),
    "acquire to keep": lambda locks, _: locks.acquire(ask("A"), reserve=True),
    "wait": lambda locks, _: locks.wait(ask("A"), 0.01),
    "leave": lambda locks, _: locks.leave(ask("A")),
    "release": lambda locks, _: locks.release(HELD),
    "renew": lambda locks, _: locks.renew([HELD]),
    "read": lambda locks, _: locks.read(NAME),
    "waiting": lambda locks, _: locks.waiting(NAME),
    "names": lambda locks, _: list(locks.names()),
    "admit": lambda _, store: admit_with(store),
    "take": lambda _, store: take_with(store, 0),
    "settle": lambda _, store: settle_with(store, Record(state=State.IN_PROGRESS, owner="A", fence=1), HELD),
    "renewal of claims": lambda _, store: store.renew({"A": KEY}, [HELD]),
    "mark_lost": lambda _, store: mark_lost_with(store, "A"),
}
each_call = pytest.mark.parametrize("call", LOCK_CALLS.values(), ids=LOCK_CALLS)


def both(url, namespace, timeout_seconds):
    client, keys = Client(url, timeout_seconds), Keys(namespace)
    return (
        RedisLockStore(client, keys, stores.LEASE_SECONDS),
        RedisAdmissionStore(client, keys, stores.LEASE_SECONDS),
    )


@each_call
def test_an_absent_server_is_store_unavailable(call):
    """Any other error would be taken for the message's own, and the message would be acknowledged."""
    locks, store = both(f"redis://127.0.0.1:{free_port()}/0", "ns", 5)

    with pytest.raises(StoreUnavailable):
        call(locks, store)


@pytest.mark.redis
@each_call
def test_a_server_that_does_not_answer_in_time_is_store_unavailable(call, redis_url, namespace):
    """A child would hang in a dead connection for as long as the network lets it."""
    with Cutter(redis_url) as cutter:
        locks, store = both(cutter.url, namespace, 0.05)
        cutter.stall(requests=False)

        with pytest.raises(StoreUnavailable):
            call(locks, store)

        locks._client.close()


@pytest.mark.redis
def test_waiting_is_not_longer_than_the_server_may_be_silent(redis_url, namespace):
    """A wait in vain would be taken for a server that is away."""
    locks, _ = both(redis_url, namespace, 0.4)

    assert 0 == locks.wait(ask("A"), 1.0)

    locks._client.close()


# ------------------------------------------------------------------------------------------------------ on the wire


@pytest.fixture
def sent(monkeypatch):
    """The commands that leave this process, each packed write one entry."""
    packed = []
    send = redis.Connection.send_packed_command

    def send_and_note(self, command, check_health=True):
        packed.append(command)
        return send(self, command, check_health=check_health)

    monkeypatch.setattr(redis.Connection, "send_packed_command", send_and_note)
    return packed


@pytest.fixture
def warm(on_redis, redis_url, namespace):
    """A server that knows all scripts."""
    with Cutter(redis_url) as cutter:
        cut = CutWorld(on_redis, cutter, namespace)
        cut.warm()
        cut.locks._client.close()
    return on_redis


@pytest.mark.redis
def test_a_first_delivery_with_a_lock_costs_two_round_trips(warm, sent):
    """The lock of every task would cost two more."""
    settle_with(warm.store, *claimed_with(warm.store))

    assert 2 == len(sent)


@pytest.mark.redis
def test_a_retry_with_a_lock_costs_three_round_trips(warm, sent):
    """The question that finds it due, the claim with the lock, and the outcome: the lock costs none."""
    settle_with(warm.store, *claimed_with(warm.store), RETRY)
    sent.clear()

    seen = admit_with(warm.store, "B").record
    answer = take_with(warm.store, seen.rev)
    settle_with(warm.store, answer.record, answer.lock)

    assert 3 == len(sent)


@pytest.mark.redis
def test_a_delivery_that_finds_its_lock_busy_costs_one_round_trip(warm, sent):
    """Messages that are put off again and again would cost as much as the work."""
    acquired(warm.locks, "other")
    sent.clear()

    admit_with(warm.store)

    assert 1 == len(sent)


@pytest.mark.redis
def test_a_lock_alone_costs_two_round_trips(warm, sent):
    """Taking it and releasing it."""
    warm.locks.release(acquired(warm.locks))

    assert 2 == len(sent)


@pytest.mark.redis
def test_who_waits_and_is_given_the_lock_costs_two_round_trips(warm, sent):
    """Waiting by asking again and again would load the server with every message that waits."""
    held = acquired(warm.locks)
    sent.clear()
    in_line(warm.locks, "B")
    spent = len(sent)
    warm.locks.release(held)
    sent.clear()

    assert warm.locks.wait(ask("B"), 1.0) > held.fence

    assert (1, 1) == (spent, len(sent))


@pytest.mark.redis
def test_a_tick_of_200_owners_with_locks_costs_one_round_trip(warm, sent):
    """A worker with many children could not renew them all in time."""
    claims = {f"owner-{number}": RecordKey("shop.charge", str(number)) for number in range(200)}
    locks = [HeldLock(ask=ask(owner, f"order:{key.key}")) for owner, key in claims.items()]

    warm.store.renew(claims, locks)
    warm.locks.renew(locks)

    assert 2 == len(sent)


@pytest.mark.redis
def test_a_mark_of_loss_with_a_lock_costs_one_round_trip(warm, sent):
    """The main process waits for it with every child that dies."""
    mark_lost_with(warm.store, "A")

    assert 1 == len(sent)


@pytest.mark.redis
def test_everything_is_kept_under_the_namespace(on_redis, namespace):
    """A key outside the prefix is refused by an access list, and lands in another slot of a cluster."""
    before = set(on_redis.client.scan_iter("*"))
    held = acquired(on_redis.locks)
    in_line(on_redis.locks, "B")
    on_redis.locks.release(held)
    in_line(on_redis.locks, "C")

    keys = Keys(namespace)
    made = set(on_redis.client.scan_iter("*")) - before
    assert {keys.lock(NAME), keys.waiting(NAME), keys.wake("B")} <= made
    assert all(key.startswith(f"{keys.tag}:") for key in made)


@pytest.mark.redis
def test_nothing_but_the_fence_outlives_its_use(on_redis, namespace):
    """A server would fill with the traces of owners that are gone; a fence that is forgotten may be given again."""
    held = acquired(on_redis.locks)
    in_line(on_redis.locks, "B")
    on_redis.locks.release(held)
    in_line(on_redis.locks, "C")

    keys, day_ms = Keys(namespace), 86_400_000
    left_ms = {key: on_redis.client.pttl(key) for key in on_redis.client.scan_iter(f"{keys.tag}:*")}
    assert day_ms - 5_000 < left_ms.pop(keys.lock(NAME)) <= day_ms + 20_000
    left_ms.pop(keys.meta)
    assert all(0 < each <= 10_000 for each in left_ms.values())


@pytest.mark.redis
def test_a_released_lock_keeps_its_fence_for_a_day(on_redis, namespace):
    """With the text that a release leaves for ever, a server would fill; without it, the fence may be given again."""
    on_redis.locks.release(acquired(on_redis.locks))

    day_ms = 86_400_000
    assert day_ms - 5_000 < on_redis.client.pttl(Keys(namespace).lock(NAME)) <= day_ms + 20_000


@pytest.mark.redis
def test_a_name_of_a_megabyte_has_keys_of_bounded_length(on_redis, namespace):
    """The server would compare and send a megabyte for each command."""
    for name in ("o" * 1_000_000, "注" * 300_000):
        acquired(on_redis.locks, "A", name)
        in_line(on_redis.locks, "B", name)

    assert max(len(key.encode()) for key in on_redis.client.scan_iter(f"*{namespace}*")) < 300


@pytest.mark.redis
def test_a_claim_that_is_barred_leaves_nothing_behind(on_redis, namespace):
    """A record without a start would be found by the next delivery."""
    acquired(on_redis.locks, "other")
    before = set(on_redis.client.scan_iter(f"*{namespace}*"))

    admit_with(on_redis.store)
    on_redis.store.take(KEY, 0, "A", start(), lock=ask("A"))

    assert before == set(on_redis.client.scan_iter(f"*{namespace}*"))
