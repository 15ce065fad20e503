"""
The corpus of `tests.support.nasty` on every page: it is read, it does nothing, and the page can be used.
"""

import uuid

import pytest

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.ledger.record import State
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.replay.many.choosing import make_job, named
from django_celery_safeguards.rows import lock_id
from django_celery_safeguards.sql import row_id
from tests.browser.pages import GROUPS, LETTERS, LOCKS, RECORDS, REPLAYS
from tests.browser.test_editing import marks_of
from tests.browser.test_groups import SAID
from tests.browser.test_permissions import DEEDS
from tests.conformance.admission.calls import change, claimed
from tests.support.nasty import BIDI, ESCAPES, MOST_BYTES, NASTY, OUTSIDE, SCRIPT, UNSTORABLE, traces

TEXTS = {"script": SCRIPT + OUTSIDE, "escapes": ESCAPES, "bidi": BIDI, "nul": UNSTORABLE}
TAGS = ("<script>alert", "<img src=x", '<img src="http', "<svg onload", "<b>bold", "<link rel=stylesheet href=//")
WHERE = (LETTERS, GROUPS, RECORDS, LOCKS, REPLAYS)


def sendable(text):
    """Return a text as a browser can send it: half a pair cannot be."""
    return text.encode("utf-8", "replace").decode()


@pytest.fixture
def bury(desk):
    """Put a nasty letter into the store, with a record and a lock of the same text, and a job for it."""

    def put(name, **changes):
        given = {**NASTY[name], **changes}
        mark = uuid.uuid4().hex[:8]
        text = given.get("key", f"key of {name}") + mark
        given |= {"error_type": f"{given.get('error_type', 'shop.Error')}{mark}", "key": text, "scope": text}
        letter = desk.bury(**given)
        key, holder = RecordKey(text, text), dict.fromkeys(("task", "task_id", "host", "worker", "pid"), text)

        def act(wiring):
            record = claimed(wiring.admission, "owner-1", key, task_id=text, series=(text,))
            failure = {"kind": text, "error": given.get("error_message", text)[:9_000]}
            wiring.admission.settle(key, record, State.IN_PROGRESS, change(State.RETRY_DUE, failure=failure))
            wiring.locks.acquire(LockAsk(name=text, owner="owner-1", lease_seconds=300, holder=holder))
            wiring.letters.add_note(letter.id, text, text, text)
            return make_job(desk.app, named([letter.id]), text, reason=text[:400])

        return letter, desk.store(act)

    return put


def pages_of(desk, letter, job):
    """Return each page that shows a letter, what belongs to it, or asks before something is done with it."""
    row, group = desk.path_of(letter), desk.path_of_group(letter)
    lock = lock_id(desk.namespace, letter.key)
    of_job = f"{REPLAYS}{row_id(desk.namespace, job.id)}"
    return {
        "letters": f"{LETTERS}?q={letter.id}",
        "letter": row,
        "log": row.replace("/change/", "/history/"),
        "edit": row.replace("/change/", "/edit/"),
        "groups": f"{GROUPS}?q={letter.fingerprint}",
        "group": group,
        "triage": group.replace("/change/", "/triage/"),
        "letters of the group": f"{LETTERS}?fingerprint={letter.fingerprint}",
        "records": f"{RECORDS}?q={row_id(desk.namespace, letter.scope, letter.key)}",
        "record": desk.path_of_record(letter),
        "locks": f"{LOCKS}?q={lock}",
        "lock": f"{LOCKS}{lock}/change/",
        "start": f"{REPLAYS}start/?fingerprint={letter.fingerprint}",
        "replays": f"{REPLAYS}?q={job.id}",
        "replay": f"{of_job}/change/",
    }


def assert_safe(answer, name):
    assert answer.status_code in {200, 302}, (name, answer.status_code, answer.text[:3_000])
    assert len(answer.content) <= MOST_BYTES, (name, len(answer.content))
    assert traces(answer.text, lines=True) == set(), name
    assert [each for each in TAGS if each in answer.text] == [], name


@pytest.mark.parametrize("name", NASTY)
def test_pages_show_it_ask_about_it_and_take_it(desk, bury, name):
    """As they come from the server: whole, small enough to be used, and with nothing in them that is active."""
    letter, job = bury(name)
    of_job = f"{REPLAYS}{row_id(desk.namespace, job.id)}"
    asked = {"fingerprint": letter.fingerprint, "look": "1", "at_once": 1, "canary": 0, "reason": "x"}
    said = {**SAID, "failures_seen": desk.group(letter).failures, "note": sendable(letter.reason)[:500]}
    with desk.client("ann") as client:
        for page, path in pages_of(desk, letter, job).items():
            assert_safe(client.get(path), page)
        assert_safe(client.post(f"{REPLAYS}start/", data={**asked, "order": "first_seen"}), "dry run")
        assert_safe(client.post(f"{of_job}/do/pause/"), "verb")
        assert_safe(client.post(desk.path_of_group(letter, "triage"), data=said), "triage")
        for deed in DEEDS:
            assert_safe(client.do(deed, desk.picked(letter)), deed)
        chosen = {"_selected_action": desk.picked(letter).split(":")[0]}
        for action in ("replay_selected", "archive_selected", "replay_selected_at_a_pace"):
            assert_safe(client.post(LETTERS, data={"action": action, **chosen}), action)
        for deed in ("replay", "archive", "restore", "discard"):
            assert_safe(client.do(deed, desk.picked(letter), **DEEDS[deed]), f"{deed}, done")
            assert_safe(client.get(desk.path_of(letter)), f"after {deed}")
        assert_safe(client.get(desk.path_of(letter).replace("/change/", "/history/")), "log")


