"""
What every store of dead letters must do about searches: subclass it, and give a `store` fixture that is empty.
"""

import random
from dataclasses import replace

import pytest

from celery_safeguards.deadletter.letter import STATES
from celery_safeguards.deadletter.search import Search
from celery_safeguards.deadletter.terms import name_term
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.outcome import FailureKind
from tests.conformance.deadletter_contract import NOON, RACERS, letter, race, second_burial, walk

SEARCH = Search(arguments=("order_id", "customer.email"), sensitive=("customer",), secret="s3cret")
STEPS = 150


def of_order(letter_id, order_id, after_seconds=0.0, **changes):
    """Return a letter that is found by its order, and died so much later."""
    body = f'[[], {{"order_id": {order_id}, "customer": {{"email": "ann@example.com"}}}}, {{}}]'.encode()
    written = letter(letter_id, last_failed_seconds=NOON + 60 + after_seconds, **changes)
    wire = replace(written.wire, body=body, content_type="application/json", content_encoding="utf-8")
    return SEARCH.indexed(replace(written, wire=wire))


def found(store, text, **options):
    return walk(store, terms=SEARCH.terms_for(text), **options)


class LetterSearchContract:
    @pytest.mark.parametrize(
        "named",
        [
            {"id": "named"},
            {"key": "named"},
            {"task_id": "named"},
            {"root_id": "named"},
            {"parent_id": "named"},
            {"group_id": "named"},
        ],
        ids=lambda named: next(iter(named)),
    )
    def test_a_letter_is_found_by_each_of_its_names(self, store, named):
        """Whatever an alert, a log line or a customer names must be enough."""
        store.bury(letter("other", task_id="t-9"))
        store.bury(letter(**named))

        assert [named.get("id", "l-1")] == walk(store, terms=[name_term("named")])

    def test_a_letter_is_found_by_its_correlation_id(self, store):
        wire = replace(letter().wire, properties={"correlation_id": "c-7"})
        store.bury(letter(wire=wire))

        assert ["l-1"] == walk(store, terms=[name_term("c-7")])

    def test_nothing_is_found_by_a_name_that_nothing_has(self, store):
        store.bury(letter())

        assert [] == walk(store, terms=[name_term("t-")])

    @pytest.mark.parametrize("text", ["4711", " 4711 ", "order_id=4711", "ann@example.com", "Ann@Example.COM"])
    def test_a_letter_is_found_by_what_its_arguments_are(self, store, text):
        """A customer names his order, and not the task that failed."""
        store.bury(of_order("ours", '"4711"' if "=" in text else "4711"))
        store.bury(letter("other"))

        assert ["ours"] == found(store, text)

    def test_a_letter_is_found_by_the_ids_of_its_replays(self, store):
        """The alert of the first failure names an id that the letter no longer has."""
        store.bury(letter())
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        assert ["l-1"] == walk(store, terms=[name_term("t-2")])

        store.bury(second_burial())
        store.begin_replay("l-1", "t-3", "ana", NOON + 700)

        assert [["l-1"]] * 3 == [walk(store, terms=[name_term(name)]) for name in ("t-1", "t-2", "t-3")]
        assert ("t-1",) == store.get("l-1").earlier_task_ids

    def test_a_replay_with_other_arguments_is_found_by_those(self, store):
        store.bury(of_order("l-1", 1))
        store.begin_replay("l-1", "t-2", "ana", NOON + 100)
        store.bury(of_order("l-1", 2, 600, burial=9))

        assert [[], ["l-1"]] == [found(store, f"order_id={number}") for number in (1, 2)]

    @pytest.mark.parametrize("state", STATES)
    def test_a_letter_is_found_in_every_state(self, store, state):
        """What was discarded last week is what the customer asks about today."""
        store.bury(of_order("l-1", 7))
        if state in {"replaying", "replayed"}:
            store.begin_replay("l-1", "t-2", "ana", NOON)
        if state == "replayed":
            store.mark_replayed("l-1", "t-2", NOON)
        if state == "closed":
            store.close("l-1", "done", NOON)
        if state == "discarded":
            store.discard("l-1", "ana", "obsolete", NOON)
        if state == "archived":
            store.archive(["l-1"], "ana", "old", NOON)

        assert ["l-1"] == found(store, "7", state=state)
        assert [] == found(store, "7", state="open" if state != "open" else "closed")

    def test_filters_narrow_a_search(self, store):
        store.bury(of_order("charge", 7))
        store.bury(of_order("ship", 7, 1, task="shop.ship", kind=FailureKind.DATA))

        assert ["ship", "charge"] == found(store, "7")
        assert ["ship"] == found(store, "7", task="shop.ship")
        assert ["ship"] == found(store, "7", kind=FailureKind.DATA)
        assert ["charge"] == found(store, "7", fingerprint=store.get("charge").fingerprint)

    @pytest.mark.parametrize("limit", [1, 3, 7, 20])
    def test_pages_of_several_terms_are_those_of_one_list(self, store, limit):
        """A letter that has two of the terms would come twice, or a page would end where one term's does."""
        buried = {}
        for number in range(20):
            at = number // 3
            buried[f"l-{number:02}"] = at
            # Some have the text as an order, some as a name, some as both.
            named = {"task_id": "7"} if number % 3 else {"task_id": f"t-{number}"}
            store.bury(of_order(f"l-{number:02}", 7 if number % 2 else 8, at, **named))
        wanted = [each for number, each in enumerate(buried) if number % 2 or number % 3]

        listed = found(store, "7", limit=limit)

        assert sorted(wanted) == sorted(listed)
        assert sorted(listed, key=lambda each: -buried[each]) == listed

    @pytest.mark.parametrize("limit", [1, 4, 50])
    def test_a_rare_filter_finds_all_however_short_its_pages_are(self, store, limit, monkeypatch):
        """A store that looks at so many letters in one call must go on where it ended."""
        monkeypatch.setattr("django_celery_safeguards.ranges.MOST_LOOKED_AT", 7)
        monkeypatch.setattr("celery_safeguards.deadletter.redis.pages._NAMES_A_TRIP", 7)
        for number in range(40):
            task = "shop.ship" if number in {0, 1, 16, 17, 28, 39} else "shop.charge"
            named = {"task_id": "7"} if number % 5 else {}
            store.bury(of_order(f"l-{number:02}", 7 if number % 2 else 8, number, task=task, **named))

        assert ["l-39", "l-28", "l-17", "l-16", "l-01"] == found(store, "7", task="shop.ship", limit=limit)
        assert [] == found(store, "7", kind=FailureKind.DATA, limit=limit)

    def test_a_page_without_room_and_a_foreign_cursor_are_refused(self, store):
        for options in ({"limit": 0}, {"before": "x"}):
            with pytest.raises(ConfigurationError):
                store.list(terms=[name_term("t-1")], **options)

    def test_letters_of_one_term_that_die_at_once_are_all_found(self, store):
        """In a storm each letter's terms are written beside those of twenty others."""
        _, errors = race(RACERS, lambda number: store.bury(of_order(f"l-{number}", 7)))

        assert ([], RACERS) == (errors, len(found(store, "7")))

    def test_letters_that_die_again_at_once_are_found_by_what_they_are_then(self, store):
        for number in range(RACERS):
            store.bury(of_order(f"l-{number}", 7))

        _, errors = race(RACERS, lambda number: store.bury(of_order(f"l-{number}", 8, 60, burial=8)))

        assert ([], 0, RACERS) == (errors, len(found(store, "order_id=7")), len(found(store, "order_id=8")))

    def test_a_changed_setting_holds_for_letters_that_are_brought_in_again(self, store):
        """Yesterday nobody knew that today's question would be about addresses."""
        for number in range(3):
            store.bury(replace(of_order(f"l-{number}", 7, number), terms=()))
        assert [] == found(store, "order_id=7")

        assert all(store.regroup(f"l-{number}", SEARCH.indexed) for number in range(3))
        assert ["l-2", "l-1", "l-0"] == found(store, "order_id=7")

        addresses = replace(SEARCH, arguments=("customer.email",))
        assert all(store.regroup(f"l-{number}", addresses.indexed) for number in range(2))
        assert ["l-2"] == found(store, "order_id=7")
        assert store.regroup("absent", SEARCH.indexed) is False

    def test_the_index_is_that_of_the_letters_after_any_steps(self, store):
        """One row that a step forgets is a letter that nobody finds, or a finding that is none."""
        seed = random.randrange(10**6)
        chance, burial = random.Random(seed), 10
        for number in range(STEPS):
            name, burial = f"l-{chance.randrange(8)}", burial + 1
            step = chance.choice(("bury", "bury", "begin", "close", "note", "reindex"))
            if step == "bury":
                store.bury(of_order(name, chance.randrange(4), number, burial=burial, task_id=f"t-{burial}"))
            elif (stored := store.get(name)) is not None:
                if step == "begin" and stored.state == "open":
                    store.begin_replay(name, f"r-{burial}", "ana", NOON)
                elif step == "close":
                    store.close(name, "done", NOON)
                elif step == "note":
                    store.add_note(name, "note", "ana")
                else:
                    store.regroup(name, chance.choice((SEARCH.indexed, lambda each: replace(each, terms=()))))

        everything = store.list(limit=100).letters
        for text in ("order_id=0", "order_id=1", "order_id=2", "order_id=3", "ann@example.com"):
            (term, *_) = SEARCH.argument_terms(*(text if "=" in text else f"customer.email={text}").split("="))
            wanted = [each.id for each in everything if term in each.terms]
            assert wanted == walk(store, terms=[term], limit=3), f"seed {seed}, {text}"
        for each in everything:
            for name in (each.id, each.task_id, *each.earlier_task_ids):
                assert each.id in walk(store, terms=[name_term(name)]), f"seed {seed}, {each.id}, {name}"
