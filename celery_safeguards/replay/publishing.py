"""The message of a replay on its way: the way it came, never into the void."""

from typing import Any

from celery.exceptions import QueueNotFound

from celery_safeguards.delivery.delayed import queue_behind
from celery_safeguards.errors import SafeguardsError
from celery_safeguards.pipeline.guarding import guarded_publish
from celery_safeguards.replay.plan import OutgoingMessage, ReplayRefused


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
    exchange, routing_key, declare = route_of(app, message)
    try:
        with guarded_publish(app, message.task), app.producer_or_acquire() as producer:
            # Bytes with their type and encoding: kombu sends such a body as it is.
            producer.publish(
                message.body,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers=dict(message.headers),
                exchange=exchange,
                routing_key=routing_key,
                declare=declare,
                retry=True,
                retry_policy=app.conf.task_publish_retry_policy,
                **message.properties,
            )
    except Exception as error:
        # Whatever went wrong, from the broker to a queue's arguments: the letter says that it is replaying.
        raise NotPublished(
            f"letter {letter_id} is replaying as task {message.task_id}, and goes on by `dead resume`: {error!r}"
        ) from error


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
