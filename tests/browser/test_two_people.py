"""
Two people at the same letters, and forms that are sent twice.
"""

import threading

import pytest

from tests.browser.pages import LETTERS

LETTER_COUNT = 100


def race(desk, people, act):
    """Let people act at the same instant, each in a session of his own; return their answers in order."""
    barrier, answers = threading.Barrier(len(people)), {}

    def run(person):
        with desk.client(person) as client:
            barrier.wait(30)
            answers[person] = act(client)

    threads = [threading.Thread(target=run, args=(person,)) for person in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[person] for person in people]


def test_two_people_who_replay_the_same_hundred_letters_send_a_hundred_messages(desk):
    """Each second message is a second effect (rq/django-rq PR#179, django-q2/django-q2 PR#99)."""
    letters = [desk.bury(kwargs={"number": number}) for number in range(LETTER_COUNT)]
    picked = [desk.picked(letter) for letter in letters]

    answers = race(desk, ["ann", "bob"], lambda client: client.do("replay", *picked, confirmed="1", reason="mended"))

    assert [302, 302] == [answer.status_code for answer in answers]
    assert desk.queued() == LETTER_COUNT
    assert {"replayed"} == {desk.letter(letter).state for letter in letters}
    ours = {letter.id for letter in letters}
    said = [what for _, which, what in desk.log() if which in ours]
    sent = [what for what in said if what.startswith("Replay: replayed as task")]
    assert (len(said), len(sent), len(set(sent))) == (2 * LETTER_COUNT, LETTER_COUNT, LETTER_COUNT)


def test_two_people_who_discard_one_letter_are_told_whose_reason_stands(desk):
    """The second one would believe that his reason is in the history."""
    letter = desk.bury()
    picked = desk.picked(letter)
    with desk.client("ann") as ann, desk.client("bob") as bob:
        ann.do("discard", picked, confirmed="1", reason="a test order")
        bob.do("discard", picked, confirmed="1", reason="the customer is gone")

        told = bob.get(desk.path_of(letter)).text

    assert "it was discarded already, by ann: a test order" in told
    assert [entry.detail for entry in desk.letter(letter).history if entry.what == "discarded"] == ["a test order"]


def test_letter_that_is_chosen_twice_is_sent_once_and_ends_nothing(desk):
    """A selection with duplicates must not abort the batch (procrastinate-org/procrastinate PR#1512)."""
    first, second = desk.bury(), desk.bury()
    with desk.client("ann") as client:
        client.do(
            "replay", desk.picked(first), desk.picked(first), "none", desk.picked(second), confirmed="1", reason="x"
        )

    assert desk.queued() == 2
    assert [desk.letter(letter).state for letter in (first, second)] == ["replayed", "replayed"]


def test_page_that_is_sent_again_sends_nothing_again(desk):
    """The back button and a double click are how one payment becomes two."""
    letter = desk.bury()
    with desk.client("ann") as client:
        client.do("replay", desk.picked(letter), confirmed="1")
        client.do("replay", desk.picked(letter), confirmed="1")
        told = client.get(LETTERS).text

    assert desk.queued() == 1
    assert f"letter {letter.id} is replayed, as task" in told


def test_letter_that_failed_again_since_it_was_looked_at_is_left_alone(desk):
    """What was confirmed is another failure than the one that is stored now, perhaps one with an effect."""
    letter = desk.bury()
    seen = desk.picked(letter)
    desk.change(letter, last_failed_seconds=letter.last_failed_seconds + 1)
    with desk.client("ann") as client:
        client.do("replay", seen, confirmed="1")
        told = client.get(LETTERS).text

    assert (desk.letter(letter).state, desk.queued()) == ("open", 0)
    assert "it has failed again since that page was made" in told


def test_consent_is_given_to_what_the_page_has_marked_alone(desk):
    """What needs consent only since the page was made has not been looked at as such."""
    letter = desk.bury(task="desk.mail", effect_possible=True)
    picked = desk.picked(letter)
    with desk.client("ann") as client:
        client.do("replay", picked, confirmed="1", may_run_twice="on")
        unmarked = desk.queued()
        client.do("replay", picked, confirmed="1", may_run_twice="on", asked=picked)

    assert (unmarked, desk.queued()) == (0, 1)


def test_more_letters_than_go_at_once_are_refused_before_the_first(desk):
    """A selection of everything, by one click, is the storm that killed the dependency (mperham/sidekiq#6481)."""
    letter = desk.bury()
    with desk.client("ann") as client:
        client.do("replay", desk.picked(letter), *[f"{number}:0" for number in range(500)], confirmed="1")
        told = client.get(LETTERS).text

    assert (desk.letter(letter).state, desk.queued()) == ("open", 0)
    assert "501 letters are chosen, and 500 at most go at once" in told


def test_result_is_that_of_one_letter(desk):
    """One customer's charge would be recorded as that of another."""
    letters = [desk.bury_unknown(f"one-result-{number}") for number in range(2)]
    with desk.client("sol") as client:
        client.do("happened", *map(desk.picked, letters), confirmed="1", reason="seen", result="1")
        told = client.get(LETTERS).text

    assert ["open", "open"] == [desk.letter(letter).state for letter in letters]
    assert "2 letters are chosen, and 1 at most" in told


@pytest.mark.parametrize("result", ["paid", "NaN", "[1,", "", " "])
def test_result_that_is_no_json_is_asked_for_again(desk, result):
    """A result that cannot be carried would be found out after the letter has changed."""
    letter = desk.bury_unknown(f"odd-{len(result)}-{result[:1]}")
    with desk.client("sol") as client:
        answer = client.do("happened", desk.picked(letter), confirmed="1", reason="seen", result=result)

    assert (answer.status_code, desk.letter(letter).state, desk.queued()) == (200, "open", 0)


@pytest.mark.parametrize("reason", ["", "  ", "x" * 901])
def test_reason_that_is_none_or_does_not_fit_is_asked_for_again(desk, reason):
    """A reason that the history cuts, or does not have, is no reason a week later."""
    letter = desk.bury()
    with desk.client("dora") as client:
        answer = client.do("discard", desk.picked(letter), confirmed="1", reason=reason)

    assert (answer.status_code, desk.letter(letter).state) == (200, "open")
