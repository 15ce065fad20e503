"""
Lists that are longer than a page: walked in both directions, jumped into, and what a forged address gets.
"""

import html
import re
import time
from collections import Counter
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from tests.browser.pages import GROUPS, LETTERS, follow, press

COUNT, A_PAGE = 120, 50
_ROW = re.compile(r'name="_selected_action" value="(\w+)"|<th class="field-cause">.*?/lettergroup/(\w+)/')


@pytest.fixture(scope="module")
def walked(running_desk):
    """Letters of one task, the newest first: seven share each time, every fifth is discarded."""
    desk, now = running_desk, int(time.time()) - 100_000
    letters = []
    for number in range(COUNT):
        letter = desk.bury(task="paging.walk", key=f"walk:{number}", last_failed_seconds=float(now - number // 7 * 60))
        if number % 5 == 4:
            desk.change(letter, state="discarded")
        letters.append(letter)
        desk.bury(task="paging.other", last_failed_seconds=float(now - number // 7 * 60))
    return letters


def rows_of(answer):
    """Return the ids of the rows that a page shows."""
    assert answer.status_code == 200
    return [first or second for first, second in _ROW.findall(answer.text)]


def link(answer, name):
    """Return the query of a page's link; None: it has none."""
    found = re.search(rf'<a href="(\?[^"]*)">{name}</a>', answer.text)
    return None if found is None else html.unescape(found[1])


def walk(client, path, query, name):
    """Return the pages from one on, as far as a link leads."""
    pages = [client.get(path + query)]
    while (onwards := link(pages[-1], name)) is not None:
        assert len(pages) < 20, "the walk does not end"
        pages.append(client.get(path + onwards))
    return pages


def ids_of(desk, letters):
    return {desk.picked(letter).partition(":")[0] for letter in letters}


@pytest.mark.parametrize("narrowed", ["task=paging.walk", "task=paging.walk&state=open", "q=paging.walk"])
def test_walk_shows_each_letter_once_in_both_directions(desk, walked, narrowed):
    """A page that begins at a number shows a letter twice, or never, once others die meanwhile."""
    wanted = [letter for letter in walked if "open" not in narrowed or desk.letter(letter).state == "open"]
    with desk.client("rex") as client:
        down = [rows_of(page) for page in walk(client, LETTERS, f"?{narrowed}", "Older")]
        up = [rows_of(page) for page in walk(client, LETTERS, f"?{narrowed}&newer=0.", "Newer")]
        last = walk(client, LETTERS, f"?{narrowed}", "Older")[-1]
        back = [rows_of(page) for page in walk(client, LETTERS, link(last, "Newer"), "Newer")]

    order = [row for page in down for row in page]
    assert Counter(order) == Counter(ids_of(desk, wanted))
    assert [A_PAGE] * (len(down) - 1) == [len(page) for page in down[:-1]]
    assert order == [row for page in reversed(up) for row in page]
    assert down[:-1] == back[::-1]


def test_links_lead_to_both_ends_and_keep_filters_and_search(desk, walked):
    query = "?task=paging.walk&failed=week&kind=bug&q=paging.walk"
    with desk.client("rex") as client:
        first = client.get(LETTERS + query)
        middle = client.get(LETTERS + link(first, "Older"))
        last = client.get(LETTERS + link(middle, "Oldest"))
        again = client.get(LETTERS + link(middle, "Newest"))

    assert (None, None) == (link(first, "Newest"), link(first, "Newer"))
    assert (None, None) == (link(last, "Older"), link(last, "Oldest"))
    assert rows_of(first) == rows_of(again)
    for page, name in ((first, "Older"), (middle, "Newest"), (middle, "Newer"), (middle, "Oldest"), (last, "Newer")):
        for part in ("task=paging.walk", "failed=week", "kind=bug", "q=paging.walk"):
            assert part in link(page, name)
    # Another filter begins at its newest letter.
    assert not re.search(r'href="\?[^"]*(older|newer)=[^"]*state=replayed', middle.text)


def test_letter_that_dies_again_during_a_walk_hides_no_other(desk, walked):
    """It moves to the front: whoever walks on has seen it, or meets it in the next walk."""
    now = time.time()
    letters = [desk.bury(task="paging.moved", last_failed_seconds=now - 100 - number) for number in range(A_PAGE * 2)]
    moved = letters[-1]
    with desk.client("rex") as client:
        pages = [client.get(f"{LETTERS}?task=paging.moved")]
        desk.change(moved, last_failed_seconds=now)
        pages += walk(client, LETTERS, link(pages[0], "Older"), "Older")
        again = rows_of(client.get(f"{LETTERS}?task=paging.moved"))

    seen = Counter(row for page in pages for row in rows_of(page))
    (row,) = ids_of(desk, [moved])
    assert {1} == set(seen.values())
    assert ids_of(desk, letters) - {row} == set(seen)
    assert row == again[0]


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S+00:00"])
def test_list_is_entered_at_a_time(desk, walked, form):
    """What began at noon is not looked for from midnight on."""
    at = walked[60].last_failed_seconds // 60 * 60 + 60
    older = [letter for letter in walked if letter.last_failed_seconds < at]
    with desk.client("rex") as client:
        given = {"task": "paging.walk", "before": datetime.fromtimestamp(at, UTC).strftime(form)}
        page = client.get(LETTERS, params=given)
        back = rows_of(client.get(LETTERS + link(page, "Newer")))

    assert set(rows_of(page)) <= ids_of(desk, older)
    assert min(A_PAGE, len(older)) == len(rows_of(page))
    assert not set(back) & ids_of(desk, older)


def test_what_is_no_time_is_said(desk, walked):
    with desk.client("rex") as client:
        page = client.get(LETTERS, params={"task": "paging.walk", "before": "<b>noon</b>"})
        newest = client.get(LETTERS, params={"task": "paging.walk"})

    assert "&lt;b&gt;noon&lt;/b&gt; is no time" in page.text
    assert rows_of(newest) == rows_of(page)


@pytest.mark.parametrize(
    "place",
    ["x", "-1.a", "1e9.a", f"{2**70}.a", "1" * 5_000, f"1.{'a' * 999}", "1.\x00", "1.\ud800", "٣.a"],
    ids=["word", "negative", "float", "large", "long", "long id", "NUL", "surrogate", "digits of another script"],
)
@pytest.mark.parametrize("name", ["older", "newer"])
def test_place_that_is_none_leads_to_the_list(desk, walked, name, place):
    given = quote(place.encode("utf-8", "surrogatepass"))
    with desk.client("rex") as client:
        answer = client.get(f"{LETTERS}?{name}={given}", follow_redirects=True)

    assert 200 == answer.status_code
    assert "e=1" in str(answer.url)


@pytest.mark.parametrize("name", ["letter__contains", "letter__regex", "key__startswith", "namespace", "terms_written"])
def test_nothing_but_the_filters_narrows_a_list(desk, walked, name):
    """Asked letter by letter, a list would tell what the pages mask, and read the whole table for it."""
    with desk.client("vera") as client:
        answers = [client.get(path, params={name: "a"}) for path in (LETTERS, GROUPS)]

    assert [400, 400] == [answer.status_code for answer in answers]


def test_list_has_one_order(desk, walked):
    """An order by any other column would sort the table."""
    with desk.client("vera") as client:
        plain, ordered = (client.get(LETTERS, params={"task": "paging.walk", **more}) for more in ({}, {"o": "2.-1"}))

    assert rows_of(plain) == rows_of(ordered)
    assert "sortable" not in plain.text


def test_action_is_for_the_ticked_rows_alone(desk, walked):
    """ "All of them" are rows that nobody has seen, and more than a request may take down."""
    picked = desk.picked(walked[0]).partition(":")[0]
    forged = {"action": "discard_selected", "_selected_action": picked, "select_across": "1", "index": "0"}
    with desk.client("dora") as client:
        listed = client.get(LETTERS, params={"task": "paging.walk"})
        asked = client.post(f"{LETTERS}?task=paging.walk", data=forged)

    assert "across all pages" not in listed.text
    assert 200 == asked.status_code
    assert 1 == asked.text.count('name="letter"')


def test_action_on_a_page_in_the_middle_is_for_its_rows(desk, walked):
    with desk.client("dora") as client:
        second = link(client.get(f"{LETTERS}?task=paging.walk&state=open&q=paging.walk"), "Older")
        picked = rows_of(client.get(LETTERS + second))[:3]
        asked = client.post(
            LETTERS + second, data={"action": "discard_selected", "_selected_action": picked, "index": "0"}
        )

    assert 3 == asked.text.count('name="letter"')
    assert all(row in asked.text for row in picked)


def test_groups_are_walked_as_letters_are(desk):
    for number in range(A_PAGE + 10):
        desk.bury(task=f"paging.group-{number}", last_failed_seconds=time.time() - number // 3)
    with desk.client("vera") as client:
        down = [rows_of(page) for page in walk(client, GROUPS, "?status=open&kind=bug", "Older")]
        up = [rows_of(page) for page in walk(client, GROUPS, "?status=open&kind=bug&newer=0.", "Newer")]
        found = walk(client, GROUPS, "?q=paging.group-", "Older")

    order = [row for page in down for row in page]
    assert order == [row for page in reversed(up) for row in page]
    assert {1} == set(Counter(order).values())
    assert A_PAGE + 10 == sum(len(rows_of(page)) for page in found)


def test_words_that_many_tasks_begin_with_find_the_letters_of_all(desk):
    """Of so many tasks each letter is asked for its own, instead of each task for its letters."""
    now = time.time()
    letters = [desk.bury(task=f"many.{number % 20}", last_failed_seconds=now - number) for number in range(A_PAGE + 10)]
    desk.bury(task="manyother", last_failed_seconds=now)
    with desk.client("rex") as client:
        pages = [rows_of(page) for page in walk(client, LETTERS, "?q=many.", "Older")]

    assert [A_PAGE, 10] == [len(page) for page in pages]
    assert ids_of(desk, letters) == {row for page in pages for row in page}


def test_list_is_walked_and_entered_without_scripts(log_in, desk, walked):
    page = log_in("vera", java_script_enabled=False)
    page.goto(f"{desk.url}{LETTERS}?task=paging.walk&state=open")

    def shown():
        return page.locator("#result_list tbody th a").all_inner_texts()

    first = shown()
    follow(page, page.get_by_role("link", name="Older", exact=True))
    second = shown()
    follow(page, page.get_by_role("link", name="Newer", exact=True))
    back = shown()
    at = datetime.fromtimestamp(walked[60].last_failed_seconds, UTC)
    page.get_by_label("failed before").fill(at.strftime("%Y-%m-%dT%H:%M"))
    press(page, "Go there")

    assert (first, set(first) & set(second)) == (back, set())
    assert "state=open" in page.url
    assert "task=paging.walk" in page.url
    assert page.get_by_label("failed before").input_value() == at.strftime("%Y-%m-%dT%H:%M")
    assert shown()
