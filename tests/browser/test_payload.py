"""
What work was given and what it said is seen by those who may see payloads, and by nobody else; all the rest by both.
"""

import uuid

import pytest

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.attempts import FailedAttempt
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.ledger.record import State
from tests.browser.pages import GROUPS, LETTERS, LOCKS, RECORDS, REPLAYS
from tests.browser.test_editing import FORM, check, path_of_edit
from tests.browser.test_permissions import DEEDS
from tests.conformance.admission.calls import change, claimed

NEEDED = "view_payload_deadletter"
SAYS = "the-canary"


@pytest.fixture
def canary():
    return f"{SAYS}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def letter(desk, canary):
    """A payment that failed again and again, and quotes what it was given wherever it can."""
    order = f"order-{uuid.uuid4().hex[:8]}"
    return desk.bury(
        task="desk.charge",
        args=[canary],
        kwargs={"order_id": order, "note": canary},
        headers={"x-note": canary, "argsrepr": f"({canary!r},)"},
        key=f"payment:{order}",
        scope="desk.charge",
        effect_possible=True,
        reason=f"refused: {canary}",
        error_message=f"cannot charge {canary}",
        traceback=f"Traceback\nValueError: {canary}",
        attempt_history=(
            FailedAttempt(number=1, at_seconds=1.0, ended=f"buried: {canary}", message=canary, worker="web-1:4711"),
        ),
        history=tuple(
            HistoryEntry(at_seconds=1.0, what=what, who=None, detail=f"said {canary}")
            for what in (
                "died again",
                "verdict",
                "edit not sent",
                "a fenced owner reports success",
                "of a newer version",
            )
        ),
    )


def fail_again(wiring, letter, canary):
    """Give a letter's key a record whose last attempt has failed."""
    key = RecordKey(letter.scope, letter.key)
    record = claimed(wiring.admission, "owner-1", key)
    failed = change(State.RETRY_DUE, failure={"kind": "bug", "error": f"cannot charge {canary}"})
    wiring.admission.settle(key, record, State.IN_PROGRESS, failed)


def pages_of(desk, letter):
    """Return the address of every page that is read, by name."""
    row, group = desk.path_of(letter), desk.path_of_group(letter)
    return {
        "letters": LETTERS,
        "letters of the group": f"{LETTERS}?fingerprint={letter.fingerprint}",
        "search": f"{LETTERS}?q={letter.id}",
        "letter": row,
        "log of the letter": row.replace("/change/", "/history/"),
        "groups": GROUPS,
        "group": group,
        "log of the group": group.replace("/change/", "/history/"),
        "triage": group.replace("/change/", "/triage/"),
        "records": f"{RECORDS}?q={letter.key}",
        "record": desk.path_of_record(letter),
        "locks": LOCKS,
        "replays": REPLAYS,
        "start": f"{REPLAYS}start/?fingerprint={letter.fingerprint}",
        "index": "",
    }


QUOTING = {"letters", "letters of the group", "search", "letter", "groups", "group", "record"}


@pytest.mark.parametrize("person", ["lena", "noa"])
def test_no_page_shows_a_payload_without_its_permission(desk, letter, canary, person):
    """Who watches the desk need not read what customers have written."""
    desk.store(lambda wiring: fail_again(wiring, letter, canary))
    with desk.client(person) as client, desk.client("ann") as ann:
        for name, path in pages_of(desk, letter).items():
            answer, whole = client.get(path), ann.get(path)

            assert answer.status_code == (403 if person == "lena" and name in {"triage", "start"} else 200), name
            assert canary not in answer.text, name
            assert (canary in whole.text) == (name in QUOTING), name
            if name in QUOTING:
                assert NEEDED in answer.text, name


