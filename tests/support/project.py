"""
A Django project in files, as a team has one: `manage.py`, settings, a Celery app, an app with tasks.

Each command runs in a process of its own, so that what it says depends on nothing that a test has set up.
"""

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "project"
DEBUG = True
USE_TZ = True
INSTALLED_APPS = ["orders", "django_celery_safeguards"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CELERY_BROKER_URL = "memory://"
"""
CELERY = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
MANAGE = """
import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""
TASKS = """
from celery import shared_task

from celery_safeguards import Idempotent, Safeguards
from django_celery_safeguards import SafeTask


@shared_task(base=SafeTask, safeguards=Safeguards(idempotent=Idempotent("ship:{order_id}", on_unknown="rerun")))
def ship(order_id):
    return f"shipped {order_id}"
"""


class Project:
    """
    A project in a directory.

    Args:
        directory: empty.
        settings: more lines of the settings module.
        tasks: what `orders/tasks.py` holds.
        celery: what `proj/celery.py` holds.
        files: more files, by path.

    """

    def __init__(self, directory, *, settings="", tasks=TASKS, celery=CELERY, files=None):
        self.directory = Path(directory)
        written = {
            "manage.py": MANAGE,
            "proj/__init__.py": "from proj.celery import app\n",
            "proj/settings.py": SETTINGS + settings,
            "proj/celery.py": celery,
            "orders/__init__.py": "",
            "orders/tasks.py": tasks,
            **(files or {}),
        }
        for name, text in written.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def manage(self, *words, **options):
        """Run `manage.py`; see `run`."""
        return self.run("manage.py", *words, **options)

    def celery(self, *words, **options):
        """Run `celery -A proj`; see `run`."""
        return self.run("-m", "celery", "-A", "proj", *words, **options)

    def python(self, code, **options):
        """Run code in the project, set up; see `run`."""
        return self.run("-c", f"import proj, django\ndjango.setup()\n{code}", **options)

    def run(self, *words, text=None, env=None, timeout_seconds=60):
        """Run Python with these words in the project's directory and return the ended process, its output as text."""
        given = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        return subprocess.run(
            [sys.executable, *words],
            check=False,
            cwd=self.directory,
            env={**given, **(env or {})},
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
