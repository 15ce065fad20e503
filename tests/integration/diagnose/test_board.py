"""
Where workers say what they work with: in the broker's own database, for as long as they live.
"""

import json

import pytest

from celery_safeguards.clock import SystemClock
from celery_safeguards.diagnose.board import KEY, Board
from celery_safeguards.diagnose.fleet import WorkerReport, disagreements
from celery_safeguards.errors import StoreUnavailable
from tests.support.sockets import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis


class AheadClock(SystemClock):
    """A host's clock that is an hour ahead."""

    @staticmethod
    def wall_seconds():
        return SystemClock.wall_seconds() + 3600


@pytest.fixture
def connection(make_app, redis_url, namespace):
    """A connection whose keys belong to this test; each exchange opens a copy of it."""
    options = {"global_keyprefix": f"{namespace}.", "visibility_timeout": 60}
    return make_app(redis_url, broker_transport_options=options).connection_for_read()


def test_reports_of_all_are_read_by_all(connection):
    """One timeout decides for everyone, and nobody can see it alone (celery/kombu#337)."""
    board = Board(connection, 30, SystemClock())
    board.write(WorkerReport(worker="a@h", timeout_seconds=60.0, queues=("mail", "work")))
    reports = board.write(WorkerReport(worker="b@h", timeout_seconds=3.0))

    assert [("a@h", 60.0), ("b@h", 3.0)] == [(each.worker, each.timeout_seconds) for each in reports]
    assert ("mail", "work") == reports[0].queues
    assert ["SG160"] == [each.id for each in disagreements(board.read())]


def test_clock_is_measured_against_the_brokers(connection):
    """Hosts drift by minutes to hours, and the sweep compares their clocks (celery/celery#1112, #1980)."""
    right, ahead = Board(connection, 30, SystemClock()), Board(connection, 30, AheadClock())
    right.write(WorkerReport(worker="a@h", timeout_seconds=60.0))
    reports = ahead.write(WorkerReport(worker="b@h", timeout_seconds=60.0))

    assert [pytest.approx(0, abs=1), pytest.approx(3600, abs=1)] == [each.clock_offset_seconds for each in reports]
    (finding,) = disagreements(reports)
    assert "b@h: its clock is 3600 s ahead of the broker's" in finding.text


def test_measuring_writes_nothing(connection):
    """A worker that will not start must not be on the board."""
    board = Board(connection, 30, SystemClock())
    own, others = board.measured(WorkerReport(worker="a@h", timeout_seconds=60.0))

    assert ("a@h", []) == (own.worker, others)
    assert [] == board.read()


def test_own_report_from_before_is_none_of_the_others(connection):
    """A worker that was killed and is started again would disagree with itself."""
    board = Board(connection, 30, SystemClock())
    board.write(WorkerReport(worker="a@h", timeout_seconds=3.0))

    assert [] == board.measured(WorkerReport(worker="a@h", timeout_seconds=60.0))[1]


def test_worker_that_says_no_more_is_forgotten(connection, redis_client, namespace):
    """One that was killed would be disagreed with for ever."""
    brief, board = Board(connection, 0.3, SystemClock()), Board(connection, 30, SystemClock())
    board.write(WorkerReport(worker="lives@h"))
    brief.write(WorkerReport(worker="died@h"))
    board.write(WorkerReport(worker="lives@h"))

    wait_until(lambda: ["lives@h"] == [each.worker for each in brief.read()], 5, "one report has lapsed")
    assert ["lives@h"] == [each.worker for each in board.write(WorkerReport(worker="lives@h"))]
    assert ["lives@h"] == redis_client.hkeys(f"{namespace}.{KEY}")


def test_worker_that_writes_seldom_is_seen_by_one_that_writes_often(connection):
    """They came and went in each other's eyes where apps with other leases share a broker, and newcomers saw nobody."""
    brief, board = Board(connection, 0.001, SystemClock()), Board(connection, 30, SystemClock())
    board.write(WorkerReport(worker="a@h", timeout_seconds=60.0))
    brief.write(WorkerReport(worker="b@h", timeout_seconds=3.0))
    brief.write(WorkerReport(worker="c@h", timeout_seconds=3.0))

    assert ["a@h"] == [each.worker for each in brief.read() if each.timeout_seconds == 60.0]
    assert ["a@h"] == [each.worker for each in board.read() if each.timeout_seconds == 60.0]


def test_board_is_gone_when_nobody_writes(connection, redis_client, namespace):
    """Keys without a TTL stay behind in the broker's database."""
    Board(connection, 30, SystemClock()).write(WorkerReport(worker="a@h"))

    assert 0 < redis_client.pttl(f"{namespace}.{KEY}") <= 30_000


def test_worker_that_ends_takes_its_report_off(connection):
    """A deployment would report the old ones for a lease."""
    board = Board(connection, 30, SystemClock())
    board.write(WorkerReport(worker="a@h"))
    board.take_off("a@h")

    assert [] == board.read()


def test_each_key_prefix_is_a_fleet_of_its_own(make_app, redis_url, namespace, connection):
    """Apps that share a database by `global_keyprefix` put back nothing of each other's."""
    Board(connection, 30, SystemClock()).write(WorkerReport(worker="a@h"))
    other = make_app(redis_url, broker_transport_options={"global_keyprefix": f"other-{namespace}."})

    assert [] == Board(other.connection_for_read(), 30, SystemClock()).read()


def test_report_that_cannot_be_read_is_left_out(connection, redis_client, namespace):
    """One broken line would blind all workers."""
    board = Board(connection, 30, SystemClock())
    board.write(WorkerReport(worker="a@h"))
    ours = redis_client.hget(f"{namespace}.{KEY}", "a@h").split(" ")[0]
    others = {"f@h": {"timeout_seconds": "60"}, "g@h": {"clock_offset_seconds": None}, "h@h": {"queues": 5}}
    damaged = {name: json.dumps(plain) for name, plain in others.items()}
    for name, text in {"b@h": "no json", "c@h": json.dumps([1]), "d@h": "{}", **damaged}.items():
        redis_client.hset(f"{namespace}.{KEY}", name, f"{ours} {text}")
    redis_client.hset(f"{namespace}.{KEY}", "e@h", "nothing")

    assert ["a@h", "d@h"] == [each.worker for each in board.read()]


def test_broker_that_is_away_is_said_so(make_app):
    """A traceback of kombu's would tell nobody which server it was."""
    app = make_app(f"redis://:secret@127.0.0.1:{free_port()}/0")

    with pytest.raises(StoreUnavailable, match=r"broker at redis://:\*\*@127") as away:
        Board(app.connection_for_read(), 30, SystemClock()).read()
    assert "secret" not in str(away.value)
