"""
What the queues of SQS have for a visibility timeout: each its own, whatever kombu's option says.

Kombu's option is for queues that it makes; one that exists keeps what it was made with, and predefined queues are never
made by it: what they have is compared with an option that somebody has set alone. Tasks are measured against the
shortest of those that are consumed.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from celery_safeguards._compat import sqs_timeout_seconds
from celery_safeguards.delivery.visibility import Visibility
from celery_safeguards.findings import Finding

logger = logging.getLogger(__name__)


def sqs_visibility(channel: Any, visibility: Visibility, queues: Iterable[str]) -> tuple[Visibility, list[Finding]]:
    """
    Return the shortest timeout of the queues, and what is odd in them; blocks for the answers.

    Args:
        channel: open, to SQS.
        visibility: what kombu's option gives to queues that it makes.
        queues: names, as Celery has them.

    """
    found, timeouts = [], []
    is_said = channel.connection.client.transport_options.get("visibility_timeout") is not None
    for queue in queues:
        try:
            timeout = sqs_timeout_seconds(channel, queue)
        except Exception as error:
            logger.info("queue %r could not be asked for its visibility timeout", queue, exc_info=True)
            found.append(Finding("SG141", f"queue {queue!r} could not be asked: {type(error).__name__}: {error}"))
            continue
        timeouts.append(timeout)
        if timeout != visibility.timeout_seconds and (is_said or not channel.predefined_queues):
            found.append(
                Finding(
                    "SG149",
                    f"queue {queue!r} has VisibilityTimeout={timeout:g}, and visibility_timeout in "
                    f"broker_transport_options is {visibility.timeout_seconds or 0:g} s, which is for new queues "
                    "alone; set the queue's attribute, or the option to the same",
                )
            )
    return replace(visibility, timeout_seconds=min(timeouts, default=visibility.timeout_seconds)), found
