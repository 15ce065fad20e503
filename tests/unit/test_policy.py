"""
What a task asks for: wrong values must fail at import, where their author sees them, and say what would be right.
"""

import pickle
import re

import pytest

from celery_safeguards import (
    CannotTell,
    DidNotHappen,
    Happened,
    Idempotent,
    OnDead,
    OnStoreDown,
    OnUnknown,
    RetryPolicy,
    Safeguards,
    Verify,
)
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.policy import UNSET, Declared, Policy, call_with_named

KEY = Idempotent("payment:{order_id}", on_unknown="rerun")


def find_payment(order_id):
    """Look a payment up; a function at module level, as users have it."""
    return DidNotHappen()


# --- values that cannot hold


@pytest.mark.parametrize(
    ("make", "field", "fix"),
    [
        (lambda: Idempotent("", on_unknown="rerun"), "key=''", "payment:{order_id}"),
        (lambda: Idempotent("payment", on_unknown="rerun"), "key='payment'", "payment:{order_id}"),
        (lambda: Idempotent("p:{}", on_unknown="rerun"), "key='p:{}'", "{order_id}"),
        (lambda: Idempotent("p:{order.id}", on_unknown="rerun"), "key='p:{order.id}'", "no parameter's name"),
        (lambda: Idempotent("p:{a", on_unknown="rerun"), "key='p:{a'", "{{"),
        (lambda: Idempotent(7, on_unknown="rerun"), "key=7", "payment:{order_id}"),
        (lambda: Idempotent("p:{a}", on_unknown="rerunn"), "on_unknown='rerunn'", "did you mean 'rerun'"),
        (lambda: Idempotent("p:{a}", on_unknown=None), "on_unknown=None", "quarantine"),
        (lambda: Idempotent("p:{a}", on_unknown="verify"), 'on_unknown="verify"', "Verify(find, after_seconds=...)"),
        (lambda: Idempotent("p:{a}", on_unknown=find_payment), "on_unknown=<function", "rerun"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", on_dead="runn"), "on_dead='runn'", "did you mean 'run'"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", on_dead=None), "on_dead=None", "refuse"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", scope=""), "scope=''", "give a name"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", scope="a#b"), "scope='a#b'", "without '#'"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", scope=7), "scope=7", "give a name"),
        (lambda: Idempotent("p:{a}", atomic=""), "atomic=''", "alias of a database"),
        (lambda: Idempotent("p:{a}", atomic=True), "atomic=True", "alias of a database"),
        (
            lambda: Idempotent("p:{a}", atomic="default", on_unknown="rerun"),
            "on_unknown='rerun'",
            "leave on_unknown out",
        ),
        (
            lambda: Safeguards(idempotent=Idempotent("p:{a}", atomic="x"), on_store_down="run_unprotected"),
            "on_store_down='run_unprotected'",
            "leave on_store_down out",
        ),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", fingerprint="a"), "fingerprint='a'", "tuple of parameter"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", fingerprint=()), "fingerprint=()", "tuple of parameter"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", fingerprint=["a"]), "fingerprint=['a']", "tuple of parameter"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", fingerprint=(1,)), "fingerprint=(1,)", "tuple of parameter"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", retention_seconds=0), "retention_seconds=0", ">= 1"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", retention_seconds="1d"), "retention_seconds='1d'", "a number"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", retention_seconds=True), "retention_seconds=True", "a number"),
        (lambda: Idempotent("p:{a}", on_unknown="rerun", store_result="no"), "store_result='no'", "True or False"),
        (lambda: Verify("find"), "find='find'", "function that returns Happened"),
        (lambda: Verify(find_payment, after_seconds=-1), "after_seconds=-1", ">= 0"),
        (lambda: Verify(find_payment, after_seconds=float("nan")), "after_seconds=nan", "a number"),
        (lambda: Verify(find_payment, after_seconds=10**400), "after_seconds=1000", "a number"),
        (lambda: Verify(find_payment, after_seconds=float("inf")), "after_seconds=inf", "a number"),
        (lambda: Verify(find_payment, asks=0), "asks=0", "whole number >= 1"),
        (lambda: Verify(find_payment, asks=1.5), "asks=1.5", "whole number"),
        (lambda: Safeguards(idempotent="p:{a}"), "idempotent='p:{a}'", "Idempotent(...)"),
        (lambda: Safeguards(idempotent=None), "idempotent=None", "Idempotent(...)"),
        (lambda: Safeguards(repeatable="yes"), "repeatable='yes'", "True or False"),
        (lambda: Safeguards(repeatable=None), "repeatable=None", "True or False"),
        (lambda: Safeguards(repeatable=[]), "repeatable=[]", "True or False"),
        (lambda: Safeguards(at_most_once=1), "at_most_once=1", "True or False"),
        (lambda: Safeguards(retry=5), "retry=5", "RetryPolicy(...) or None"),
        (lambda: Safeguards(retry=True), "retry=True", "RetryPolicy(...) or None"),
        (lambda: Safeguards(ensure="paid"), "ensure='paid'", "function of the result"),
        (lambda: Safeguards(on_store_down="wiat"), "on_store_down='wiat'", "did you mean 'wait'"),
        (lambda: Safeguards(max_lost_starts=0), "max_lost_starts=0", "whole number >= 1"),
        (lambda: Safeguards(max_lost_starts=2.0), "max_lost_starts=2.0", "whole number"),
        (lambda: Safeguards(max_lease_seconds=0.5), "max_lease_seconds=0.5", ">= 1"),
        (lambda: RetryPolicy(attempts=0), "attempts=0", "1 or more"),
    ],
)
def test_wrong_value_fails_at_once_with_field_value_and_fix(make, field, fix):
    """A value that is accepted now and fails in a worker at night is found by the wrong person."""
    with pytest.raises(ConfigurationError) as refused:
        make()

    assert field in str(refused.value)
    assert fix in str(refused.value)


