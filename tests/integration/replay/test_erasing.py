"""
One person's data, looked for in all that a store holds after it was erased, also where whoever did so was killed.
"""

import logging
import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
from celery import Celery
from kombu.utils.json import dumps

from celery_safeguards import Idempotent, Safeguards, SafeTask
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.spool import Spool
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.record import ResultForm, State
from celery_safeguards.pipeline.indexing import indexed
from celery_safeguards.replay import discard, replay
from celery_safeguards.replay.discarding import held_by, release
from celery_safeguards.replay.erasing import NOT_COVERED, Wanted, erase, find
from celery_safeguards.wiring import Wiring
from tests.conformance import stores
from tests.conformance.admission.calls import change, claimed
from tests.conformance.deadletter_contract import NOON, letter
from tests.integration.replay.shop import make_app

EMAIL = "ann@example.com"
WHY = ("eve", "ticket 7")
SPAWN = multiprocessing.get_context("spawn")
FOUND_BY = {"searchable_arguments": ("email",), "sensitive_arguments": ("email",), "search_secret": "of the shop"}


def add_task(app):
    idempotent = Idempotent("welcome:{order_id}", on_unknown="rerun")

    @app.task(shared=False, base=SafeTask, name="shop.welcome", safeguards=Safeguards(idempotent=idempotent))
    def welcome(order_id, email, note=""):
        return email


class Desk:
    """A store, and letters about people in it."""

    def __init__(self, app, under_test):
        self.app, self.under_test = app, under_test
        self.wiring = Wiring.of(app)

    def letter_of(self, letter_id, email=EMAIL, **changes):
        """Return a letter that says an address wherever it can."""
        body = str(dumps([[], {"order_id": letter_id, "email": email, "note": f"for {email}"}, {}])).encode()
        wire = WireMessage(
            body=body,
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "shop.welcome", "id": f"t-{letter_id}", "kwargsrepr": f"{{'email': {email!r}}}"},
            properties={"reply_to": email},
        )
        given = {
            "task": "shop.welcome",
            "task_id": f"t-{letter_id}",
            "wire": wire,
            "key": f"welcome:{letter_id}",
            "scope": "shop.welcome",
            "reason": f"refused: {email}",
            "error_message": f"no mailbox {email}",
            "traceback": f"ValueError: {email}",
            "history": (HistoryEntry(at_seconds=NOON, what="tried", who="bob", detail=f"with {email}"),),
        }
        made = letter(letter_id, **{**given, **changes})
        return indexed(self.wiring, made, self.app.tasks)

    def bury(self, letter_id, state=State.DEAD, email=EMAIL, **changes):
        """Put a letter and the record of its key into the store."""
        made = self.letter_of(letter_id, email, **changes)
        if made.key is not None:
            key = RecordKey(made.scope, made.key)
            if self.wiring.admission.read(key) is None:
                self.settle(letter_id, state, email=email)
        self.wiring.letters.bury(made)
        return made

    def settle(self, letter_id, state, email=EMAIL):
        """Bring the record of a key to a state."""
        key, failure = RecordKey("shop.welcome", f"welcome:{letter_id}"), {"kind": "bug", "error": email}
        record = claimed(self.wiring.admission, f"owner-{letter_id}", key)
        if state is State.IN_PROGRESS:
            return
        ended = {"result": f'"{email}"'} if state is State.DONE else {"letter_id": letter_id}
        written = change(state, failure=failure, key=key.key, scope=key.scope, **ended)
        self.wiring.admission.settle(key, record, State.IN_PROGRESS, written)

    def record(self, letter_id):
        return self.wiring.admission.read(RecordKey("shop.welcome", f"welcome:{letter_id}"))

    def get(self, letter_id):
        return self.wiring.letters.get(letter_id)

    def of_ann(self):
        return Wanted(terms=self.wiring.search.argument_terms("email", EMAIL), secret=EMAIL)

    def everything(self):
        """Return all that the store holds, as text."""
        under_test = self.under_test
        if hasattr(under_test, "client"):
            return "\n".join(_of_redis(under_test.client, key) for key in under_test._all("*"))
        if hasattr(under_test, "house"):
            names = [table.name for table in vars(under_test.house.tables).values()]
            return "\n".join(
                under_test.house.connection.run(lambda cursor, name=name: _of_table(cursor, name)) for name in names
            )
        return repr((vars(under_test.letters), under_test.store._records))


