"""
The store's epoch as publishers stamp it into messages.

A message whose epoch is not the store's proves that the store has forgotten what it knew of it. The epoch is asked for
once in a while, not for each message: right after a wipe a publisher may stamp the old one for `KEEP_SECONDS`, and such
a message is treated as one that may have been started, which errs on the safe side.
"""

from celery_safeguards.admission.store import AdmissionStore
from celery_safeguards.clock import Clock
from celery_safeguards.errors import StoreUnavailable

KEEP_SECONDS = 30.0
AWAY_SECONDS = 5.0


class PublisherEpoch:
    """
    The epoch, remembered for a while.

    Safe when: shared by threads; two of them may ask the store at once.
    """

    def __init__(self, store: AdmissionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._epoch: str | None = None
        self._ask_again_at = 0.0

    def get(self) -> str | None:
        """Return the epoch; None while the store is away: publishing does not depend on it."""
        now = self._clock.monotonic_seconds()
        if now >= self._ask_again_at:
            try:
                self._epoch, keep = self._store.view().epoch, KEEP_SECONDS
            except StoreUnavailable:
                self._epoch, keep = None, AWAY_SECONDS
            self._ask_again_at = now + keep
        return self._epoch
