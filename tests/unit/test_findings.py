"""
The table of findings, and the page of each.
"""

import pytest

from celery_safeguards.diagnose.explaining import explain, pages
from celery_safeguards.findings import KINDS, Finding, Severity


def test_every_finding_has_a_page_under_its_title():
    """`--explain` would end in a traceback for the very finding that somebody does not understand."""
    headings = {id_: page.splitlines()[0] for id_, page in pages().items()}

    assert {id_: f"## {id_} {kind.title}" for id_, kind in KINDS.items()} == headings
    assert all(len(page.splitlines()) > 2 for page in pages().values())


def test_page_tells_how_much_it_matters():
    """The severity stands in the table alone."""
    assert explain("SG104").splitlines()[0] == "SG104 redelivered while it runs (warning)"
    assert "worker_prefetch_multiplier" in explain("SG104")


def test_id_that_is_not_in_the_table_cannot_be_found():
    """It would have neither a severity nor a page."""
    with pytest.raises(ValueError, match="SG999"):
        Finding("SG999", "x")


@pytest.mark.parametrize(
    ("finding", "severity", "refused"),
    [
        (Finding("SG160", "x"), Severity.ERROR, True),
        (Finding("SG101", "x"), Severity.WARNING, True),
        (Finding("SG105", "x"), Severity.INFO, False),
        (Finding("SG148", "x"), Severity.UNKNOWN, False),
        (Finding("SG144", "x", is_unknown=True), Severity.UNKNOWN, False),
    ],
)
def test_strict_refuses_what_is_known_to_be_wrong(finding, severity, refused):
    """A worker that cannot ask for a policy may well be right; one that knows of an error is not."""
    assert (severity, refused) == (finding.severity, finding.is_refused)
