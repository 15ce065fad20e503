"""
The stores of dead letters against their contract, and what is true of Redis alone.
"""

import multiprocessing

import pytest

from celery_safeguards._redis import Client, Keys
from celery_safeguards.deadletter.letter import LetterUnreadable
from celery_safeguards.deadletter.redis import RedisLetterStore
from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.deadletter.terms import terms_of
from celery_safeguards.errors import StoreUnavailable
from tests.conformance import stores
from tests.conformance.archive_contract import LetterArchiveContract
from tests.conformance.deadletter_contract import NOON, LetterStoreContract, letter, second_burial, walk
from tests.conformance.erasing_contract import LetterErasingContract
from tests.conformance.groups_contract import LetterGroupContract
from tests.conformance.retention_contract import LATER, LetterRetentionContract, end, over
from tests.conformance.search_contract import LetterSearchContract
from tests.conformance.several_contract import SeveralLettersContract
from tests.support.sockets import Cutter, free_port

LETTERS_OF_EACH_PROCESS = 10


def redis_store(url, namespace):
    return RedisLetterStore(Client(url, timeout_seconds=5), Keys(namespace))


@pytest.fixture
def redis_letters(redis_url, namespace):
    store = redis_store(redis_url, namespace)
    yield store
    store._client.close()


@pytest.fixture(params=stores.ALL)
def store(request):
    with stores.opened(request, request.param) as under_test:
        yield under_test.letters


class TestLetterStores(LetterStoreContract):
    pass


class TestLetterGroups(LetterGroupContract):
    pass


class TestSeveralLetters(SeveralLettersContract):
    pass


class TestLetterArchive(LetterArchiveContract):
    pass


class TestLetterSearch(LetterSearchContract):
    pass


class TestLetterErasing(LetterErasingContract):
    pass


class TestLetterRetention(LetterRetentionContract):
    pass


def replay_all(url, namespace, name, barrier, outcome):
    """Run in a process of its own: try to replay every letter."""
    store = redis_store(url, namespace)
    barrier.wait(30)
    won = []
    for number in range(LETTERS_OF_EACH_PROCESS):
        try:
            won.append(store.begin_replay(f"l-{number}", f"{name}-{number}", name, NOON).replay_task_id)
        except LetterNotOpen:
            continue
    outcome.put(won)


@pytest.mark.redis
def test_two_processes_replay_each_letter_once(redis_letters, redis_url, namespace):
    """Two hosts that replay the same selection would run everything twice."""
    for number in range(LETTERS_OF_EACH_PROCESS):
        redis_letters.bury(letter(f"l-{number}"))
    context = multiprocessing.get_context("spawn")
    barrier, outcome = context.Barrier(2), context.Queue()

    processes = [
        context.Process(target=replay_all, args=(redis_url, namespace, name, barrier, outcome)) for name in "ab"
    ]
    for process in processes:
        process.start()
    won = outcome.get(timeout=30) + outcome.get(timeout=30)
    for process in processes:
        process.join()
    outcome.close()
    outcome.join_thread()

    stored = [redis_letters.get(f"l-{number}").replay_task_id for number in range(LETTERS_OF_EACH_PROCESS)]
    assert sorted(stored) == sorted(won)


def remove_all(url, namespace, barrier, outcome):
    """Run in a process of its own: remove what is over."""
    store = redis_store(url, namespace)
    barrier.wait(30)
    names = [f"l-{number}" for number in range(LETTERS_OF_EACH_PROCESS)]
    outcome.put(sum(store.remove([name], LATER) for name in names))


def bury_all(url, namespace, barrier, outcome):
    """Run in a process of its own: the work of every letter dies again."""
    store = redis_store(url, namespace)
    barrier.wait(30)
    for number in reversed(range(LETTERS_OF_EACH_PROCESS)):
        store.bury(second_burial(id=f"l-{number}"))
    outcome.put(0)


