"""
The guard of a publish: it is over by a deadline, and a first publish is no larger than is allowed.

`delay()` must not hang: a broker that is paused, frozen or behind a wall that drops packets answers nothing, and Celery
waits for it without end (celery/celery#4296, celery/celery#4627). Here every publish of guarded work ends within
`safeguards_publish_timeout_seconds`, with `PublishTimedOut`: first ones, copies, continuations and replays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from celery_safeguards._bounded import bound_producers, timed_out
from celery_safeguards._publishing import Publishing, publish_under_way
from celery_safeguards.errors import PublishTimedOut
from celery_safeguards.wiring import Wiring


@contextmanager
def guarded_publish(app: Any, name: str, *, is_first: bool = False) -> Iterator[None]:
    """
    Bound what is published inside, in time and, for a first publish, in size.

    A copy is not weighed: the message is under way already, and who refused it would lose it or hold it for ever.

    Args:
        app: whose producers publish.
        name: what is published, for people.
        is_first: whether this is no copy of a message.

    Raises:
        PublishTimedOut: it was not over in time.
        MessageTooLarge: `safeguards_large_messages` is `"deny"`, and it is.

    """
    if app.conf.task_always_eager:
        # The body runs inside, for as long as it takes.
        yield
        return
    wiring = Wiring.of(app)
    settings, clock = wiring.settings, wiring.clock
    bound_producers(app)
    seconds = settings.publish_timeout_seconds
    ends = clock.monotonic_seconds() + seconds
    max_bytes, denies = (settings.max_message_bytes, settings.large_messages == "deny") if is_first else (None, False)
    with publish_under_way(Publishing(clock, seconds, ends, name, max_bytes, denies)) as publishing:
        try:
            yield
        except PublishTimedOut:
            raise
        except (OperationalError, OSError) as error:
            if not publishing.is_over:
                raise
            raise timed_out(publishing, app.connection_for_write().as_uri(), repr(error)) from error
