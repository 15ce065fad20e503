"""
Letters that are known by their text: the same letter, and no more of them than fit.
"""

import pytest

from celery_safeguards.deadletter import lately
from celery_safeguards.deadletter.lately import LatelyKnown
from celery_safeguards.deadletter.letter import LetterUnreadable
from tests.conformance.deadletter_contract import letter


@pytest.fixture
def parsed(monkeypatch):
    """Texts that were parsed."""
    texts, real = [], lately.letter_or_error

    def parse(text):
        texts.append(text)
        return real(text)

    monkeypatch.setattr(lately, "letter_or_error", parse)
    return texts


def test_a_text_is_parsed_once(parsed):
    known, text = LatelyKnown(), letter().to_json()

    assert known.read(text) == letter()
    assert known.read(str(text.encode(), "ascii")) == letter()
    assert parsed == [text]


def test_a_letter_that_was_written_is_known_and_the_one_before_it_no_longer(parsed):
    known, before, after = LatelyKnown(), letter().to_json(), letter(task="shop.refund")
    known.read(before)

    known.keep(after.to_json(), after, instead_of=before)

    assert known.read(after.to_json()) is after
    assert parsed == [before]
    known.read(before)
    assert parsed == [before, before]


def test_no_more_is_kept_than_fits(parsed, monkeypatch):
    """A process that replays a million letters would hold them all."""
    texts = [letter(f"l-{number}").to_json() for number in range(10)]
    monkeypatch.setattr(lately, "_MOST_CHARS", 3 * len(texts[0]))
    known = LatelyKnown()
    for text in texts:
        known.read(text)
    parsed.clear()

    for text in reversed(texts[-3:]):
        known.read(text)
    assert parsed == []
    known.read(texts[0])
    assert parsed == [texts[0]]


def test_a_large_letter_and_a_damaged_one_are_not_kept(parsed):
    known, large = LatelyKnown(), letter(traceback="a" * 60_000).to_json()

    for text in (large, large, "{}", "{}"):
        found = known.read(text)
        assert isinstance(found, LetterUnreadable) is (text == "{}")
    assert parsed == [large, large, "{}", "{}"]


def test_who_is_in_it_at_once_is_not_waited_for(parsed):
    """A child that is forked in that moment would wait for a thread that it does not have."""
    known, text = LatelyKnown(), letter().to_json()

    with known._guard:
        assert known.read(text) == letter()

    known.read(text)
    assert parsed == [text, text]