@pytest.mark.parametrize("make", [lambda: Idempotent("p:{a}", "rerun"), lambda: Safeguards(KEY)])
def test_options_are_given_by_name(make):
    """A second positional value is a guess, and silently moves when an option is added."""
    with pytest.raises(TypeError):
        make()


def test_missing_on_unknown_explains_the_choice_in_a_sentence_each():
    """The one question only the team can answer: whoever meets it first must be able to."""
    with pytest.raises(ConfigurationError) as refused:
        Idempotent("payment:{order_id}")

    first, *choices = str(refused.value).splitlines()
    assert first == (
        "Idempotent('payment:{order_id}') needs on_unknown= or atomic=: "
        "what to do when the body was started and nobody knows how it ended."
    )
    assert [re.split(r" {2,}", choice.strip()) for choice in choices] == [
        ['on_unknown="rerun"', "doing it twice is harmless, or the other side honours the idempotency key."],
        [
            "on_unknown=Verify(find)",
            "the other side can be asked whether it happened, and is asked before anything runs again.",
        ],
        [
            'on_unknown="quarantine"',
            "only a person can tell, and the work waits for that person as a dead letter.",
        ],
        [
            'atomic="default"',
            "all it does is in that database, in one transaction with its record.",
        ],
    ]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"idempotent": KEY, "repeatable": True}, "idempotent and repeatable"),
        ({"idempotent": KEY, "at_most_once": True}, "idempotent and at_most_once"),
        ({"repeatable": True, "at_most_once": True}, "repeatable and at_most_once"),
    ],
)
def test_two_declarations_are_refused_by_both_names(given, named):
    """Harmless to repeat and never to be repeated: one of the two is a mistake, and nobody knows which."""
    with pytest.raises(ConfigurationError, match=rf"Safeguards\({named}\): declare one of them"):
        Safeguards(**given)


def test_declaration_that_is_false_is_none():
    """A flag computed to False must not collide with the declaration beside it."""
    assert Safeguards(idempotent=KEY, repeatable=False, at_most_once=False).declared() == ["idempotent"]


