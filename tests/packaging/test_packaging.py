"""
What is shipped: scripts and types in the wheel, few dependencies, one version, and documents that name what exists.
"""

import re
import subprocess
import sys
import zipfile
from dataclasses import fields
from pathlib import Path

import pytest

import celery_safeguards
from celery_safeguards.conf import PREFIX, Settings
from celery_safeguards.findings import KINDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel as it would be published."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
        yield archive


def test_wheel_carries_every_script_and_the_marker_of_types(wheel):
    """A worker without its Lua files would fail on its first task."""
    package = ROOT / "celery_safeguards"
    expected = {str(path.relative_to(ROOT)) for path in [*package.rglob("*.lua"), package / "py.typed"]}

    assert len(expected) > 10
    assert expected <= set(wheel.namelist())


def test_wheel_holds_its_two_packages_and_nothing_else(wheel):
    """Tests and examples would shadow modules of the same name in a user's project."""
    tops = {name.split("/")[0] for name in wheel.namelist()}

    assert {"celery_safeguards", "django_celery_safeguards"} == {top for top in tops if not top.endswith(".dist-info")}


def test_core_depends_on_celery_alone(wheel):
    """Every further dependency is one more that a team has to carry."""
    metadata = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    required = re.findall(r"^Requires-Dist: ([^;\n]+)$", wheel.read(metadata).decode(), re.MULTILINE)

    assert ["celery[redis]>=5.5"] == required


def test_celery_finds_the_command(wheel):
    """`celery -A proj safeguards` would be no such command."""
    points = wheel.read(next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))).decode()

    assert "[celery.commands]" in points
    assert "safeguards = celery_safeguards.cli:safeguards" in points


def test_wheel_carries_the_migrations_of_the_django_app(wheel):
    """`manage.py migrate` would create nothing."""
    app = ROOT / "django_app"
    expected = {str(path.relative_to(app)) for path in app.rglob("*.py")}

    assert "django_celery_safeguards/migrations/0001_initial.py" in expected
    assert {*expected, "django_celery_safeguards/py.typed"} <= set(wheel.namelist())


def test_wheel_carries_the_pages_of_the_admin(wheel):
    """The admin's pages would end in TemplateDoesNotExist."""
    app = ROOT / "django_app"
    expected = {str(path.relative_to(app)) for name in ("*.html", "*.css") for path in app.rglob(name)}

    assert len(expected) > 3
    assert expected <= set(wheel.namelist())


def test_url_of_a_database_is_found_by_its_scheme(wheel):
    """`safeguards_store_url="django://default"` would be no URL of a store."""
    points = wheel.read(next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))).decode()

    assert "[celery_safeguards.stores]\ndjango = django_celery_safeguards.stores:open_stores" in points


def test_changelog_knows_the_version():
    """A release without its changes would be told from the last one by nobody."""
    changelog = (ROOT / "CHANGELOG.md").read_text()

    assert f"## {celery_safeguards.__version__}" in changelog or "## Unreleased" in changelog


def test_every_promise_in_the_readme_names_a_test_that_exists():
    """A promise whose proof is gone would go on being made."""
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "README.md").read_text())

    assert len(named) > 5
    assert [] == [path for path in named if not (ROOT / path).is_file()]


def test_readme_names_every_setting_with_its_default():
    """A setting that nobody can find, or whose default was changed since, would be set by guess."""
    rows = re.findall(rf"^\| `{PREFIX}(\w+)` \| ([^|]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    told = {name: default.strip().strip("`").replace(",", "") for name, default in rows}
    numbers = {each.name: f"{each.default:g}" for each in fields(Settings) if isinstance(each.default, float)}
    whole = {each.name: str(each.default) for each in fields(Settings) if isinstance(each.default, int)}
    expected = {**numbers, **whole, "namespace": '"default"', "spool_directory": "unset"}

    assert {each.name for each in fields(Settings)} == set(told)
    assert expected == {name: told[name] for name in expected}


def test_readme_lists_every_finding_as_the_table_has_it():
    """A finding that README does not know, or calls by another severity, is looked up in vain."""
    rows = re.findall(r"^\| `(SG\d+)` \| (\w+) \| ([^|]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)

    assert [(id_, kind.severity, kind.title) for id_, kind in KINDS.items()] == rows


def test_every_finding_that_the_packages_name_is_in_the_table():
    """`Finding` refuses others when it is made, which may be on the one set-up that has the fault."""
    sources = [path for folder in ("celery_safeguards", "django_app") for path in (ROOT / folder).rglob("*.py")]
    named = {id_ for path in sources for id_ in re.findall(r"\bSG\d{3}\b", path.read_text())}

    assert named == set(KINDS)


def test_wheel_carries_the_pages_of_the_findings(wheel):
    """`check --explain` would end in a traceback."""
    assert "celery_safeguards/diagnose/pages.md" in wheel.namelist()


def test_every_public_name_is_documented():
    """A name that nobody explains is used by guess."""
    undocumented = [name for name in celery_safeguards.__all__ if not getattr(celery_safeguards, name).__doc__]

    assert [] == undocumented
