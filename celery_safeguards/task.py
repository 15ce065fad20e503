"""
`SafeTask`: the base class that puts a task's safeguards around its body.

It works the same by decorator, `shared_task(base=)`, class-based tasks, `Celery(task_cls=)`, `.apply()`, eager mode and
Celery's pytest worker. A direct call (`charge(42)`) is a plain call: the guards are off.

Celery builds its tracer around `task` where `__call__` is overridden (celery 5.7, `app/trace.py`), so `__call__` is
where a delivery enters; or `run`, where a project's own `__call__` calls that, as Flask's documentation has it. Nothing
of one call is stored on the task object: it is shared by all threads of a process.
"""

import inspect
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

import celery
from celery.utils.imports import symbol_by_name

from celery_safeguards import headers as h
from celery_safeguards._names import is_built_in
from celery_safeguards.admission.plan import LockPlan, Plan
from celery_safeguards.delivery.connections import choose_transport
from celery_safeguards.errors import ConfigurationError, KeyRefused, MessageTooLarge
from celery_safeguards.pipeline import execute
from celery_safeguards.pipeline.broker_ids import broker_ids
from celery_safeguards.pipeline.failing import RETRY_ASKED, RetryAsked, refuse_if_used_up, what_failed
from celery_safeguards.pipeline.guarding import guarded_publish
from celery_safeguards.pipeline.refusing import keep_refused_body, refuse_publish, unsent_messages
from celery_safeguards.pipeline.safe import Safe, current_safe, running_attempt
from celery_safeguards.policy import Declared, Policy, Safeguards
from celery_safeguards.registering import (
    body_of,
    merged_safeguards,
    refuse_what_nobody_runs,
    refuse_what_undoes,
    registered_name,
    wire_hooks,
)
from celery_safeguards.wiring import Wiring

_STEPS = {
    f"celery_safeguards.worker.{name}"
    for name in (
        "steps:CheckStep",
        "steps:LeaseStep",
        "steps:HealthStep",
        "stopping:StopStep",
        "delivering:DeliveryStep",
        "intake:IntakeStep",
    )
}


