"""
What stands at the end of each canvas.
"""

import pytest

from celery_safeguards import Safeguards


@pytest.fixture
def seen():
    """What the last tasks of the canvases were given."""
    return []


@pytest.fixture
def last(bench, seen):
    """A task without a key at the end of a canvas."""

    def note(self, value):
        seen.append(value)
        return "noted"

    return bench.task(note, Safeguards(repeatable=True))
