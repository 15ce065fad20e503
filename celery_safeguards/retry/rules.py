"""
A task's own rules: what its errors mean where the classification by name knows less.

    RetryPolicy(rules=(
        RetryRule("stripe.RateLimitError", kind="rate_limited", after_seconds=30),
        RetryRule(CardDeclined, retryable=False),
        meaning_of_gateway_error,        # (error) -> RetryRule | None
    ))

The first rule that matches answers, before `sg_failure_kind`, a status or the built-in table; the others are not asked.
A rule looks at the error that the body raised and at its classes, not at its cause; a function may.

What a rule leaves out stays as classified, with one exception: a kind that it names brings that kind's own answers.
A doubt the classification has about an error that it knows is lifted only by `effect_possible=False`: a kind alone does
not prove that a request which timed out was not obeyed.

A function that raises, or answers with something else, must not cost the message: the failure is logged, and the error
is classified as if there were no rules. Those after it are not asked either, since it might have matched.
"""

import builtins
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry._fields import check_field, choice
from celery_safeguards.retry._table import rule_of_kind
from celery_safeguards.retry.classify import Failure, classify, is_control_flow, retry_after_seconds

logger = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 604_800.0
"""Whoever asks for more than a record's default retention is not waited for: a person decides."""

ErrorClass = type[BaseException] | str


@dataclass(frozen=True, slots=True)
class RetryRule:
    """
    What some errors mean.

    Args:
        errors: the classes it is for, subclasses included: a class, its dotted name, or a tuple of them. A name needs
            no import: `"stripe.error.RateLimitError"` as in a traceback, or `"stripe.RateLimitError"` by its top-level
            package. Left out in the answer of a function.
        kind: what kind of failure it is, with that kind's answers to the next three.
        retryable: whether another start can help.
        after_seconds: not before so many seconds, 0 or more; retried then, unless `retryable=False`. Spread, and never
            below the policy's backoff or a server's Retry-After, as a Retry-After is.
        effect_possible: whether something outside may have happened.

    Raises:
        ConfigurationError: a field that cannot hold, or a rule that says nothing.

    """

    errors: ErrorClass | tuple[ErrorClass, ...] = ()
    _: KW_ONLY
    kind: FailureKind | str | None = None
    retryable: bool | None = None
    after_seconds: float | None = None
    effect_possible: bool | None = None

    def __post_init__(self) -> None:
        errors = self.errors if isinstance(self.errors, tuple) else (self.errors,)
        for each in errors:
            _check_class(each)
        object.__setattr__(self, "errors", errors)
        if self.kind is not None:
            object.__setattr__(self, "kind", choice("RetryRule", "kind", self.kind, FailureKind))
        for field in ("retryable", "after_seconds", "effect_possible"):
            if getattr(self, field) is not None:
                check_field("RetryRule", field, getattr(self, field))
        if self.retryable is False and self.after_seconds is not None:
            raise ConfigurationError(
                f"RetryRule(after_seconds={self.after_seconds!r}): give no wait where retryable=False"
            )
        if (self.kind, self.retryable, self.after_seconds, self.effect_possible) == (None, None, None, None):
            raise ConfigurationError(
                f"RetryRule({self.named()}): says nothing; give kind, retryable, after_seconds or effect_possible"
            )

    @property
    def classes(self) -> tuple[ErrorClass, ...]:
        """The classes it is for."""
        return self.errors if isinstance(self.errors, tuple) else (self.errors,)

    @property
    def retries(self) -> bool | None:
        """Whether it has its errors retried; None: as classified."""
        if self.retryable is not None:
            return self.retryable
        if self.after_seconds is not None:
            return True
        return None if self.kind is None else rule_of_kind(FailureKind(self.kind)).retryable

    def named(self) -> str:
        """Return its classes for people."""
        return ", ".join(each if isinstance(each, str) else each.__qualname__ for each in self.classes)

    def matches(self, error: BaseException) -> bool:
        """Whether it is for an error."""
        names = _names_of(type(error))
        return any(each in names if isinstance(each, str) else isinstance(error, each) for each in self.classes)

    def applied_to(self, known: Failure, asked_wait_seconds: float | None = None) -> Failure:
        """
        Return what an error means by this rule.

        Args:
            known: what the classification says of it.
            asked_wait_seconds: the Retry-After that came with it, if any.

        """
        told = known
        if self.kind is not None:
            own = rule_of_kind(FailureKind(self.kind))
            in_doubt = own.effect_possible or (known.recognised and known.effect_possible)
            told = Failure(own.kind, effect_possible=in_doubt, retryable=own.retryable)
        if self.retryable is not None or self.after_seconds is not None:
            told = replace(told, retryable=self.retryable is not False, recognised=True)
        if self.effect_possible is not None:
            told = replace(told, effect_possible=self.effect_possible)
        waits = [wait for wait in (self.after_seconds, asked_wait_seconds) if wait is not None]
        return replace(told, retry_after_seconds=float(max(waits)) if waits and told.retryable else None)


