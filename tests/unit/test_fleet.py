"""
On what workers of one broker do not agree, by their reports.
"""

import pytest

from celery_safeguards.diagnose.fleet import WorkerReport, disagreements

SAME = {
    "queues": ("mail",),
    "namespace": "shop",
    "transport": "kombu.transport.redis.Channel",
    "timeout_seconds": 60.0,
    "stored_format": 1,
    "celery": "5.7.0",
    "kombu": "5.7.0",
}


def report(worker, **changes):
    return WorkerReport(worker=worker, **{**SAME, **changes})


def found(*reports):
    return [each.id for each in disagreements(reports)]


def test_workers_that_agree_have_no_finding():
    """An error at every start would be switched off."""
    assert found() == found(report("a")) == found(report("a"), report("b"), report("c")) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"timeout_seconds": 3.0}, ["SG160"]),
        ({"clock_offset_seconds": 3600.0}, ["SG161"]),
        ({"clock_offset_seconds": -6.5}, ["SG161"]),
        ({"clock_offset_seconds": 5.9}, []),
        # A slow round trip proves nothing.
        ({"clock_offset_seconds": 7.0, "clock_error_seconds": 1.5}, []),
        ({"is_hardened": True}, ["SG162"]),
        ({"namespace": "blog"}, ["SG163"]),
        ({"namespace": "blog", "queues": ("posts",)}, []),
        ({"stored_format": 2}, ["SG164"]),
        ({"celery": "5.6.0"}, ["SG165"]),
        ({"celery": "5.6.0", "kombu": "5.6.2"}, ["SG165", "SG165"]),
        ({"queues": ("posts",), "timeout_seconds": 3.0}, ["SG160"]),
        ({"timeout_seconds": None}, []),
    ],
)
def test_one_that_differs_is_found(changes, expected):
    """One short timeout, or one clock, decides for everyone (celery/kombu#337, celery/celery#1112)."""
    assert found(report("a"), report("b", **changes)) == expected


def test_who_has_which_timeout_is_named_and_what_follows():
    """Somebody has to find the one that is wrong among a hundred."""
    (finding,) = disagreements([report("a"), report("b"), report("c", timeout_seconds=3.0)])

    assert finding.text.startswith(
        "visibility timeouts differ: 3 s (c), 60 s (a, b): what any of them has taken is put"
    )
    assert "put back after 3 s" in finding.text


def test_clock_is_measured_against_the_shortest_timeout():
    """Half a minute is nothing to an hour, and more than a worker whose timeout is three seconds lives."""
    hour = {"timeout_seconds": 3600.0}

    assert found(report("a", **hour), report("b", clock_offset_seconds=30.0, **hour)) == []
    assert found(report("a", timeout_seconds=3.0), report("b", clock_offset_seconds=30.0, **hour)) == ["SG160", "SG161"]


def test_report_of_another_version_is_read_as_far_as_it_is_known():
    """In a deployment the old and the new read each other's."""
    newer = {**report("a").plain(), "colour": "red"}
    older = {"timeout_seconds": 60.0}

    assert WorkerReport.from_plain("a", newer) == report("a")
    assert WorkerReport.from_plain("b", older) == WorkerReport(worker="b", timeout_seconds=60.0)