def _of_table(cursor, name):
    cursor.execute(f"SELECT * FROM {name}")
    return repr(cursor.fetchall())


def _of_redis(client, key):
    read = {
        "hash": client.hgetall,
        "string": client.get,
        "zset": lambda key: client.zrange(key, 0, -1),
        "list": lambda key: client.lrange(key, 0, -1),
        "set": client.smembers,
    }
    return f"{key} {read[client.type(key)](key)}"


@pytest.fixture(params=stores.ALL)
def desk(request):
    with stores.opened(request, request.param) as under_test, Celery("shop", set_as_current=False) as app:
        app.conf.update(safeguards_store_url="memory://")
        settings = Settings(store_url="memory://", **FOUND_BY)
        wiring = replace(
            Wiring.from_settings(settings), admission=under_test.store, letters=under_test.letters, jobs=under_test.jobs
        )
        wiring.admission.declare_new()
        wiring.use_for(app)
        add_task(app)
        yield Desk(app, under_test)


def test_a_person_is_in_nothing_that_the_store_holds(desk, caplog):
    """A request to be forgotten is not met by a page that shows less."""
    caplog.set_level(logging.DEBUG)
    desk.bury("open")
    desk.bury("done", state=State.DONE)
    desk.bury("unkeyed", key=None, scope=None, burial=0)
    desk.bury("given-up")
    discard(desk.app, "given-up", "bob", f"asked {EMAIL}")
    desk.bury("put-away")
    desk.wiring.letters.archive(["put-away"], "bob", f"for {EMAIL}")
    desk.bury("other", email="bob@example.com")
    desk.wiring.letters.annotate_group(desk.get("open").fingerprint, "a typing error", "bob")
    assert EMAIL in desk.everything()
    caplog.clear()

    erased = erase(desk.app, desk.of_ann(), *WHY)

    assert EMAIL not in desk.everything() + caplog.text
    assert (erased.letters, erased.records, erased.refused) == (5, 4, {})
    ids = ("open", "done", "unkeyed", "given-up", "put-away")
    assert {id_: desk.get(id_).state for id_ in ids} == dict.fromkeys(ids, "discarded")
    assert "erased, by an argument: 5 letters, 4 records" in caplog.text
    assert "by eve (reason: ticket 7)" in caplog.text


def test_all_others_keep_what_is_theirs(desk):
    desk.bury("mine")
    others = [desk.bury("theirs", email="bob@example.com"), desk.bury("more", email=f"x{EMAIL}", error_type="Other")]
    before = [desk.record("theirs"), desk.record("more")]

    erase(desk.app, desk.of_ann(), *WHY)

    assert [desk.get("theirs"), desk.get("more")] == others
    assert [desk.record("theirs"), desk.record("more")] == before
    assert desk.wiring.letters.get_group(others[1].fingerprint).sample


def test_work_of_an_erased_record_is_known_for_done(desk):
    """Its message may come again tomorrow: the mail must not go out twice."""
    desk.bury("done", state=State.DONE)

    erase(desk.app, desk.of_ann(), *WHY)

    record = desk.record("done")
    assert (record.state, record.result_form, record.result) == (State.DONE, ResultForm.WITHHELD, "")


def test_key_of_an_open_letter_is_given_free(desk):
    desk.bury("open")

    erase(desk.app, desk.of_ann(), *WHY)

    assert desk.record("open").released


def test_whoever_discards_meanwhile_brings_nothing_back(desk):
    """He has read the record before it was erased, and frees its key after that."""
    desk.bury("l-1")
    desk.wiring.letters.discard("l-1", "bob", "a test order")
    held = held_by(desk.wiring, desk.get("l-1"))
    erase(desk.app, Wanted(letter_ids=("l-1",)), *WHY)

    release(desk.wiring, *held)

    assert EMAIL not in str(desk.record("l-1"))
    assert desk.record("l-1").released


def test_result_of_work_that_never_died_is_erased_by_its_key(desk):
    desk.settle("fine", State.DONE)
    desk.bury("other", state=State.DONE, email="bob@example.com")

    erased = erase(desk.app, Wanted(key="welcome:fine", secret="welcome:fine"), *WHY)

    assert (erased.letters, erased.records) == (0, 1)
    assert EMAIL not in desk.everything()
    assert desk.record("other").result_form is ResultForm.STORED


