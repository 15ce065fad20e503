import dataclasses
import logging

import pytest
from celery.exceptions import Ignore, Retry

from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from celery_safeguards.retry.classify import Failure, classify
from celery_safeguards.retry.policy import RetryPolicy
from celery_safeguards.retry.rules import RetryRule, classify_by


class SdkError(Exception):
    """An error of somebody's client library: no built-in rule knows it."""


class Busy(SdkError):
    """The same, more special."""


class Response:
    def __init__(self, status_code, **headers):
        self.status_code = status_code
        self.headers = headers


class HttpError(Exception):
    def __init__(self, response):
        super().__init__(response)
        self.response = response


def raised(error):
    """Return an error with a traceback, as the pipeline catches it."""
    try:
        raise error
    except type(error) as caught:
        return caught


# --- which rule


@pytest.mark.parametrize(
    "errors",
    [
        SdkError,
        Busy,
        (KeyError, Busy),
        f"{__name__}.Busy",
        f"{__name__}.SdkError",
        f"{__name__.partition('.')[0]}.Busy",
        "builtins.Exception",
    ],
    ids=str,
)
def test_a_rule_is_for_a_class_its_subclasses_and_their_names(errors):
    """A library's error could be named only by importing the library, or only by its most exact class."""
    failure = classify_by([RetryRule(errors, kind="rate_limited")], raised(Busy()))

    assert failure == Failure(FailureKind.RATE_LIMITED, effect_possible=False, retryable=True)


@pytest.mark.parametrize("errors", [KeyError, "other.Busy", "Busy.Busy", f"{__name__}.Bus"], ids=str)
def test_a_rule_is_not_for_other_classes(errors):
    """Errors would be judged by a rule that was never meant for them."""
    error = raised(Busy())

    assert classify_by([RetryRule(errors, retryable=False)], error) == classify(error)


def test_the_first_match_wins():
    """A later rule for everything would make the special ones before it useless."""
    rules = [RetryRule(Busy, kind="infrastructure"), lambda _: RetryRule(kind="data"), RetryRule(SdkError, kind="bug")]

    assert classify_by(rules, raised(Busy())).kind is FailureKind.INFRASTRUCTURE
    assert classify_by(rules, raised(SdkError())).kind is FailureKind.DATA


def test_a_function_that_answers_none_leaves_the_next_to_answer():
    """A function for some errors would have to know all of them."""
    rules = [lambda error: None, RetryRule(Busy, kind="rate_limited")]

    assert classify_by(rules, raised(Busy())).kind is FailureKind.RATE_LIMITED


def test_a_function_reads_the_error():
    """An SDK that has one class for everything, with a code inside, could not be told apart."""

    def by_code(error):
        return RetryRule(retryable=False) if error.args == ("card_declined",) else None

    assert not classify_by([by_code], raised(SdkError("card_declined"))).retryable
    assert classify_by([by_code], raised(SdkError("busy"))).retryable


def test_a_rule_comes_before_the_exceptions_own_word():
    """A task could not disagree with the author of an exception class."""
    error = raised(SdkError())
    error.sg_failure_kind = FailureKind.DATA

    assert classify_by([RetryRule(SdkError, kind="transient")], error).kind is FailureKind.TRANSIENT


# --- what it says


UNRECOGNISED = classify(SdkError())
TIMEOUT = Failure(FailureKind.DEPENDENCY_TIMEOUT, effect_possible=True, retryable=True)
BAD_DATA = Failure(FailureKind.DATA, effect_possible=False, retryable=False)


@pytest.mark.parametrize(
    ("rule", "known", "changes"),
    [
        ({"retryable": False}, TIMEOUT, {"retryable": False}),
        ({"retryable": True}, BAD_DATA, {"retryable": True}),
        ({"retryable": True}, UNRECOGNISED, {"recognised": True}),
        ({"after_seconds": 9}, TIMEOUT, {"retry_after_seconds": 9.0}),
        ({"after_seconds": 9}, BAD_DATA, {"retryable": True, "retry_after_seconds": 9.0}),
        ({"effect_possible": False}, UNRECOGNISED, {"effect_possible": False}),
        ({"effect_possible": True}, BAD_DATA, {"effect_possible": True}),
        (
            {"kind": "data"},
            UNRECOGNISED,
            {"kind": FailureKind.DATA, "effect_possible": False, "retryable": False, "recognised": True},
        ),
        ({"kind": "data", "retryable": True}, BAD_DATA, {"retryable": True}),
        ({"kind": "rate_limited"}, TIMEOUT, {"kind": FailureKind.RATE_LIMITED}),
        (
            {"kind": "rate_limited", "effect_possible": False},
            TIMEOUT,
            {"kind": FailureKind.RATE_LIMITED, "effect_possible": False},
        ),
    ],
    ids=str,
)
def test_a_rule_changes_what_it_says_and_nothing_else(rule, known, changes):
    """A delay would bring a verdict with it that nobody wrote; a kind would lift a doubt that it cannot know of."""
    assert RetryRule(SdkError, **rule).applied_to(known) == dataclasses.replace(known, **changes)


