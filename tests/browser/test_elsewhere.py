"""
Letters that are not in a database of the project: the pages say so, and where to look.
"""

import pytest

from tests.browser.desk_under_test import Desk
from tests.browser.pages import LETTERS, LOCKS, RECORDS
from tests.support import databases


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
