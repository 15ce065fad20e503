"""
The stores of records against their contract, and what is true of Redis alone.
"""

import multiprocessing

import pytest
import redis

from celery_safeguards._redis import Client, Keys
from celery_safeguards.admission.redis import RedisAdmissionStore
from celery_safeguards.admission.store import RecordKey, Renewal
from celery_safeguards.errors import NotOurs, StoreUnavailable
from celery_safeguards.ledger.record import Record, State
from tests.conformance import stores
from tests.conformance.admission.calls import (
    DONE,
    DYING,
    KEY,
    RETRY,
    admit,
    change,
    claimed,
    mark_lost,
    renewal,
    start,
    taken,
)
from tests.conformance.admission_contract import AdmissionStoreContract
from tests.support.sockets import Cutter, free_port

KEYS_OF_EACH_PROCESS = 10


@pytest.fixture(params=stores.ALL)
def under_test(request):
    with stores.opened(request, request.param) as under_test:
        yield under_test


class TestAdmissionStores(AdmissionStoreContract):
    pass


@pytest.fixture
def on_redis(redis_url, namespace):
    with stores.redis_under_test(redis_url, namespace) as under_test:
        yield under_test


def admit_all(url, namespace, owner, barrier, outcome):
    """Run in a process of its own: try to claim every key."""
    store = RedisAdmissionStore(Client(url, 5), Keys(namespace), stores.LEASE_SECONDS)
    barrier.wait(30)
    keys = [RecordKey("shop.charge", str(number)) for number in range(KEYS_OF_EACH_PROCESS)]
    outcome.put([key.key for key in keys if admit(store, owner, key).claimed])


@pytest.mark.redis
def test_two_processes_claim_each_key_once(on_redis, redis_url, namespace):
    """Two workers that get the same messages would run everything twice."""
    context = multiprocessing.get_context("spawn")
    barrier, outcome = context.Barrier(2), context.Queue()

    processes = [
        context.Process(target=admit_all, args=(redis_url, namespace, owner, barrier, outcome)) for owner in "AB"
    ]
    for process in processes:
        process.start()
    won = outcome.get(timeout=30) + outcome.get(timeout=30)
    for process in processes:
        process.join()
    outcome.close()
    outcome.join_thread()

    assert sorted(map(str, range(KEYS_OF_EACH_PROCESS))) == sorted(won)


# --------------------------------------------------------------------------------------------------- the second try


@pytest.fixture
def cut_store(redis_url, namespace):
    """A store behind a proxy that can lose an answer; its scripts are known to the server."""
    with stores.redis_under_test(redis_url, namespace) as direct, Cutter(redis_url) as cutter:
        store = RedisAdmissionStore(Client(cutter.url, 5), Keys(namespace), stores.LEASE_SECONDS)
        warm = RecordKey("shop.charge", "warm")
        store.settle(warm, claimed(store, "warm", warm), State.IN_PROGRESS, DONE)
        store.renew({})
        mark_lost(store, "warm", warm)
        taken(store, "warm", warm)
        store.restore(warm, direct.store.read(warm), "older")
        yield store, cutter
        store._client.close()


def settled(store, change):
    return store.settle(KEY, claimed(store), State.IN_PROGRESS, change)


@pytest.mark.redis
def test_a_claim_whose_answer_is_lost_is_held(cut_store):
    """The owner would be told that the key is busy, with itself, until its lease ends."""
    store, cutter = cut_store
    cutter.lose_next_answer(b"EVALSHA")

    answer = admit(store)

    assert (1, True, "A", 1) == (cutter.lost_answers, answer.claimed, answer.record.owner, answer.record.lost_starts)
    assert answer.record.fence == store.read(KEY).fence


@pytest.mark.redis
def test_a_take_over_whose_answer_is_lost_is_held(cut_store):
    """The start would be counted, and nobody would run it."""
    store, cutter = cut_store
    seen = claimed(store)
    cutter.lose_next_answer(b"EVALSHA")

    answer = store.take(KEY, seen.rev, "B", start(attempt=2))

    assert (1, True, "B", 2) == (cutter.lost_answers, answer.claimed, answer.record.owner, answer.record.attempt)
    assert answer.record == store.read(KEY)


@pytest.mark.redis
@pytest.mark.parametrize("write", [DONE, RETRY, DYING], ids=["done", "retry", "dying"])
def test_an_outcome_whose_answer_is_lost_is_written(cut_store, write):
    """The owner would be told that it was fenced out, by its own write."""
    store, cutter = cut_store
    record = claimed(store)
    cutter.lose_next_answer(b"EVALSHA")

    written = store.settle(KEY, record, State.IN_PROGRESS, write)

    assert (1, written.state) == (cutter.lost_answers, store.read(KEY).state)


@pytest.mark.redis
def test_a_renewal_whose_answer_is_lost_is_made_again(cut_store):
    """A parent would kill a child whose claim holds."""
    store, cutter = cut_store
    claimed(store)
    cutter.lose_next_answer(b"EVALSHA")

    assert Renewal.RENEWED is renewal(store, "A")
    assert 1 == cutter.lost_answers


@pytest.mark.redis
def test_a_mark_of_loss_whose_answer_is_lost_is_made_once(cut_store):
    """The quiet period would begin at the second try."""
    store, cutter = cut_store
    claimed(store)
    cutter.lose_next_answer(b"EVALSHA")

    assert mark_lost(store, "A") is True
    assert (1, 2) == (cutter.lost_answers, store.read(KEY).rev)


# ---------------------------------------------------------------------------------------------------------- absence


