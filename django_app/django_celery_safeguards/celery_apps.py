"""Which Celery app a web process speaks for: the one whose settings say where letters, records and locks are."""

from typing import Any

from celery.app import app_or_default


def current_app() -> Any:
    """Return the project's Celery app: `proj/celery.py` makes it by `Celery("proj")`, `proj/__init__.py` imports it."""
    return app_or_default()


def current_app_with_tasks() -> Any:
    """Return the project's Celery app with its task modules imported: their policies say what a replay needs."""
    app = current_app()
    app.loader.import_default_modules()
    return app
