"""
What is checked and wired when a task is registered: its options, its body, its hooks.

What would undo a safeguard is refused with the option named, where it is written: at import. Celery binds a task more
than once, and a subclass inherits what its parent was given: all of this may be done again.
"""

import inspect
from collections.abc import Callable
from functools import reduce, wraps
from operator import or_
from types import MethodType
from typing import Any, cast

import celery

from celery_safeguards.errors import AttachedToLetter, ConfigurationError, DeadBefore, Refused
from celery_safeguards.pipeline import execute
from celery_safeguards.pipeline.continuing import mark_reported
from celery_safeguards.pipeline.starting import keeping_error
from celery_safeguards.policy import UNSET, Declared, EntityLock, Idempotent, Safeguards
from celery_safeguards.retry.policy import RetryPolicy

NOTHING_NEW = (DeadBefore, AttachedToLetter, Refused)
"""Failures that only repeat what a letter says already."""
_MARKS = "sg_marks"

_REFUSED = {
    "autoretry_for": "Celery would publish the retry before the outcome is recorded. Errors are classified by default; "
    "give safeguards=Safeguards(retry=RetryPolicy(...))",
    "retry_backoff": "give RetryPolicy(base_seconds=..., factor=..., cap_seconds=...)",
    "retry_kwargs": "give RetryPolicy(...)",
    "max_retries": "give RetryPolicy(attempts=...): attempts = max_retries + 1",
    "default_retry_delay": "give RetryPolicy(base_seconds=...)",
    "reject_on_worker_lost": "it requeues for ever; Safeguards(max_lost_starts=...) bounds it",
    "retry_on_worker_lost": "it acknowledges a message whose outcome is not known; lost starts are counted already",
}
_REFUSED_AT_ANY_VALUE = frozenset({"max_retries", "default_retry_delay"})
"""Here 0 and None ask for something, too: no retry, retries without an end, a retry at once."""
_OPTION_OF: dict[type, str] = {Idempotent: "idempotent", EntityLock: "lock", RetryPolicy: "retry"}
_NEVER_RUN: dict[Callable[[Any], bool], str] = {
    inspect.iscoroutinefunction: "a coroutine (async def)",
    inspect.isasyncgenfunction: "an asynchronous generator",
    inspect.isgeneratorfunction: "a generator (yield)",
}


def merged_safeguards(task: type) -> Safeguards:
    """Return a task's safeguards: what each class along its inheritance and the decorator set, the latest winning."""
    given = [vars(each)["safeguards"] for each in reversed(task.__mro__) if "safeguards" in vars(each)]
    for value in given:
        if not isinstance(value, Safeguards):
            raise ConfigurationError(f"{task.__name__}: safeguards={value!r}: give Safeguards(...)")
    return cast("Safeguards", reduce(or_, given))


def registered_name(task: Any, app: Any) -> str | None:
    """
    Return the name a task is registered under; None for a class without a body.

    `register_task` gives an unnamed class's name to its instance only, which `on_bound` does not see (celery 5.7).
    """
    if task.name:
        return str(task.name)
    if inspect.getattr_static(task, "run") is inspect.getattr_static(celery.Task, "run"):
        return None
    return str(app.gen_task_name(task.__name__, task.__module__))


def body_of(task: type) -> Callable[..., Any]:
    """Return the body so that its signature is what callers see, whatever its first parameter is called."""
    run = inspect.getattr_static(task, "run")
    return run.__func__ if isinstance(run, staticmethod) else MethodType(run, task)


def refuse_what_nobody_runs(run: Callable[..., Any], name: str) -> None:
    """Celery calls a body and awaits nothing: the key of one that was never begun would be recorded as done."""
    for is_one, kind in _NEVER_RUN.items():
        if is_one(run):
            raise ConfigurationError(
                f"{name}: its body is {kind}, of which Celery runs nothing: give a function, such as one that calls "
                "asyncio.run(...)"
            )