@pytest.mark.redis
def test_an_outcome_that_was_written_while_the_server_died_is_written_once(fresh_redis, namespace):
    """After a restart the owner tries again, and must not find its own write in its way."""
    store = RedisAdmissionStore(Client(fresh_redis.url, 5), Keys(namespace), stores.LEASE_SECONDS)
    store.declare_new()
    record = claimed(store)
    store.settle(KEY, record, State.IN_PROGRESS, RETRY)
    before = store.read(KEY)

    fresh_redis.restart(kill=True)
    again = store.settle(KEY, record, State.IN_PROGRESS, RETRY)

    assert (State.RETRY_DUE, before) == (again.state, store.read(KEY))
    store._client.close()


@pytest.mark.redis
def test_a_server_that_is_back_answers_the_same_client(fresh_redis, namespace):
    """Every worker would have to be restarted with its store, or its scripts be unknown to it."""
    store = RedisAdmissionStore(Client(fresh_redis.url, 5), Keys(namespace), stores.LEASE_SECONDS)
    store.declare_new()
    record = claimed(store)
    fresh_redis.stop()
    with pytest.raises(StoreUnavailable):
        store.read(KEY)

    fresh_redis.start()

    assert record == store.read(KEY)
    store._client.close()


HELD = Record(state=State.IN_PROGRESS, owner="A", fence=1)
CALLS = {
    "view": lambda store: store.view(),
    "declare_new": lambda store: store.declare_new(),
    "read": lambda store: store.read(KEY),
    "admit": admit,
    "take": lambda store: store.take(KEY, 1, "A", start()),
    "settle": lambda store: store.settle(KEY, HELD, State.IN_PROGRESS, DONE),
    "renew": lambda store: renewal(store, "A"),
    "restore": lambda store: store.restore(KEY, HELD, "e"),
    "mark_lost": lambda store: mark_lost(store, "A"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_absent_server_is_store_unavailable(call):
    """Any other error would be taken for the message's own, and the message would be acknowledged."""
    store = RedisAdmissionStore(Client(f"redis://127.0.0.1:{free_port()}/0", 5), Keys("ns"), stores.LEASE_SECONDS)

    with pytest.raises(StoreUnavailable):
        call(store)


@pytest.mark.redis
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_server_that_does_not_answer_in_time_is_store_unavailable(call, redis_url, namespace):
    """A child would hang in a dead connection for as long as the network lets it."""
    with Cutter(redis_url) as cutter:
        store = RedisAdmissionStore(Client(cutter.url, 0.05), Keys(namespace), stores.LEASE_SECONDS)
        cutter.stall(requests=False)

        with pytest.raises(StoreUnavailable):
            call(store)

        store._client.close()


@pytest.mark.redis
def test_a_full_server_is_store_unavailable(fresh_redis, namespace):
    """A store that refuses writes would make every message fail with an error of its own."""
    store = RedisAdmissionStore(Client(fresh_redis.url, 5), Keys(namespace), stores.LEASE_SECONDS)
    store.declare_new()
    with fresh_redis.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")

    with pytest.raises(StoreUnavailable):
        admit(store)

    store._client.close()


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


@pytest.mark.redis
def test_a_first_delivery_costs_two_round_trips(on_redis, sent):
    """A third one would cost every task of every user its time."""
    other = RecordKey("shop.charge", "warm")
    on_redis.store.settle(other, claimed(on_redis.store, "warm", other), State.IN_PROGRESS, DONE)
    sent.clear()

    settled(on_redis.store, DONE)

    assert 2 == len(sent)


@pytest.mark.redis
@pytest.mark.parametrize("state", [DONE, RETRY, None], ids=["done", "retry", "busy"])
def test_a_duplicate_costs_one_round_trip(on_redis, sent, state):
    """A flood of duplicates would cost as much as the work."""
    record = claimed(on_redis.store)
    if state is not None:
        on_redis.store.settle(KEY, record, State.IN_PROGRESS, state)
    sent.clear()

    admit(on_redis.store, "B")

    assert 1 == len(sent)


@pytest.mark.redis
def test_a_tick_of_200_owners_costs_one_round_trip(on_redis, sent):
    """A worker with many children could not renew them all in time."""
    claims = {f"owner-{number}": RecordKey("shop.charge", str(number)) for number in range(200)}
    on_redis.store.renew({})
    sent.clear()

    on_redis.store.renew(claims)

    assert 1 == len(sent)


@pytest.mark.redis
def test_everything_is_kept_under_the_namespace(on_redis, namespace):
    """A key outside the prefix is refused by an access list, and lands in another slot of a cluster."""
    claimed(on_redis.store)

    keys = Keys(namespace)
    assert {keys.meta, keys.record(KEY.scope, KEY.key)} == set(on_redis.client.scan_iter(f"*{namespace}*"))


@pytest.mark.redis
def test_a_claims_key_never_lives_for_its_lease_only(on_redis, namespace):
    """A lapsed claim would read as a key that was never started."""
    claimed(on_redis.store)

    assert on_redis.client.pttl(Keys(namespace).record(KEY.scope, KEY.key)) > stores.LEASE_SECONDS * 1_000


@pytest.mark.redis
def test_a_key_of_a_megabyte_has_a_name_of_bounded_length(on_redis, namespace):
    """The server would compare and send a megabyte for each command."""
    claimed(on_redis.store, key=RecordKey("shop.charge", "k" * 1_000_000))

    assert max(len(key) for key in on_redis.client.scan_iter(f"*{namespace}*")) < 300


@pytest.mark.redis
def test_a_refused_write_names_who_holds_the_record(on_redis):
    """The log would say that a write was refused, and not why."""
    stale = claimed(on_redis.store)
    taken(on_redis.store)

    with pytest.raises(NotOurs, match=r"shop.charge#payment:7 is held by B at \d+, in_progress, not A at \d+"):
        on_redis.store.settle(KEY, stale, State.IN_PROGRESS, change(State.DONE))
