"""
Every address and every action of the admin, tried by everybody: who may, does; who may not, changes nothing.

What there is to try is read from the admin itself (`tests.browser.desk.offered`), so that what is added tomorrow fails
here until it is said who may use it (`tests.browser.tries`).
"""

import contextlib

import httpx
import pytest

from tests.browser.desk.seed import codenames_of
from tests.browser.tries import ACTIONS, CANARY, DEEDS, NOBODY, SEES, VERBS, tries_of

OTHERS = ("vera", "lena", "blind", "noa", "nobody", "outsider", "stranger", "root")
WITHOUT_TOKEN = httpx.Client.post
FORBIDDEN = 403


@pytest.fixture(scope="module")
def offered(running_desk):
    return running_desk.offered()


@pytest.fixture(scope="module")
def ann(running_desk):
    """Somebody who may do everything."""
    with running_desk.client("ann") as client:
        yield client


@pytest.fixture(scope="module")
def tries(running_desk, ann):
    return tries_of(running_desk, ann)


@pytest.fixture(scope="module")
def made(tries):
    """One of each request, which nobody sends who may, if it acts."""
    return {name: make() for name, make in tries.items()}


@contextlib.contextmanager
def client_of(desk, person):
    """Have a client of somebody; a stranger is not logged in."""
    if person == "stranger":
        with httpx.Client(base_url=desk.url, timeout=60) as client:
            # A token is for everybody who sees a form.
            client.get("login/").raise_for_status()
            yield _WithToken(client)
    else:
        with desk.client(person) as client:
            yield client


class _WithToken:
    def __init__(self, client):
        self._client, self.get = client, client.get

    def post(self, path, data):
        return self._client.post(path, data={**data, "csrfmiddlewaretoken": self._client.cookies["csrftoken"]})


def may(person, offered):
    """Return what somebody may, and whether he is of the staff."""
    codenames = () if person == "stranger" else codenames_of(person, offered["permissions"])
    return {"codenames": codenames, "is_staff": person not in {"stranger", "outsider"}}


def alone(offered):
    """Return people who have one permission, and others who see all and have one more."""
    acting = [each for each in offered["permissions"] if not each.startswith("view_")]
    seeing = [each for each in offered["permissions"] if each in {*SEES.values(), "view_payload_deadletter"}]
    return [*(f"only-{each}" for each in (*seeing, *acting)), *(f"looks-and-{each}" for each in acting)]


def test_every_address_action_and_permission_is_tried(offered, made):
    """What nobody has thought of is what nobody has forbidden."""
    assert {each.address for each in made.values()} == set(offered["addresses"])
    assert {tuple(each) for each in offered["actions"]} == {(*each, "CHANGE_LIST") for each in ACTIONS}
    assert (set(offered["deeds"]), set(offered["verbs"])) == (set(DEEDS), set(VERBS))
    not_tried = set(offered["permissions"]) - set().union(*(each.needs for each in made.values()))
    assert not {each for each in not_tried if not each.startswith("view_")}


def test_who_may_not_is_refused_and_changes_nothing(desk, offered, made):
    """What is hidden is not forbidden: anybody can send a form by hand, and one check that is missing is enough."""
    others = {name: each for name, each in made.items() if not each.is_of_django}
    everybody = {**dict.fromkeys(OTHERS, made), **dict.fromkeys(alone(offered), others)}
    # Each check of a request by itself: all others would let this one in.
    for codename in offered["permissions"]:
        everybody[f"all-but-{codename}"] = {name: each for name, each in made.items() if codename in each.needs}
    before, answered = desk.everything(), []
    for person, sent in everybody.items():
        rights = may(person, offered)
        with client_of(desk, person) as client:
            for name, each in sent.items():
                if each.is_for(**rights):
                    continue
                answer = each.sent(client)
                has_told = CANARY in answer.text and "view_payload_deadletter" not in rights["codenames"]
                if not each.is_refused(answer) or has_told:
                    answered.append((person, name, answer.status_code))
        after = desk.everything()
        assert [table for table in before if before[table] != after[table]] == [], person

    assert answered == []


