"""Letters as they were when a job was made of them, and how they are kept."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PART_SIZE = 500
"""How many letters are kept together."""


@dataclass(frozen=True, slots=True)
class Picked:
    """A letter as it was when it was chosen."""

    letter_id: str
    last_failed_seconds: float


def parts_of(picked: Sequence[Picked]) -> list[str]:
    """Return letters as they are kept: `PART_SIZE` of them in each text."""
    parts = [picked[first : first + PART_SIZE] for first in range(0, len(picked), PART_SIZE)]
    return [json.dumps([[each.letter_id, each.last_failed_seconds] for each in part]) for part in parts]


def picked_of(part: str) -> list[Picked]:
    """Return the letters of one text."""
    loaded: list[list[Any]] = json.loads(part)
    return [Picked(letter_id, last_failed_seconds) for letter_id, last_failed_seconds in loaded]
