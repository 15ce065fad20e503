"""
`manage.py safeguards ...` beside `celery -A proj safeguards ...`: one set of verbs, one way to answer.
"""

import json

import pytest

from tests.support.project import CELERY, Project
from tests.support.sockets import free_port

FAILED = """
from orders.tasks import ship
proj.app.conf.update(task_always_eager=True, safeguards_store_url="django://default")
from celery_safeguards.wiring import Wiring
Wiring.of(proj.app).admission.declare_new()
ship.delay(7)
"""
BROKEN = """
from celery import shared_task

from celery_safeguards import Idempotent, Safeguards
from django_celery_safeguards import SafeTask


@shared_task(base=SafeTask, safeguards=Safeguards(idempotent=Idempotent("ship:{order_id}", on_unknown="rerun")))
def ship(order_id):
    raise ValueError("no such order")
"""
AWAY = "CELERY_SAFEGUARDS_STORE_URL = 'redis://127.0.0.1:{port}/0'"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A migrated project with one dead letter."""
    project = Project(tmp_path_factory.mktemp("project"), tasks=BROKEN)
    for done in (project.manage("migrate", "--verbosity=0"), project.python(FAILED)):
        assert 0 == done.returncode, done.stderr
    return project


def answer(done):
    assert "Traceback" not in done.stderr, done.stderr
    return (
        done.returncode,
        done.stdout,
        done.stderr.replace("celery safeguards", "").replace("manage.py safeguards", ""),
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("dead", "list", "--json"), 0),
        (("dead", "show", "no-such-letter"), 1),
        (("dead", "list", "--state", "gone"), 2),
        (("keys", "show", "ship:7"), 0),
        (("retry", "preview", "orders.tasks.ship"), 0),
        (("store", "purge", "--json"), 0),
        (("no-such-verb",), 2),
    ],
)
def test_both_commands_answer_alike(project, words, code):
    """A script that was written for one would break with the other."""
    by_celery, by_django = project.celery("safeguards", *words), project.manage("safeguards", *words)

    assert code == by_django.returncode, by_django.stderr
    if "no-such-verb" not in words and "gone" not in words:
        assert answer(by_celery) == answer(by_django)
    assert by_celery.returncode == by_django.returncode


@pytest.mark.parametrize("words", [("dead", "list"), ("store", "init", "--yes")])
def test_store_that_is_away_exits_with_3(tmp_path, words):
    """A script must tell "nothing is dead" from "nobody answered"."""
    done = Project(tmp_path, settings=AWAY.format(port=free_port())).manage("safeguards", *words)

    assert (3, False) == (done.returncode, "Traceback" in done.stderr), done.stderr


def test_setting_that_cannot_hold_exits_with_2(tmp_path):
    """It must be named, not traced."""
    done = Project(tmp_path, settings="CELERY_SAFEGUARDS_STRICT = 1").manage("safeguards", "dead", "list")

    assert 2 == done.returncode
    assert "safeguards_strict=1: give True or False" in done.stderr


@pytest.mark.parametrize("words", [("help", "safeguards"), ("safeguards", "--help"), ("safeguards",)])
def test_help_lists_the_verbs(project, words):
    """Django's own help would show options that no verb has."""
    done = project.manage(*words)

    assert 0 == done.returncode, done.stderr
    assert {"dead", "keys", "locks", "retry", "store"} <= set(done.stdout.split())
    assert "Exit codes" in done.stdout


def test_help_of_a_verb_is_its_own(project):
    """Each verb has options of its own."""
    done = project.manage("safeguards", "dead", "replay", "--help")

    assert 0 == done.returncode
    assert "Usage: manage.py safeguards dead replay" in done.stdout
    assert "--happened" in done.stdout