def test_view_only_person_may_read_and_nothing_else(desk, offered, made):
    """The one whom most of a company is: whatever he sends is an answer, and never a change."""
    rights = may("vera", offered)
    allowed = {name for name, each in made.items() if each.is_for(**rights)}
    before = desk.everything()
    with desk.client("vera") as client:
        answers = {name: each.sent(client).status_code for name, each in made.items()}
        by_other_verbs = [
            client.request(verb, each.path, headers={"X-CSRFToken": client.cookies["csrftoken"]}).status_code
            for each in made.values()
            if each.acts
            for verb in ("PUT", "DELETE")
        ]

    assert not any(made[name].acts for name in allowed)
    assert {name for name in allowed if answers[name] != made[name].answer} == set()
    assert max(by_other_verbs) < 500
    assert desk.everything() == before


def test_who_may_does_it(desk, offered, tries, made):
    """The pair of the tests above: the same requests work, each for whoever has just the permission that it needs."""
    wrong, senders = [], dict.fromkeys(made, 0)
    for person in ("ann", *(each for each in alone(offered) if each.startswith("looks"))):
        rights, of_all = may(person, offered), may("vera", offered)
        with desk.client(person) as client:
            for name, each in made.items():
                if not each.is_for(**rights) or (person != "ann" and each.is_for(**of_all)):
                    continue
                fresh = tries[name]() if each.acts else each
                before = desk.everything()
                answer = fresh.sent(client)
                became = (answer.status_code, desk.everything() != before, fresh.shows in answer.text)
                wrong += [(person, name, became)] if became != (each.answer, each.acts, True) else []
                senders[name] += 1

    assert wrong == []
    assert {name for name, each in made.items() if each.acts and senders[name] < 2} == set()


def test_nothing_is_done_by_get_or_without_a_token(desk, ann, made):
    """A link in a mail, or a form on another site, must do nothing for somebody who may do everything."""
    before, acting = desk.everything(), [each for each in made.values() if each.acts]
    read = [ann.get(each.path, params=each.data).status_code for each in made.values()]
    forged = {WITHOUT_TOKEN(ann, each.path, data=each.data).status_code for each in acting}

    assert max(read) < 500
    assert forged == {FORBIDDEN}
    assert desk.everything() == before


def test_nobody_adds_changes_or_deletes_a_row_not_even_a_superuser(desk, made):
    """A row written by hand is a row that no rule has seen: rows are the stores' alone."""
    before = desk.everything()
    with desk.client("root") as client:
        answers = [(each, each.sent(client)) for each in made.values() if NOBODY in each.needs]

    assert answers
    assert all(each.is_refused(answer) for each, answer in answers)
    assert desk.everything() == before


def test_payload_is_on_no_answer_without_its_permission(desk, ann, tries, made):
    """Of all that somebody may who may do everything else; and where it is, it is for whoever may see it."""
    with desk.client("noa") as client:
        answers = {name: (tries[name]() if each.acts else each).sent(client) for name, each in made.items()}
    of_ann = {name: each for name, each in made.items() if not each.acts and NOBODY not in each.needs}
    quoted = {name for name, each in of_ann.items() if CANARY in each.sent(ann).text}

    assert {name for name, answer in answers.items() if CANARY in answer.text} == set()
    assert CANARY not in str(desk.log())
    assert quoted == {name for name, each in made.items() if each.quotes}


def test_search_by_an_argument_finds_nothing_without_the_permission(desk, made, offered):
    """Whether a guess is a customer's is told to those alone who may see customers."""
    order = "order-of-nobody-else"
    desk.bury(kwargs={"order_id": order})
    found = {}
    for person in ("ann", "vera", "lena", "noa", "rex"):
        with desk.client(person) as client:
            answer = client.get("django_celery_safeguards/deadletter/", params={"q": order})
            found[person] = 'id="result_list"' in answer.text

    assert {person for person in found if not found[person]} == {"lena", "noa"}
