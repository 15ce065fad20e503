"""The project's configuration. Whoever reads its settings has its Celery app: `shared_task` needs one."""

from example_project.config.celery import app as celery_app

__all__ = ["celery_app"]
