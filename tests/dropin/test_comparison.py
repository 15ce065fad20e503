"""What the two sides of `make celery-suite` say together: which difference is a defect."""

import pytest

from tests.dropin.comparison import compare, known_contradictions

WHY = {"t": "a promise excludes it"}


def outcomes(end):
    """Return the outcomes of one side on which the test `t` has ended so, beside one that passes; None: not run."""
    others = {"fine": ("passed", "")}
    return others if end is None else {**others, "t": (end, "")}


@pytest.mark.parametrize(
    ("stock", "guarded", "told_as", "exit_status"),
    [
        ("passed", "passed", "passed", 0),
        ("passed", "failed", "defects", 1),
        ("passed", "skipped", "defects", 1),
        ("passed", None, "defects", 1),
        ("failed", "failed", "failed_on_both", 0),
        ("failed", None, "failed_on_both", 0),
        ("failed", "passed", "failed_on_stock", 0),
    ],
)
def test_a_test_that_passes_on_stock_only_is_a_defect(stock, guarded, told_as, exit_status):
    """A difference that is told as anything else is never mended; a worker that died ends the tests behind it, too."""
    found = compare(outcomes(stock), outcomes(guarded), {})

    assert "t" in getattr(found, told_as)
    assert exit_status == found.exit_status


@pytest.mark.parametrize("guarded", ["failed", None])
def test_what_is_listed_with_its_reason_is_told_and_no_defect(guarded):
    """Somebody who moves to `SafeTask` reads there what will be different."""
    found = compare(outcomes("passed"), outcomes(guarded), WHY)

    assert (["t"], [], 0) == (found.known, found.defects, found.exit_status)
    assert WHY["t"] in found.table(WHY)


def test_what_is_listed_and_passes_is_told():
    """A list that nobody shortens says that guarded tasks can less than they can."""
    found = compare(outcomes("passed"), outcomes("passed"), WHY)

    assert (["t"], 0) == (found.listed_in_vain, found.exit_status)


@pytest.mark.parametrize("end", ["skipped", "failed"])
def test_nothing_compared_is_no_proof(end):
    """A suite that has not run at all would say that there are no defects."""
    found = compare({"t": (end, "")}, {"t": (end, "")}, {})

    assert 1 == found.exit_status


def test_every_contradiction_names_a_promise_and_a_reason():
    """An entry without them would be a place to hide a defect in."""
    assert all(why.strip() for why in known_contradictions().values())


def test_the_list_is_read(tmp_path):
    """The file that is there may be empty."""
    file = tmp_path / "known.toml"
    file.write_text('[[contradicts]]\ntest = "t"\npromise = "It is kept."\nreason = "It is asked to break."\n')

    assert {"t": "It is kept. It is asked to break."} == known_contradictions(file)
