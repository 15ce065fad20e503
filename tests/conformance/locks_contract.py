"""
What every store of locks must do: subclass `LockStoreContract`, and give a fixture `under_test` (`stores.py`).

    class TestMyLocks(LockStoreContract):
        @pytest.fixture
        def under_test(self):
            with my_store_under_test() as under_test:
                yield under_test

Each test stands for a sentence of the port's docstrings in `locks/store.py` and, where a lock goes with a claim, in
`admission/store.py`. By subject, in `locks/`:

    holding   who holds a lock, releases and renews it       names   whatever users put into names and texts
    fences    what tells two owners apart                    claims  a claim and its lock: both or neither
    lines     waiting in turn                                ending  the outcome of a claim, and its lock
    keeping   a lock that is kept for a moment
    epochs    a store that is new or was away
"""

import pytest

from tests.conformance.locks.claims import ClaimsWithLocks
from tests.conformance.locks.ending import EndingWithLocks
from tests.conformance.locks.epochs import Outages, Wipes
from tests.conformance.locks.fences import LockFences
from tests.conformance.locks.holding import Holding, Releasing, RenewingLocks
from tests.conformance.locks.keeping import Keeping
from tests.conformance.locks.lines import Leaving, Lines, Waking
from tests.conformance.locks.names import Names, Texts


class LocksAlone(
    Holding, Releasing, RenewingLocks, LockFences, Lines, Leaving, Waking, Keeping, Outages, Wipes, Names, Texts
):
    """What is true of locks by themselves."""

    @pytest.fixture
    def locks(self, under_test):
        return under_test.locks


class LockStoreContract(LocksAlone, ClaimsWithLocks, EndingWithLocks):
    """The whole contract: a store that passes it can hold the locks of every worker."""

    @pytest.fixture
    def store(self, under_test):
        return under_test.store
