"""
What every counter of lost starts must do.
"""

import threading

import pytest

from celery_safeguards.admission.starts import MemoryStartCounter, RedisStartCounter
from tests.conformance import stores

RACERS = 8


@pytest.fixture(params=stores.ALL)
def starts(request):
    with stores.opened(request, request.param) as under_test:
        if request.param == "memory":
            yield MemoryStartCounter()
        elif request.param == "redis":
            yield RedisStartCounter(under_test.store._client, under_test.keys)
        else:
            yield under_test.starts


def test_starts_add_up_to_the_limit(starts):
    """A message that kills its process would be started for ever, or buried too early."""
    assert [1, 2, 3, None, None] == [starts.begin("t-1", 3) for _ in range(5)]
    assert 3 == starts.read("t-1")


def test_an_outcome_forgets_the_count(starts):
    """Prefetched messages of a worker that was restarted often would end as poison."""
    starts.begin("t-1", 3)
    starts.end("t-1")

    assert (0, 1) == (starts.read("t-1"), starts.begin("t-1", 3))


def test_messages_are_counted_apart(starts):
    """One bad message would bury its neighbours."""
    starts.begin("t-1", 3)

    assert 0 == starts.read("t-2")


def test_what_was_never_started_can_end(starts):
    """The first delivery, which is not counted, ends like all others."""
    starts.end("t-1")

    assert 0 == starts.read("t-1")


@pytest.mark.parametrize("task_id", ["x" * 5_000, "nul \x00", "half \ud83d a pair"], ids=["long", "NUL", "half-a-pair"])
def test_any_text_is_a_task_id(starts, task_id):
    """A foreign producer chooses its task ids: none may keep its starts from being counted."""
    if "\ud83d" in task_id and isinstance(starts, RedisStartCounter):
        pytest.skip("text that is not Unicode does not come out of a Redis broker")

    assert (1, 2) == (starts.begin(task_id, 3), starts.begin(task_id, 3))
    assert 0 == starts.read(task_id + "y")


def test_starts_at_once_are_all_counted(starts):
    """Two workers that get one message would count one start."""
    barrier, counts = threading.Barrier(RACERS), []

    def run():
        barrier.wait()
        counts.append(starts.begin("t-1", RACERS))

    threads = [threading.Thread(target=run) for _ in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(range(1, RACERS + 1)) == sorted(counts)


def test_start_that_was_put_off_is_taken_back_alone(starts):
    """Those before it have had no outcome: a message that is put off now and then would never be poison."""
    starts.begin("t-1", 3)
    starts.begin("t-1", 3)

    starts.undo("t-1", 2)
    starts.undo("t-1", 2)

    assert (1, 2) == (starts.read("t-1"), starts.begin("t-1", 3))


def test_start_that_was_put_off_takes_back_no_later_one(starts):
    """Which of two starts was lost nobody can tell: one too many is the safe side."""
    starts.begin("t-1", 3)
    starts.begin("t-1", 3)

    starts.undo("t-1", 1)

    assert 2 == starts.read("t-1")
