"""
Waiting for what offers no event, such as the state of a Redis key.

Where there is an event (an announcement, a held request, a process that ends) wait for that instead.
"""

import os
import time

PATIENCE = "SAFEGUARDS_TEST_PATIENCE"
"""By how much longer every wait of the tests may last here: a machine that others use as well is slow, not wrong."""
_POLL_SECONDS = 0.015


def patient(seconds):
    """Return how long to wait on this machine for what takes this long on one of one's own."""
    return seconds * float(os.environ.get(PATIENCE, "1"))


def wait_until(predicate, timeout, message):
    """
    Call `predicate` until it returns something true, and return that.

    Args:
        predicate: called without arguments every 15 ms.
        timeout: seconds of a machine of one's own, see `patient`; the predicate is asked once more when they are over.
        message: what the test waited for, in words.

    Raises:
        AssertionError: the time is over; names the message and the predicate's last value.

    """
    timeout = patient(timeout)
    deadline = time.monotonic() + timeout
    while True:
        is_last_call = time.monotonic() >= deadline
        value = predicate()
        if value:
            return value
        if is_last_call:
            raise AssertionError(f"waited {timeout} s in vain: {message} (last value: {value!r})")
        time.sleep(_POLL_SECONDS)
