"""
A Redis channel whose messages are taken and noted in one step.

One question is outstanding at a time, on the connection that kombu's event loop watches:

    asleep ──there is credit──▶ TAKE ──a message──▶ delivered; asleep
                                 ▲ └──all lists are empty──▶ WAIT, by BRPOP on the queues' wake lists
                                 └─────── a word, or the timeout ───────┘

A script cannot block, and a blocking pop cannot note what it has popped: so it is a word that is popped, which may be
lost. Whoever publishes by this transport leaves a word with the message; a message of another publisher is found when
the wait is over, a second later at most (`brpop_timeout`). A word wakes one worker.

A cut between question and answer loses nothing: the tag was minted here, so its message is put back at the close.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from queue import Empty
from time import monotonic
from types import MappingProxyType
from typing import Any

import redis
from kombu.transport import redis as stock
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid
from redis.exceptions import NoScriptError, ResponseError

from celery_safeguards._redis import is_away
from celery_safeguards.delivery.names import BrokerKeys
from celery_safeguards.delivery.restoring import BROADCAST, aside_entry
from celery_safeguards.delivery.scripts import NOTE, SET_ASIDE, TAKE, execute, run_script

logger = logging.getLogger(__name__)
_WAIT_SECONDS = 1
"""How long kombu 5.5 waits for a message; since then it is an option."""
_ANSWER_SECONDS = 2.0
"""How long a close waits for the answer that is outstanding."""
_NO_MESSAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class _Question:
    """One question for a message of some queues: which of its lists is which queue's, and how it is put."""

    def __init__(self, channel: "TakingChannel", queues: Sequence[str]) -> None:
        names = [(channel._q_for_pri(queue, step), queue) for step in channel.priority_steps for queue in queues]  # noqa: SLF001
        self.tag = uuid()
        self.queues = [queue for _, queue in names]
        self.lists = [channel.keys.of(name) for name, _ in names]
        self.silent = frozenset(channel.silent_queues.intersection(queues))
        """Queues of which nothing is noted, since nothing is acknowledged."""
        notes = ["" if queue in self.silent else json.dumps(queue) for queue in self.queues]
        keys = [channel.keys.unacked, channel.keys.index, *self.lists, *map(channel.keys.wake, queues)]
        self.words = [str(len(keys)), *keys, self.tag, str(len(self.lists)), *notes]


