"""
A Django project as a team has it: an admin, a Celery app, and a store in a database that is not the default one.
"""

from tests.browser.desk.celery import app as celery_app

__all__ = ("celery_app",)
