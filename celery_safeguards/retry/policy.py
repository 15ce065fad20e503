"""
What a task asks for: how often its body may start, how long to wait between two starts, and when to stop.

The values are frozen and shared by every run of the task. Nothing about a run is ever written to them or to the task:
Celery keeps its own back-off state on the task object, and concurrent runs then use each other's delay
(celery/celery#10456). What can never hold is refused when the value is made, so at import; what is odd but may be meant
is a finding at worker start (`findings.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry._fields import check_field, choice, is_number
from celery_safeguards.retry.backoff import Jitter, delay_bounds
from celery_safeguards.retry.rules import RetryRule, Rule, checked_rules

_BACKOFF_FIELDS = ("attempts", "base_seconds", "factor", "cap_seconds", "floor_seconds", "jitter_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOverride:
    """
    What one kind of failure changes in a `RetryPolicy`; the fields mean the same there, and None leaves one as it is.

    Raises:
        ConfigurationError: a field that cannot hold, or nothing changed.

    """

    attempts: int | None = None
    base_seconds: float | None = None
    factor: float | None = None
    cap_seconds: float | None = None
    floor_seconds: float | None = None
    jitter: Jitter | str | None = None
    jitter_ratio: float | None = None

    def __post_init__(self) -> None:
        given = self.given()
        if not given:
            raise ConfigurationError("RetryOverride(): changes nothing; give attempts, base_seconds or another field")
        for name in _BACKOFF_FIELDS:
            if name in given:
                check_field("RetryOverride", name, given[name])
        if self.jitter is not None:
            object.__setattr__(self, "jitter", choice("RetryOverride", "jitter", self.jitter, Jitter))

    def given(self) -> dict[str, object]:
        """Return the fields that were given, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class _ByKind(Mapping[FailureKind, RetryOverride]):
    """What each kind changes: a mapping that cannot be changed, so that the policy around it has a hash."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Mapping[FailureKind, RetryOverride]) -> None:
        self._pairs = tuple((kind, pairs[kind]) for kind in FailureKind if kind in pairs)

    def __getitem__(self, kind: FailureKind) -> RetryOverride:
        return dict(self._pairs)[kind]

    def __iter__(self) -> Iterator[FailureKind]:
        return (kind for kind, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        return repr({kind.value: override for kind, override in self._pairs})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    Retry within caps, with exponential backoff and jitter.

    Raises:
        ConfigurationError: a field that cannot hold, at construction; names the field, the value and the fix.

    """

    attempts: int = 4
    """Starts of the body, the first included; 1 or more."""

    base_seconds: float = 5.0
    """Where the delays begin, above 0: the first ceiling. With decorrelated jitter the least delay."""

    factor: float = 3.0
    """Growth from one attempt to the next, 1 or more; above 1 with decorrelated jitter."""

    cap_seconds: float = 300.0
    """Longest delay, at least `base_seconds`. A server's Retry-After may ask for more and is then honoured."""

    floor_seconds: float | None = None
    """Least delay, at most `base_seconds`, so that no retry comes at once. None: a tenth of it."""

    jitter: Jitter | str = Jitter.FULL
    """Where delays are drawn from: `"full"`, `"equal"`, `"decorrelated"` or `"ratio"` (`backoff.py` draws them)."""

    jitter_ratio: float | None = None
    """With `jitter="ratio"`, the share by which a delay is shorter or longer: above 0, at most 1. None: 0.1."""

    total_seconds: float | None = None
    """Time from the first start; a retry that would begin later is not made. None: only `attempts` limits."""

    retry_unrecognised: bool = True
    """Whether errors that no rule knows are retried within the caps, or buried at once."""

    rules: Sequence[Rule] = ()
    """What the task's own errors mean: `RetryRule(...)` or functions `(error) -> RetryRule | None`; the first match."""

    by_kind: Mapping[FailureKind, RetryOverride] | Mapping[str, RetryOverride] = field(default_factory=dict)
    """
    What one kind of failure changes. A field that its `RetryOverride` gives replaces the policy's, the others stay;
    `jitter` without `jitter_ratio` takes that mode's own. Rules and `total_seconds` are the task's.

    The kind of the failure that has just happened decides. All kinds share the attempt's number: after five transient
    failures a rate limit is the sixth attempt, not the first. A start whose end nobody recorded has no kind yet; it is
    held to the largest cap, and to `max_lost_starts`.
    """

    def __post_init__(self) -> None:
        for name in ("attempts", "base_seconds", "factor"):
            check_field("RetryPolicy", name, getattr(self, name))
        if not is_number(self.cap_seconds) or self.cap_seconds < self.base_seconds:
            raise ConfigurationError(
                f"RetryPolicy(cap_seconds={self.cap_seconds!r}): give seconds, at least "
                f"base_seconds={self.base_seconds!r}"
            )
        for name in ("floor_seconds", "jitter_ratio", "total_seconds"):
            if getattr(self, name) is not None:
                check_field("RetryPolicy", name, getattr(self, name))
        check_field("RetryPolicy", "retry_unrecognised", self.retry_unrecognised)
        object.__setattr__(self, "jitter", choice("RetryPolicy", "jitter", self.jitter, Jitter))
        self._check_jitter()
        object.__setattr__(self, "rules", checked_rules(self.rules))
        object.__setattr__(self, "by_kind", _checked_kinds(self.by_kind))
        self._check_total()
        for kind in self.by_kind:
            self._check_kind(FailureKind(kind))

    def for_kind(self, kind: FailureKind | None) -> "RetryPolicy":
        """Return what holds for one kind of failure, or for all that `by_kind` does not name; no rules are left."""
        if not self.by_kind and not self.rules:
            return self
        override = next((each for name, each in self.by_kind.items() if name == kind), None)
        changes = override.given() if override is not None else {}
        if "jitter" in changes:
            changes.setdefault("jitter_ratio", None)
        return replace(self, rules=(), by_kind={}, **changes)  # type: ignore[arg-type]

    @property
    def most_attempts(self) -> int:
        """Starts that some kind of failure may lead to: what admission holds every copy of a message to."""
        return max([self.attempts, *(each.attempts for each in self.by_kind.values() if each.attempts is not None)])

    def _check_jitter(self) -> None:
        if self.floor_seconds is not None and self.floor_seconds > self.base_seconds:
            raise ConfigurationError(
                f"RetryPolicy(floor_seconds={self.floor_seconds!r}): give at most base_seconds={self.base_seconds!r}: "
                "the first delay lies between the two"
            )
        if self.jitter_ratio is not None and self.jitter is not Jitter.RATIO:
            raise ConfigurationError(
                f"RetryPolicy(jitter_ratio={self.jitter_ratio!r}): give it with jitter='ratio'; "
                f"jitter={str(self.jitter)!r} has no ratio"
            )
        if self.jitter is Jitter.DECORRELATED and self.factor <= 1:
            raise ConfigurationError(
                f"RetryPolicy(factor={self.factor!r}): give more than 1 with jitter='decorrelated': "
                "it draws between base_seconds and factor times the last delay"
            )

    def _check_total(self) -> None:
        """Refuse a time in which no retry can ever begin."""
        if self.total_seconds is None:
            return
        shortest = delay_bounds(self, 1).earliest_seconds
        if self.attempts > 1 and shortest > self.total_seconds:
            raise ConfigurationError(
                f"RetryPolicy(total_seconds={self.total_seconds!r}): give at least {shortest:g}, the shortest first "
                "delay, or attempts=1"
            )
        for rule in self.rules:
            wait = rule.after_seconds if isinstance(rule, RetryRule) else None
            if wait is not None and wait > self.total_seconds:
                raise ConfigurationError(
                    f"RetryRule(after_seconds={wait!r}): give at most total_seconds={self.total_seconds!r}, "
                    "or retryable=False"
                )

    def _check_kind(self, kind: FailureKind) -> None:
        try:
            self.for_kind(kind)
        except ConfigurationError as error:
            raise ConfigurationError(f"RetryPolicy(by_kind={{{kind.value!r}: ...}}) makes {error}") from error


def _checked_kinds(by_kind: object) -> _ByKind:
    if not isinstance(by_kind, Mapping):
        raise ConfigurationError(f"RetryPolicy(by_kind={by_kind!r}): give {{kind: RetryOverride(...)}}")
    found = {}
    for name, override in by_kind.items():
        kind = choice("RetryPolicy", "by_kind", name, FailureKind)
        if not isinstance(override, RetryOverride):
            raise ConfigurationError(
                f"RetryPolicy(by_kind={{{kind.value!r}: {override!r}}}): give RetryOverride(...), what it changes"
            )
        found[kind] = override
    return _ByKind(found)