# --- values


def test_equal_values_are_equal_and_can_be_keys():
    """Values are compared to see whether a deploy changed a task's policy."""
    one = Safeguards(idempotent=Idempotent("p:{a}", on_unknown=Verify(find_payment)), retry=RetryPolicy(attempts=2))
    same = Safeguards(idempotent=Idempotent("p:{a}", on_unknown=Verify(find_payment)), retry=RetryPolicy(attempts=2))
    other = Safeguards(idempotent=Idempotent("p:{a}", on_unknown="rerun"), retry=RetryPolicy(attempts=2))

    assert (one == same, one == other, len({one, same, other})) == (True, False, 2)


def test_text_and_member_of_a_choice_are_the_same():
    """`"rerun"` and `OnUnknown.RERUN` are one policy however it is written."""
    text = Idempotent("p:{a}", on_unknown="rerun", on_dead="attach")
    member = Idempotent("p:{a}", on_unknown=OnUnknown.RERUN, on_dead=OnDead.ATTACH)

    assert text == member
    assert Safeguards(on_store_down="wait") == Safeguards(on_store_down=OnStoreDown.WAIT)


def test_values_cannot_be_changed():
    """A value that one task changes would change every task that shares it."""
    with pytest.raises((AttributeError, TypeError)):
        KEY.on_dead = "run"
    with pytest.raises((AttributeError, TypeError)):
        Safeguards().repeatable = True


def test_repr_shows_what_was_given():
    """Error messages and the check command show policies as they were written."""
    shown = repr(Safeguards(repeatable=True))

    assert "repeatable=True" in shown
    assert "idempotent=UNSET" in shown


@pytest.mark.parametrize("value", [KEY, Safeguards(retry=None), Verify(find_payment), Happened(1), CannotTell("x")])
def test_values_survive_pickle(value):
    """A spawned worker gets its tasks' modules by pickle on some platforms."""
    assert pickle.loads(pickle.dumps(value)) == value


def test_unset_stays_one_value_after_pickle():
    """Every comparison with it is by identity."""
    assert pickle.loads(pickle.dumps(UNSET)) is UNSET


# --- joining


def test_later_value_wins_and_what_it_leaves_out_stays():
    """A task changes one option of its team's policy and keeps the others."""
    team = Safeguards(repeatable=True, max_lost_starts=5, max_lease_seconds=60)

    joined = team | Safeguards(max_lost_starts=2)

    assert joined == Safeguards(repeatable=True, max_lost_starts=2, max_lease_seconds=60)
    assert team.max_lost_starts == 5


def test_later_declaration_replaces_the_earlier_one():
    """A keyed task on a base class of repeatable ones is not a contradiction."""
    joined = Safeguards(repeatable=True, max_lost_starts=5) | Safeguards(idempotent=KEY)

    assert (joined.declared(), joined.max_lost_starts) == (["idempotent"], 5)


def test_declaration_can_be_taken_back():
    """`repeatable=False` on one task says that the base class's promise does not hold for it."""
    assert (Safeguards(repeatable=True) | Safeguards(repeatable=False)).declared() == []


def test_none_is_a_value_that_wins():
    """`retry=None` switches retries off; it must not be read as "not given"."""
    joined = Safeguards(retry=RetryPolicy(), ensure=print) | Safeguards(retry=None, ensure=None)

    assert (joined.retry, joined.ensure) == (None, None)


def test_joining_is_associative():
    """Along an inheritance of three classes the order of joining must not matter."""
    a, b, c = Safeguards(repeatable=True), Safeguards(idempotent=KEY), Safeguards(at_most_once=True, retry=None)

    assert (a | b) | c == a | (b | c)


def test_only_safeguards_join():
    """`Safeguards(...) | None` is a mistake of the author, not a missing option."""
    with pytest.raises(TypeError, match="unsupported operand"):
        Safeguards() | None


