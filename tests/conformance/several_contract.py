"""
What every store of dead letters must do about several letters at once: give a `store` fixture that is empty.
"""

from collections import Counter
from dataclasses import replace

from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter, LetterTruncated
from celery_safeguards.deadletter.refusals import LetterNotOpen, NoSuchLetter
from tests.conformance.deadletter_contract import NOON, RACERS, letter, race

GROUP = letter().fingerprint


def bury(store, count):
    names = [f"l-{number}" for number in range(count)]
    for name in names:
        store.bury(letter(name))
    return names


def counted(store):
    return {state: count for state, count in store.get_group(GROUP).counts.items() if count}


class SeveralLettersContract:
    def test_letters_are_read_together(self, store):
        names = bury(store, 50)

        found = store.get_many([*names, "absent"])

        assert found == {name: store.get(name) for name in names}
        assert store.get_many([]) == {}

    def test_replays_begin_together_as_they_do_alone(self, store):
        bury(store, 3)
        store.begin_replay("l-2", "t-9", "bob", NOON)
        note = HistoryEntry(at_seconds=NOON, what="replay asked", who="ana", detail="job j-1")

        begun = store.begin_replays({"l-0": "t-0", "absent": "t-1", "l-2": "t-2", "l-1": "t-3"}, "ana", NOON, [note])

        assert {name: type(made) for name, made in begun.items()} == {
            "l-0": Letter,
            "absent": NoSuchLetter,
            "l-2": LetterNotOpen,
            "l-1": Letter,
        }
        assert begun["l-2"].replay_task_id == "t-9"
        assert begun["l-0"] == store.get("l-0")
        assert (begun["l-0"].state, begun["l-0"].replay_task_id) == ("replaying", "t-0")
        assert [entry.what for entry in begun["l-0"].history] == ["replay asked", "replay begun"]
        assert counted(store) == {"replaying": 3}

    def test_a_letter_that_is_not_whole_stops_none_of_the_others(self, store):
        bury(store, 2)
        whole = letter("cut")
        store.bury(letter("cut", wire=whole.wire.without_body()))

        begun = store.begin_replays({"cut": "t-0", "l-0": "t-1", "l-1": "t-2"}, "ana", NOON)

        assert type(begun["cut"]) is LetterTruncated
        assert [store.get(name).state for name in ("cut", "l-0", "l-1")] == ["open", "replaying", "replaying"]

    def test_of_twenty_who_begin_the_same_letters_each_is_won_by_one(self, store):
        """Whoever holds a letter that another one waits for, and waits for one of his, would wait for ever."""
        names = bury(store, 8)

        def begin(number):
            mine = names if number % 2 else list(reversed(names))
            begun = store.begin_replays({name: f"{number}-{name}" for name in mine}, f"w{number}", NOON)
            return [made.replay_task_id for made in begun.values() if isinstance(made, Letter)]

        won, errors = race(RACERS, begin)

        assert errors == []
        ids = sorted(task_id for ours in won for task_id in ours)
        assert ids == sorted(store.get(name).replay_task_id for name in names)

    def test_several_steps_and_single_ones_at_once_are_all_counted(self, store):
        names = bury(store, 8)

        def act(number):
            if number % 2:
                store.bury(letter(f"new-{number}"))
            else:
                store.begin_replays(dict.fromkeys(names, "t"), "ana", NOON)
                store.mark_each_replayed(dict.fromkeys(names, "t"), NOON)

        _, errors = race(RACERS, act)

        assert errors == []
        states = Counter(each.state for each in store.list(limit=100).letters)
        assert states == {"replayed": 8, "open": RACERS // 2}
        assert counted(store) == states

    def test_marks_are_made_together(self, store):
        """One that has moved on, or is gone, is left as it is."""
        bury(store, 3)
        store.begin_replays({"l-0": "t-0", "l-1": "t-1"}, "ana", NOON)
        store.close("l-1", "done", NOON)

        store.mark_each_replayed({"l-0": "t-0", "l-1": "t-1", "l-2": "t-2", "absent": "t-3"}, NOON + 1)

        assert [store.get(f"l-{number}").state for number in range(3)] == ["replayed", "closed", "open"]
        assert store.get("l-0").history[-1] == HistoryEntry(at_seconds=NOON + 1, what="replayed", detail="as task t-0")

    def test_letters_of_any_text_change_together(self, store):
        """Of what one of them says, nothing may reach another, or be read as a part of the statement."""
        texts = ["\\u0000 \\", "a \"quoted\" {['%s']}", "\U0001f4a5 \u00e9 \u2028", "nul \x00, half \ud800", ""]
        for number, text in enumerate(texts):
            store.bury(letter(f"{text}-{number}", error_message=text, reason=text, group_id=text or None))
        names = [f"{text}-{number}" for number, text in enumerate(texts)]
        before = store.get_many(names)

        begun = store.begin_replays({name: f"t-{name}" for name in names}, 'a"n\\a', NOON)

        assert list(begun.values()) == [store.get(name) for name in begun]
        assert {"replaying"} == {made.state for made in begun.values()}
        for name, made in begun.items():
            assert replace(made, history=(), state="open", replay_task_id=None) == replace(before[name], history=())

    def test_letters_that_were_read_before_are_seen_as_they_are_now(self, store):
        """What is known of a letter from the last look would send it twice."""
        names = bury(store, 3)

        def states():
            found = store.get_many(names)
            return [found[name].state for name in names]

        assert ["open", "open", "open"] == states()

        store.close("l-0", "done", NOON)
        store.begin_replay("l-1", "t-1", "bob", NOON)
        begun = store.begin_replays(dict.fromkeys(names, "t-2"), "ana", NOON)

        assert ["LetterNotOpen", "LetterNotOpen", "Letter"] == [type(begun[name]).__name__ for name in names]
        assert ["closed", "replaying", "replaying"] == states()
        store.mark_each_replayed(dict.fromkeys(names, "t-2"), NOON)
        assert ["closed", "replaying", "replayed"] == states()
