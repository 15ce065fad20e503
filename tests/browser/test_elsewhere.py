"""
Letters that are not in a database of the project, and a broker that is away: the pages say so, and what to do.
"""

import contextlib
from html import escape

import psycopg
import pytest

from tests.browser.desk_under_test import Desk
from tests.browser.pages import GROUPS, LETTERS, LOCKS, RECORDS, REPLAYS
from tests.support import apps, databases, postgres, servers


@pytest.fixture(scope="module", params=["redis", "nowhere"])
def store(request, redis_url, tmp_path_factory):
    """A project whose store is in Redis, or is named wrongly; and what its pages say."""
    directory = tmp_path_factory.mktemp(request.param)
    url, said = {
        "redis": (redis_url, "desk&#x27; keeps what the safeguards know at redis://"),
        "nowhere": ("django://nowhere", "DATABASES has no &#x27;nowhere&#x27;"),
    }[request.param]
    with Desk(redis_url, databases.sqlite(directory / "store.sqlite3"), directory, store_url=url) as desk:
        yield desk, said


@pytest.mark.parametrize("where", [LETTERS, RECORDS, LOCKS])
def test_pages_say_where_the_letters_are(store, where):
    """An empty list reads as "nothing has failed"."""
    desk, said = store
    desk.bury()
    with desk.client("ann") as client:
        answer = client.get(where)

    assert answer.status_code == 200
    assert said in answer.text


def test_nothing_can_be_done_to_what_is_not_shown(store):
    """A row of an old store may lie in the database still."""
    desk, _ = store
    letter = desk.bury()
    with desk.client("ann") as client:
        page = client.get(desk.path_of(letter))
        done = client.do("discard", desk.picked(letter), confirmed="1", reason="old")

    assert (page.status_code, done.status_code) == (302, 302)
    assert desk.letter(letter).state == "open"


def test_broker_that_is_away_leaves_a_letter_that_can_be_resumed(redis_url, tmp_path):
    """The night in which everything is down is the night in which somebody presses replay."""
    database = databases.sqlite(tmp_path / "store.sqlite3")
    with (
        servers.redis_server() as broker,
        Desk(redis_url, database, tmp_path, server_env={apps.BROKER_URL: broker.url}) as desk,
        desk.client("ann") as client,
    ):
        letter = desk.bury()
        broker.stop()
        client.do("replay", desk.picked(letter), confirmed="1")
        page = client.get(desk.path_of(letter)).text
        replaying = desk.letter(letter).state
        broker.start()
        client.do("resume", desk.picked(letter), confirmed="1")
        resumed = desk.letter(letter)

    assert "not published" in page
    assert "Resume the replay" in page
    assert (replaying, resumed.state) == ("replaying", "replayed")
    assert [entry.what for entry in resumed.history] == ["replay begun", "replay resumed", "replayed"]


def test_of_many_letters_one_is_tried_while_the_broker_is_away(redis_url, tmp_path):
    """Fifty letters waited ten seconds each for a frozen broker, and each was left in the midst of a replay."""
    database = databases.sqlite(tmp_path / "store.sqlite3")
    with (
        servers.redis_server() as broker,
        Desk(redis_url, database, tmp_path, server_env={apps.BROKER_URL: broker.url}) as desk,
        desk.client("ann") as client,
    ):
        letters = [desk.bury() for _ in range(3)]
        broker.stop()
        client.do("replay", *map(desk.picked, letters), confirmed="1", reason="mended")
        said = client.get(LETTERS).text
        states = [desk.letter(letter).state for letter in letters]
        logged = [which for _, which, _ in desk.log()]

    assert states == ["replaying", "open", "open"]
    assert "2 more were left alone" in said
    assert logged == [letters[0].id]


def test_pages_say_that_the_database_does_not_answer(redis_url, postgres_url, tmp_path):
    """ "Server Error (500)" does not say whether the letters are lost, nor whether a replay went out."""
    with postgres.fresh_database(postgres_url) as url:
        database = {**databases.postgres(url), "ATOMIC_REQUESTS": False}
        with Desk(redis_url, database, tmp_path) as desk, desk.client("ann") as client:
            letter = desk.bury()
            pages = [LETTERS, GROUPS, REPLAYS, RECORDS, LOCKS, desk.path_of(letter)]
            triage = desk.path_of_group(letter, "triage")
            with _away(postgres_url, database["NAME"]):
                read = [client.get(page) for page in (*pages, f"{REPLAYS}start/?task=desk.note", triage)]
                asked = client.do("replay", desk.picked(letter), confirmed="1")
            back = client.get(desk.path_of(letter))

    assert {answer.status_code for answer in (*read, asked)} == {503}
    assert all("The database does not answer" in answer.text for answer in (*read, asked))
    assert not any("may be done, or not" in answer.text for answer in read)
    assert "may be done, or not" in asked.text
    assert back.status_code == 200
    again = [answer.text.partition('class="submit-row"><a href="')[2].partition('"')[0] for answer in (*read, asked)]
    assert again == [escape(answer.url.raw_path.decode()) for answer in read] + [f"/admin/{LETTERS}"]


@contextlib.contextmanager
def _away(postgres_url, name):
    """Have a database that takes nobody in, and has thrown out whoever was there."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def test_empty_list_says_that_it_is_empty_and_why(redis_url, tmp_path):
    """A page without a word reads as one that did not load."""
    with Desk(redis_url, databases.sqlite(tmp_path / "store.sqlite3"), tmp_path) as desk, desk.client("ann") as client:
        fresh = {where: client.get(where).text for where in (LETTERS, GROUPS, REPLAYS, LOCKS)}
        desk.bury()
        narrowed = client.get(LETTERS, params={"state": "closed"}).text
        listed = client.get(LETTERS).text

    assert "No work has failed for good" in fresh[LETTERS]
    assert "No work has failed for good" in fresh[GROUPS]
    assert "Nobody has begun a replay" in fresh[REPLAYS]
    assert "No lock was taken lately" in fresh[LOCKS]
    assert "None of the dead letters match what the list is narrowed to" in narrowed
    assert 'class="sg-empty"' not in listed
