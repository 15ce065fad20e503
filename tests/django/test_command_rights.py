"""
The permissions of the admin, asked for at the command line of a Django project.
"""

import pytest

from tests.support.project import Project

SETTINGS = """
INSTALLED_APPS += ["django.contrib.auth", "django.contrib.contenttypes"]
CELERY_SAFEGUARDS_COMMAND_RIGHTS = "django_celery_safeguards.rights.has_permission"
"""
PEOPLE = """
import django

django.setup()
from django.contrib.auth.models import Permission, User
may = Permission.objects.filter(codename__in=["view_deadletter", "view_payload_deadletter", "release_leaselock"])
for name, is_active in (("vera", True), ("gone", False)):
    user = User.objects.create_user(name, is_active=is_active)
    user.user_permissions.set(may)
User.objects.create_superuser("root")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A migrated project with somebody who may view, somebody who has left, and a superuser."""
    project = Project(tmp_path_factory.mktemp("project"), settings=SETTINGS)
    for done in (project.manage("migrate", "--verbosity=0"), project.python(PEOPLE)):
        assert 0 == done.returncode, done.stderr
    return project


def discard(project, name):
    done = project.manage("safeguards", "dead", "discard", "no-such-letter", "--by", name, "--reason", "a test")
    assert "Traceback" not in done.stderr, done.stderr
    assert 1 == done.returncode
    return done.stderr


@pytest.mark.parametrize("name", ["vera", "gone", "nobody-of-this-name"])
def test_who_has_no_permission_is_refused_before_anything_is_looked_for(project, name):
    assert f"{name} may not: dead discard needs discard" in discard(project, name)


def test_who_has_it_goes_on(project):
    assert "may not" not in discard(project, "root")


@pytest.mark.parametrize(("name", "is_refused"), [("vera", False), ("gone", True)])
def test_who_only_reads_is_known_by_the_login_name(project, name, is_refused):
    done = project.manage("safeguards", "dead", "groups", env={"LOGNAME": name})

    assert is_refused == ("may not" in done.stderr), done.stderr


def test_database_that_does_not_answer_is_no_refusal(tmp_path):
    """Its tables are missing: nobody knows who may."""
    project = Project(tmp_path, settings=SETTINGS)

    done = project.manage("safeguards", "dead", "discard", "l", "--by", "vera", "--reason", "a test")

    assert (3, True) == (done.returncode, "database of the users does not answer" in done.stderr), done.stderr