@pytest.mark.redis
@pytest.mark.parametrize("other", [remove_all, bury_all])
def test_processes_that_purge_and_fail_lose_no_failure_and_count_each_letter_once(
    redis_letters, redis_url, namespace, other
):
    """A daily purge on two hosts, and a storm in the middle of it."""
    names = [f"l-{number}" for number in range(LETTERS_OF_EACH_PROCESS)]
    for name in names:
        end(redis_letters, name)
    context = multiprocessing.get_context("spawn")
    barrier, outcome = context.Barrier(2), context.Queue()
    given = (redis_url, namespace, barrier, outcome)

    processes = [context.Process(target=act, args=given) for act in (remove_all, other)]
    for process in processes:
        process.start()
    removed = outcome.get(timeout=30) + outcome.get(timeout=30)
    for process in processes:
        process.join()
    outcome.close()
    outcome.join_thread()

    found = [redis_letters.get(name) for name in names]
    if other is bury_all:
        assert ["open"] * len(names) == [each.state for each in found]
        assert {"open": len(names)} == redis_letters.get_group(second_burial().fingerprint).counts
    else:
        assert ([None] * len(names), len(names)) == (found, removed)
    assert {} == redis_letters.get_group(letter().fingerprint).counts


class BeforeTrip(Client):
    """A client that does something else, once, before its nth trip."""

    def __init__(self, url, nth, act):
        super().__init__(url, timeout_seconds=5)
        self.trips, self._nth, self._act = 0, nth, act

    def run(self, script, keys, arguments):
        self.trips += 1
        if self.trips == self._nth:
            self._act()
        return super().run(script, keys, arguments)


@pytest.mark.redis
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_failure_is_buried_whenever_the_letter_of_an_earlier_one_is_removed(redis_letters, redis_url, namespace, nth):
    """`bury` says "known" only of what is stored: its caller acknowledges the message."""
    end(redis_letters)
    client = BeforeTrip(redis_url, nth, lambda: redis_letters.remove([letter().id], LATER))
    try:
        is_new = RedisLetterStore(client, Keys(namespace)).bury(second_burial())
    finally:
        client.close()

    assert (True, "open") == (is_new, redis_letters.get(second_burial().id).state)


@pytest.mark.redis
def test_letter_that_an_older_version_has_closed_is_kept_until_it_is_regrouped(redis_letters, redis_client, namespace):
    """Its end is in its history, and in no index."""
    end(redis_letters)
    redis_client.delete(Keys(namespace).letters_over)
    before = over(redis_letters)

    redis_letters.regroup("l-1")

    assert ([], ["l-1"]) == (before, over(redis_letters))


@pytest.mark.redis
def test_letter_that_an_older_version_has_opened_again_stays(redis_letters, redis_client, namespace):
    """It knows no index of what is over, and leaves the letter in it."""
    end(redis_letters)
    redis_letters.bury(second_burial())
    redis_client.zadd(Keys(namespace).letters_over, {"l-1": NOON})

    assert ["l-1"] == over(redis_letters)
    assert 0 == redis_letters.remove(["l-1"], LATER)
    assert redis_letters.get("l-1").state == "open"


@pytest.mark.redis
def test_nothing_is_left_of_what_was_removed(redis_letters, redis_client, namespace):
    """A server fills with the names of what is gone."""
    end(redis_letters)
    redis_letters.remove(["l-1"], LATER)
    redis_letters.remove_group(letter().fingerprint, LATER)

    assert [] == list(redis_client.scan_iter(f"*{namespace}*"))


@pytest.fixture
def cut_store(redis_url, namespace):
    """A store behind a proxy, its scripts known to the server."""
    with Cutter(redis_url) as cutter:
        store = redis_store(cutter.url, namespace)
        store.bury(letter("warm"))
        store.add_note("warm", "note", "ana")
        yield store, cutter
        store._client.close()


@pytest.mark.redis
def test_a_burial_whose_answer_is_lost_is_written(cut_store):
    """The client sends the script again: it must recognise its own letter."""
    store, cutter = cut_store
    cutter.lose_next_answer(b"EVALSHA")

    assert store.bury(letter()) is True
    assert cutter.lost_answers == 1
    assert letter() == store.get("l-1")


@pytest.mark.redis
def test_a_replay_whose_answer_is_lost_is_won_all_the_same(cut_store):
    """The winner would be told that somebody else has begun, and nobody would send the message."""
    store, cutter = cut_store
    store.bury(letter())
    cutter.lose_next_answer(b"replay begun")

    begun = store.begin_replay("l-1", "t-2", "ana", NOON)

    assert cutter.lost_answers == 1
    assert begun == store.get("l-1")


