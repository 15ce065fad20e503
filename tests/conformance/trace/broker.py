"""
The broker, played: a queue, and the messages that somebody holds, each under a tag.
"""

from dataclasses import dataclass, replace

QUEUE, UNHELD = -1, -2


@dataclass(eq=False, slots=True)
class Message:
    """A message at the broker; `place` is QUEUE, UNHELD or the slot whose delivery it is."""

    tid: int
    tag: int
    headers: dict
    place: int = QUEUE
    due: float = 0.0


class Broker:
    """
    What was published and not acknowledged.

    Attributes:
        messages: in the order of their publication.

    """

    def __init__(self, *, gives_fresh_tags):
        self.messages = []
        self._tags = 0
        self._gives_fresh_tags = gives_fresh_tags

    def publish(self, tid, headers, due=0.0):
        """Take a message, which is due at a moment of the world's clock."""
        self._tags += 1
        self.messages.append(Message(tid, self._tags, headers, due=due))

    def waiting(self, tid):
        """Return the first message of this id that nobody holds, in the queue; None: there is none."""
        return next((m for m in self.messages if m.tid == tid and m.place == QUEUE), None)

    def restore(self, message, runs):
        """Put a message back into the queue, under a fresh tag: the old owner's ack must not reach it."""
        if not self._gives_fresh_tags:
            message.place = QUEUE
            return
        self._tags += 1
        message.place, message.tag = QUEUE, self._tags
        for run in runs:
            if run.message is message:
                # Whoever held it still has its delivery, of a message that is not its own any more.
                run.message = replace(message, tag=0, place=UNHELD, headers=dict(message.headers))

    def remove(self, tag, slot):
        """Forget what a slot acknowledges; return whether that was another slot's live delivery."""
        is_anothers = any(m.tag == tag and m.place >= 0 and m.place != slot for m in self.messages)
        self.messages = [m for m in self.messages if m.tag != tag]
        return is_anothers
