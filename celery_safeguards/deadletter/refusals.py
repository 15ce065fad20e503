"""What a store says when a letter cannot be changed as asked: nothing was changed."""

from celery_safeguards.deadletter.letter import State
from celery_safeguards.errors import SafeguardsError


class NoSuchLetter(SafeguardsError):
    """Raised when a letter that is to be changed is not in the store."""


class LetterNotOpen(SafeguardsError):
    """
    Raised when a step needs a letter in another state: somebody else was faster, or it is over.

    Args:
        letter_id: the letter.
        state: the state it is in.
        replay_task_id: the id already allocated to its replay, if any.
        hint: what to do about it, or who has done it.

    """

    def __init__(self, letter_id: str, state: State, replay_task_id: str | None = None, hint: str = "") -> None:
        super().__init__(letter_id, state, replay_task_id, hint)
        self.letter_id = letter_id
        self.state = state
        self.replay_task_id = replay_task_id
        self.hint = hint

    def __str__(self) -> str:
        under = f", as task {self.replay_task_id}" if self.replay_task_id else ""
        hint = f": {self.hint}" if self.hint else ""
        return f"letter {self.letter_id} is {self.state}{under}{hint}"


class LetterChanged(SafeguardsError):
    """
    Raised when something was done to a letter, or it has died again, since a person looked at it: nothing was changed.

    Args:
        letter_id: the letter.
        last: what was done last, in words.

    """

    def __init__(self, letter_id: str, last: str = "") -> None:
        super().__init__(letter_id, last)
        self.letter_id = letter_id
        self.last = last

    def __str__(self) -> str:
        last = f", last: {self.last}" if self.last else ""
        return f"letter {self.letter_id} has changed since it was looked at{last}: look at it again"
