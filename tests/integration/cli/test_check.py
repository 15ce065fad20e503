"""
`check` as people and deployments use it.
"""

import json

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_safeguards import RetryPolicy, Safeguards, SafeTask
from celery_safeguards.cli import safeguards
from celery_safeguards.clock import SystemClock
from celery_safeguards.diagnose.board import Board
from celery_safeguards.diagnose.fleet import WorkerReport
from tests.support import servers
from tests.support.sockets import free_port

SOUND = {"socket_timeout": 30, "socket_keepalive": True, "visibility_timeout": 600}


@pytest.fixture
def check():
    """Run `check` on an app as `check(broker_url, *words, **settings)`."""

    def run(broker, *words, tasks=(), **settings):
        with Celery("checked", broker=broker, set_as_current=False) as app:
            app.conf.update({"safeguards_store_url": "memory://", **settings})
            for name, options in tasks:
                app.task(body_of(name), name=name, shared=False, base=SafeTask, **options)
            context = CLIContext(app=app, no_color=True, workdir=None)
            return CliRunner().invoke(safeguards, ["check", *words], obj=context)

    return run


def body_of(_name):
    def body():
        return None

    return body


@pytest.fixture
def broker(tmp_path):
    """A server that keeps what it is given."""
    with servers.redis_server(appendonly=True, tmp_path=tmp_path) as server:
        yield server


BOUNDED = ("shop.sync", {"safeguards": Safeguards(repeatable=True, retry=None), "time_limit": 60})
ODD = RetryPolicy(base_seconds=900, cap_seconds=900, total_seconds=600)
LATE = ("shop.late", {"safeguards": Safeguards(repeatable=True, retry=ODD)})


@pytest.mark.redis
def test_sound_set_up_ends_with_0_and_shows_what_it_was_measured_against(broker, check):
    """A deployment goes on, and a person sees by which figures."""
    done = check(broker.url, tasks=[BOUNDED], broker_transport_options=SOUND)

    assert 0 == done.exit_code, done.output
    assert (
        "redis: effective visibility timeout 600 s; a message of a dead worker comes back after 600 s to" in done.stdout
    )
    assert "warning" not in done.stdout


@pytest.mark.redis
def test_hardened_transport_is_looked_at_as_workers_have_it(broker, check):
    """Tasks are registered late, and the transport with them: what a worker does not do must not be told of it."""
    settings = {"broker_transport_options": {"visibility_timeout": 600}}
    hardened = check(broker.url, tasks=[BOUNDED], safeguards_transport="hardened", **settings)
    stock = check(broker.url, tasks=[BOUNDED], **settings)

    assert 0 == hardened.exit_code, hardened.output
    assert "comes back after 600 s to 601 s" in hardened.stdout
    assert "SG" not in hardened.stdout
    assert {"SG143", "SG159"} <= set(stock.stdout.split())


@pytest.mark.redis
def test_warning_ends_with_1_and_comes_first(broker, check):
    """A deployment stops, and the reason is at the top."""
    done = check(broker.url, tasks=[BOUNDED, LATE], broker_transport_options=SOUND)
    lines = done.stdout.splitlines()

    assert 1 == done.exit_code
    assert lines[1].startswith("warning SG111 perhaps no retry: shop.late")
    assert all(line.startswith("info") for line in lines[2:])
    assert "1 warning" in done.stderr


@pytest.mark.redis
def test_check_for_programs_is_one_document(broker, check):
    """Whoever counts findings reads ids and severities, not sentences."""
    done = check(broker.url, "--json", tasks=[LATE], broker_transport_options=SOUND)
    document = json.loads(done.stdout)

    assert {"visibility", "fleet", "findings"} == set(document)
    assert {"broker": "redis", "timeout_seconds": 600.0, "is_renewed": True, "is_effective": True} == {
        name: document["visibility"][name] for name in ("broker", "timeout_seconds", "is_renewed", "is_effective")
    }
    first = document["findings"][0]
    assert ("SG111", "warning", "perhaps no retry") == (first["id"], first["severity"], first["title"])
    assert 1 == done.exit_code


@pytest.mark.redis
@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), None])
def test_timeout_that_is_no_time_is_a_warning_in_valid_json(broker, check, timeout):
    """NaN and Infinity are no JSON, and programs that read it would end."""
    done = check(broker.url, "--json", broker_transport_options={**SOUND, "visibility_timeout": timeout})
    document = json.loads(done.stdout, parse_constant=pytest.fail)

    assert document["visibility"]["timeout_seconds"] is None
    assert ["SG140"] == [each["id"] for each in document["findings"] if each["severity"] == "warning"]
    assert 1 == done.exit_code


@pytest.mark.redis
def test_fleet_that_does_not_agree_is_an_error(broker, check):
    """One short timeout puts back what all others have taken (celery/kombu#337)."""
    with Celery("fleet", broker=broker.url, set_as_current=False) as app:
        board = Board(app.connection_for_read(), 30, SystemClock())
        board.write(WorkerReport(worker="slow@h", timeout_seconds=60.0))
        board.write(WorkerReport(worker="quick@h", timeout_seconds=3.0))
    done = check(broker.url, broker_transport_options=SOUND)

    assert 1 == done.exit_code
    assert "worker quick@h: visibility timeout 3 s" in done.stdout
    assert "error   SG160 visibility timeouts differ: 3 s (quick@h), 60 s (slow@h)" in done.stdout