@pytest.mark.redis
def test_a_note_whose_answer_is_lost_is_written_once(cut_store):
    """A line for each try would make the history lie."""
    store, cutter = cut_store
    store.bury(letter())
    cutter.lose_next_answer(b"seen by ana")

    store.add_note("l-1", "seen by ana", "ana", "", NOON)

    assert cutter.lost_answers == 1
    assert [entry.what for entry in store.get("l-1").history] == ["seen by ana"]


CALLS = {
    "bury": lambda store: store.bury(letter()),
    "get": lambda store: store.get("l-1"),
    "list": lambda store: store.list(),
    "begin_replay": lambda store: store.begin_replay("l-1", "t-2", "ana", NOON),
    "resume_replay": lambda store: store.resume_replay("l-1"),
    "mark_replayed": lambda store: store.mark_replayed("l-1", "t-2", NOON),
    "close": lambda store: store.close("l-1", "done", NOON),
    "discard": lambda store: store.discard("l-1", "ana", "obsolete", NOON),
    "archive": lambda store: store.archive(["l-1"], "ana", "old", NOON),
    "restore": lambda store: store.restore(["l-1"], "ana", NOON),
    "over": lambda store: store.over(NOON),
    "remove": lambda store: store.remove(["l-1"], NOON),
    "remove_group": lambda store: store.remove_group("g", NOON),
    "add_note": lambda store: store.add_note("l-1", "note", "ana", "", NOON),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_absent_server_is_store_unavailable(call):
    """Any other error would be taken for the message's own, and the message would be acknowledged."""
    store = redis_store(f"redis://127.0.0.1:{free_port()}/0", "ns")

    with pytest.raises(StoreUnavailable):
        call(store)


@pytest.mark.redis
def test_everything_is_kept_under_the_namespace(redis_letters, redis_client, namespace):
    """A key outside the prefix is refused by an access list, and lands in another slot of a cluster."""
    redis_letters.bury(letter())

    keys, group = Keys(namespace), letter().fingerprint
    kept = {keys.letters, keys.letter("l-1"), keys.groups, keys.group(group), keys.group_letters(group)}
    kept |= {keys.term(term) for term in terms_of(letter())}
    assert kept == set(redis_client.scan_iter(f"*{namespace}*"))


@pytest.mark.redis
def test_letters_never_expire(redis_letters, redis_client, namespace):
    """A letter that vanished by itself is work lost without a trace."""
    redis_letters.bury(letter())

    assert {redis_client.ttl(key) for key in redis_client.scan_iter(f"*{namespace}*")} == {-1}


@pytest.mark.redis
def test_a_damaged_letter_does_not_hide_the_others(redis_letters, redis_client, namespace):
    """One unreadable letter would make the whole list an error page."""
    redis_letters.bury(letter("l-1"))
    redis_letters.bury(letter("l-2"))
    redis_client.hset(Keys(namespace).letter("l-1"), "letter", '{"v": 2}')

    page = redis_letters.list()

    assert ([each.id for each in page.letters], page.unreadable) == (["l-2"], ("l-1",))


@pytest.mark.redis
def test_a_damaged_letter_is_unreadable_by_its_id(redis_letters, redis_client, namespace):
    """Damage must not pass for absence."""
    redis_letters.bury(letter())
    redis_client.hset(Keys(namespace).letter("l-1"), "letter", "{")

    with pytest.raises(LetterUnreadable):
        redis_letters.get("l-1")


@pytest.mark.redis
def test_a_walk_goes_past_one_round_trip(redis_letters):
    """Letters beyond the first few hundred names would never be listed, or equal times would end the walk early."""
    for number in range(450):
        redis_letters.bury(letter(f"l-{number}", task="shop.ship" if number == 3 else "shop.charge"))

    assert len(set(walk(redis_letters, limit=150))) == 450
    assert walk(redis_letters, task="shop.ship") == ["l-3"]


@pytest.mark.redis
def test_a_reopened_letter_moves_to_the_front(redis_letters):
    """Its place in the list would still be that of the first death."""
    redis_letters.bury(letter())
    redis_letters.bury(letter("l-2", last_failed_seconds=NOON + 300))
    redis_letters.bury(second_burial())

    assert walk(redis_letters) == ["l-1", "l-2"]
