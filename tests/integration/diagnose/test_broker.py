"""
What a live Redis broker says of itself, and what an open channel has for a visibility timeout.
"""

import contextlib
import socket

import pytest
from redis.exceptions import RedisError

from celery_safeguards.delivery.visibility import effective_visibility
from celery_safeguards.diagnose.asking import ask
from celery_safeguards.diagnose.board import open_channel
from celery_safeguards.diagnose.broker import broker_findings
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.findings import Severity
from tests.integration.diagnose.conftest import SOUND_OPTIONS
from tests.support import servers
from tests.support.sockets import free_port

pytestmark = pytest.mark.redis


@pytest.fixture
def server(tmp_path):
    """A server whose settings may be changed; it keeps a log, as one should."""
    with servers.redis_server(appendonly=True, tmp_path=tmp_path) as server:
        yield server


def asked(make_app, server):
    with open_channel(make_app(server.url).connection_for_read()) as channel:
        return {each.id: each for each in broker_findings(channel)}


def configure(server, **settings):
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


def test_broker_that_keeps_everything_has_nothing_to_be_said(make_app, server):
    """A check that always complains is silenced."""
    assert {} == asked(make_app, server)


@pytest.mark.parametrize("limit", ["0", "100mb"])
def test_broker_that_evicts_is_told(make_app, server, limit):
    """At `maxmemory` queues and bindings vanish, and publishes with them (getsentry/self-hosted#3888, kombu#113)."""
    configure(server, maxmemory=limit, maxmemory_policy="allkeys-lru")

    assert "maxmemory-policy is allkeys-lru" in asked(make_app, server)["SG144"].text


@pytest.mark.parametrize(("in_broker", "expected"), [(True, ["SG144"]), (False, [])])
def test_eviction_of_what_has_a_ttl_is_told_of_records_alone(make_app, server, in_broker, expected):
    """`volatile-lru` is the default of some providers: no message has a TTL, and every record has."""
    configure(server, maxmemory="100mb", maxmemory_policy="volatile-lru")
    findings = ask(
        make_app(server.url, safeguards_store_url=server.url if in_broker else "redis://elsewhere/0")
    ).findings

    assert expected == [each.id for each in findings if each.is_refused]
    assert all("the records of the safeguards" in each.text for each in findings if each.is_refused)


def test_snapshots_that_are_not_told_are_not_known(make_app, server, monkeypatch):
    """Some servers that speak Redis's protocol answer CONFIG GET with nothing: that is no "none are saved"."""
    configure(server, appendonly="no")
    monkeypatch.setattr("redis.Redis.config_get", lambda *_: {})
    finding = asked(make_app, server)["SG145"]

    assert (Severity.UNKNOWN, False) == (finding.severity, finding.is_refused)


@pytest.mark.parametrize(("save", "expected"), [("", "SG145"), ("900 1", "SG146")])
def test_broker_without_a_log_is_told(make_app, server, save, expected):
    """A restart forgets every message, or the last minutes of them."""
    configure(server, appendonly="no", save=save)

    assert [expected] == list(asked(make_app, server))


def test_broker_that_refuses_config_is_not_known_to_be_fine(make_app, server):
    """Managed servers do; an administrator who may not ask is told that nobody has."""
    configure(server, appendonly="no")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-config")
    url = server.url.replace("redis://", "redis://shop:secret@")
    with open_channel(make_app(url).connection_for_read()) as channel:
        (finding,) = broker_findings(channel)

    assert ("SG145", Severity.UNKNOWN, False) == (finding.id, finding.severity, finding.is_refused)


