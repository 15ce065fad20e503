"""One owner at a time for each entity."""

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.key import KeyTemplate
from celery_safeguards.policy._checks import UNSET, Unset, choice, number

WAIT_SECONDS = 10.0
LEAST_LEASE_SECONDS = 1.0


class Busy(StrEnum):
    """What a task does that finds its lock held by somebody else."""

    DEFER = "defer"
    WAIT = "wait"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class EntityLock:
    """
    Serialises work on one entity: of all who name the same one, one at a time holds its lock.

    The lock is renewed while the body runs. An owner that was frozen past its lease can neither release nor renew what
    another has by then; `self.safe.checkpoint()` tells it, its outcome is refused, and a write that is compared with
    `self.safe.lock.token` is refused once the newer owner has written.

    A lock orders work, it does not count it: a duplicate that comes after the first has ended runs again. For that
    there is `Idempotent`; a task may have both.

    Args:
        key: template over the task's parameters, such as `"order:{order_id}"`. It names the entity, for every task
            that locks it; without a field, all calls exclude each other.
        scope: separates locks of equal keys; none unless given, so that all tasks that lock an order exclude each
            other.
        lease_seconds: how long the lock is held without renewal: so long nobody else works after its owner was lost.
            It is renewed every third of this.
        max_hold_seconds: how long it is renewed; the task's time budget unless given. After that it may go to another
            while the body still runs.
        busy: `"defer"` puts the message off, and no worker waits; `"wait"` holds the pool's child until the lock is
            free; `"skip"` ends the task as succeeded with `skip_result`, its body not run.
        wait_seconds: with `"wait"`, for how long; then the message is put off. 10 unless given.
        skip_result: with `"skip"`, what the task returns; None unless given.

    """

    key: str
    _: KW_ONLY
    scope: str | None = None
    lease_seconds: float = 30.0
    max_hold_seconds: float | None = None
    busy: Busy | str = Busy.DEFER
    wait_seconds: float | Unset = UNSET
    skip_result: Any = UNSET

    def __post_init__(self) -> None:
        KeyTemplate(self.key, may_be_constant=True)
        if self.scope is not None and (not isinstance(self.scope, str) or not self.scope or "#" in self.scope):
            raise ConfigurationError(f"EntityLock.scope={self.scope!r}: give a name without '#'")
        number("EntityLock.lease_seconds", self.lease_seconds, at_least=LEAST_LEASE_SECONDS)
        if self.max_hold_seconds is not None:
            number("EntityLock.max_hold_seconds", self.max_hold_seconds, at_least=self.lease_seconds)
        object.__setattr__(self, "busy", choice("EntityLock.busy", self.busy, Busy))
        if self.wait_seconds is not UNSET:
            if self.busy is not Busy.WAIT:
                raise ConfigurationError(f'EntityLock.wait_seconds={self.wait_seconds!r} needs busy="wait"')
            number("EntityLock.wait_seconds", self.wait_seconds, at_least=0)
        if self.skip_result is not UNSET and self.busy is not Busy.SKIP:
            raise ConfigurationError(f'EntityLock.skip_result={self.skip_result!r} needs busy="skip"')

    @property
    def patience_seconds(self) -> float:
        """For how long a busy lock is waited for."""
        if self.busy is not Busy.WAIT:
            return 0.0
        return WAIT_SECONDS if isinstance(self.wait_seconds, Unset) else self.wait_seconds

    @property
    def result_if_skipped(self) -> Any:
        """What a skipped task returns."""
        return None if self.skip_result is UNSET else self.skip_result
