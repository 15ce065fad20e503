"""
The project's Celery app. A test that imports this without an environment gets none, and makes one of its own.
"""

import os

from celery import Celery

from tests.browser.desk import where
from tests.browser.desk.tasks import add_tasks
from tests.support import announce  # noqa: F401 - a worker says what it does
from tests.support.apps import NAMESPACE, STORE_URL, settings_from_environment


def make_app(store_url, **options):
    """Return the app for this process's environment."""
    app = Celery("desk", **options)
    app.conf.update(
        settings_from_environment(
            safeguards_namespace=os.environ[NAMESPACE],
            safeguards_store_url=store_url,
            safeguards_playbooks={"bug": "https://wiki.example.com/bugs?a=<b>", "desk.charge": "javascript:alert(1)"},
            result_backend="disabled://",
            task_publish_retry_policy={"max_retries": 0},
            safeguards_searchable_arguments=["order_id", "customer.email"],
            safeguards_sensitive_arguments=["customer"],
            safeguards_search_secret="of the desk",
        )
    )
    add_tasks(app)
    return app


app = make_app(os.environ.get(STORE_URL, f"django://{where.STORE_ALIAS}")) if NAMESPACE in os.environ else None