@pytest.mark.parametrize(
    ("rule", "status", "wait"),
    [
        (RetryRule(HttpError, kind="rate_limited"), 403, 120.0),
        (RetryRule(HttpError, after_seconds=30), 429, 120.0),
        (RetryRule(HttpError, after_seconds=300), 429, 300.0),
        (RetryRule(HttpError, retryable=False), 429, None),
    ],
    ids=["kind", "shorter", "longer", "not retried"],
)
def test_nobody_comes_before_the_servers_time_by_a_rule(rule, status, wait):
    """A 403 that is a rate limit in disguise would be met again at once, and the client banned."""
    error = raised(HttpError(Response(status, **{"Retry-After": "120"})))

    assert classify_by([rule], error).retry_after_seconds == wait


# --- a rule's own faults


def breaks(error):
    raise RuntimeError("a slip in the rule")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (breaks, "a slip in the rule"),
        (lambda _: True, "answered True"),
        (lambda _: RetryRule(kind="rate_limit"), "did you mean 'rate_limited'?"),
        (lambda _: RetryRule(), "says nothing"),
    ],
    ids=["raises", "other answer", "wrong kind", "empty"],
)
def test_a_broken_rule_leaves_the_error_classified_as_without_rules(rule, said, caplog):
    """The failure, and its message with it, would be lost to an error in the code that judges it."""
    error = raised(ConnectionRefusedError())

    with caplog.at_level(logging.ERROR, "celery_safeguards.retry.rules"):
        failure = classify_by([rule, RetryRule(OSError, retryable=False)], error)

    assert failure == classify(error)
    assert failure.retryable
    assert said in caplog.text


def test_control_flow_is_no_failure_to_rules_either():
    """A rule for everything would bury a body's `Ignore`."""
    with pytest.raises(ValueError, match="control flow"):
        classify_by([RetryRule(Exception, retryable=False)], Ignore())


# --- at import


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ("Busy", "give an exception class or its dotted name"),
        ("ValueError", "did you mean 'builtins.ValueError'?"),
        ("sdk.", "give an exception class"),
        ("sdk.errors:Busy", "give an exception class"),
        (int, "give an exception class"),
        (Busy(), "give an exception class"),
        ((Busy, None), "RetryRule(None): give an exception class"),
        (Retry, "Celery's control flow is no failure"),
    ],
    ids=str,
)
def test_errors_that_name_no_class_are_refused(errors, said):
    """A rule that matches nothing looks like one that was never needed."""
    with pytest.raises(ConfigurationError) as refused:
        RetryRule(errors, retryable=False)

    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "RetryRule(SdkError): says nothing"),
        ({"kind": "rate_limit"}, "did you mean 'rate_limited'?"),
        ({"retryable": 1}, "RetryRule(retryable=1): give True or False"),
        ({"effect_possible": "no"}, "RetryRule(effect_possible='no'): give True or False"),
        ({"after_seconds": -1}, "RetryRule(after_seconds=-1): give seconds, 0 or more"),
        ({"after_seconds": float("inf")}, "RetryRule(after_seconds=inf): give seconds"),
        ({"after_seconds": 5, "retryable": False}, "RetryRule(after_seconds=5): give no wait"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_hold_is_refused_by_field_and_value(wrong, said):
    """A typing slip would be found in production, at the first such error, instead of at import."""
    with pytest.raises(ConfigurationError) as refused:
        RetryRule(SdkError, **wrong)

    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (RetryRule(Busy, kind="data"), "give a tuple of RetryRule(...) and functions"),
        ("sdk.Busy", "give a tuple of RetryRule(...) and functions"),
        ([Busy], "Busy is no rule; give RetryRule(Busy, kind=...)"),
        (["sdk.Busy"], "'sdk.Busy' is no rule; give RetryRule('sdk.Busy', kind=...)"),
        ([RetryRule(kind="data")], "name classes"),
        ([RetryRule(SdkError, kind="data"), RetryRule(Busy, kind="bug")], "RetryRule(Busy) can never match"),
        ([RetryRule("sdk.A", kind="data"), RetryRule("sdk.A", kind="bug")], "RetryRule(sdk.A) can never match"),
        ([RetryRule(f"{__name__}.SdkError", kind="data"), RetryRule(Busy, kind="bug")], "can never match"),
        ([RetryRule(Busy, kind="data"), RetryRule(f"{__name__}.Busy", kind="bug")], "can never match"),
        ([RetryRule(Busy, after_seconds=700_000)], "give at most 604800, a week"),
    ],
    ids=["one", "text", "class", "name", "no class", "covered", "twice", "by name", "by class", "too long"],
)
def test_rules_that_can_never_be_asked_are_refused(rules, said):
    """Somebody would rely on a rule that stands behind another one for the same errors."""
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy(rules=rules)

    assert said in str(refused.value)


def test_special_rules_before_general_ones_are_fine():
    """The order that the refusal asks for would be refused, too."""
    rules = (
        RetryRule(Busy, kind="rate_limited"),
        RetryRule((SdkError, Busy), kind="data"),
        RetryRule("sdk.Busy", kind="bug"),
        RetryRule(Exception, retryable=False),
    )

    assert RetryPolicy(rules=rules).rules == rules


def test_a_rule_that_waits_beyond_the_total_time_is_refused():
    """It asks for a retry that the policy never makes."""
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy(total_seconds=60, rules=[RetryRule(Busy, after_seconds=61)])

    assert str(refused.value) == "RetryRule(after_seconds=61): give at most total_seconds=60, or retryable=False"