# --- defaults


def test_defaults_are_those_of_the_documentation():
    """README's table and the code must not drift apart."""
    key = Idempotent("p:{a}", on_unknown="rerun")
    policy = Policy.of(Safeguards(idempotent=key))

    assert (key.on_dead, key.scope, key.fingerprint) == ("refuse", None, None)
    assert (key.retention_seconds, key.store_result) == (604_800, True)
    assert policy.retry == RetryPolicy(attempts=4, base_seconds=5, factor=3, cap_seconds=300)
    assert (policy.on_store_down, policy.max_lost_starts, policy.max_lease_seconds) == ("wait", 3, None)
    assert (policy.ensure, policy.declared) == (None, Declared.IDEMPOTENT)


@pytest.mark.parametrize(
    ("given", "declared", "retries"),
    [
        (Safeguards(), Declared.NOTHING, False),
        (Safeguards(repeatable=True), Declared.REPEATABLE, True),
        (Safeguards(idempotent=KEY), Declared.IDEMPOTENT, True),
        (Safeguards(at_most_once=True), Declared.AT_MOST_ONCE, False),
        (Safeguards(repeatable=True, retry=None), Declared.REPEATABLE, False),
        (Safeguards(retry=RetryPolicy(attempts=2)), Declared.NOTHING, True),
    ],
)
def test_only_work_that_may_run_twice_is_retried_by_itself(given, declared, retries):
    """An automatic retry of undeclared work would repeat what nobody said may be repeated."""
    policy = Policy.of(given)

    assert (policy.declared, policy.retry is not None) == (declared, retries)


def test_ledger_policy_carries_what_admission_rests_on():
    """Admission caps attempts for every copy of a message; a cap that is lost on the way caps nothing."""
    verify = Verify(find_payment, after_seconds=12)
    key = Idempotent("p:{a}", on_unknown=verify, on_dead="attach")

    ledger = Policy.of(Safeguards(idempotent=key, retry=RetryPolicy(attempts=2), max_lost_starts=7)).ledger()

    assert (ledger.on_unknown, ledger.on_dead) == (OnUnknown.VERIFY, OnDead.ATTACH)
    assert (ledger.attempts, ledger.max_lost_starts) == (2, 7)


def test_atomic_work_that_is_unknown_all_the_same_waits_for_a_person():
    """A start from before the task was atomic: nobody has said what may be done about it."""
    ledger = Policy.of(Safeguards(idempotent=Idempotent("p:{a}", atomic="default"))).ledger()

    assert OnUnknown.QUARANTINE is ledger.on_unknown


def test_ledger_policy_without_retries_has_no_cap_of_attempts():
    """Manual retries are then capped by what they ask for."""
    assert Policy.of(Safeguards(idempotent=KEY, retry=None)).ledger().attempts is None


def test_ledger_policy_is_for_keyed_work_only():
    """A task without a key has no record to decide on."""
    with pytest.raises(ConfigurationError):
        Policy.of(Safeguards(repeatable=True)).ledger()


# --- calling a user's function


@pytest.mark.parametrize(
    ("function", "first", "expected"),
    [
        (lambda: "nothing", (), "nothing"),
        (lambda order_id: order_id, (), 1),
        (lambda amount, order_id: (order_id, amount), (), (1, 5)),
        (lambda order_id, *, step: (order_id, step), (), (1, None)),
        (lambda **given: given, (), {"order_id": 1, "amount": 5, "step": None}),
        (lambda result, order_id: (result, order_id), ("ok",), ("ok", 1)),
        (lambda result: result, ("ok",), "ok"),
        (lambda order_id, other="default": (order_id, other), (), (1, "default")),
        (lambda *rest: rest, ("ok",), ("ok",)),
    ],
)
def test_function_gets_the_arguments_it_names(function, first, expected):
    """A look-up should name what it needs, and not break when the task gets another parameter."""
    assert call_with_named(function, first, {"order_id": 1, "amount": 5, "step": None}) == expected