class TakingChannel(stock.Channel):  # type: ignore[misc]
    """The part of the hardened channel that takes messages; see the module."""

    # kombu 5.5 lets no queue expire.
    _expires: Mapping[str, int] = MappingProxyType({})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._taking: _Question | None = None
        self._noted: set[str] = set()
        self.silent_queues: set[str] = set()
        super().__init__(*args, **kwargs)
        self.keys = BrokerKeys(self)

    @property
    def taking(self) -> str | None:
        """The tag of a question that is not answered yet: its message may be noted already."""
        taking = self._taking
        return taking.tag if taking else None

    def is_noted(self, tag: str) -> bool:
        """Whether a script has noted this delivery when it took it; tells once."""
        try:
            self._noted.remove(tag)
        except KeyError:
            return False
        return True

    def _brpop_start(self, timeout: float | None = None) -> None:
        del timeout
        queues = self._queue_cycle.consume(len(self.active_queues))
        if queues:
            self._in_poll = self.client.connection
            self._ask(queues)

    def _ask(self, queues: Sequence[str]) -> None:
        if self._taking is not None:
            # Its connection was dropped beside us, by kombu's health check: what it may have taken goes back.
            self.qos.stray.add(self._taking.tag)
            self._taking = None
            self.qos.make_up_if_heard()
        self._brpop_sent_at = monotonic()
        self._taking = _Question(self, queues)
        self.client.connection.send_command("EVALSHA", TAKE.sha, *self._taking.words)

    def _wait(self, queues: Sequence[str]) -> None:
        self._brpop_sent_at = monotonic()
        seconds = getattr(self.connection, "brpop_timeout", None) or _WAIT_SECONDS
        self.client.connection.send_command("BRPOP", *map(self.keys.wake, queues), seconds)

    def _brpop_read(self, **options: Any) -> bool:
        """Read the answer to the question that is outstanding; raises `Empty` unless it was a message."""
        del options
        answer = self._answer()
        taking, self._taking = self._taking, None
        if isinstance(answer, NoScriptError) and taking is not None:
            self._taking = taking
            self.client.connection.send_command("EVAL", TAKE.source, *taking.words)
            raise Empty
        if taking is None:
            # A word, or none in time: either way there may be a message.
            self._end_turn()
            # A connection that was dropped is the poller's to open again: it has to watch the new one.
            if self.qos.can_consume() and self.client.connection._sock is not None:  # noqa: SLF001
                self._brpop_start()
            raise Empty
        if not answer:
            if self.active_queues:
                self._wait(list(dict.fromkeys(taking.queues)))
            else:
                self._in_poll = None
            raise Empty
        self._end_turn()
        queue = taking.queues[int(answer[0]) - 1]
        if queue not in self.connection._callbacks:  # noqa: SLF001
            # Its consumer was cancelled while we asked.
            self._give_back(taking, *answer)
            raise Empty
        self._queue_cycle.rotate(queue)
        self._deliver(taking.tag, answer[1], queue, is_noted=queue not in taking.silent)
        return True

    def _end_turn(self) -> None:
        """Nothing is asked on the connection of the poll: credentials that were renewed can be given there."""
        self._in_poll = None
        # Since kombu 5.7, which asks for it between two polls only, and this one's follow on each other.
        flush = getattr(self, "_flush_brpop_reauth", None)
        if flush is not None:
            flush()

    def _give_back(self, question: "_Question", number: int, raw: bytes) -> None:
        if question.queues[int(number) - 1] in question.silent:
            with self.conn_or_acquire() as client:
                execute(client, "RPUSH", question.lists[int(number) - 1], raw)
        else:
            self.qos.stray.add(question.tag)
            self.qos.make_up_if_heard()

    def _answer(self) -> Any:
        connection = self.client.connection
        try:
            return connection.read_response()
        except NoScriptError as error:
            return error
        except ResponseError as error:
            self._in_poll = None
            connection.disconnect()
            if is_away(error):
                # A replica after a failover, a server that loads or is full: it is gone, not wrong (celery/kombu#1004).
                raise redis.ConnectionError(str(error)) from error
            raise
        except self.connection_errors:
            self._in_poll = None
            connection.disconnect()
            raise

    def _deliver(self, tag: str, raw: bytes, queue: str, *, is_noted: bool) -> None:
        try:
            payload = loads(bytes_to_str(raw))
            # Its own for each delivery, whatever tag it had before.
            payload["properties"]["delivery_tag"] = tag
            payload["properties"].setdefault("delivery_info", {})
        except _NO_MESSAGE as error:
            self.set_aside(tag, raw, queue, repr(error))
            return
        if is_noted:
            self._noted.add(tag)
        self.connection._deliver(payload, queue)  # noqa: SLF001

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> Any:
        """Consume from a queue; what is taken from it and is no message never reaches the callback."""
        (self.silent_queues.add if no_ack else self.silent_queues.discard)(queue)
        answer = super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

        def receive(payload: Any) -> Any:
            tag = ""
            try:
                if queue in self.active_fanout_queues:
                    # Each has a copy, all under the publisher's tag: the first to acknowledge would end them all.
                    payload["properties"]["delivery_tag"] = uuid()
                tag = payload["properties"]["delivery_tag"]
                message = self.Message(payload, channel=self)
            except _NO_MESSAGE as error:
                self.set_aside(tag, dumps(payload).encode(), queue, repr(error))
                return None
            if not no_ack:
                self.qos.append(message, tag)
            return callback(message)

        self.connection._callbacks[queue] = receive  # noqa: SLF001
        return answer

    def _get(self, queue: str) -> Any:
        lists = [self._q_for_pri(queue, step) for step in self.priority_steps]
        tag = uuid()
        keys = [self.keys.unacked, self.keys.index, *map(self.keys.of, lists), self.keys.wake(queue)]
        with self.conn_or_acquire() as client:
            answer = run_script(client, TAKE, keys, [tag, len(lists), *[json.dumps(queue)] * len(lists)])
            if queue in self._expires:
                self._maybe_update_queues_expire(client, queue)
        if not answer:
            raise Empty
        payload = loads(bytes_to_str(answer[1]))
        payload["properties"]["delivery_tag"] = tag
        self._noted.add(tag)
        return payload

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message, or None."""
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self._noted.discard(message.delivery_tag)
            self.qos.ack(message.delivery_tag)
        return message

    def note(self, tag: str, message: Any) -> None:
        """Note a message that no script has taken, such as a broadcast: as kombu does, but by the server's clock."""
        info = message.delivery_info if isinstance(message.delivery_info, dict) else {}
        exchange, routing_key = info.get("exchange"), info.get("routing_key")
        is_broadcast = bool(exchange) and self.typeof(exchange).type == "fanout"
        raw = {**message._raw, BROADCAST: True} if is_broadcast else message._raw  # noqa: SLF001
        with self.conn_or_acquire() as client:
            run_script(client, NOTE, [self.keys.unacked, self.keys.index], [tag, dumps([raw, exchange, routing_key])])

    def set_aside(self, tag: str, raw: bytes, queue: str | None, reason: str, client: Any = None) -> None:
        """Move what is no message out of the way: left where it is, it would end every worker that reads it."""
        logger.error("queue %r held what is no message; set aside: %s", queue, reason)
        entry = aside_entry(raw, queue, reason)
        keys = [self.keys.unacked, self.keys.index, self.keys.aside]
        with self.conn_or_acquire(client) as found:
            run_script(found, SET_ASIDE, keys, [tag, entry])

    def end_poll(self) -> None:
        """Take the outstanding question back: a message that it has taken is put back, if the server answers."""
        connection, self._in_poll = self._in_poll, None
        taking, self._taking = self._taking, None
        if taking is None:
            return
        self.qos.stray.add(taking.tag)
        try:
            if connection is not None and connection.can_read(timeout=_ANSWER_SECONDS):
                answer = connection.read_response()
                if answer:
                    self._give_back(taking, *answer)
        except (*self.connection_errors, ResponseError, ValueError) as error:
            # What it has taken is known by its tag all the same.
            logger.debug("an outstanding question was not answered: %r", error)
