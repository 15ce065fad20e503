"""
What a broker is told of an idempotency key, so that it may drop a duplicate itself: a further layer, never the guard.

| broker | property | what it does there |
|---|---|---|
| RabbitMQ | `message_id` | names the operation, for people and plug-ins that drop duplicates |
| SQS, FIFO queue | `MessageDeduplicationId` | SQS drops a second message of it for five minutes |

The id is a digest of scope, key and fingerprint: other arguments under the same key must arrive, to be refused aloud.
It is given to a first publish alone. A retry, a deferral and a replay are of the same operation and must arrive, so
they have none (kombu's SQS transport then makes a random one).

SQS drops in silence. So what must arrive though it is a duplicate gets no id for SQS either: a message that something
waits for (a link, the rest of a chain, a chord), whose continuation would be gone; and work that may run anew after it
was dead (`on_dead="run"`). Whoever waits for the result of a dropped duplicate by its own task id waits in vain: that
is what a FIFO queue means, with or without this package.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from celery_safeguards import headers as h
from celery_safeguards.admission.plan import Plan
from celery_safeguards.ledger.decide import OnDead

_FIFO = ".fifo"
_WAITED_FOR = ("link", "chain", "chord", "group_id")


def broker_ids(
    app: Any,
    plan: Plan,
    key_headers: Mapping[str, Any],
    options: Mapping[str, Any],
    args: Any,
    kwargs: Any,
) -> dict[str, str]:
    """
    Return the message properties that name the operation of a first publish; those that its caller gave are kept.

    Args:
        app: whose broker it is.
        plan: of the task.
        key_headers: with its key and fingerprint.
        options: of `apply_async`.
        args: of the call, by which it may be routed.
        kwargs: the same.

    """
    url = app.conf.broker_write_url or ""
    scheme = str(url[0] if isinstance(url, list | tuple) else url).partition(":")[0]
    if scheme in {"amqp", "amqps", "pyamqp", "librabbitmq"}:
        name = "message_id"
    elif scheme == "sqs" and _may_be_dropped(app, plan, options, args, kwargs):
        name = "MessageDeduplicationId"
    else:
        return {}
    return {} if name in options else {name: operation_id(plan, key_headers)}


def operation_id(plan: Plan, key_headers: Mapping[str, Any]) -> str:
    """Return 64 characters that name an operation and its arguments; the same in every process."""
    named = plan.record_key(key_headers[h.KEY])
    whole = "\0".join((named.scope, named.key, str(key_headers.get(h.FINGERPRINT) or "")))
    return hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()


def _may_be_dropped(app: Any, plan: Plan, options: Mapping[str, Any], args: Any, kwargs: Any) -> bool:
    if plan.idempotent.on_dead == OnDead.RUN or any(options.get(name) for name in _WAITED_FOR):
        return False
    task = app.tasks.get(plan.task_name)
    # In this order, as `Task.apply_async` has it (celery 5.5 to 5.7).
    queue = options.get("queue") or getattr(task, "queue", None)
    if not queue:
        queue = app.amqp.router.route({}, plan.task_name, args or (), kwargs or {}, task).get("queue")
    return str(getattr(queue, "name", queue) or "").endswith(_FIFO)
