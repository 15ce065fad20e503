"""
`SafeTask` for Django: the core's, with Celery's `delay_on_commit` and `apply_async_on_commit`.

It is a `DjangoTask`, as Celery makes every task in a Django project that names no base of its own. Celery's two methods
return nothing and know one database (celery 5.5 to 5.7, `contrib/django/task.py`).
"""

import uuid
from functools import partial
from typing import Any

from celery.contrib.django.task import DjangoTask
from django.apps import apps
from django.core.checks import CheckMessage, Error, register

from celery_safeguards import headers as h
from celery_safeguards.pipeline.broker_ids import broker_ids
from celery_safeguards.task import SafeTask as CoreSafeTask
from django_celery_safeguards.names import APP, TAG
from django_celery_safeguards.publishing import after_commit, as_received


@register(TAG)
def check_installed(**_: Any) -> list[CheckMessage]:
    """Check that the app is installed: its other checks, its tables and its pages are not there without."""
    if apps.is_installed(APP):
        return []
    hint = f"add {APP!r}; the core, 'celery_safeguards', is no app of Django's"
    return [Error(f"tasks are built on {APP}.SafeTask, and INSTALLED_APPS lacks it", hint=hint, id=f"{TAG}.SG200")]


class SafeTask(CoreSafeTask, DjangoTask):
    """
    A Celery task with safeguards, which can be published after COMMIT.

    See `celery_safeguards.SafeTask`.
    """

    abstract = True

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> Any:
        """Publish with these arguments once the default database's transaction commits; see the longer form."""
        return self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *rest: Any,
        using: str | None = None,
        **options: Any,
    ) -> Any:
        """
        Publish once the running transaction is committed; never after a rollback, of a savepoint either.

        The id, the idempotency key and the arguments are fixed by this call: what is changed in an argument later does
        not travel. A `countdown` counts from COMMIT. Outside a transaction this is `apply_async`.

        Args:
            args: as `apply_async` takes it.
            kwargs: as `apply_async` takes it.
            task_id: allocated unless given.
            *rest: as `apply_async` takes it.
            using: alias of the database whose transaction counts; Django's default one unless given.
            **options: as `apply_async` takes them.

        Returns:
            The `AsyncResult`, at once.

        Raises:
            KeyRefused: as `apply_async` does, here and not after COMMIT.
            TypeError: the arguments do not fit the task.

        """
        key = self.key_headers(args, kwargs)
        check_arguments = getattr(self, "__header__", None) if self.typing else None
        if check_arguments is not None:
            check_arguments(*(args or ()), **(kwargs or {}))
        if key and self.plan is not None:
            options |= broker_ids(self.app, self.plan, key, options, args, kwargs)
        options["headers"] = h.FixedHeaders({**h.passed_on(options.get("headers")), **key})
        serializer = options.get("serializer") or self.serializer
        if serializer != "pickle":
            args, kwargs = self.plain_arguments(args, kwargs)
        sent_args, sent_kwargs = as_received((tuple(args or ()), dict(kwargs or {})), serializer)
        task_id = task_id or str(uuid.uuid4())
        publish = partial(self.apply_async, tuple(sent_args), sent_kwargs, task_id, *rest, **options)
        return after_commit(self.app, f"{self.name}[{task_id}]", publish, self.AsyncResult(task_id), using)
