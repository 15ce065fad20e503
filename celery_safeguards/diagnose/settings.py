"""What Celery's own settings do to the promises; no broker is asked."""

from collections.abc import Iterator
from math import isinf, isnan
from typing import Any

from celery_safeguards.conf import Settings
from celery_safeguards.delivery.visibility import configured_visibility
from celery_safeguards.diagnose.surroundings import SQS_LONGEST_SECONDS, Surroundings, quorum_queues
from celery_safeguards.diagnose.tasks import guarded, named, unguarded
from celery_safeguards.findings import Finding

_NAME = "visibility_timeout"
_DEAD_LETTER_ARGUMENTS = "x-dead-letter-"
_GREEN = {"gevent", "eventlet"}


def setting_findings(app: Any, around: Surroundings) -> Iterator[Finding]:
    """Return what is odd in an app's settings for the broker and the pool that it has."""
    yield from _timeout_in_vain(app)
    if around.visibility.broker == "redis":
        yield from _redis(app, around)
    elif around.visibility.broker == "amqp":
        yield from _rabbitmq(app, around)
    elif around.visibility.broker == "sqs":
        yield from _sqs(around)
    yield from _dead_letter_queues(app, around)
    yield from _endless_redelivery(app)


def _timeout_in_vain(app: Any) -> Iterator[Finding]:
    """Celery reads `visibility_timeout` for the broker from one place alone (celery/celery#9339, #7651)."""
    visibility = configured_visibility(app)
    if visibility.timeout_seconds is None:
        return
    options = app.connection_for_read().transport_options
    option = options.get(_NAME)
    # Kombu's transports for other brokers take their default for None.
    fault = _fault_of(option) if option is not None or (visibility.broker == "redis" and _NAME in options) else None
    if fault is not None:
        yield Finding(
            "SG140",
            f"visibility_timeout={option!r} in broker_transport_options {fault}; give seconds as a number above 0",
        )
    in_vain = (app.conf.result_backend_transport_options or {}).get(_NAME)
    if in_vain is not None and not option:
        yield Finding(
            "SG140",
            f"result_backend_transport_options has visibility_timeout={in_vain}, which no message heeds: effective is "
            f"{visibility.timeout_seconds:g} s; set it in broker_transport_options, in all workers",
        )


