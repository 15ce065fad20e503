"""
The errors: Celery hands them from a child to its parent by pickle and stores them by JSON, and people read them.
"""

import inspect
import pickle

import pytest
from celery import Celery
from celery.exceptions import Ignore

from celery_safeguards import errors
from celery_safeguards.errors import ConfigurationError, LetteredError, SafeguardsError, nearest

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
LETTERED = [each for each in ALL if issubclass(each, LetteredError)]


@pytest.mark.parametrize("cls", ALL)
def test_every_error_survives_pickle(cls):
    """An exception that cannot be unpickled has killed Celery's main process (celery/celery#6990)."""
    error = cls("letter-1", "data", "no stock") if cls in LETTERED else cls("why")

    again = pickle.loads(pickle.dumps(error))

    assert (type(again), again.args, vars(again), str(again)) == (cls, error.args, vars(error), str(error))


@pytest.mark.parametrize("cls", LETTERED)
def test_error_that_names_a_letter_survives_the_result_back_end(cls):
    """Whoever waits for the result must find the letter by its id, with JSON as the serializer."""
    with Celery("errors", backend="cache+memory://", set_as_current=False) as app:
        app.backend.mark_as_failure(cls.__name__, cls("letter-1", "data", "no stock"))

        stored = app.AsyncResult(cls.__name__).result

    assert (type(stored), stored.letter_id, stored.kind, stored.error) == (cls, "letter-1", "data", "no stock")


@pytest.mark.parametrize("cls", LETTERED)
def test_error_that_names_a_letter_says_so(cls):
    """The text is all that a log line or an e-mail shows."""
    assert str(cls("letter-1", "data", "no stock")) == "dead letter letter-1 (data): no stock"


@pytest.mark.parametrize("cls", ALL)
def test_every_error_says_when_it_is_raised(cls):
    """The docstring is the long form of its message."""
    assert inspect.getdoc(cls).startswith(("Raised ", "Base of "))


def test_deferred_and_dropped_are_celerys_ignore_and_nothing_else_is():
    """Celery stores no result and fires no hook for an `Ignore`; any other error of ours must be a visible failure."""
    assert [each.__name__ for each in ALL if issubclass(each, Ignore)] == ["Deferred", "DroppedLocally"]


def test_everything_else_is_caught_by_one_class():
    """Users catch what this package raises without listing it."""
    others = [each for each in ALL if not issubclass(each, Ignore)]

    assert [each for each in others if not issubclass(each, SafeguardsError)] == []


def test_wrong_configuration_is_a_value_error():
    """Code that treats a bad value as a `ValueError` treats ours alike."""
    assert issubclass(ConfigurationError, ValueError)


@pytest.mark.parametrize(
    ("value", "choices", "hint"),
    [
        ("rerunn", ["rerun", "quarantine"], "; did you mean 'rerun'?"),
        ("zzz", ["rerun", "quarantine"], ""),
        (None, ["rerun"], ""),
        ("a", [], ""),
    ],
)
def test_nearest_hints_at_what_was_meant_or_at_nothing(value, choices, hint):
    """A wrong hint is worse than none."""
    assert nearest(value, choices) == hint
