r"""
Where the hardened transport keeps things: beside kombu's own keys and in their form, so that both kinds of worker
agree.

| key, after `global_keyprefix` | type | holds |
|---|---|---|
| `<queue>`, `<queue>\x06\x163`, ... | list | messages by priority, as kombu has them |
| `<queue>\x06\x16wake` | list | a word for each message, at most 64, for five seconds: wakes one waiting worker each |
| `unacked` | hash | delivery tag → `[message, "", queue]`, as kombu has it for a message of the default exchange |
| `unacked_index` | sorted set | delivery tag → when it was received or last renewed, by the server's clock |
| `unacked_pulse` | hash | when any worker last swept, and from when sweeping is allowed after a pause of all |
| `unacked_parked` | sorted set | delivery tag of a message that waits → when it is due, by the server's clock |
| `unacked_parked_messages` | hash | delivery tag → list, wake list, the message, its line, its wait in seconds |
| `unacked_line:<name>` | sorted set | delivery tags of parked messages that wait for one lock or key → since when |
| `unacked_aside` | list | what was taken from a queue and is no message: JSON, the bytes in base64 |
"""

from typing import Any

from celery_safeguards._names import bounded_name

_MAX_READABLE_BYTES = 200


class BrokerKeys:
    """The full names of one channel's keys."""

    def __init__(self, channel: Any) -> None:
        self._prefix = str(channel.global_keyprefix or "")
        self._sep = str(channel.sep)
        self.unacked = self._prefix + str(channel.unacked_key)
        self.index = self._prefix + str(channel.unacked_index_key)
        self.pulse = f"{self.unacked}_pulse"
        self.aside = f"{self.unacked}_aside"
        self.parked = f"{self.unacked}_parked"
        self.parked_messages = f"{self.unacked}_parked_messages"

    def line(self, name: str) -> str:
        """Return the line of the parked messages that wait for one thing, such as a lock."""
        return f"{self.unacked}_line:{bounded_name(name, _MAX_READABLE_BYTES)}"

    def of(self, name: str) -> str:
        """Return the full name of one of kombu's keys."""
        return self._prefix + name

    def wake(self, queue: str) -> str:
        """Return the list whose words wake workers that wait for this queue."""
        return f"{self._prefix}{queue}{self._sep}wake"