def refuse_what_undoes(task: Any, base: type, name: str) -> None:
    """
    Refuse options with which a safeguard would not hold.

    Args:
        task: the class that is registered.
        base: `SafeTask`; what it and the classes behind it say is no project's option.
        name: of the task.

    Raises:
        ConfigurationError: naming the option, and what to give in its place.

    """
    ours = task.__mro__[: task.__mro__.index(base)]
    for option, fix in _REFUSED.items():
        # Celery also finds what stands behind it in the order of classes, on a mixin.
        holder = next((each for each in task.__mro__ if option in vars(each)), base)
        given = UNSET if holder in base.__mro__ else vars(holder)[option]
        if given is not UNSET and (given or option in _REFUSED_AT_ANY_VALUE):
            raise ConfigurationError(f"{name}: {option}={given!r} does not go with SafeTask: {fix}")
    for each in ours:
        for option, value in vars(each).items():
            if isinstance(value, Idempotent | EntityLock | RetryPolicy):
                kind = type(value).__name__
                raise ConfigurationError(
                    f"{name}: {option}={kind}(...) is no option of a task, and would guard nothing: give "
                    f"safeguards=Safeguards({_OPTION_OF[type(value)]}={kind}(...))"
                )
    lock = task.policy.lock
    if lock is not None and task.time_limit and lock.patience_seconds >= task.time_limit:
        raise ConfigurationError(
            f"{name}: EntityLock(wait_seconds={lock.patience_seconds:g}) with time_limit={task.time_limit:g}: "
            "the child would be killed while it waits, again and again; wait for less, or put it off (busy='defer')"
        )
    late = task.policy.declared is not Declared.AT_MOST_ONCE
    for option in ("acks_late", "acks_on_failure_or_timeout", "acks_on_failure", "acks_on_timeout"):
        if late and getattr(task, option, None) is False:
            raise ConfigurationError(
                f"{name}: {option}=False does not go with SafeTask: "
                "declare Safeguards(at_most_once=True) for work that may be lost but not repeated"
            )


def wire_hooks(task: Any, base: Any) -> None:
    """Have a task's hooks and, where its own `__call__` goes past it, its body play their part in a delivery."""
    if task.plan is not None and not hasattr(task.on_success, _MARKS):
        task.on_success = _marking(task.on_success)
        task.on_failure = _marking(task.on_failure)
    if task.before_start is not celery.Task.before_start:
        task.before_start = keeping_error(task.before_start)
    if task.__call__ is not base.__call__ and not hasattr(task.run, _MARKS):
        task.run = _entering_at(inspect.getattr_static(task, "run"))
    # Not errors of this delivery: Celery logs them as expected, and Sentry reports each letter once.
    task.throws = tuple(dict.fromkeys((*_classes(task.throws), *NOTHING_NEW)))


def _marking(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the task's hook with the mark before it: the tracer calls it once the end is stored and reported."""

    @wraps(hook)
    def marking(self: Any, *args: Any) -> Any:
        mark_reported(self.request)
        return hook(self, *args)

    setattr(marking, _MARKS, True)
    return marking


def _entering_at(run: Any) -> Any:
    """Return a body at which a delivery enters its safeguards, if the task's own `__call__` has gone past them."""
    takes_self = not isinstance(run, staticmethod)
    body = run if takes_self else run.__func__

    @wraps(body)
    def entering(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self._entering()
        if request is not None:
            return execute(self, request, args, kwargs)
        return body(self, *args, **kwargs) if takes_self else body(*args, **kwargs)

    marked: Any = entering
    if not takes_self:
        # Whoever reads the signature of a method leaves its first parameter out.
        signature = inspect.signature(body)
        first = inspect.Parameter("_task", inspect.Parameter.POSITIONAL_ONLY)
        marked.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])
    setattr(marked, _MARKS, True)
    return marked


def _classes(throws: Any) -> tuple[Any, ...]:
    """Return the errors that a task says it may raise: Celery asks `isinstance`, so one class alone is fine with it."""
    return tuple(throws) if isinstance(throws, list | tuple) else (throws,) if throws else ()
