"""
The main processes: each renews its children's claims by a real `Keeper`, over a way to the store that can be cut.
"""

import contextlib
import random

from celery_safeguards.admission.epoch import PublisherEpoch
from celery_safeguards.admission.starts import MemoryStartCounter
from celery_safeguards.conf import Settings
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.jobs.memory import MemoryJobStore
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.keeper import Keeper
from tests.conformance.stores import LEASE_SECONDS


class Link:
    """A worker's way to the store, which can be cut; the store itself is behind it, unchanged."""

    def __init__(self, store):
        self._store = store
        self.is_cut = False

    def __getattr__(self, name):
        if name == "lease_seconds":
            return self._store.lease_seconds

        def call(*args, **options):
            if self.is_cut:
                raise StoreUnavailable("the way to the store is cut")
            return getattr(self._store, name)(*args, **options)

        return call


class Workers:
    """
    The workers by their numbers.

    Args:
        kill: how a parent ends the child in a slot; None: it does not.

    """

    def __init__(self, numbers, store, letters, clock, kill):
        self._letters, self._clock, self._kill = letters, clock, kill
        self._wirings = {}
        self.links = {number: Link(store) for number in numbers}
        self.stalled = set()
        self.keepers = {}
        for number in numbers:
            self.start(number)

    def start(self, number):
        """Start a worker, with a parent that knows of no claim."""
        link = self.links[number]
        self._wirings[number] = Wiring(
            settings=Settings(lease_seconds=LEASE_SECONDS),
            admission=link,
            locks=None,
            starts=MemoryStartCounter(),
            letters=self._letters,
            jobs=MemoryJobStore(),
            spool=None,
            epoch=PublisherEpoch(link, self._clock),
            clock=self._clock,
            chance=random.Random(0),
        )
        self.keepers[number] = Keeper(self._wirings[number], self._kill)
        self.keepers[number].tick()  # a worker is heard before its first message

    def wiring_of(self, run):
        """Return the wiring of a run's worker."""
        return self._wirings[run.worker]

    def tick(self):
        """Let every healthy parent renew."""
        for number, keeper in self.keepers.items():
            if number not in self.stalled:
                keeper.tick()

    def wake(self, number):
        """Let a stalled worker go on."""
        self.stalled.discard(number)
        self.keepers[number].tick()

    @contextlib.contextmanager
    def cut_off(self, numbers):
        """Cut these workers off from the store for a while."""
        for number in numbers:
            self.links[number].is_cut = True
        try:
            yield
        finally:
            for number in numbers:
                self.links[number].is_cut = False
