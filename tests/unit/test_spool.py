"""
The spool: what it has written is not lost by a crash at any step, and is moved to the store once.
"""

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.memory import MemoryLetterStore
from celery_safeguards.deadletter.spool import Drained, Spool, bury_somewhere
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError, StoreUnavailable
from celery_safeguards.outcome import FailureKind


def letter(letter_id="l-1", **changes):
    values = {
        "id": letter_id,
        "task": "shop.charge",
        "task_id": "t-1",
        "wire": WireMessage(body=bytes(range(256)), headers={"nul": "\x00\ud800"}),
        "kind": FailureKind.BUG,
        "effect_possible": False,
        "reason": "attempt 4 of 4",
        "first_seen_seconds": 1_700_000_000.0,
        "last_failed_seconds": 1_700_000_060.0,
        "burial": 7,
    }
    return Letter(**{**values, **changes})


class StoreThatGoesDown(MemoryLetterStore):
    """Takes some letters and is then away, as a server that dies during a drain."""

    def __init__(self, takes):
        super().__init__()
        self.takes = takes

    def bury(self, letter):
        if self.takes == 0:
            raise StoreUnavailable("away")
        self.takes -= 1
        return super().bury(letter)


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path)


@pytest.fixture
def store():
    return MemoryLetterStore()


def names(spool):
    return sorted(path.name for path in spool.directory.iterdir())


def test_a_spooled_letter_reaches_the_store_as_it_was(spool, store):
    """What failed while the store was down must be as replayable as all else."""
    spool.write(letter())

    assert Drained(moved=1, left=0) == spool.drain(store)
    assert letter() == store.get("l-1")
    assert names(spool) == []


def test_the_same_burial_is_one_file(spool):
    """A settle that is retried while the store is down would fill the disk."""
    assert spool.write(letter()) == spool.write(letter())
    assert len(names(spool)) == 1


def test_two_burials_of_one_letter_are_two_files(spool, store):
    """The later death would overwrite the earlier one, or be overwritten by a slow writer of it."""
    spool.write(letter(burial=9, error_message="second"))
    spool.write(letter(burial=7, error_message="first"))

    spool.drain(store)

    assert store.get("l-1").error_message == "second"


def test_a_dead_replay_without_a_fence_has_a_file_of_its_own(spool):
    """A drain that has just read the first file would unlink the second one unread."""
    assert spool.write(letter(burial=0)) != spool.write(letter(burial=0, task_id="t-2"))


def test_only_the_owner_may_read_a_spooled_letter(spool):
    """A letter holds the arguments of a task: names, addresses, amounts."""
    path = spool.write(letter())

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("letter_id", ["../../etc/passwd", "/etc/passwd", "..", ".", "a\x00b", "\ud800", "x" * 5_000])
def test_no_id_leads_out_of_the_directory(spool, store, letter_id):
    """A task id is chosen by whoever publishes: it must not choose the file."""
    path = spool.write(letter(letter_id))

    assert spool.directory == path.parent
    assert Drained(moved=1, left=0) == spool.drain(store)
    assert letter(letter_id) == store.get(letter_id)


def test_ids_that_look_alike_when_sanitised_are_two_files(spool):
    """One letter would overwrite the other, and its message is acknowledged."""
    assert spool.write(letter("a/b")) != spool.write(letter("a_b"))


def test_a_kill_before_the_rename_leaves_nothing_to_read(spool, store):
    """Half a letter would be moved to the store as a whole one."""
    whole = spool.write(letter()).read_bytes()
    (spool.directory / ".crashed.tmp").write_bytes(whole[:100])

    assert Drained(moved=1, left=0) == spool.drain(store)
    assert names(spool) == [".crashed.tmp"]


def test_a_kill_between_burial_and_unlink_is_repaired_by_the_next_drain(spool, store):
    """The file of a letter that is in the store already would stay for ever, or reopen it."""
    spool.write(letter())
    store.bury(letter())
    store.begin_replay("l-1", "t-2", "ana", 1_700_000_100.0)

    assert Drained(moved=1, left=0) == spool.drain(store)
    assert store.get("l-1").state == "replaying"
    assert names(spool) == []


def test_a_drain_stops_when_the_store_goes_down_and_leaves_the_rest(spool):
    """A drain that goes on would wait for every file in turn, or unlink what nobody has."""
    for number in range(5):
        os.utime(spool.write(letter(f"l-{number}")), (number, number))
    store = StoreThatGoesDown(takes=2)

    assert Drained(moved=2, left=3) == spool.drain(store)
    assert [each.id for each in store.list().letters] == ["l-1", "l-0"]
    assert len(names(spool)) == 3


