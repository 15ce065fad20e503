"""
Names and texts: whatever users put into them, a lock is found again by its name, and only by its own.
"""

import pytest

from tests.conformance.locks.calls import acquired, ask, in_line, is_given, waiters

NAMES = {
    "a space": "order 7",
    "line breaks": "order\n7\r\n8",
    "what a pattern is made of": "or*der:[7]?\\{x}^-",
    "what our own keys are made of": "{sg:ns:0}:lock:v1:order",
    "no ASCII": "заказ:7 - 注文 ✓ 👩🏽‍🚀",
    "a null character": "order\x007",
    "nothing": "",
    "a quote": "order'\"7",
    "a megabyte": "o" * 1_000_000,
    "long, of three bytes each": "注" * 400,
    "long, of four bytes each": "🚀" * 150,
    "of the longest readable length": "o" * 200,
    "one longer than that": "o" * 201,
}
TEXTS = {
    "task": "shop.charge\nshop.refund",
    "task_id": "a b c",
    "host": "хост-1 \t",
    "note": '"quoted" \\ {} \x00 👩🏽‍🚀',
    "pid": 7,
    "empty": "",
}


class Names:
    """Names with any text in them."""

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_a_lock_is_itself_whatever_its_name(self, locks, name):
        """One entity in a thousand would not be locked, or not be freed."""
        held = acquired(locks, "A", name)

        assert (name, name) == (held.name, locks.read(name)[0].name)
        assert "A" == locks.read(name)[0].owner
        in_line(locks, "B", name)
        assert ["B"] == waiters(locks, name)
        assert [True] == locks.renew([held])
        locks.release(held)
        assert is_given(locks, "B", name)

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_a_lock_is_found_by_the_name_that_is_listed(self, locks, name):
        """A person could see a lock in the list and neither look at it nor release it."""
        held = acquired(locks, "A", name)
        in_line(locks, "B", name)

        (listed,) = locks.names()

        state, _ = locks.read(listed)
        assert ("A", held.fence, {"task_id": "A"}) == (state.owner, state.fence, state.holder)
        assert ["B"] == waiters(locks, listed)

    def test_all_names_are_listed_and_nothing_else(self, locks):
        """A person who looks for an orphan would miss it, or be shown what is no lock."""
        names = {name for name in NAMES.values() if len(name.encode()) <= 200}
        for name in names:
            acquired(locks, f"owner of {len(name)}", name)

        assert names == set(locks.names())

    def test_a_released_lock_is_still_listed(self, locks):
        """Who waits for a lock that is kept for somebody could not be seen."""
        locks.release(acquired(locks))

        assert ["order:7"] == list(locks.names())

    def test_long_names_that_begin_alike_do_not_meet(self, locks):
        """Two entities would wait for each other."""
        acquired(locks, "A", "注" * 400 + "1")

        assert is_given(locks, "B", "注" * 400 + "2")


class Texts:
    """What a lock says of its holder."""

    def test_the_holders_texts_are_told_as_they_were_given(self, locks):
        """A line break in a task's name would end the head of the lock, and make it nobody's."""
        held = locks.acquire(ask("A", **TEXTS)).held

        assert TEXTS == locks.read(held.name)[0].holder
        assert TEXTS == locks.acquire(ask("B")).state.holder
        assert [True] == locks.renew([held])
        locks.release(held)
        assert TEXTS == locks.read(held.name)[0].holder

    def test_the_texts_of_who_waits_are_told_as_they_were_given(self, locks):
        """A space in a host's name would shift all that comes after it."""
        acquired(locks)
        locks.acquire(ask("B", **TEXTS), wait=True)

        assert [TEXTS] == [each.holder for each in locks.waiting("order:7")]

    def test_a_lock_that_is_written_back_has_its_texts(self, under_test):
        """After a wipe nobody could say who holds it."""
        held = under_test.locks.acquire(ask("A", **TEXTS)).held
        under_test.wipe()

        under_test.locks.renew([held])

        assert TEXTS == under_test.locks.read(held.name)[0].holder
