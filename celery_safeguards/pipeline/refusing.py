"""
A publish that is refused while Celery dispatches: the refused task becomes a letter, its parent stays succeeded.

In user code a refusal raises, where it can be seen and mended. Raised while Celery sends a link, the next of a chain, a
chord's body or an errback, it would turn the parent's success into a failure and lose the rest of the chain.
"""

import sys
import uuid
from collections.abc import Mapping
from types import FrameType
from typing import Any

from kombu.utils.json import dumps

from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import KeyRefused
from celery_safeguards.outcome import FailureKind
from celery_safeguards.pipeline.burial import write_letter
from celery_safeguards.pipeline.failing import error_text
from celery_safeguards.wiring import Wiring

_PASSED_THROUGH = ("celery.canvas", "celery.app.task", "celery.app.amqp", "celery.local", "kombu", "vine")
_DISPATCHES = ("celery.app.trace", "celery.backends", "celery_safeguards.pipeline.continuing")


def is_dispatched_by_celery(frame: FrameType | None) -> bool:
    """
    Whether a publish was made by Celery for a continuation, and not by user code.

    Args:
        frame: of the publishing method; from there outwards, the first frame that is no mere passage decides. A team's
            own `apply_async`, which passes on to ours, is one.

    """
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if _belongs(module, _DISPATCHES):
            return True
        if not _belongs(module, _PASSED_THROUGH) and frame.f_code.co_name != "apply_async":
            return False
        frame = frame.f_back
    return False


def refuse_publish(
    task: Any, error: KeyRefused, args: Any, kwargs: Any, task_id: str | None, options: Mapping[str, Any]
) -> Any:
    """
    Raise the refusal in user code; in a dispatch write the letter and return the result of a task that never runs.

    Raises:
        KeyRefused: the publish came from user code.

    """
    caller = sys._getframe(1)  # noqa: SLF001 - who publishes is told by the stack alone
    if not is_dispatched_by_celery(caller.f_back):
        raise error
    wiring, task_id = Wiring.of(task.app), task_id or uuid.uuid4().hex
    now = wiring.clock.wall_seconds()
    embed = {name: options.get(name) for name in ("link", "link_error", "chain", "chord")}
    body = (args or (), kwargs or {}, {"callbacks": embed.pop("link"), "errbacks": embed.pop("link_error"), **embed})
    letter = Letter.capture(
        wire=WireMessage(
            body=str(dumps(body)).encode(),  # type: ignore[no-untyped-call]
            content_type="application/json",
            content_encoding="utf-8",
            headers={
                **(options.get("headers") or {}),
                "id": task_id,
                "task": task.name,
                "lang": "py",
                "parent_id": options.get("parent_id"),
                "root_id": options.get("root_id"),
                "group": options.get("group_id"),
                "group_index": options.get("group_index"),
            },
            delivery_info={"exchange": "", "routing_key": options.get("queue") or task.app.conf.task_default_queue},
        ),
        error=error_text(wiring, error),
        id=f"refused-{task_id}",
        kind=FailureKind.DATA,
        effect_possible=False,
        reason=str(error),
        first_seen_seconds=now,
        last_failed_seconds=now,
    )
    write_letter(wiring, letter)
    return task.AsyncResult(task_id)


def _belongs(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