class SafeTask(celery.Task):  # type: ignore[misc]
    """
    A Celery task with safeguards.

    Late acknowledgement, classified retry and dead letters for every task; idempotency for those that declare a key.
    Options of Celery that would undo them are refused when the task is registered, with the option named.
    """

    abstract = True
    safeguards: ClassVar[Safeguards] = Safeguards()
    Request = "celery_safeguards.worker.request:SafeRequest"

    acks_late = True
    acks_on_failure_or_timeout = True
    # The worker's main process decides on a lost child: Celery's own ways requeue for ever, or spend a retry on it.
    reject_on_worker_lost = False
    retry_on_worker_lost = False

    policy: Policy = Policy.of(Safeguards())
    plan: Plan | None = None
    lock_plan: LockPlan | None = None

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """
        Work out the task's safeguards when it is registered.

        Raises:
            ConfigurationError: the key does not fit the body, or a Celery option would undo a safeguard.

        """
        super().on_bound(app)
        name = registered_name(cls, app)
        if name is None or is_built_in(name):
            return
        try:
            cls.policy = Policy.of(merged_safeguards(cls))
            if cls.policy.declared is Declared.AT_MOST_ONCE:
                cls.acks_late = False
            refuse_what_undoes(cls, SafeTask, name)
            body = body_of(cls)
            refuse_what_nobody_runs(body, name)
            cls.plan = Plan.of(name, body, cls.policy) if cls.policy.idempotent is not None else None
            cls.lock_plan = LockPlan.of(name, body, cls.policy.lock) if cls.policy.lock is not None else None
        except ConfigurationError:
            # Celery has listed it before it was bound, and would hand it out unguarded to the next who asks.
            app._tasks.pop(name, None)  # noqa: SLF001
            raise
        wire_hooks(cls, SafeTask)
        # By name: the worker's side is loaded in workers only.
        app.steps["consumer"].update(_STEPS)
        choose_transport(app)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a delivery with its safeguards, or a direct call without."""
        request = self._entering()
        return super().__call__(*args, **kwargs) if request is None else execute(self, request, args, kwargs)

    def _entering(self) -> Any:
        """Return the delivery that enters its safeguards here; None: there is none, or it is inside of them already."""
        request = self.request_stack.top
        if request is None or request.called_directly or request._protected or self.is_built_in:  # noqa: SLF001
            return None
        # Celery marks a request whose body runs, so that a body that calls its own task makes a plain call.
        request._protected = 1  # noqa: SLF001
        return request

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        """
        Return what a worker does with the task's messages.

        Raises:
            ConfigurationError: `Request` is a class that renews nothing and acknowledges what is not durable.

        """
        # Not at registration: its module may be loaded in workers only, and a name may lead to one not loaded yet.
        kind, ours = symbol_by_name(self.Request), symbol_by_name(SafeTask.Request)
        if not issubclass(kind, ours):
            raise ConfigurationError(
                f"{self.name}: Request={kind.__module__}:{kind.__qualname__} does not go with SafeTask: "
                f"derive it from {SafeTask.Request}"
            )
        return super().start_strategy(app, consumer, **options)

    @property
    def is_built_in(self) -> bool:
        """Whether this is no project's task: `Celery(task_cls=SafeTask)` derives Celery's own from it too."""
        return is_built_in(str(self.name))

    @property
    def safe(self) -> Safe:
        """The running body's view of its safeguards; raises `SafeguardsError` outside one."""
        return current_safe()

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, *rest: Any, **options: Any
    ) -> Any:
        """
        Publish, with the idempotency key and the fingerprint of these arguments in the headers.

        Raises:
            KeyRefused: the arguments do not fit the task, or the key, or that of its lock, would be missing, empty or
                not stable.
            MessageTooLarge: its encoded body is above `safeguards_max_message_bytes`, and that is denied.
            PublishTimedOut: it was not over within `safeguards_publish_timeout_seconds`, and may have arrived.

        """
        given = options.get("headers")
        if not isinstance(given, h.FixedHeaders):
            if given and not self._is_own_copy(task_id):
                # A body that passes on its own headers, such as the tenant's, has those of its message among them.
                given = options["headers"] = h.passed_on(given)
            try:
                key = self.key_headers(args, kwargs)
            except KeyRefused as error:
                return refuse_publish(self, error, args, kwargs, task_id, options)
            if key:
                options["headers"] = {**(given or {}), **key}
            if key and self.plan is not None:
                options |= broker_ids(self.app, self.plan, key, options, args, kwargs)
        with unsent_messages() as unsent:
            try:
                with guarded_publish(self.app, self.name, is_first=True):
                    return super().apply_async(args, kwargs, task_id, *rest, **options)
            except MessageTooLarge as error:
                return refuse_publish(self, error, args, kwargs, task_id, options)
            except Exception as error:
                keep_refused_body(self.app, unsent, error, options.get("serializer"))
                raise

    def key_headers(self, args: Any, kwargs: Any) -> Mapping[str, Any]:
        """
        Return the headers that name the operation of a call; none for a task without a key.

        Raises:
            KeyRefused: the arguments do not fit the task, or the key, or that of its lock, would be missing, empty or
                not stable.

        """
        if self.lock_plan is not None:
            self.lock_plan.name(args, kwargs)
        return {} if self.plan is None else self._key_headers(self.plan, args, kwargs)

    def plain_arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments as a message has them: pydantic's models, where the task takes such, as plain data."""
        # Private, and new in celery 5.7, whose `apply_async` does the same.
        dump = getattr(self, "_dump_pydantic_arguments", None)
        return (args, kwargs) if dump is None else dump(args, kwargs)

    def publish(self, args: Any, kwargs: Any, **options: Any) -> Any:
        """
        Publish a copy of a message with the headers it has: its key was fixed at first publish.

        Raises:
            PublishTimedOut: it was not over in time, and may have arrived.

        """
        with guarded_publish(self.app, self.name):
            return super().apply_async(args, kwargs, **options)

    def retry(  # noqa: PLR0917 - Celery's own signature
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """
        Ask for another attempt, as Celery's `retry` does.

        This only raises. The attempt is recorded first, then the copy is published, then the message is acknowledged;
        the policy's caps hold, and without `countdown` or `eta` its backoff does. In a hook, such as `before_start`, it
        is Celery's own.

        Raises:
            Retry: unless `throw=False`: then the retry follows when the body returns.
            MaxRetriesExceededError: no attempt is left; in its place `exc`, where it was given. A body that catches it
                and returns has succeeded, as in Celery.

        """
        request = self.request
        if request.called_directly or self.is_built_in:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        attempt = running_attempt(request.id)
        if attempt is None:
            # A hook of the task's, outside of its body: what it only raises, nobody would publish.
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if args is not None or kwargs is not None:
            args, kwargs = self._retry_arguments(request, args, kwargs)
        exc = what_failed(exc)
        asked = RetryAsked(
            exc or what_failed(sys.exc_info()[1]),
            eta if eta is not None else countdown,
            args=args,
            kwargs=kwargs,
            max_retries=max_retries,
            options=options,
        )
        refuse_if_used_up(self, request, asked, attempt, exc)
        if throw:
            raise asked
        setattr(request, RETRY_ASKED, asked)
        return asked

    def _is_own_copy(self, task_id: str | None) -> bool:
        """Whether a publish is of the running message: Celery's own `retry`, in a hook, comes this way."""
        request = self.request_stack.top
        return request is not None and request.id is not None and request.id == task_id

    def _key_headers(self, plan: Plan, args: Any, kwargs: Any) -> Mapping[str, Any]:
        epoch = None if self.app.conf.task_always_eager else Wiring.of(self.app).epoch.get()
        key = {h.VERSION: h.FORMAT, h.KEY: plan.key(args, kwargs)}
        key[h.FINGERPRINT] = plan.fingerprint(*self.plain_arguments(args, kwargs))
        return key if epoch is None else {**key, h.EPOCH: epoch}

    def _retry_arguments(self, request: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return both kinds of arguments where only one was given: what the new ones name is not passed twice."""
        if args is not None and kwargs is not None:
            return args, kwargs
        signature = inspect.signature(self.run)
        # What stands in `*args`, or can be given by its place alone, has no name that a keyword could replace.
        named = {name for name, each in signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD}
        if args is not None:
            taken = named.intersection(signature.bind_partial(*args).arguments)
            return args, {name: value for name, value in (request.kwargs or {}).items() if name not in taken}
        bound = signature.bind_partial(*(request.args or ()))
        replaced = {name: kwargs[name] for name in named.intersection(bound.arguments, kwargs)}
        bound.arguments.update(replaced)
        return bound.args, {name: value for name, value in kwargs.items() if name not in replaced}
