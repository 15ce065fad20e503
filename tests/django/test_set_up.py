"""
`INSTALLED_APPS += ["django_celery_safeguards"]` is the whole set-up: where the records are then, by whatever means the
project gives Celery its settings.
"""

import os
import subprocess
import sys

import pytest

from tests.support.project import CELERY, Project

WHERE = """
from celery_safeguards.conf import Settings
print(Settings.of(proj.app).store_url)
"""


def store_of(project):
    done = project.python(WHERE)
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", "django://default"),
        ("CELERY_BROKER_URL = 'amqp://guest@localhost//'", "django://default"),
        ("del CELERY_BROKER_URL", "django://default"),
        ("CELERY_BROKER_URL = 'redis://localhost:6379/3'", "redis://localhost:6379/3"),
        ("CELERY_TASK_ALWAYS_EAGER = True", "memory://"),
        ("CELERY_SAFEGUARDS_STORE_URL = 'django://other'", "django://other"),
        ("INSTALLED_APPS.remove('django_celery_safeguards')", "None"),
    ],
)
def test_store_is_the_brokers_redis_or_else_the_default_database(tmp_path, settings, expected):
    """A project without Redis would be asked for a URL that it has no server for."""
    assert expected == store_of(Project(tmp_path, settings=settings))


@pytest.mark.parametrize("namespace", ["CELERY", "SHOP", "CELERY_APP"])
def test_settings_are_found_under_any_namespace(tmp_path, namespace):
    """A project that calls its Celery settings otherwise would run with the defaults."""
    settings = f"{namespace}_BROKER_URL = 'memory://'\n{namespace}_SAFEGUARDS_STORE_URL = 'django://east'"
    celery = CELERY.replace('namespace="CELERY"', f'namespace="{namespace}"')

    assert "django://east" == store_of(Project(tmp_path, settings=settings, celery=celery))


def test_setting_may_be_given_to_the_celery_app_alone(tmp_path):
    """Settings of Celery need not be Django's."""
    celery = CELERY + 'app.conf.safeguards_store_url = "django://west"\n'

    assert "django://west" == store_of(Project(tmp_path, celery=celery))


def test_a_celery_project_without_django_is_told_so(tmp_path):
    """A traceback of Django's settings says nothing of the URL that was copied from another project."""
    (tmp_path / "plain.py").write_text(
        "from celery import Celery\n"
        "app = Celery('plain', broker='memory://')\n"
        "app.conf.safeguards_store_url = 'django://default'\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "plain", "safeguards", "dead", "list"]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert (2, "") == (done.returncode, done.stdout), done.stderr
    assert "no Django project is set up in this process" in done.stderr
    assert "Traceback" not in done.stderr


def test_tasks_are_guarded_after_migrate_and_nothing_else(tmp_path):
    """Every further step is one that a team forgets: this is what README says."""
    project = Project(tmp_path)
    for done in (project.manage("migrate", "--verbosity=0"), project.celery("safeguards", "store", "init", "--yes")):
        assert 0 == done.returncode, done.stderr

    ran = project.python(
        """
from orders.tasks import ship
proj.app.conf.task_always_eager = True
proj.app.conf.safeguards_store_url = "django://default"
print(ship.delay(7).get(), ship.delay(7).get())
"""
    )
    shown = project.celery("safeguards", "keys", "show", "ship:7")

    assert (0, "shipped 7 shipped 7") == (ran.returncode, ran.stdout.strip()), ran.stderr
    assert (0, True) == (shown.returncode, "done" in shown.stdout), shown.stderr
