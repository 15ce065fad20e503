"""
Letters are found by the arguments of the calls that failed, however the work came to its end.
"""

import contextlib

import pytest

from celery_safeguards import RetryPolicy, Safeguards
from celery_safeguards.outcome import FailureKind
from tests.support.bench import Bench


@pytest.fixture
def bench(namespace):
    """A bench whose letters are found by the argument `number`."""
    with contextlib.closing(Bench(namespace, safeguards_searchable_arguments=["number"])) as bench:
        yield bench


@pytest.fixture
def found(bench):
    """Return the bodies of the letters that a value of the argument finds."""

    def found(value):
        terms = bench.wiring.search.argument_terms("number", value)
        return [each.wire.body for each in bench.wiring.letters.list(terms=terms).letters]

    return found


def refuse(self, number):
    raise ValueError("no such order")


@pytest.mark.parametrize("is_keyed", [True, False])
def test_letter_is_found_by_an_argument_that_was_passed_by_place(bench, found, is_keyed):
    """A customer names his order, and not the call's form."""
    safeguards = Safeguards(repeatable=True, retry=None)
    task = bench.keyed(refuse, retry=None) if is_keyed else bench.task(refuse, safeguards)
    for number in (7, 8):
        task.delay(number)

    bench.drain()

    (body,) = found("7")
    assert body.startswith(b"[[7],")


def test_letter_of_a_burial_that_another_delivery_finishes_is_found(bench, found):
    """The first burier was killed between the record and the letter; the second writes what the record holds."""
    task = bench.keyed(refuse, retry=RetryPolicy(attempts=1))
    bench.letters.lose_answer_of("bury")
    task.delay(7)
    bench.drain()
    bench.drain()

    assert [True] == [body.startswith(b"[[7],") for body in found("7")]


def test_letter_of_a_call_that_is_refused_is_found(bench, found):
    """A call that does not fit its task is found by what it names."""

    def charge(self, number):
        return number

    task = bench.keyed(charge)
    message_of(bench, task, [], {"number": 7, "amount": 1})

    bench.drain()

    (letter,) = bench.all_letters()
    assert letter.kind is FailureKind.DATA
    assert 1 == len(found("7"))
    assert "do not fit" in letter.terms_note


def message_of(bench, task, args, kwargs):
    """Send a message as a foreign producer does."""
    bench.app.send_task(task.name, args, kwargs)
