"""
The message of a replay on its way: the way it came, never into the void.

Several messages go together where kombu and the transport can (kombu 5.7 on Redis: one trip for all). Where such a trip
fails, nobody can tell whether the broker has taken them: then each goes by itself, under the id that it has, as it does
everywhere else.
"""

import logging
from collections.abc import Collection
from typing import Any

from celery.exceptions import QueueNotFound

from celery_safeguards.delivery.delayed import queue_behind
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.pipeline.guarding import guarded_publish
from celery_safeguards.replay.plan import OutgoingMessage, ReplayRefused

logger = logging.getLogger(__name__)
_BYTES_TOGETHER = 2_000_000
"""A trip is held in memory more than once."""
_COMMANDS_TOGETHER = 1_000
"""kombu goes on a trip for so many: more than any number of letters together needs."""


class NotPublished(SafeguardsError):
    """Raised when the broker did not take a replay; its letter is replaying, and `resume` sends it again."""


class LeftInDoubt(NotPublished):
    """Raised when nobody can tell whether a message is out that must not be sent twice."""


def publish(app: Any, letter_id: str, message: OutgoingMessage) -> None:
    """
    Send a letter's message.

    Raises:
        NotPublished: the broker did not take it, or nobody knows whether it did.
        ReplayRefused: it has no way.

    """
    way = route_of(app, message)
    try:
        with guarded_publish(app, message.task), app.producer_or_acquire() as producer:
            retries = {"retry": True, "retry_policy": app.conf.task_publish_retry_policy}
            _put(producer, message, way, **retries)
    except Exception as error:
        # Whatever went wrong, from the broker to a queue's arguments: the letter says that it is replaying.
        raise NotPublished(
            f"letter {letter_id} is replaying as task {message.task_id}, and goes on by `dead resume`: {error!r}"
        ) from error


def publish_together(app: Any, messages: Collection[OutgoingMessage]) -> bool:
    """
    Send several messages in one trip, of which a second one each does no harm.

    Returns:
        Whether they are out. False: nobody knows that any is, so each is to be published.

    Raises:
        ReplayRefused: one has no way.

    """
    if len(messages) < 2 or sum(len(each.body) for each in messages) > _BYTES_TOGETHER:
        return False
    ways = [route_of(app, message) for message in messages]
    try:
        with guarded_publish(app, f"{len(messages)} replays"), app.producer_or_acquire() as producer:
            if not getattr(producer, "supports_batch_publish", False):
                return False
            with producer.batch(max_size=_COMMANDS_TOGETHER):
                for message, way in zip(messages, ways, strict=True):
                    _put(producer, message, way)
    except Exception as error:  # noqa: BLE001  whatever it was, `publish` is told of it by each message
        logger.warning("%s replays did not go out together, each goes by itself: %r", len(messages), error)
        return False
    return True


def _put(producer: Any, message: OutgoingMessage, way: tuple[str, str, list[Any]], **retries: Any) -> None:
    exchange, routing_key, declare = way
    # Bytes with their type and encoding: kombu sends such a body as it is.
    producer.publish(
        message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(message.headers),
        exchange=exchange,
        routing_key=routing_key,
        declare=declare,
        **retries,
        **message.properties,
    )


def route_of(app: Any, message: OutgoingMessage) -> tuple[str, str, list[Any]]:
    """
    Return exchange, routing key and the queues to declare: the way the message came, never into the void.

    Raises:
        ReplayRefused: no queue that this app knows lies on that way.

    """
    queues, key = app.amqp.queues, message.routing_key or ""
    try:
        if not key and not message.exchange:
            queue = app.amqp.router.route({}, message.task).get("queue")
        elif not message.exchange:
            queue = queues[key]
        elif (behind := queue_behind(app, message.exchange, key)) is not None:
            queue = behind
        else:
            bound = [each for each in queues.values() if _is_bound(each, message.exchange)]
            if bound:
                return message.exchange, key, bound
            queue = None
    except (KeyError, QueueNotFound):
        queue = None
    if queue is None:
        way = f"exchange {message.exchange!r}, routing key {key!r}"
        raise ReplayRefused(f"no queue of this app lies on its way ({way}): add it to task_queues")
    return "", queue.name, [queue]


def _is_bound(queue: Any, exchange: str) -> bool:
    bindings = [queue.exchange, *(each.exchange for each in queue.bindings or ())]
    return any(each is not None and each.name == exchange for each in bindings)
