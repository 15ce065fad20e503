"""
README's way from nothing to the first guarded task in a Django project: its blocks are written down and run.
"""

import os
import re
import shlex
import subprocess
import sys

import django
import pytest

from tests.support import servers

SECTION = "### In a Django project\n"
TASK = "accounts.tasks.welcome"
_BROKER = "redis://127.0.0.1:6379/0"
_BLOCK = re.compile(r"```(python|)\n(.*?)```\n", re.DOTALL)
_SECONDS = 60


@pytest.fixture
def blocks():
    """The section's files by path, and its commands."""
    _, _, rest = (servers.ROOT / "README.md").read_text().partition(SECTION)
    found = _BLOCK.findall(rest.partition("\n### ")[0])
    files = dict(re.match(r"# (\S+)\n(.*)", text, re.DOTALL).groups() for kind, text in found if kind)
    commands = [line for kind, text in found if not kind for line in text.splitlines()]
    return files, commands


@pytest.fixture
def run(tmp_path):
    """Run a command line in the project's directory, with this Python for `python` and its Celery for `celery`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    programs = {"python": [sys.executable], "celery": [sys.executable, "-m", "celery"]}

    def run(line):
        program, *words = shlex.split(line)
        command = [*programs[program], *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout

    run.environment = environment
    return run


def mail_settings(directory):
    """Return the lines of a settings module that keep mail in a directory."""
    backend = "django.core.mail.backends.filebased.EmailBackend"
    if django.VERSION >= (6, 1):
        options = {"BACKEND": backend, "OPTIONS": {"file_path": str(directory)}}
        return f"MAILERS = {{'default': {options!r}}}\n"
    return f"EMAIL_BACKEND = {backend!r}\nEMAIL_FILE_PATH = {str(directory)!r}\n"


@pytest.mark.acceptance
@pytest.mark.redis
@pytest.mark.parametrize("sent", [pytest.param(1, id="guarded"), pytest.param(2, id="plain")])
def test_first_guarded_task_of_a_django_project(tmp_path, blocks, run, fresh_redis, start_worker, sent):
    """A newcomer who does what README says would have no mail, or two, as without the safeguards."""
    files, commands = blocks
    if sent == 2:
        tasks = "accounts/tasks.py"
        files[tasks] = re.sub(r"@shared_task\(.*?\n\)\n", "@shared_task\n", files[tasks], flags=re.DOTALL)
    install, migrate, init, work = commands
    mails = tmp_path / "mails"

    run("python -m django startproject proj .")
    run("python manage.py startapp accounts")
    settings = (tmp_path / "proj/settings.py").read_text() + files.pop("proj/settings.py")
    assert _BROKER in settings
    settings = settings.replace(_BROKER, fresh_redis.url)
    settings += mail_settings(mails)
    for path, text in {**files, "proj/settings.py": settings}.items():
        (tmp_path / path).write_text(text)
    run(migrate)
    run(init)
    worker = start_worker("proj", run.environment, extra_args=("--include", "tests.support.announce")).wait_ready()
    run("python manage.py createsuperuser --noinput --username reader --email reader@example.com")
    publish = "from accounts.tasks import welcome; welcome.delay(1); welcome.delay(1)"
    run(f"python manage.py shell --verbosity 0 -c '{publish}'")
    ends = worker.wait_for("task_postrun", 30, count=2)

    assert "pip install 'celery-safeguards[django]' 'psycopg[binary]'" == install
    assert "celery -A proj worker" == work
    assert TASK == ends["task"]
    assert ["reader@example.com"] * sent == [_addressee(path) for path in mails.iterdir()]


def _addressee(mail):
    return re.search(r"^To: (\S+)$", mail.read_text(), re.MULTILINE)[1]
