"""
What most of these tests begin with. Who needs a bench with other settings makes a fixture of the same name.
"""

import contextlib

import pytest
from celery import _state

from tests.support.bench import Bench
from tests.support.bench_outside import Outside


@pytest.fixture(autouse=True)
def results_may_be_awaited():
    """Give back the process-wide flag that a worker sets where it is made: later tests could await no result."""
    before = _state.task_join_will_block()
    yield
    _state._set_task_join_will_block(before)


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace)) as bench:
        yield bench


@pytest.fixture
def outside():
    """The outside systems of one test."""
    return Outside()


@pytest.fixture(autouse=True)
def no_foreign_tasks(monkeypatch):
    """Give each test's apps Celery's own tasks only: every app gets what any module of this process has shared."""
    own = {each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)
