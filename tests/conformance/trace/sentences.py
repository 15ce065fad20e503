"""
How a step of a trace is read: a sentence, what is done, and what the sentence says beside it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sentence:
    """
    One form of a step.

    `act(world, **named, **fixed)` is called with the named groups of the pattern; `slot` arrives as `run`. It returns
    False if the step did not take place as it is written.
    """

    pattern: re.Pattern
    act: Callable
    fixed: dict


def sentence(text, act, **fixed):
    """Return a sentence about the world."""
    return Sentence(re.compile(text), act, fixed)


def of_run(text, act, **fixed):
    """Return a sentence about the delivery in a slot."""
    return sentence(r"(?P<slot>[A-F]): " + text, act, **fixed)


def of_worker(text, act, **fixed):
    """Return a sentence about a worker."""
    return sentence(r"worker (?P<worker>\d)" + text, act, **fixed)
