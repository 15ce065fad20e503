"""
Everything in this directory runs real worker processes on a database that fails them, or that they fail.
"""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.acceptance)
            item.add_marker(pytest.mark.redis)