def test_an_unreadable_file_is_put_aside_and_counted(spool, store):
    """One damaged file would stop every later drain."""
    spool.write(letter("l-1")).write_bytes(b"\xff{")
    spool.write(letter("l-2")).write_text("{")
    spool.write(letter("l-3"))

    assert Drained(moved=1, left=0, bad=2) == spool.drain(store)
    assert [Path(name).suffix for name in names(spool)] == [".bad", ".bad"]


def test_a_letter_of_a_newer_version_is_left_for_it(spool, store):
    """During a deploy, an old worker would put aside what a new one has written well."""
    path = spool.write(letter())
    path.write_text(path.read_text().replace('"v":1', '"v":2'))

    assert Drained(moved=0, left=1) == spool.drain(store)
    assert [path.name] == names(spool)


def test_a_directory_among_the_letters_does_not_stop_the_drain(spool, store):
    """Whatever an operator leaves in the directory, the letters must get out."""
    (spool.directory / "odd.letter").mkdir()
    spool.write(letter())

    assert Drained(moved=1, left=1) == spool.drain(store)


class Unlinking(MemoryLetterStore):
    """Stands for a second drain that moves every file while the first one works."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def bury(self, letter):
        for path in self.directory.glob("*.letter"):
            path.unlink()
        return super().bury(letter)


def test_files_that_another_drain_has_moved_are_passed_over(spool):
    """Two workers drain the same directory after the same outage."""
    for number in range(3):
        spool.write(letter(f"l-{number}"))

    assert Drained(moved=1, left=0) == spool.drain(Unlinking(spool.directory))


def write_fifty(directory, barrier):
    """Run in a process of its own: spool the same letters as everybody else."""
    spool = Spool(Path(directory))
    barrier.wait(30)
    for number in range(50):
        spool.write(letter(f"l-{number}"))


def test_two_processes_that_spool_the_same_letters_leave_whole_files(spool, store):
    """Two writers in one temporary file would leave a mixture of both."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    writers = [context.Process(target=write_fifty, args=(spool.directory, barrier)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert Drained(moved=50, left=0) == spool.drain(store)
    assert names(spool) == []


def test_a_missing_directory_is_refused_at_start(tmp_path):
    """It would be noticed at the first letter, when the store is down as well."""
    with pytest.raises(ConfigurationError, match=r"safeguards_spool_directory='.*absent': No such file"):
        Spool(tmp_path / "absent")


def test_a_file_in_place_of_the_directory_is_refused_at_start(tmp_path):
    """It would be noticed at the first letter, when the store is down as well."""
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match=r"safeguards_spool_directory='.*file': Not a directory"):
        Spool(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_writable_is_refused_at_start(tmp_path):
    """It would be noticed at the first letter, when the store is down as well."""
    tmp_path.chmod(0o500)

    with pytest.raises(ConfigurationError, match="safeguards_spool_directory"):
        Spool(tmp_path)


def test_a_letter_goes_to_the_store_while_it_is_up(spool, store):
    """A letter in a spool is invisible to the list until somebody drains it."""
    assert bury_somewhere(letter(), store, spool) == "store"
    assert letter() == store.get("l-1")
    assert names(spool) == []


def test_a_burial_that_the_store_has_already_is_known(spool, store):
    """Every redelivery of a dead message would be announced as another dead letter."""
    store.bury(letter())

    assert bury_somewhere(letter(), store, spool) == "known"


def test_a_letter_goes_to_the_spool_while_the_store_is_down(spool):
    """The failure would be recorded nowhere, and the message come back for ever."""
    assert bury_somewhere(letter(), StoreThatGoesDown(takes=0), spool) == "spool"
    assert len(names(spool)) == 1


def test_a_store_that_is_known_to_be_away_is_not_asked(spool):
    """Each letter of an outage would wait for the store's timeout anew."""
    assert bury_somewhere(letter(), None, spool) == "spool"

    with pytest.raises(StoreUnavailable):
        bury_somewhere(letter(), None, None)


def test_without_a_spool_the_caller_learns_that_nobody_has_the_letter():
    """The message would be acknowledged before its outcome is durable."""
    with pytest.raises(StoreUnavailable):
        bury_somewhere(letter(), StoreThatGoesDown(takes=0), None)


def test_a_spool_that_cannot_write_is_unavailable_too(tmp_path):
    """An error of another class would be taken for the message's own, and the message would be acknowledged."""
    directory = tmp_path / "spool"
    directory.mkdir()
    spool = Spool(directory)
    directory.rmdir()

    with pytest.raises(StoreUnavailable, match="spool"):
        bury_somewhere(letter(), StoreThatGoesDown(takes=0), spool)
