"""Numbers as people say them."""

import pytest

from celery_safeguards.printable import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 letters"), (1, "1 letter"), (2, "2 letters"), (1_200, "1,200 letters")]
)
def test_one_thing_is_said_as_one(number, said):
    """ "1 letters" is what a machine says, and is read twice."""
    assert said == counted(number, "letter")
