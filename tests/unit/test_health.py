"""How a worker is judged by what it has said, and the files that it says it in."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_safeguards.health import Health, HealthFiles, VitalSigns, default_directory, judge
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker import liveness

NOW = 1_000.0
MAX_AGE = 30.0
FRESH = VitalSigns(
    node="w1@host", namespace="shop", pid=os.getpid(), pool="prefork", written=NOW, loop=NOW, broker=NOW, poll=NOW
)
OLD = NOW - MAX_AGE - 1


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        ({}, Health.HEALTHY),
        ({"poll": None}, Health.HEALTHY),
        ({"written": NOW - MAX_AGE, "loop": NOW - MAX_AGE, "broker": NOW - MAX_AGE}, Health.HEALTHY),
        ({"written": OLD, "loop": OLD, "broker": OLD, "poll": OLD}, Health.SILENT),
        ({"written": OLD}, Health.SILENT),
        ({"broker": OLD}, Health.BROKER_SILENT),
        ({"broker": OLD, "loop": OLD, "poll": OLD}, Health.BROKER_SILENT),
        ({"loop": OLD}, Health.BLOCKED),
        ({"loop": OLD, "poll": OLD}, Health.BLOCKED),
        ({"poll": OLD}, Health.DEAF),
        ({"loop": OLD, "poll": OLD, "busy_until": NOW + 1, "busy_with": "t"}, Health.BUSY),
        ({"loop": OLD, "written": OLD, "broker": OLD, "busy_until": NOW + 1, "busy_with": "t"}, Health.BUSY),
        ({"loop": OLD, "broker": OLD, "busy_until": NOW + 1, "busy_with": "t"}, Health.BROKER_SILENT),
        ({"loop": OLD, "busy_until": NOW, "busy_with": "t"}, Health.BLOCKED),
        ({"loop": OLD, "written": OLD, "busy_until": NOW, "busy_with": "t"}, Health.SILENT),
        ({"is_stopping": True, "loop": OLD, "broker": OLD, "poll": OLD}, Health.STOPPING),
        ({"is_stopping": True, "written": OLD}, Health.SILENT),
        ({"written": NOW + 5}, Health.SILENT),
        ({"written": NOW + 5, "busy_until": NOW + 9, "busy_with": "t"}, Health.SILENT),
    ],
)
def test_worker_is_judged_by_its_oldest_sign(changes, health):
    """A probe that is wrong restarts a worker that works, or leaves one that does not."""
    found = judge(replace(FRESH, **changes), NOW, MAX_AGE)

    assert health is found.health
    assert found.health.is_good == (health in {Health.HEALTHY, Health.BUSY, Health.STOPPING})
    assert "{" not in found.reason


def test_reason_tells_since_when_and_what():
    """It is what an operator reads first."""
    busy = replace(FRESH, loop=NOW - 40, busy_until=NOW + 9, busy_with="shop.report")

    assert "runs shop.report in its loop, for 40 s" == judge(busy, NOW, MAX_AGE).reason
    assert "31 s" in judge(replace(FRESH, broker=OLD), NOW, MAX_AGE).reason


def test_what_is_written_is_read_by_namespace_and_node(tmp_path):
    """Two fleets may share a host; one probe must not speak for the other's workers."""
    files = HealthFiles(tmp_path / "made" / "here")
    other = replace(FRESH, node="w2/odd name@host")
    for signs in (FRESH, other, replace(FRESH, namespace="stage")):
        files.write(signs)

    assert [FRESH, other] == files.read("shop")
    assert [other] == files.read("shop", "w2/odd name@host")
    assert [] == files.read("shop", "w3@host")
    assert 0o700 == (tmp_path / "made" / "here").stat().st_mode & 0o777


def test_worker_that_ends_takes_its_file_away(tmp_path):
    """Else the next probe would call it frozen."""
    files = HealthFiles(tmp_path)
    files.write(FRESH)

    files.remove("shop", FRESH.node)
    files.remove("shop", FRESH.node)

    assert [] == files.read("shop")


def test_file_of_a_killed_worker_goes_when_the_next_one_starts(tmp_path):
    """A worker that came back under another name would never be healthy for its probe."""
    files = HealthFiles(tmp_path)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    files.write(FRESH)
    files.write(replace(FRESH, node="killed@host", pid=ended.pid))

    files.forget_dead("shop")

    assert [FRESH] == files.read("shop")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"node": "w1@host"}'])
def test_file_that_is_none_of_ours_is_passed_over(tmp_path, text):
    """A directory that others write to must not fail a probe."""
    files = HealthFiles(tmp_path)
    files.write(FRESH)
    (tmp_path / "odd.health").write_text(text)

    assert [FRESH] == files.read("shop")


def test_file_of_a_newer_version_is_read(tmp_path):
    """A deploy that is half done has both."""
    files = HealthFiles(tmp_path)
    files.write(FRESH)
    (path,) = tmp_path.glob("*.health")
    path.write_text(json.dumps({**json.loads(path.read_text()), "mood": "good"}))

    assert [FRESH] == files.read("shop")


def test_default_directory_that_is_a_link_is_not_written_to(tmp_path, monkeypatch):
    """In a place that is shared a stranger could have put one there, to files of ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    default_directory().symlink_to(tmp_path / "theirs")

    with pytest.raises(PermissionError):
        HealthFiles().write(FRESH)
    assert [] == list((tmp_path / "theirs").iterdir())


def test_given_directory_may_be_of_any_owner_and_a_link(tmp_path):
    """A volume that is mounted for this purpose belongs to root."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "volume")

    HealthFiles(tmp_path / "link").write(FRESH)

    assert [FRESH] == HealthFiles(tmp_path / "volume").read("shop")


def test_broker_that_answers_after_the_end_leaves_no_file(tmp_path, monkeypatch):
    """A probe would tell of a worker that was killed, until another one starts here."""
    is_asking, answers = threading.Event(), threading.Event()

    def ensure_connection(**_):
        is_asking.set()
        assert answers.wait(10)

    channel = SimpleNamespace(close=lambda: None)
    asked = SimpleNamespace(ensure_connection=ensure_connection, channel=lambda: channel, collect=lambda: None)
    monkeypatch.setattr(liveness, "bound_connection", lambda _: asked)
    with Celery("ends", broker="memory://", set_as_current=False) as app:
        app.conf.update(
            safeguards_store_url="memory://",
            safeguards_health_directory=str(tmp_path),
            safeguards_health_interval_seconds=0.1,
        )
        own = SimpleNamespace(transport=SimpleNamespace())
        given = {"app": app, "connection": own, "hostname": "w1@host", "task_consumer": None, "hub": None}
        consumer = SimpleNamespace(pool=SimpleNamespace(), call_soon=lambda step: step(), **given)
        signs = liveness.Liveness(Wiring.of(app), consumer)
        signs.attach(consumer)
        assert is_asking.wait(10)
        assert list(tmp_path.iterdir())

        signs.stop()
        answers.set()
        signs._thread.join(10)

    assert [] == list(tmp_path.iterdir())
