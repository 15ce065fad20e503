"""
Letters that a store has lately read or written several of, by their exact text: to read one again is no parsing.

A replay job has each of its letters read four times: looked at, begun, looked at again, marked. What is stored is still
read each time, and a letter is taken from here only if its text is this one to the last character; so nothing here can
be out of date. Bounded, since it is kept for as long as the process lives.
"""

import threading
from collections import OrderedDict

from celery_safeguards.deadletter.letter import Letter, LetterUnreadable, letter_or_error

_MOST_CHARS = 4_000_000
_MOST_CHARS_OF_ONE = 50_000


class LatelyKnown:
    """
    The letters of one store.

    Safe when: used by several threads; used before and after a fork.
    """

    def __init__(self) -> None:
        self._letters: OrderedDict[str, Letter] = OrderedDict()
        self._chars = 0
        self._guard = threading.Lock()

    def read(self, text: str) -> Letter | LetterUnreadable:
        """Return what `letter_or_error` makes of a text."""
        found = self._letters.get(text)
        if found is not None:
            return found
        letter = letter_or_error(text)
        if isinstance(letter, Letter):
            self.keep(text, letter)
        return letter

    def keep(self, text: str, letter: Letter, *, instead_of: str = "") -> None:
        """Know a letter by its text, and one no longer that is not stored any more."""
        # Not waited for: a child that is forked while another thread holds it would wait for ever.
        if len(text) > _MOST_CHARS_OF_ONE or not self._guard.acquire(blocking=False):
            return
        try:
            if self._letters.pop(instead_of, None) is not None:
                self._chars -= len(instead_of)
            if text not in self._letters:
                self._letters[text] = letter
                self._chars += len(text)
            while self._chars > _MOST_CHARS:
                oldest, _ = self._letters.popitem(last=False)
                self._chars -= len(oldest)
        finally:
            self._guard.release()
