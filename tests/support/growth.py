"""
How the cost of a call grows with what it is given, as a ratio: a machine that is slow is slow for both.
"""

import time

_TRIES = 3


def growth(call, small, large):
    """
    Return how many times the processor time of `call(small)` that of `call(large)` is, best of three each.

    Args:
        call: takes one argument, and may be called again with the same one.
        small: takes at least some milliseconds, or what is measured is the clock.
        large: some times as much.

    """
    best_of = {}
    for _ in range(_TRIES):
        for size, given in (("small", small), ("large", large)):
            began = time.process_time()
            call(given)
            best_of[size] = min(best_of.get(size, float("inf")), time.process_time() - began)
    return best_of["large"] / best_of["small"]
