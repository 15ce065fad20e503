"""
What a task asks for: frozen values, checked when they are made, reusable and comparable.

    PAYMENTS = Safeguards(retry=RetryPolicy(attempts=6))

    @shared_task(base=SafeTask, bind=True, safeguards=PAYMENTS | Safeguards(
        idempotent=Idempotent("payment:{order_id}", on_unknown=Verify(find_payment, after_seconds=30)),
    ))
    def charge(self, order_id): ...

One rule joins values, for `|`, for class attributes along the inheritance and for the decorator's option: what the
later one sets wins, what it leaves out stays. A task declares one of `idempotent`, `repeatable` and `at_most_once`;
setting one of them in a later value replaces the earlier declaration.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from enum import Enum, StrEnum
from typing import Any, Final, TypeVar

from celery_safeguards.errors import ConfigurationError, nearest
from celery_safeguards.ledger.decide import LedgerPolicy, OnDead, OnUnknown
from celery_safeguards.ledger.key import KeyTemplate
from celery_safeguards.retry.policy import RetryPolicy

WEEK_SECONDS = 604_800.0
_E = TypeVar("_E", bound=StrEnum)


class Unset(Enum):
    """Stands for an option that was not given, where None means something."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Happened:
    """
    The outside effect took place; the body need not run.

    Args:
        result: what the task returns then.

    """

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The outside effect did not take place and no request of it is on its way: the body may start."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """The other side could not be asked, or its answer is no answer: ask again later, then a person."""

    reason: str = ""


Verdict = Happened | DidNotHappen | CannotTell


@dataclass(frozen=True, slots=True)
class Verify:
    """
    Ask the outside whether an attempt with an unknown end took effect, before anything is started again.

    Args:
        find: called with those of the task's arguments that it names, and, if it names them, `idempotency_key` and
            `step`. Returns `Happened(result)`, `DidNotHappen()` or `CannotTell()`; an exception counts as the last.
        after_seconds: how long the outside call may still be in flight after its sender was lost: the longest life of
            one request. The answer is exact if nothing lands later than that.
        asks: how often an unclear answer is asked for again before a person must decide.

    """

    find: Callable[..., Verdict]
    _: KW_ONLY
    after_seconds: float = 30.0
    asks: int = 5

    def __post_init__(self) -> None:
        if not callable(self.find):
            raise ConfigurationError(f"Verify(find={self.find!r}): give a function that returns Happened, DidNotHappen")
        _number("Verify.after_seconds", self.after_seconds, at_least=0)
        _number("Verify.asks", self.asks, at_least=1, whole=True)


_ON_UNKNOWN_MISSING = """\
Idempotent({key!r}) needs on_unknown=: what to do when the body was started and nobody knows how it ended.
  on_unknown="rerun"       doing it twice is harmless, or the other side honours the idempotency key.
  on_unknown=Verify(find)  the other side can be asked whether it happened, and is asked before anything runs again.
  on_unknown="quarantine"  only a person can tell, and the work waits for that person as a dead letter."""


@dataclass(frozen=True, slots=True)
class Idempotent:
    """
    One business operation, done once: a duplicate gets the stored result and has no second effect.

    Args:
        key: template over the task's parameters, such as `"payment:{order_id}"`. It names the business operation;
            a random or time-based value would make every publish a new one.
        on_unknown: `"rerun"`, `"quarantine"` or `Verify(...)`; required.
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
    on_dead: OnDead | str = OnDead.REFUSE
    scope: str | None = None
    fingerprint: tuple[str, ...] | None = None
    retention_seconds: float = WEEK_SECONDS
    quiet_seconds: float = 30.0
    store_result: bool = True

    def __post_init__(self) -> None:
        KeyTemplate(self.key)
        if self.on_unknown is UNSET:
            raise ConfigurationError(_ON_UNKNOWN_MISSING.format(key=self.key))
        if not isinstance(self.on_unknown, Verify):
            if self.on_unknown == OnUnknown.VERIFY:
                raise ConfigurationError('Idempotent.on_unknown="verify": give Verify(find, after_seconds=...)')
            object.__setattr__(self, "on_unknown", _choice("Idempotent.on_unknown", self.on_unknown, OnUnknown))
        object.__setattr__(self, "on_dead", _choice("Idempotent.on_dead", self.on_dead, OnDead))
        if self.scope is not None and (not isinstance(self.scope, str) or not self.scope or "#" in self.scope):
            raise ConfigurationError(f"Idempotent.scope={self.scope!r}: give a name without '#'")
        if self.fingerprint is not None and not _is_names(self.fingerprint):
            raise ConfigurationError(f"Idempotent.fingerprint={self.fingerprint!r}: give a tuple of parameter names")
        _number("Idempotent.retention_seconds", self.retention_seconds, at_least=1)
        if not isinstance(self.store_result, bool):
            raise ConfigurationError(f"Idempotent.store_result={self.store_result!r}: give True or False")
        _number("Idempotent.quiet_seconds", self.quiet_seconds, at_least=0)

    @property
    def verify(self) -> Verify | None:
        """The function to ask, where `on_unknown` names one."""
        return self.on_unknown if isinstance(self.on_unknown, Verify) else None


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
    retry: RetryPolicy | Unset | None = UNSET
    ensure: Callable[..., Any] | Unset | None = UNSET
    on_store_down: OnStoreDown | str | Unset = UNSET
    max_lost_starts: int | Unset = UNSET
    max_lease_seconds: float | Unset = UNSET

    def __post_init__(self) -> None:
        self._check_declaration()
        if self.retry is not None and not isinstance(self.retry, RetryPolicy | Unset):
            raise ConfigurationError(f"Safeguards.retry={self.retry!r}: give RetryPolicy(...) or None")
        if self.ensure is not None and self.ensure is not UNSET and not callable(self.ensure):
            raise ConfigurationError(f"Safeguards.ensure={self.ensure!r}: give a function of the result")
        if self.on_store_down is not UNSET:
            choice = _choice("Safeguards.on_store_down", self.on_store_down, OnStoreDown)
            object.__setattr__(self, "on_store_down", choice)
        if self.max_lost_starts is not UNSET:
            _number("Safeguards.max_lost_starts", self.max_lost_starts, at_least=1, whole=True)
        if self.max_lease_seconds is not UNSET:
            _number("Safeguards.max_lease_seconds", self.max_lease_seconds, at_least=1)

    def _check_declaration(self) -> None:
        for name in ("repeatable", "at_most_once"):
            if not isinstance(getattr(self, name), bool | Unset):
                raise ConfigurationError(f"Safeguards.{name}={getattr(self, name)!r}: give True or False")
        if not isinstance(self.idempotent, Idempotent | Unset):
            raise ConfigurationError(f"Safeguards.idempotent={self.idempotent!r}: give Idempotent(...)")
        declared = self.declared()
        if len(declared) > 1:
            raise ConfigurationError(f"Safeguards({' and '.join(declared)}): declare one of them")
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
        return LedgerPolicy(
            on_unknown=OnUnknown.VERIFY if verify else OnUnknown(str(self.idempotent.on_unknown)),
            on_dead=OnDead(self.idempotent.on_dead),
            quiet_seconds=verify.after_seconds if verify else self.idempotent.quiet_seconds,
            attempts=self.retry.most_attempts if self.retry else None,
            max_lost_starts=self.max_lost_starts,
        )


def call_with_named(function: Callable[..., Any], first: tuple[Any, ...], offered: Mapping[str, Any]) -> Any:
    """Call a user's function with `first` and those of the offered arguments that its parameters name."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return function(*first, **offered)
    named = [each.name for each in parameters if each.kind not in {each.VAR_POSITIONAL, each.POSITIONAL_ONLY}]
    return function(*first, **{name: offered[name] for name in named[len(first) :] if name in offered})


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(each, str) for each in value)


def _choice(field: str, value: object, choices: type[_E]) -> _E:
    try:
        return choices(str(value))
    except ValueError:
        names = [choice.value for choice in choices]
        raise ConfigurationError(f"{field}={value!r}: choose from {names}{nearest(value, names)}") from None


def _number(field: str, value: object, *, at_least: float, whole: bool = False) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not at_least <= value < float("inf"):
        raise ConfigurationError(f"{field}={value!r}: give {'a whole number' if whole else 'a number'} >= {at_least}")
