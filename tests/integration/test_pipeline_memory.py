"""
The old address of the bench, for `test_refusing.py`; the tests that stood here are in files by subject.
"""

from tests.support.bench import LEASE_SECONDS, Bench, Killed

__all__ = ["LEASE_SECONDS", "Bench", "Killed"]