def test_all_the_rest_of_a_letter_is_shown(desk, letter):
    with desk.client("lena") as client:
        text = client.get(desk.path_of(letter)).text

    for part in ("desk.charge", letter.key, letter.id, letter.task_id, "builtins.ValueError", "died again", "verdict"):
        assert part in text
    assert "Edit as new" not in text
    for field in ("reason_shown", "arguments", "error_shown", "traceback", "headers", "properties", "history"):
        assert NEEDED in text.partition(f"field-{field}")[2].partition("</fieldset>")[0].partition("form-row")[0], field


@pytest.mark.parametrize("deed", DEEDS)
def test_page_that_asks_shows_no_payload(desk, letter, canary, deed):
    if deed == "resume":
        desk.change(letter, state="replaying", replay_task_id="allocated")
    with desk.client("noa") as client:
        asked = client.do(deed, desk.picked(letter))
        done = client.do(deed, desk.picked(letter), **DEEDS[deed])
        said = client.get(LETTERS).text + client.get(desk.path_of(letter)).text

    assert (asked.status_code, done.status_code) == (200, 302)
    assert canary not in asked.text + done.text + said
    assert canary not in str(desk.log())


def test_dry_run_of_many_shows_no_payload(desk, letter, canary):
    asked = {"fingerprint": letter.fingerprint, "look": "1", "at_once": 1, "canary": 0, "reason": "x"}
    with desk.client("noa") as client:
        answer = client.post(f"{REPLAYS}start/", data=asked)

    assert answer.status_code == 200
    assert canary not in answer.text


def test_edit_needs_it_as_well(desk, canary):
    """Nobody can mend what he may not read."""
    letter = desk.bury(kwargs={"order_id": canary})
    path = path_of_edit(desk, letter)
    with desk.client("ann") as ann:
        _, form = check(ann, desk, letter)
    with desk.client("noa") as client:
        answers = [client.get(path), client.post(path, data=FORM), client.post(path, data=form)]

    assert [answer.status_code for answer in answers] == [403] * 3
    assert canary not in "".join(answer.text for answer in answers)
    assert desk.queued() == 0


def test_letter_that_cannot_be_read_is_not_shown_either(desk, canary):
    letter = desk.bury()
    desk.overwrite(letter, f'{{"v": 1, "wire": "{canary}"')
    with desk.client("noa") as client, desk.client("ann") as ann:
        shown = client.get(desk.path_of(letter)).text + client.do("discard", desk.picked(letter)).text
        whole = ann.get(desk.path_of(letter)).text

    assert canary not in shown
    assert canary in whole


@pytest.mark.parametrize("person", ["lena", "ann"])
@pytest.mark.parametrize(
    "asked",
    [
        *(f"{LETTERS}?{column}__{how}=x" for column in ("letter", "error", "reason") for how in ("contains", "regex")),
        *(f"{LETTERS}?{column}=x" for column in ("letter", "error", "letter_id")),
        *(f"{GROUPS}?{column}__startswith=x" for column in ("sample", "group")),
        f"{RECORDS}?body__contains=x",
        f"{REPLAYS}?job__contains=x",
    ],
)
def test_no_address_asks_for_rows_by_what_is_hidden_in_them(desk, person, asked):
    """A list that is empty for one beginning and not for another tells a password, letter by letter."""
    with desk.client(person) as client:
        assert client.get(asked).status_code == 400


def test_guess_is_not_confirmed_by_a_search(desk, canary):
    """Whoever may not see an address must not learn that it is one of them."""
    order = uuid.uuid4().hex
    letter = desk.bury(kwargs={"order_id": order}, error_message=f"cannot {canary}")

    def found(person, where, term):
        with desk.client(person) as client:
            return 'id="result_list"' in client.get(where, params={"q": term}).text

    for where, term in ((LETTERS, order), (LETTERS, f"order_id={order}"), (GROUPS, canary)):
        assert (found("lena", where, term), found("ann", where, term)) == (False, True), term
    for term in (letter.id, letter.task_id):
        assert found("lena", LETTERS, term)
