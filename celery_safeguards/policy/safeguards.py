"""Everything one task asks for, joined by one rule; see the package."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.decide import LedgerPolicy, OnDead, OnUnknown
from celery_safeguards.policy._checks import UNSET, Unset, choice, number
from celery_safeguards.policy.entity_lock import EntityLock
from celery_safeguards.policy.idempotent import Idempotent
from celery_safeguards.retry.policy import RetryPolicy


class OnStoreDown(StrEnum):
    """What keyed work does while the store does not answer."""

    WAIT = "wait"
    RUN_UNPROTECTED = "run_unprotected"


_DECLARATIONS = ("idempotent", "repeatable", "at_most_once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Safeguards:
    """
    Everything one task asks for; what is left out takes its default when the task is registered.

    Args:
        idempotent: the task has a key, and duplicates of it are answered from its record.
        repeatable: running the body twice is harmless.
        at_most_once: acknowledge before the body runs: it may be lost, it is not repeated.
        retry: the policy for failed attempts. Defaults to `RetryPolicy()` with `idempotent` or `repeatable`, else to
            None: no automatic retry.
        lock: `EntityLock(...)`: one start of all that name the same entity runs at a time.
        ensure: post-condition, called with the result and those of the task's arguments that it names, before success
            is recorded. False or an exception makes a dead letter of kind `invariant`.
        on_store_down: `"wait"`, or `"run_unprotected"` where running twice is better than running late.
        max_lost_starts: starts without an outcome before the message counts as poison. Defaults to 3.
        max_lease_seconds: how long one start may hold its claim. Defaults to the hard time limit and 30 s more, or
            one hour where there is none.

    """

    idempotent: Idempotent | Unset = UNSET
    repeatable: bool | Unset = UNSET
    at_most_once: bool | Unset = UNSET
    lock: EntityLock | Unset | None = UNSET
    retry: RetryPolicy | Unset | None = UNSET
    ensure: Callable[..., Any] | Unset | None = UNSET
    on_store_down: OnStoreDown | str | Unset = UNSET
    max_lost_starts: int | Unset = UNSET
    max_lease_seconds: float | Unset = UNSET

    def __post_init__(self) -> None:
        self._check_declaration()
        if self.retry is not None and not isinstance(self.retry, RetryPolicy | Unset):
            raise ConfigurationError(f"Safeguards.retry={self.retry!r}: give RetryPolicy(...) or None")
        if self.lock is not None and not isinstance(self.lock, EntityLock | Unset):
            raise ConfigurationError(f"Safeguards.lock={self.lock!r}: give EntityLock(...) or None")
        if self.ensure is not None and self.ensure is not UNSET and not callable(self.ensure):
            raise ConfigurationError(f"Safeguards.ensure={self.ensure!r}: give a function of the result")
        if self.on_store_down is not UNSET:
            chosen = choice("Safeguards.on_store_down", self.on_store_down, OnStoreDown)
            object.__setattr__(self, "on_store_down", chosen)
        if self.max_lost_starts is not UNSET:
            number("Safeguards.max_lost_starts", self.max_lost_starts, at_least=1, whole=True)
        if self.max_lease_seconds is not UNSET:
            number("Safeguards.max_lease_seconds", self.max_lease_seconds, at_least=1)

    def _check_declaration(self) -> None:
        for name in ("repeatable", "at_most_once"):
            if not isinstance(getattr(self, name), bool | Unset):
                raise ConfigurationError(f"Safeguards.{name}={getattr(self, name)!r}: give True or False")
        if not isinstance(self.idempotent, Idempotent | Unset):
            raise ConfigurationError(f"Safeguards.idempotent={self.idempotent!r}: give Idempotent(...)")
        declared = self.declared()
        if len(declared) > 1:
            raise ConfigurationError(f"Safeguards({' and '.join(declared)}): declare one of them")
        is_atomic = isinstance(self.idempotent, Idempotent) and self.idempotent.atomic is not None
        if is_atomic and self.on_store_down == OnStoreDown.RUN_UNPROTECTED:
            raise ConfigurationError(
                "Safeguards(idempotent=Idempotent(atomic=...), on_store_down='run_unprotected'): its record is in the "
                "very database that its body needs; leave on_store_down out"
            )
        if self.at_most_once is True and isinstance(self.retry, RetryPolicy):
            raise ConfigurationError(
                "Safeguards(at_most_once=True, retry=RetryPolicy(...)): work that is repeated runs more than once; "
                "leave retry out, or declare repeatable=True"
            )

    def __or__(self, later: "Safeguards") -> "Safeguards":
        """Return these safeguards with what the later ones set."""
        if not isinstance(later, Safeguards):
            return NotImplemented
        ours, theirs = self.given(), later.given()
        if later.declared():
            ours = {name: value for name, value in ours.items() if name not in _DECLARATIONS}
        return Safeguards(**{**ours, **theirs})

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not UNSET}

    def declared(self) -> list[str]:
        """Return which of the three declarations is set."""
        return [name for name in _DECLARATIONS if getattr(self, name) not in (UNSET, False)]


class Declared(StrEnum):
    """What a task says of being run twice."""

    NOTHING = "nothing"
    IDEMPOTENT = "idempotent"
    REPEATABLE = "repeatable"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A task's safeguards with every default filled in."""

    declared: Declared
    idempotent: Idempotent | None
    lock: EntityLock | None
    retry: RetryPolicy | None
    ensure: Callable[..., Any] | None
    on_store_down: OnStoreDown
    max_lost_starts: int
    max_lease_seconds: float | None

    @classmethod
    def of(cls, safeguards: Safeguards) -> "Policy":
        """Fill in the defaults."""
        given = safeguards.given()
        declared = Declared((safeguards.declared() or ["nothing"])[0])
        repeats = declared in {Declared.IDEMPOTENT, Declared.REPEATABLE}
        return cls(
            declared=declared,
            idempotent=given.get("idempotent"),
            lock=given.get("lock"),
            retry=given.get("retry", RetryPolicy() if repeats else None),
            ensure=given.get("ensure"),
            on_store_down=given.get("on_store_down", OnStoreDown.WAIT),
            max_lost_starts=given.get("max_lost_starts", 3),
            max_lease_seconds=given.get("max_lease_seconds"),
        )

    def ledger(self) -> LedgerPolicy:
        """Return the part that admission rests on; only for an idempotent task."""
        if self.idempotent is None:
            raise ConfigurationError("only an idempotent task has a ledger policy")
        verify = self.idempotent.verify
        on_unknown = OnUnknown.VERIFY if verify else self.idempotent.on_unknown
        if self.idempotent.atomic is not None:
            # Only a start from before the task was atomic can be unknown, and then nobody has said what it may do.
            on_unknown = OnUnknown.QUARANTINE
        return LedgerPolicy(
            on_unknown=OnUnknown(str(on_unknown)),
            on_dead=OnDead(self.idempotent.on_dead),
            quiet_seconds=verify.after_seconds if verify else self.idempotent.quiet_seconds,
            attempts=self.retry.most_attempts if self.retry else None,
            max_lost_starts=self.max_lost_starts,
        )
