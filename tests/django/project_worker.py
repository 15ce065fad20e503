"""
A Django project whose worker runs for real, with Celery's own set-up of Django in it.
"""

import os

from tests.support import apps
from tests.support.project import CELERY, Project

SETTINGS = """
import os

DATABASES = {database!r}
CELERY_BROKER_URL = os.environ["{broker}"]
CELERY_SAFEGUARDS_STORE_URL = {store!r}
CELERY_SAFEGUARDS_NAMESPACE = os.environ["{namespace}"]
CELERY_TASK_DEFAULT_QUEUE = os.environ["{namespace}"]
CELERY_BROKER_TRANSPORT_OPTIONS = {{"global_keyprefix": os.environ["{namespace}"] + "."}}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
"""
TASKS = f"""
import os
import threading

from celery import shared_task
from django.db import connection, transaction

from celery_safeguards import Idempotent, Safeguards
from django_celery_safeguards import SafeTask
from django_celery_safeguards.models import StartCount
from tests.support.announce import announce, gate

KEYED = Safeguards(idempotent=Idempotent("{{number}}", on_unknown="rerun"))
USERS = "users of " + os.environ["{apps.NAMESPACE}"]
kept = []


def mark(name):
    StartCount.objects.create(id=name + " " + USERS, namespace=USERS, task_id=name, count=1, expires_us=0)


@shared_task(base=SafeTask, safeguards=KEYED)
def count(number):
    with transaction.atomic():
        announce("counted", number=number, rows=StartCount.objects.filter(namespace=USERS).count())
    gate("counting", number=number)


@shared_task(base=SafeTask, time_limit=1, safeguards=Safeguards(repeatable=True, retry=None))
def hang():
    StartCount.objects.count()
    threading.Event().wait(50)


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, retry=None))
def leave_atomic():
    kept.append(transaction.atomic())
    kept[-1].__enter__()
    mark("atomic")


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, retry=None))
def leave_manual():
    transaction.set_autocommit(False)
    mark("manual")


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, retry=None))
def leave_raw():
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    mark("raw")


@shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, retry=None))
def leave_nothing():
    with transaction.atomic():
        mark("kept")
"""


def project_with(directory, database, *, store="django://default", settings="", celery=""):
    """Return a project on this database; its worker and its messages are those of the test's environment."""
    names = {"broker": apps.BROKER_URL, "namespace": apps.NAMESPACE}
    return Project(
        directory,
        settings=SETTINGS.format(database={"default": database}, store=store, **names) + settings,
        tasks=TASKS,
        celery=CELERY + "\nimport tests.support.announce\n" + celery,
    )


def environment(project, worker_env):
    """Return the environment of the project's worker, which is started elsewhere."""
    path = os.pathsep.join([str(project.directory), os.environ.get("PYTHONPATH", "")])
    return {**worker_env, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "proj.settings"}