Rule = RetryRule | Callable[[BaseException], RetryRule | None]
"""A rule for classes, or a function that answers for the errors it knows and None for the others."""


def checked_rules(rules: object) -> tuple[Rule, ...]:
    """
    Return a policy's rules as a tuple.

    Raises:
        ConfigurationError: something that is no rule, or a rule that can never be asked or never lead to a retry.

    """
    if isinstance(rules, str | RetryRule) or not isinstance(rules, Sequence):
        raise ConfigurationError(f"RetryPolicy(rules={rules!r}): give a tuple of RetryRule(...) and functions")
    before: list[ErrorClass] = []
    for each in rules:
        if isinstance(each, type) or not (isinstance(each, RetryRule) or callable(each)):
            name = each.__qualname__ if isinstance(each, type) else repr(each)
            raise ConfigurationError(f"RetryPolicy(rules): {name} is no rule; give RetryRule({name}, kind=...)")
        if isinstance(each, RetryRule):
            _check_reachable(each, before)
            before += each.classes
    return tuple(rules)


def classify_by(
    rules: Sequence[Rule], error: BaseException, *, now_seconds: Callable[[], float] = time.time
) -> Failure:
    """
    Say what an error means to a task: by its first rule that matches, else as everywhere.

    Args:
        rules: a policy's rules.
        error: as caught, with its traceback.
        now_seconds: wall time, for a Retry-After that is a date.

    """
    known = classify(error, now_seconds=now_seconds)
    rule = _first_match(rules, error)
    if rule is None:
        return known
    asked = known.retry_after_seconds
    return rule.applied_to(known, asked if asked is not None else retry_after_seconds(error, now_seconds))


def _first_match(rules: Sequence[Rule], error: BaseException) -> RetryRule | None:
    for rule in rules:
        if isinstance(rule, RetryRule):
            if rule.matches(error):
                return rule
            continue
        try:
            answer: object = rule(error)
        except Exception:
            # A user's code, while a failure is decided on: whatever it raises, the message gets its retry or letter.
            logger.exception("retry rule %r failed on %s: classified without rules", rule, type(error).__qualname__)
            return None
        if isinstance(answer, RetryRule):
            return answer
        if answer is not None:
            logger.error(
                "retry rule %r answered %r, which is neither RetryRule(...) nor None: classified without rules",
                rule,
                answer,
            )
            return None
    return None


def _check_class(each: object) -> None:
    if isinstance(each, type) and issubclass(each, BaseException):
        if is_control_flow(each):
            raise ConfigurationError(
                f"RetryRule({each.__qualname__}): Celery's control flow is no failure: leave it out"
            )
        return
    if isinstance(each, str) and "." in each and all(part.isidentifier() for part in each.split(".")):
        return
    hint = f"; did you mean 'builtins.{each}'?" if isinstance(each, str) and hasattr(builtins, each) else ""
    raise ConfigurationError(
        f"RetryRule({each!r}): give an exception class or its dotted name, such as 'requests.ConnectionError'{hint}"
    )


def _check_reachable(rule: RetryRule, before: Sequence[ErrorClass]) -> None:
    if not rule.classes:
        raise ConfigurationError("RetryPolicy(rules): a RetryRule without errors is a function's answer; name classes")
    if all(any(_covers(earlier, each) for earlier in before) for each in rule.classes):
        raise ConfigurationError(
            f"RetryPolicy(rules): RetryRule({rule.named()}) can never match: an earlier rule is for the same errors; "
            "put the special one first"
        )
    if rule.after_seconds is not None and rule.after_seconds > LONGEST_WAIT_SECONDS:
        raise ConfigurationError(
            f"RetryRule(after_seconds={rule.after_seconds!r}): give at most {LONGEST_WAIT_SECONDS:.0f}, a week: "
            "a longer wait becomes a dead letter"
        )


def _covers(earlier: ErrorClass, later: ErrorClass) -> bool:
    """Whether every error of the later class is one of the earlier; False where a name does not tell."""
    if isinstance(later, str):
        return earlier == later or (isinstance(earlier, type) and later in _own_names(earlier))
    return issubclass(later, earlier) if isinstance(earlier, type) else earlier in _names_of(later)


def _names_of(cls: type) -> set[str]:
    return {name for each in cls.__mro__ for name in _own_names(each)}


def _own_names(cls: type) -> tuple[str, str]:
    module = str(getattr(cls, "__module__", None))
    return f"{module}.{cls.__qualname__}", f"{module.partition('.')[0]}.{cls.__qualname__}"
