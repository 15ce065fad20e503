"""
`updated_exactly`: a body that updated nothing has not succeeded.
"""

import contextlib

import pytest

from celery_safeguards import RetryPolicy, Safeguards
from django_celery_safeguards import SafeTask, updated_exactly
from tests.support.bench import Bench


@pytest.fixture
def run(namespace):
    """Run a body that returns a value under a post-condition, and return what became of it."""
    with contextlib.closing(Bench(namespace)) as bench:

        def run(result, ensure):
            safeguards = Safeguards(repeatable=True, ensure=ensure, retry=RetryPolicy(attempts=1))
            bench.task(lambda self: result, safeguards, base=SafeTask).delay()
            delivered = bench.deliver()
            return delivered.state, delivered.result, bench.all_letters()

        yield run


@pytest.mark.parametrize(("result", "ensure"), [(1, updated_exactly(1)), ({"rows": 2}, updated_exactly(2, of="rows"))])
def test_the_right_number_is_a_success(run, result, ensure):
    """Every task would fail."""
    assert ("SUCCESS", result, ()) == run(result, ensure)


@pytest.mark.parametrize(
    ("result", "ensure", "said"),
    [
        (0, updated_exactly(1), "0 rows were updated, and not 1"),
        (2, updated_exactly(1), "2 rows were updated, and not 1"),
        (None, updated_exactly(1), "no number of rows: None"),
        (True, updated_exactly(1), "no number of rows: True"),
        ({"row": 1}, updated_exactly(1, of="rows"), "no number of rows under 'rows'"),
        (1, updated_exactly(1, of="rows"), "no number of rows under 'rows'"),
    ],
)
def test_any_other_result_is_none(run, result, ensure, said):
    """An order that somebody has shipped meanwhile would count as cancelled."""
    state, _error, (letter,) = run(result, ensure)

    assert ("FAILURE", "invariant") == (state, letter.kind)
    assert said in letter.error_message


def test_it_can_be_compared_and_read():
    """Policies are compared where they are combined, and shown where they are refused."""
    assert updated_exactly(1) == updated_exactly(1) != updated_exactly(1, of="rows")
    assert ["updated_exactly(2)", "updated_exactly(2, of='rows')"] == [
        repr(updated_exactly(2)),
        repr(updated_exactly(2, of="rows")),
    ]
