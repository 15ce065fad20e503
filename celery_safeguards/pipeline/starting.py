"""
The start of a body, with the hook that Celery calls before it.

Celery calls `before_start` outside of the body and of all that guards it: what it raised would fail the task for good,
acknowledged, without a retry and without a letter. Here it is kept until the delivery is admitted, and raised in place
of the body: an error of the attempt. A duplicate of work that is done has its stored result all the same.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery.exceptions import TaskPredicate

_HOOK_ERROR = "sg_hook_error"
_KEEPS = "sg_keeps_error"


def keeping_error(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a task's `before_start` that leaves its error to the body; orders to Celery still are raised at once."""
    if hasattr(hook, _KEEPS):
        return hook

    @wraps(hook)
    def keeping(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.request_stack.top
        # One that a subclass calls on to must stop that one, too.
        if request is None or request.called_directly or type(self).before_start is not keeping:
            return hook(self, *args, **kwargs)
        try:
            return hook(self, *args, **kwargs)
        except (TaskPredicate, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - raised in place of the body
            setattr(request, _HOOK_ERROR, error)

    setattr(keeping, _KEEPS, True)
    return keeping


def run_body(task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body of a delivery that is admitted; raises in its place what its `before_start` has raised."""
    error = getattr(request, _HOOK_ERROR, None)
    if error is not None:
        raise error
    return task.run(*args, **kwargs)