def test_another_app_can_be_named(tmp_path):
    """A project may have several."""
    other = CELERY.replace('Celery("proj")', 'Celery("other")') + 'app.conf.safeguards_namespace = "other"\n'
    project = Project(tmp_path, files={"proj/other.py": other})
    project.manage("migrate", "--verbosity=0")

    named = project.manage("safeguards", "-A", "proj.other", "store", "purge", "--json")
    missing = project.manage("safeguards", "-A", "proj.no_such", "store", "purge")

    assert {"namespace": "other", "deleted": 0, "letters": 0, "groups": 0, "jobs": 0} == json.loads(named.stdout)
    assert (1, False) == (missing.returncode, "Traceback" in missing.stderr)


def test_project_without_an_app_is_told(tmp_path):
    """Celery's fall-back app has no store that anybody means."""
    done = Project(tmp_path, files={"proj/__init__.py": ""}).manage("safeguards", "dead", "list")

    assert 1 == done.returncode
    assert "no Celery app" in done.stderr


def test_called_from_code_it_can_be_read(project):
    """A scheduled task that purges would write to the worker's log only."""
    code = """
import io
from django.core.management import call_command
said = io.StringIO()
call_command("safeguards", "dead", "list", "--json", stdout=said)
assert "ship:7" in said.getvalue()
try:
    call_command("safeguards", "dead", "show", "no-such-letter")
except SystemExit as end:
    print(end.code)
"""
    done = project.python(code)

    assert (0, "1\n") == (done.returncode, done.stdout), done.stderr


def test_purge_deletes_what_is_over(project):
    """The tables would grow for ever."""
    aged = project.python(
        """
from celery_safeguards.wiring import Wiring
Wiring.of(proj.app).starts.begin("t-1", 3)
from django_celery_safeguards.models import StartCount
print(StartCount.objects.update(expires_us=1))
"""
    )
    assert "1\n" == aged.stdout, aged.stderr

    done = project.manage("safeguards", "store", "purge", "--json", "--batch", "1")

    assert (0, 1) == (done.returncode, json.loads(done.stdout)["deleted"]), done.stderr
    assert "1 row is deleted" in done.stderr


def test_purge_removes_letters_that_have_been_over_for_as_long_as_the_settings_say(project):
    """A project that has set ninety days would find letters of years, or miss those of last week."""
    code = """
import time
from dataclasses import replace
from celery_safeguards.wiring import Wiring
letters = Wiring.of(proj.app).letters
(one, *_) = letters.list(limit=1).letters
letters.bury(replace(one, id="old-open"))
for name, days in (("old", 91), ("new", 88.49)):
    letters.bury(replace(one, id=name))
    letters.close(name, "it succeeded", time.time() - days * 86_400)
"""
    made = project.python(code)
    assert 0 == made.returncode, made.stderr

    shown = project.manage("safeguards", "dead", "show", "new")
    done = project.manage("safeguards", "store", "purge", "--json")
    left = project.manage("safeguards", "dead", "list", "--state", "any", "--json")

    assert (1, 0) == (json.loads(done.stdout)["letters"], json.loads(done.stdout)["groups"]), done.stderr
    names = {letter["id"] for letter in json.loads(left.stdout)["letters"]}
    assert ({"old-open", "new"}, "old" in names) == (names & {"old-open", "new"}, False)
    assert "for another 1 d 12 h" in shown.stdout


def test_check_asks_and_explains_as_the_celery_command_does(tmp_path):
    """Whoever has `manage.py` at hand must not learn another command for the same findings."""
    project = Project(tmp_path)
    early = project.manage("safeguards", "check")
    migrated = project.manage("migrate")
    checked = project.manage("safeguards", "check")
    explained = project.manage("safeguards", "check", "--explain", "SG104")

    assert (3, 0) == (early.returncode, migrated.returncode), early.stderr + migrated.stderr
    assert "unknown SG170 the store could not be asked: " in early.stdout
    assert (0, 0) == (checked.returncode, explained.returncode), checked.stderr + explained.stderr
    assert "memory: no visibility timeout" in checked.stdout
    assert explained.stdout.startswith("SG104 redelivered while it runs (warning)")
