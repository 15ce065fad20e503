"""One business operation, done once."""

from dataclasses import KW_ONLY, dataclass

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.decide import OnDead, OnUnknown
from celery_safeguards.ledger.key import KeyTemplate
from celery_safeguards.policy._checks import UNSET, Unset, choice, number
from celery_safeguards.policy.verdict import Verify

WEEK_SECONDS = 604_800.0

_ON_UNKNOWN_MISSING = """\
Idempotent({key!r}) needs on_unknown= or atomic=: what to do when the body was started and nobody knows how it ended.
  on_unknown="rerun"       doing it twice is harmless, or the other side honours the idempotency key.
  on_unknown=Verify(find)  the other side can be asked whether it happened, and is asked before anything runs again.
  on_unknown="quarantine"  only a person can tell, and the work waits for that person as a dead letter.
  atomic="default"         all it does is in that database, in one transaction with its record."""


@dataclass(frozen=True, slots=True)
class Idempotent:
    """
    One business operation, done once: a duplicate gets the stored result and has no second effect.

    Args:
        key: template over the task's parameters, such as `"payment:{order_id}"`. It names the business operation;
            a random or time-based value would make every publish a new one.
        on_unknown: `"rerun"`, `"quarantine"` or `Verify(...)`; required unless `atomic` is given.
        atomic: alias of a database. Claim, body and outcome are one transaction there, and what the body publishes is
            sent after its COMMIT: all of it happens once, or nothing does. Only for bodies whose every effect is in
            that database; see `admission/atomic.py`.
        on_dead: what a new publication of dead work gets: `"refuse"` (fails, naming the letter), `"run"` (a new
            series, asking first if an effect is possible) or `"attach"` (fails, noted on the letter).
        scope: separates equal keys of different tasks; the task's name unless given. Give one to share keys between
            tasks, or to rename a task without forgetting its records.
        fingerprint: parameters that must be equal for equal keys; all of them unless given. Another payload under the
            same key is a conflict and is never run.
        retention_seconds: how long a finished record is kept: longer than the longest ETA, all retries and the
            broker's redelivery together. Beyond it a unique constraint in your database is the fence.
        quiet_seconds: with `"quarantine"`, how long a request of a lost start may still be in flight: a person's word
            that nothing happened does not count before. `Verify` has `after_seconds` for that.
        store_result: False keeps the result out of the store: a duplicate then gets a marker, not the value.

    """

    key: str
    _: KW_ONLY
    on_unknown: Verify | OnUnknown | str | Unset = UNSET
    atomic: str | None = None
    on_dead: OnDead | str = OnDead.REFUSE
    scope: str | None = None
    fingerprint: tuple[str, ...] | None = None
    retention_seconds: float = WEEK_SECONDS
    quiet_seconds: float = 30.0
    store_result: bool = True

    def __post_init__(self) -> None:
        KeyTemplate(self.key)
        if self.atomic is not None:
            self._check_atomic()
        elif self.on_unknown is UNSET:
            raise ConfigurationError(_ON_UNKNOWN_MISSING.format(key=self.key))
        elif not isinstance(self.on_unknown, Verify):
            if self.on_unknown == OnUnknown.VERIFY:
                raise ConfigurationError('Idempotent.on_unknown="verify": give Verify(find, after_seconds=...)')
            object.__setattr__(self, "on_unknown", choice("Idempotent.on_unknown", self.on_unknown, OnUnknown))
        object.__setattr__(self, "on_dead", choice("Idempotent.on_dead", self.on_dead, OnDead))
        if self.scope is not None and (not isinstance(self.scope, str) or not self.scope or "#" in self.scope):
            raise ConfigurationError(f"Idempotent.scope={self.scope!r}: give a name without '#'")
        if self.fingerprint is not None and not _is_names(self.fingerprint):
            raise ConfigurationError(f"Idempotent.fingerprint={self.fingerprint!r}: give a tuple of parameter names")
        number("Idempotent.retention_seconds", self.retention_seconds, at_least=1)
        if not isinstance(self.store_result, bool):
            raise ConfigurationError(f"Idempotent.store_result={self.store_result!r}: give True or False")
        number("Idempotent.quiet_seconds", self.quiet_seconds, at_least=0)

    def _check_atomic(self) -> None:
        if not isinstance(self.atomic, str) or not self.atomic:
            raise ConfigurationError(f"Idempotent.atomic={self.atomic!r}: give the alias of a database")
        if self.on_unknown is not UNSET:
            raise ConfigurationError(
                f"Idempotent(atomic={self.atomic!r}, on_unknown={self.on_unknown!r}): in one transaction nothing is "
                "unknown; leave on_unknown out, or atomic, if the body has effects outside of that database"
            )

    @property
    def verify(self) -> Verify | None:
        """The function to ask, where `on_unknown` names one."""
        return self.on_unknown if isinstance(self.on_unknown, Verify) else None


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(each, str) for each in value)