def test_an_id_of_the_same_text_is_no_key(desk):
    desk.bury("other", email="bob@example.com", task_id="welcome:mine")
    desk.bury("mine")

    erased = erase(desk.app, Wanted(key="welcome:mine"), *WHY)

    assert (erased.letters, desk.get("other").erased, desk.get("mine").erased) == (1, False, True)


def test_a_group_is_erased_letter_by_letter(desk):
    desk.bury("one")
    desk.bury("two", email="bob@example.com")
    fingerprint = desk.get("one").fingerprint

    erased = erase(desk.app, Wanted(fingerprint=fingerprint), *WHY)

    assert erased.letters == 2
    assert desk.wiring.letters.get_group(fingerprint).counts == {"discarded": 2}


def test_a_group_that_a_letter_has_left_forgets_it_too(desk):
    """It died of one thing, then of another: the first group still quotes the first error."""
    first = desk.bury("moved")
    desk.wiring.letters.begin_replay("moved", "t-2", "bob", NOON)
    second = desk.letter_of("moved", burial=9, error_type="builtins.KeyError", task_id="t-2")
    desk.wiring.letters.bury(second)
    assert desk.wiring.letters.get_group(first.fingerprint).sample_letter_id == "moved"

    erased = erase(desk.app, desk.of_ann(), *WHY)

    assert (erased.samples, first.fingerprint != second.fingerprint) == (2, True)
    assert EMAIL not in desk.everything()


def test_letter_that_is_replaying_is_refused_and_erased_once_that_is_over(desk):
    """Its message may have to be sent again: whoever was killed in the midst of it resumes it."""
    desk.bury("going", key=None, scope=None, burial=0)
    desk.wiring.letters.begin_replay("going", "t-2", "bob", NOON)

    refused = erase(desk.app, desk.of_ann(), *WHY).refused
    kept = desk.get("going")
    desk.wiring.letters.mark_replayed("going", "t-2", NOON)
    erased = erase(desk.app, desk.of_ann(), *WHY)

    assert "replaying as task t-2" in refused["going"]
    assert not kept.erased
    assert (erased.letters, erased.refused, desk.get("going").state) == (1, {}, "replayed")
    assert EMAIL not in desk.everything()


@pytest.mark.parametrize("state", [State.IN_PROGRESS, State.RETRY_DUE, State.DYING])
def test_letter_whose_work_is_under_way_is_refused(desk, state):
    """What it will leave is not there yet."""
    desk.bury("going", state=state)

    erased = erase(desk.app, desk.of_ann(), *WHY)

    assert "under way" in erased.refused["going"]
    assert (erased.letters, erased.under_way, desk.get("going").state) == (0, 1, "open")


def test_letter_in_a_spool_does_not_come_back(desk, tmp_path):
    """The store was away when it died: the next drain would bring its data in."""
    desk.wiring = replace(desk.wiring, spool=Spool(tmp_path))
    desk.wiring.use_for(desk.app)
    desk.wiring.spool.write(desk.letter_of("spooled", key=None, scope=None))

    erased = erase(desk.app, desk.of_ann(), *WHY)
    desk.wiring.spool.drain(desk.wiring.letters)

    assert (erased.letters, list(tmp_path.iterdir())) == (1, [])
    assert EMAIL not in desk.everything()


def test_nothing_of_an_erased_letter_is_sent(desk):
    desk.bury("gone", key=None, scope=None)
    erase(desk.app, desk.of_ann(), *WHY)

    with pytest.raises(Exception, match="is discarded"):
        replay(desk.app, "gone", "bob")


def test_no_more_letters_are_looked_at_than_were_asked_for(desk, monkeypatch):
    """A page would read the million letters of a group, and their records, before it says that they are too many."""
    monkeypatch.setattr("celery_safeguards.replay.erasing._A_TRIP", 2)
    made = [desk.bury(f"l-{number}") for number in range(7)]
    read, pages = desk.wiring.letters.list, []
    monkeypatch.setattr(desk.wiring.letters, "list", lambda **given: pages.append(given) or read(**given))
    group = Wanted(fingerprint=made[0].fingerprint)

    cut = find(desk.app, group, most=3)
    looked = len(pages)

    assert (len(cut.last_failed_seconds), cut.is_cut, looked) == (3, True, 2)
    assert (find(desk.app, group, most=7).letters, find(desk.app, group, most=7).is_cut) == (7, False)


def test_find_changes_nothing(desk):
    desk.bury("one")
    before = desk.everything()

    found = find(desk.app, desk.of_ann())

    assert list(found.last_failed_seconds) == ["one"]
    assert desk.everything() == before