def test_broker_that_is_away_ends_with_3(check):
    """What could not be asked is not fine, and not a fault of the set-up either."""
    done = check(f"redis://:secret@127.0.0.1:{free_port()}/0", tasks=[BOUNDED], broker_transport_options=SOUND)

    assert 3 == done.exit_code, done.output
    assert "unknown SG148 the broker could not be asked: broker at redis://:**@127.0.0.1" in done.stdout
    assert "visibility timeout by the settings 600 s" in done.stdout
    assert "secret" not in done.output


@pytest.mark.redis
@pytest.mark.parametrize(("tasks", "code"), [([BOUNDED], 3), ([], 0)], ids=["guarded tasks", "none"])
def test_store_that_is_away_ends_with_3_where_a_task_needs_it(broker, check, tasks, code):
    """A deployment would go on, and every message be put off."""
    away = f"redis://:secret@127.0.0.1:{free_port()}/1"
    done = check(broker.url, tasks=tasks, broker_transport_options=SOUND, safeguards_store_url=away)

    assert code == done.exit_code, done.output
    assert bool(tasks) == ("unknown SG170 the store could not be asked: " in done.stdout)
    assert "secret" not in done.output


@pytest.mark.redis
def test_check_writes_nothing_into_a_new_store(broker, check):
    """The pause of a new store would begin, and be over, before its first worker is there."""
    done = check(broker.url, tasks=[BOUNDED], broker_transport_options=SOUND, safeguards_store_url=broker.url)

    assert 0 == done.exit_code, done.output
    assert [] == broker.client().keys()


def test_sqs_that_refuses_ends_with_3(check, monkeypatch):
    """A key that may not list the queues is told while the channel is opened; a crash would be taken for a finding."""
    sqs, errors = pytest.importorskip("kombu.transport.SQS"), pytest.importorskip("botocore.exceptions")

    def refuse(self, *_):
        raise errors.ClientError({"Error": {"Code": "AccessDenied", "Message": "not yours"}}, "ListQueues")

    monkeypatch.setattr(sqs.Channel, "_update_queue_cache", refuse)

    done = check("sqs://key:secret@", "--json")

    assert 3 == done.exit_code, done.output
    assert {"SG141", "SG148", "SG166"} <= {each["id"] for each in json.loads(done.stdout)["findings"]}
    assert "not yours" in done.stdout


def test_sqs_that_does_not_answer_is_not_waited_for(check, monkeypatch):
    """Boto waits a minute for each of five answers; a deployment would take the check for hung."""
    sqs, errors = pytest.importorskip("kombu.transport.SQS"), pytest.importorskip("botocore.exceptions")
    found = []

    def note(self, *_):
        found.append(self.sqs().meta.config)
        raise errors.ClientError({"Error": {"Code": "AccessDenied", "Message": "not yours"}}, "ListQueues")

    monkeypatch.setattr(sqs.Channel, "_update_queue_cache", note)
    options = {"region": "eu-central-1", "client-config": {"tcp_keepalive": True}}

    assert 3 == check("sqs://key:secret@", broker_transport_options=options).exit_code
    assert {(2.0, 2.0, 1, True)} == {
        (each.connect_timeout, each.read_timeout, each.retries["total_max_attempts"], each.tcp_keepalive)
        for each in found
    }


def test_transport_that_is_not_here_is_a_usage_error(check):
    """No worker would run; a crash would be taken for a finding."""
    done = check("nosuch://host")

    assert 2 == done.exit_code
    assert "nosuch" in done.stderr


def test_setting_that_cannot_hold_is_a_usage_error(check):
    """It is the same error that keeps the worker from starting."""
    done = check("memory://", safeguards_lease_second=5)

    assert 2 == done.exit_code
    assert "did you mean 'safeguards_lease_seconds'" in done.stderr


@pytest.mark.parametrize(
    ("broker", "settings", "said"),
    [
        ("memory://", {"worker_prefetch_multiplier": None}, "worker_prefetch_multiplier=None: give a whole number"),
        ("memory://", {"worker_concurrency": "many"}, "worker_concurrency='many': give a whole number"),
        ("redis://:secret@host:port/0", {}, "broker_url is no URL"),
        ("sentinel://:secret@127.0.0.1:1", {}, "'master_name' transport option must be specified"),
    ],
)
def test_setting_of_celery_that_cannot_hold_is_a_usage_error(check, broker, settings, said):
    """A traceback would be taken for a fault of the check."""
    done = check(broker, **settings)

    assert 2 == done.exit_code
    assert said in done.stderr
    assert "secret" not in done.output


def test_finding_is_explained_and_nothing_is_asked(check):
    """Whoever reads a log at night has its id and no broker."""
    shown = check(f"redis://127.0.0.1:{free_port()}/0", "--explain", "sg104")
    plain = check("memory://", "--explain", "SG104", "--json")

    assert 0 == shown.exit_code == plain.exit_code
    assert shown.stdout.startswith("SG104 redelivered while it runs (warning)\n")
    assert {"SG104", "warning", "redelivered while it runs"} < set(json.loads(plain.stdout).values())


@pytest.mark.parametrize(("given", "said"), [("SG1044", "did you mean SG1"), ("\x1b[2J", "no finding \\x1b[2J")])
def test_id_that_nobody_knows_ends_with_1(check, given, said):
    """A typing slip must not read as an empty page."""
    done = check("memory://", "--explain", given)

    assert (1, "") == (done.exit_code, done.stdout)
    assert said in done.stderr
