"""
How the cost of a call grows with what it is given, as a ratio: a machine that is slow is slow for both.
"""

import time

_TRIES = 5


def growth(call, small, large):
    """
    Return how many times the processor time of `call(small)` that of `call(large)` is: the least of five pairs.

    What disturbs a pair mostly makes the larger call slower, and the first one meets memory that is not there yet.

    Args:
        call: takes one argument, and may be called again with the same one.
        small: takes at least some milliseconds, or what is measured is the clock.
        large: some times as much.

    """
    return min(_seconds(call, large) / _seconds(call, small) for _ in range(_TRIES))


def _seconds(call, given):
    began = time.process_time()
    call(given)
    return time.process_time() - began
