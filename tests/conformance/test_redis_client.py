"""The client of the store against a real server: what it does when a question is cut short."""

import threading

import pytest
import redis
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_safeguards._redis import Client, Script
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.conf import Settings
from tests.conformance import stores
from tests.support import servers

pytestmark = pytest.mark.redis
KEY = RecordKey("shop.charge", "payment:7")


@pytest.fixture
def store(redis_url, namespace):
    """Return a store whose connection is open."""
    with stores.redis_under_test(redis_url, namespace) as under_test:
        under_test.store.view()
        yield under_test.store


def test_a_question_cut_short_leaves_no_answer_for_the_next_one(store, monkeypatch):
    """A time limit's signal between question and answer: the next question would be given the older one's answer."""
    read_response = redis.Connection.read_response

    def interrupted(self, *args, **kwargs):
        monkeypatch.setattr(redis.Connection, "read_response", read_response)
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(redis.Connection, "read_response", interrupted)
    with pytest.raises(SoftTimeLimitExceeded):
        store.view()

    assert store.read(KEY) is None


def test_a_connection_that_the_server_has_closed_is_opened_again(store, redis_url):
    """Servers close idle connections: the first task after a quiet night would find its store down."""
    connection = store._client._connected()
    with redis.Redis.from_url(redis_url) as other:
        other.client_kill_filter(_id=_id_of(connection))

    assert store.read(KEY) is None


def test_text_and_numbers_arrive_as_they_were_sent(redis_url):
    """A length counted in characters would end the answer of the next command inside this one's text."""
    client = Client(redis_url, 5)
    texts = ["", "plain", "käse 7 €", "line\r\nbreak", "nul\x00byte", "💳"]

    answer = client.run(Script("return ARGV"), [], [*texts, 7, -1])

    assert [*texts, "7", "-1"] == answer
    client.close()


def test_each_thread_has_a_connection_of_its_own(store):
    """Two threads on one connection would read each other's answers."""
    seen = [store._client._connected()]
    thread = threading.Thread(target=lambda: seen.append(store._client._connected()))
    thread.start()
    thread.join()

    assert seen[0] is not seen[1]


def test_a_socket_in_the_file_system_is_a_store_like_any_other(tmp_path):
    """A project whose broker is `redis+socket://` could not start a worker."""
    servers.require_embedded()
    app = Celery(set_as_current=False)
    with servers.ValkeyServer(unix_socket_path=str(tmp_path / "s")) as server:
        app.conf.broker_url = f"redis+socket://{server.unix_socket_path}?virtual_host=3"
        client = Client(Settings.of(app).store_url, 5)

        client.command("SET", "here", "yes")

        with redis.Redis(unix_socket_path=str(server.unix_socket_path), db=3, decode_responses=True) as other:
            assert other.get("here") == "yes"
        client.close()


def _id_of(connection):
    connection.send_command("CLIENT", "ID")
    return connection.read_response()
