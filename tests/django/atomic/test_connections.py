"""
The connection that an atomic body leaves to the next task, and one that cannot carry such a body at all.
"""

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from django.db import connections

from celery_safeguards.admission.atomic import AtomicGate


@pytest.fixture
def task(bench):
    def body(self, number):
        bench.has_effect(number)

    return bench.atomic(body)


@pytest.fixture
def without_autocommit(alias):
    wrapper = connections[alias]
    wrapper.close()
    wrapper.settings_dict["AUTOCOMMIT"] = False
    yield
    wrapper.close()
    wrapper.settings_dict["AUTOCOMMIT"] = True


def test_connection_without_autocommit_is_refused(bench, task, without_autocommit):
    """There Django's block ends without a COMMIT: effect and record would be gone, and the message acknowledged."""
    task.delay(7)

    delivered = bench.deliver()

    connections[bench.alias].close()
    assert ("kept", [], None) == (delivered.fate, bench.effects(), bench.record(task, 7))


def test_time_limit_between_admission_and_body_leaves_no_transaction_open(bench, task, monkeypatch):
    """The key would be locked, and the next task of this child find a transaction that is not its own."""
    begun, interrupted = AtomicGate._begun, []

    def begun_unless_interrupted(gate, go):
        if not interrupted:
            interrupted.append(go)
            raise SoftTimeLimitExceeded
        return begun(gate, go)

    monkeypatch.setattr(AtomicGate, "_begun", begun_unless_interrupted)
    first = task.delay(7)
    assert "kept" == bench.deliver().fate
    task.apply_async((7,), task_id=first.id)

    assert ("SUCCESS", [7]) == (bench.deliver().state, bench.effects())


def test_time_limit_in_a_rollback_leaves_no_transaction_open(bench):
    """Interrupted before Django's exit has begun, its block would be open for as long as the child lives."""

    class Interrupted(list):
        """Blocks of a connection; who takes one off is interrupted, once."""

        def pop(self, *at):
            connections[bench.alias].atomic_blocks = list(self)
            raise SoftTimeLimitExceeded

    def body(self, number):
        bench.has_effect(number)
        if number == 7:
            connections[bench.alias].atomic_blocks = Interrupted(connections[bench.alias].atomic_blocks)
            raise ConnectionError("down")

    task = bench.atomic(body)
    task.delay(7)
    assert "kept" == bench.deliver().fate
    task.delay(8)

    assert ("SUCCESS", [8]) == (bench.deliver().state, bench.effects())