def _fault_of(timeout: object) -> str | None:
    """Return what kombu does with a timeout that it cannot use."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or isnan(timeout):
        return "is no number, and kombu cannot put a message back by it"
    if timeout <= 0:
        return "gives a message to another worker while the first still holds it, each time somebody looks"
    return "is for ever, and what a dead worker held is never put back" if isinf(timeout) else None


def _redis(app: Any, around: Surroundings) -> Iterator[Finding]:
    connection = app.connection_for_read()
    options = connection.transport_options
    channel = getattr(connection.get_transport_cls(), "Channel", None)
    names = ("socket_timeout", "socket_keepalive")
    # In a file system nothing is dropped without a word.
    is_local = str(connection.transport_cls).endswith("socket") or str(connection.hostname).startswith(("unix:", "/"))
    missing = [name for name in names if not options.get(name, getattr(channel, name, None))]
    if missing and not is_local:
        yield Finding(
            "SG143",
            f"{' and '.join(missing)} of the Redis broker {'is' if len(missing) == 1 else 'are'} not set: after a "
            "connection that is dropped without a word, a publish waits for ever and a worker may consume nothing; "
            "give broker_transport_options socket_timeout=30 and socket_keepalive=True",
        )
    if not options.get("ack_emulation", True):
        yield Finding(
            "SG147",
            "ack_emulation=False in broker_transport_options: Redis forgets a message as soon as it is taken, and "
            "what a worker holds when it dies is lost, acks_late or not; leave it out",
        )
    if around.pool in _GREEN and not around.visibility.is_hardened:
        yield Finding(
            "SG142",
            f"workers with the pool {around.pool!r} never look for messages of dead workers (kombu 5.7): unless a "
            "worker of another pool uses the same broker, those stay where they are; run one with --pool=prefork",
        )
    late = [name for name, task in [*guarded(app), *unguarded(app)] if task.acks_late and not _is_keyed(task)]
    cancels = bool(app.conf.worker_cancel_long_running_tasks_on_connection_loss)
    if late and not cancels and not around.visibility.is_hardened:
        yield Finding(
            "SG159",
            f"{named(late)}: when the connection is cut, a second run begins beside the first at once; keyed work is "
            "put off instead, and a message may be lost while it is taken. safeguards_transport='hardened' does "
            "neither; worker_cancel_long_running_tasks_on_connection_loss=True ends the first run, wherever it is",
        )
    if cancels:
        yield Finding(
            "SG159",
            "worker_cancel_long_running_tasks_on_connection_loss=True ends the body of every late-acknowledged task "
            "when the connection is cut: guarded work is then answered by on_unknown, and counted as a lost start",
        )


def _rabbitmq(app: Any, around: Surroundings) -> Iterator[Finding]:
    if Settings.of(app).consumer_timeout_seconds is None:
        yield Finding(
            "SG141",
            f"no client can ask RabbitMQ for its consumer_timeout; it is taken to be its default of "
            f"{around.consumer_timeout_seconds:g} s. Set safeguards_consumer_timeout_seconds to what the server has",
        )
    quorum = quorum_queues(app)
    if quorum and not around.are_delays_native:
        direct = [name for name, each in dict(app.amqp.queues).items() if each.exchange.type == "direct"]
        yield Finding(
            "SG151",
            f"quorum queues ({named(quorum)}) and direct exchanges ({named(direct)}): a message with a countdown, as "
            "every retry, is held by a worker, fills its prefetch window and counts against consumer_timeout "
            "(celery/celery#9149); bind these queues to topic exchanges (task_default_exchange_type='topic')",
        )
    dropped = [name for name, each in quorum.items() if not _dead_letters(each)]
    if dropped:
        yield Finding(
            "SG152",
            f"{named(dropped)}: RabbitMQ drops a message of a quorum queue after x-delivery-limit deliveries (20 by "
            "default since 4.0), and the queue names no x-dead-letter-exchange; name one, unless a policy does",
        )
    if app.conf.get("broker_channel_error_retry") is False:
        yield Finding(
            "SG153",
            f"broker_channel_error_retry is off: when consumer_timeout ({around.consumer_timeout_seconds:g} s) is "
            "over for one message, RabbitMQ closes the channel and the worker "
            "ends (celery/celery#6760); set it to True",
        )


def _sqs(around: Surroundings) -> Iterator[Finding]:
    timeout = around.visibility.timeout_seconds
    if timeout is not None and timeout > SQS_LONGEST_SECONDS:
        yield Finding(
            "SG154",
            f"visibility_timeout={timeout:g}: SQS refuses more than {SQS_LONGEST_SECONDS:g} s (12 h), renewals "
            "included",
        )


def _dead_letter_queues(app: Any, around: Surroundings) -> Iterator[Finding]:
    queues = dict(app.amqp.queues)
    arguing = {name: each for name, each in queues.items() if _dead_letters(each)}
    if arguing and around.visibility.broker not in {"amqp", ""}:
        yield Finding(
            "SG155",
            f"{named(arguing)}: x-dead-letter-* are arguments for RabbitMQ, and {around.visibility.broker} ignores "
            "them: nothing arrives there. Dead letters of guarded tasks are in the safeguards' store (safeguards "
            "dead list)",
        )
    # Without a key of its own a dead letter keeps that of its message, and goes nowhere that could be told here.
    targets = {str((each.queue_arguments or {}).get("x-dead-letter-routing-key", "")) for each in arguing.values()} - {
        ""
    }
    consumed = sorted(
        name
        for name, each in dict(app.amqp.queues.consume_from).items()
        if each.routing_key in targets or name in targets
    )
    if consumed:
        yield Finding(
            "SG156",
            f"{named(consumed)} takes the dead letters of another queue and is in task_queues: workers without -Q "
            "consume it, and run what has failed again; take it out of task_queues",
        )


def _endless_redelivery(app: Any) -> Iterator[Finding]:
    """Guarded tasks refuse both at import; other tasks of the same workers are delivered again for ever."""
    late = [(name, task) for name, task in unguarded(app) if task.acks_late]
    over = [name for name, task in late if _acks_on_timeout(task) is False]
    if over:
        yield Finding(
            "SG157",
            f"{named(over)}: acks_on_timeout is off and acks_late is on: over its time limit the message goes back "
            "to its queue and starts again, without end; leave it on, or build the task on SafeTask",
        )
    killing = [name for name, task in late if task.reject_on_worker_lost]
    if killing:
        yield Finding(
            "SG158",
            f"{named(killing)}: reject_on_worker_lost puts a message back each time it kills its process, without end; "
            "build the task on SafeTask, which buries it after max_lost_starts",
        )


def _acks_on_timeout(task: Any) -> bool | None:
    # Celery 5.7 has it apart; before, one option was for failures and timeouts together.
    found = getattr(task, "acks_on_timeout", None)
    given: bool | None = task.acks_on_failure_or_timeout if found is None else found
    return given


def _is_keyed(task: Any) -> bool:
    return getattr(task, "plan", None) is not None


def _dead_letters(queue: Any) -> bool:
    return any(str(name).startswith(_DEAD_LETTER_ARGUMENTS) for name in queue.queue_arguments or {})