@pytest.mark.parametrize("name", NASTY)
def test_browser_runs_nothing_and_asks_nobody_else(desk, bury, log_in, name):
    """What a server has escaped, a browser may still read in another way."""
    letter, job = bury(name)
    page, opened, outside = log_in("ann"), [], []
    page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: None if request.url.startswith(desk.url[:-6]) else outside.append(request.url))
    with desk.client("ann") as client:
        client.do("discard", desk.picked(letter), confirmed="1", reason=sendable(NASTY[name].get("key", name))[:300])
    for path in pages_of(desk, letter, job).values():
        page.goto(desk.url + path)
        assert page.locator("#content, #content-main").first.is_visible()
    assert (opened, outside) == ([], [])


@pytest.mark.parametrize("name", NASTY)
def test_edit_takes_back_what_it_shows(desk, bury, name):
    """A form that cannot be sent as it is keeps a person from the one letter that has to be mended."""
    letter, _ = bury(name, task="desk.note")
    path = desk.path_of(letter).replace("/change/", "/edit/")
    with desk.client("ann") as client:
        shown = client.get(path)
        if "No copy of this letter can be edited" in shown.text:
            assert name in NOT_EDITED
            return
        # The task takes no positional ones; what is named goes back as it was shown.
        form = {"args": "[]", "kwargs": text_of(shown.text, "kwargs"), "countdown_seconds": "5", "reason": "why"}
        form |= {**marks_of(shown.text), "queue": "", "eta": "", "may_run_twice": "on"}
        # As the page has it: in parts.
        checked = client.post(path, data={**form, "check": "Check"}, files={"none": ""})
        sent = client.post(path, data={**form, **marks_of(checked.text), "send": "Send"}, files={"none": ""})

    assert_safe(checked, "check")
    assert name not in NOT_EDITED
    assert sent.status_code == 302, sent.text[:20_000]
    assert [entry.what for entry in desk.letter(letter).history][-1] == "edited as new"


NOT_EDITED = {
    *("nested", "nested objects", "integer too long for Python", "no UTF-8", "another encoding"),
    *("pickle", "msgpack", "yaml", "type", "empty", "shape", "5 MB of argument"),
}


def text_of(page, box):
    """Return what stands in a box, as a browser has it."""
    from html import unescape

    text = page.partition(f'<textarea name="{box}"')[2].partition(">")[2].partition("</textarea>")[0]
    return unescape(text).removeprefix("\n")


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_people_and_addresses_send_are_answered(desk, name):
    """Searched for, as a name in an address, and as a reason: an answer, and no error of the server."""
    text, letter = sendable(TEXTS[name]), desk.bury()
    with desk.client("ann") as client:
        for where in WHERE:
            for term in (text, f"{text}*", f"order_id={text}", f"{text}#{text}"):
                answer = client.get(where, params={"q": term})
                # What was typed stands in its box again, as it was typed.
                assert answer.status_code in {200, 302}, (where, term)
                assert [each for each in TAGS if each in answer.text] == [], (where, term)
            for given in ({"older": text}, {"before": text}, {"state": text}, {"task": text}, {"fingerprint": text}):
                answer = client.get(where, params=given)
                assert answer.status_code in {200, 302, 400}, (where, given, answer.text[:2_000])
        answers = {
            **{(where, "page"): client.get(where + quoted(text) + "/change/") for where in WHERE},
            **{("log", where): client.get(where + quoted(text) + "/history/") for where in WHERE},
            "edit": client.get(f"{LETTERS}{quoted(text)}/edit/"),
            "triage": client.get(f"{GROUPS}{quoted(text)}/triage/"),
            "verb": client.post(f"{REPLAYS}{quoted(text)}/do/pause/", data={"confirmed": "1"}),
            "deed": client.do("discard", text, f"{text}:1", confirmed="1", reason="x"),
            "selected": client.post(LETTERS, data={"action": "discard_selected", "_selected_action": text}),
            **{name: client.get(f"{REPLAYS}start/", params={name: text}) for name in ("letter", "task", "fingerprint")},
            "kind": client.get(f"{REPLAYS}start/", params={"kind": text}),
            "reason": client.do("archive", desk.picked(letter), confirmed="1", reason=text),
            "note": client.post(
                desk.path_of_group(letter, "triage"),
                data={**SAID, "failures_seen": 9, "note": text, "assignee": text[:90], "reason": text},
            ),
            "result": client.do("happened", desk.picked(letter), confirmed="1", reason=text, result=text),
            "seen": client.get(desk.path_of(letter)),
            "list": client.get(LETTERS),
            "groups": client.get(GROUPS),
            "group": client.get(desk.path_of_group(letter)),
            "log of it": client.get(desk.path_of(letter).replace("/change/", "/history/")),
        }
    failed = {where: answer.text[:1_500] for where, answer in answers.items() if answer.status_code >= 500}
    assert failed == {}
    kept = ("seen", "list", "groups", "group", "log of it")
    assert {where for where in kept if traces(answers[where].text, lines=True)} == set()
    assert not any(each in answer.text for answer in answers.values() for each in TAGS)


def quoted(text):
    from urllib.parse import quote

    return quote(text, safe="")
