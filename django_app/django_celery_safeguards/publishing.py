"""
Publishing after COMMIT: what a rollback takes back is never sent.

    t0 the call: id, idempotency key and arguments are fixed, a refused key is raised    t1 COMMIT    t2 published

Everything that the caller can get wrong is told at t0: a hook that runs after COMMIT has nobody to tell it to. A broker
that refuses at t2 does not keep later hooks from running, as an exception there would (Django 5.2,
`run_and_clear_commit_hooks`): the message becomes a dead letter, and the log says so. A process that dies between t1
and t2 publishes nothing, but for an atomic task's body (`celery_safeguards.pipeline.publishes`).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from celery import current_app
from celery.canvas import Signature, maybe_signature
from django.db import transaction
from kombu.serialization import dumps, loads

from celery_safeguards.errors import DeadLettered
from celery_safeguards.pipeline.publishes import keeper
from celery_safeguards.pipeline.refusing import Unsent, keep_refused, unsent_messages

logger = logging.getLogger(__name__)


def publish_on_commit(signature: Signature, *, using: str | None = None) -> Any:
    """
    Publish a signature or canvas once the running transaction is committed; at once where there is none.

    Its ids are allocated and its arguments frozen now.

    Args:
        signature: a signature, chain, group or chord.
        using: alias of the database whose transaction counts; Django's default one unless given.

    Returns:
        The result object of the signature, as `apply_async` would return it.

    Raises:
        KeyRefused: a task that would be published first has no stable key for its arguments.

    """
    app = signature.app
    if app is current_app:
        # A signature by name knows none but Celery's proxy: an atomic body keeps what the app behind it publishes.
        app = current_app._get_current_object()  # noqa: SLF001 - the app behind Celery's proxy
    frozen = maybe_signature(as_received(dict(signature), _serializer_of(app, signature)), app=app)
    _give_to(app, frozen)
    for first in _published_first(frozen):
        key_headers = getattr(app.tasks.get(first.task), "key_headers", None)
        if key_headers is not None:
            key_headers(first.args, first.kwargs)
    result = frozen.freeze()
    return after_commit(app, f"{frozen}[{result.id}]", frozen.apply_async, result, using)


def after_commit(app: Any, what: str, publish: Callable[[], Any], result: Any, using: str | None) -> Any:
    """
    Call `publish` after COMMIT and return `result`; outside a transaction call it now and return what it returns.

    Args:
        app: whose dead letters take what the broker refuses.
        what: is published, for the log.
        publish: what is called.
        result: returned inside a transaction.
        using: alias of the database.

    Raises:
        TransactionManagementError: autocommit is off, and there is no `atomic()`: nobody tells when it commits.

    """
    connection = transaction.get_connection(using)
    if keeper(app, connection.alias) is not None and not app.conf.task_always_eager:
        # An atomic body: its record keeps the message, which then survives a death between COMMIT and publish.
        return publish()
    if not connection.in_atomic_block:
        answers: list[Any] = []
        connection.on_commit(lambda: answers.append(publish()))
        return answers[0]
    # Eager execution runs the body in the hook: what a test's body raises is for the test to see.
    connection.on_commit(publish if app.conf.task_always_eager else lambda: _publish_or_keep(app, what, publish))
    return result


def as_received(value: Any, serializer: str) -> Any:
    """Return what a worker gets of a value: a copy that later changes do not reach; raises what cannot be sent."""
    content_type, content_encoding, data = dumps(value, serializer)  # type: ignore[no-untyped-call]
    return loads(data, content_type, content_encoding, accept=[content_type])  # type: ignore[no-untyped-call]


def _published_first(signature: Any) -> Iterator[Any]:
    tasks = getattr(signature, "tasks", None)
    if tasks is None:
        yield signature
        return
    # A chord's header may be a group.
    every = list(getattr(tasks, "tasks", tasks))
    for each in every[:1] if signature.task == "celery.chain" else every:
        yield from _published_first(each)


def _give_to(app: Any, signature: Any) -> None:
    """Have each part of a canvas be of the app: Celery's copy of a chain leaves its own to the app of the moment."""
    signature._app = app  # noqa: SLF001 - where a signature keeps it
    tasks = getattr(signature, "tasks", None) or ()
    for each in (*getattr(tasks, "tasks", tasks), getattr(signature, "body", None)):
        if isinstance(each, Signature):
            _give_to(app, each)


def _serializer_of(app: Any, signature: Any) -> str:
    """Return what encodes the first message, with all that follows it in a chain."""
    for first in _published_first(signature):
        own = first["options"].get("serializer") or getattr(app.tasks.get(first["task"]), "serializer", None)
        return str(own or app.conf.task_serializer)
    return str(app.conf.task_serializer)


def _publish_or_keep(app: Any, what: str, publish: Callable[[], Any]) -> None:
    with unsent_messages() as unsent:
        try:
            publish()
        except Exception as error:  # noqa: BLE001 - the transaction is committed, and later hooks belong to others
            _keep(app, what, unsent, error)


def _keep(app: Any, what: str, unsent: Sequence[Unsent], error: Exception) -> None:
    kept = ""
    try:
        keep_refused(app, unsent, error, None, reason="the broker did not take it after COMMIT")
    except DeadLettered as letter:
        kept = f": dead letter {letter.letter_id}"
    except Exception as failed:  # noqa: BLE001 - the same hooks
        kept = f", nor could its letter be written ({failed})"
    logger.error("%s is committed and was not published%s", what, kept, exc_info=error)