@pytest.mark.parametrize("told", [("eve", f"asked by {EMAIL.upper()}"), (EMAIL, "why"), ("", "why"), ("eve", " ")])
def test_trace_holds_a_name_and_a_reason_and_not_what_is_erased(desk, told):
    """What was taken from the letters would stand in their histories, for ever."""
    desk.bury("one")

    with pytest.raises(ConfigurationError):
        erase(desk.app, desk.of_ann(), *told)

    assert not desk.get("one").erased


def test_more_letters_than_one_trip_takes(desk, monkeypatch):
    monkeypatch.setattr("celery_safeguards.replay.erasing._A_TRIP", 3)
    for number in range(8):
        desk.bury(f"l-{number}", last_failed_seconds=NOON + number)

    assert erase(desk.app, desk.of_ann(), *WHY).letters == 8
    assert EMAIL not in desk.everything()


def test_whatever_is_not_covered_is_said():
    for word in ("broker", "result backend", "logs", "spool", "backups", "exports"):
        assert word in " ".join(NOT_COVERED)


# --- killed, and two at once

STEPS = (
    ("letters", "discard"),
    ("admission", "settle"),
    ("admission", "erase"),
    ("letters", "forget_sample"),
    ("letters", "erase"),
)


def shop_of(redis_url, namespace):
    """Return an app that knows the task, as another process has one."""
    app = make_app("memory://", redis_url, namespace, **{f"safeguards_{name}": each for name, each in FOUND_BY.items()})
    add_task(app)
    return app


def wanted_of(app):
    return Wanted(terms=Wiring.of(app).search.argument_terms("email", EMAIL), secret=EMAIL)


def erase_and_die(redis_url, namespace, step, place):
    """Be killed before or after a step of the second letter."""
    with shop_of(redis_url, namespace) as app:
        store, name = getattr(Wiring.of(app), step[0]), step[1]
        call, calls = getattr(store, name), []

        def wrapped(*args, **kwargs):
            calls.append(name)
            if place == "before" and len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = call(*args, **kwargs)
            if place == "after" and len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(store, name, wrapped)
        erase(app, wanted_of(app), "eve", "ticket 7")


def erase_at_once(redis_url, namespace, who, barrier, told):
    with shop_of(redis_url, namespace) as app:
        barrier.wait(30)
        erased = erase(app, wanted_of(app), who, "ticket 7")
        told.put((erased.letters, dict(erased.refused)))


@pytest.fixture
def desk_on_redis(redis_url):
    with stores.redis_under_test(redis_url) as under_test:
        namespace = under_test.keys.tag.split(":")[1]
        with shop_of(redis_url, namespace) as app:
            Wiring.of(app).admission.declare_new()
            desk = Desk(app, under_test)
            desk.namespace = namespace
            # Of three causes, so that three groups quote them.
            for number in range(3):
                desk.bury(f"l-{number}", error_type=f"builtins.Error{number}")
            yield desk


@pytest.mark.redis
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=[name for _, name in STEPS])
def test_whoever_is_killed_runs_it_again_and_finds_what_is_left(desk_on_redis, redis_url, step, place):
    desk = desk_on_redis
    process = SPAWN.Process(target=erase_and_die, args=(redis_url, desk.namespace, step, place))
    process.start()
    process.join(60)
    is_left = EMAIL in desk.everything()

    erase(desk.app, wanted_of(desk.app), "eve", "ticket 7")

    assert process.exitcode == -signal.SIGKILL
    assert is_left
    assert EMAIL not in desk.everything()
    for number in range(3):
        kept, record = desk.get(f"l-{number}"), desk.record(f"l-{number}")
        assert (kept.erased, record.released) == (True, True)
        assert [each.what for each in kept.history] == ["tried", "discarded", "erased"]


@pytest.mark.redis
def test_two_processes_erase_each_letter_once(desk_on_redis, redis_url):
    desk = desk_on_redis
    barrier, told = SPAWN.Barrier(2), SPAWN.Queue()
    people = [SPAWN.Process(target=erase_at_once, args=(redis_url, desk.namespace, who, barrier, told)) for who in "ab"]
    for person in people:
        person.start()
    answers = [told.get(timeout=60) for _ in people]
    for person in people:
        person.join(30)

    assert sum(letters for letters, _ in answers) == 3
    assert EMAIL not in desk.everything()
    for number in range(3):
        assert [each.what for each in desk.get(f"l-{number}").history].count("erased") == 1
