"""What a worker of a Django project looks at when it starts, beside what every worker does."""

from collections.abc import Iterator
from typing import Any

from celery.contrib.django.task import DjangoTask

from celery_safeguards.findings import Finding
from celery_safeguards.task import SafeTask
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.clearable import broker_urls, clearable_findings


def project_findings(app: Any) -> Iterator[Finding]:
    """Return the tasks that lack what Celery gives every task here, and what a cache would wipe."""
    for name, task in sorted(app.tasks.items()):
        if isinstance(task, SafeTask) and not isinstance(task, DjangoTask) and not task.is_built_in:
            yield Finding(
                "SG102",
                f"{name} is built on celery_safeguards.SafeTask and lacks "
                "delay_on_commit and apply_async_on_commit; take django_celery_safeguards.SafeTask",
            )
    yield from clearable_findings(Wiring.of(app).settings.store_url, broker_urls(app))