def test_broker_that_refuses_info_is_not_known_to_be_fine(make_app, server):
    """The same of all that it would say."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-info")
    url = server.url.replace("redis://", "redis://shop:secret@")
    with open_channel(make_app(url).connection_for_read()) as channel:
        (finding,) = broker_findings(channel)

    assert ("SG148", Severity.UNKNOWN) == (finding.id, finding.severity)


# --- the effective timeout


def test_effective_timeout_is_that_of_the_open_channel(make_app, server):
    """An option in the wrong place leaves it at an hour, and looks set (celery/celery#9339)."""
    app = make_app(server.url, result_backend_transport_options={"visibility_timeout": 60})
    answer = ask(app)

    assert (3600.0, True) == (answer.visibility.timeout_seconds, answer.visibility.is_live)
    assert "SG140" in {each.id for each in answer.findings}
    assert "redis: effective visibility timeout 3600 s" in str(answer.visibility)


def test_effective_timeout_is_the_brokers_option(make_app, server):
    """The one place that counts."""
    with open_channel(
        make_app(server.url, broker_transport_options={"visibility_timeout": 61}).connection_for_read()
    ) as channel:
        assert 61.0 == effective_visibility(channel).timeout_seconds


def test_broker_that_is_away_leaves_all_that_it_knows_unknown(make_app):
    """Nothing found would read as nothing wrong."""
    answer = ask(make_app(f"redis://127.0.0.1:{free_port()}/0"))
    unknown = {each.id for each in answer.findings if each.severity is Severity.UNKNOWN}

    assert {"SG141", "SG148", "SG166"} == unknown
    assert not answer.visibility.is_live


def test_broker_that_keeps_the_fleets_reports_away_has_told_the_rest(make_app, server):
    """An account for Celery's own keys reads no other: what it was told all the same must not be called unknown."""
    with server.client() as client:
        keys = ("~celery*", "~unacked*", "~_kombu*")
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", *keys, "&*", "+@all")
    answer = ask(make_app(server.url.replace("redis://", "redis://shop:secret@")))

    assert ["SG166"] == [each.id for each in answer.findings if each.severity is Severity.UNKNOWN]
    assert answer.visibility.is_live


def test_frozen_broker_ends_the_question_in_time(make_app, server):
    """A check in a deployment would hang for as long as the broker does."""
    app = make_app(server.url)
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable, match="broker at redis://"), open_channel(app.connection_for_read()):
            pytest.fail("a frozen server answered")
    finally:
        server.thaw()


@pytest.fixture
def silent():
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def port_of(listening):
    return listening.getsockname()[1]


def taken_by(listening):
    """Return how many connections were made."""
    listening.setblocking(False)
    taken = []
    with contextlib.suppress(BlockingIOError):
        while True:
            taken.append(listening.accept()[0])
    for each in taken:
        each.close()
    return len(taken)


@pytest.mark.parametrize("options", [{}, {"sentinel_kwargs": {"password": "secret"}}])
def test_silent_sentinel_is_asked_no_longer_than_a_silent_broker(make_app, silent, options):
    """redis-py asks it eleven times, and before version 8 the first for ever where it has options of its own."""
    app = make_app(f"sentinel://127.0.0.1:{port_of(silent)}", broker_transport_options={"master_name": "m", **options})

    with pytest.raises(StoreUnavailable), open_channel(app.connection_for_read()):
        pytest.fail("nobody answered")
    assert taken_by(silent) <= 2


def test_broker_behind_those_that_are_away_is_asked(make_app, server, silent):
    """A worker fails over to it; whoever gives up before would call unknown what is there."""
    away = f"redis://127.0.0.1:{free_port()}/0"
    refused, quiet = make_app(server.url), make_app(server.url)
    refused.conf.broker_url = [away, away, server.url]
    quiet.conf.broker_url = [f"redis://127.0.0.1:{port_of(silent)}/0", server.url]

    assert ask(refused).visibility.is_live
    assert ask(quiet).visibility.is_live


def test_errors_of_the_block_stay_what_they_are(make_app, server):
    """Kombu counts a KeyError among those of a connection, as it would one of ours."""
    app = make_app(server.url)

    with pytest.raises(KeyError), open_channel(app.connection_for_read()):
        raise KeyError("ours")
    with pytest.raises(StoreUnavailable), open_channel(app.connection_for_read()):
        raise RedisError("the server's")
    assert SOUND_OPTIONS.items() <= app.conf.broker_transport_options.items()
