"""What `replays start --dry-run` says: how many letters would become what, and what of each; JSON for a program."""

from collections.abc import Iterable, Mapping
from typing import Any

from celery_safeguards.cli.text import print_fields, print_json, say
from celery_safeguards.printable import clean, counted
from celery_safeguards.replay.expecting import IN_WORDS
from celery_safeguards.replay.many.asking import Asker
from celery_safeguards.replay.many.choosing import Choice
from celery_safeguards.replay.many.forecasting import Forecast, Foreseen


def print_forecast(
    choice: Choice, letters: Iterable[Foreseen], asker: Asker | None, *, is_each: bool, as_json: bool
) -> None:
    """Print a dry run as it goes; as JSON once it is over."""
    found, each = Forecast(), []
    for letter in letters:
        found.count(letter)
        if as_json and is_each:
            each.append(_plain(letter))
        elif not as_json and (is_each or letter.answers):
            _print_letter(letter)
    if as_json:
        _print_plain(choice, found, asker, {"each": each} if is_each else {})
        return
    expected = {IN_WORDS[each]: count for each, count in found.expected.most_common()}
    answers = {f"{who}: {said.replace('_', ' ')}": count for (who, said), count in found.answers.most_common()}
    print_fields(
        [
            ("chosen", f"{counted(found.letters, 'letter')}: {choice}"),
            *_counted("expected", expected),
            ("would be sent", found.would_be_sent),
            *_counted("", dict(found.notes.most_common())),
            ("would not", found.letters - found.would_be_sent),
            *_counted("", dict(found.refused.most_common())),
            *_counted("answers", answers),
            ("not asked", f"{counted(asker.left_out, 'more letter')}" if asker and asker.left_out else None),
        ]
    )


def _counted(name: str, counts: Mapping[str, int]) -> list[tuple[str, object]]:
    """Return lines, of which the first alone has the name."""
    return [("" if at else name, f"{count}: {said}") for at, (said, count) in enumerate(counts.items())]


def _print_letter(letter: Foreseen) -> None:
    said = (letter.expected, letter.why, *letter.answers)
    say("  ".join(clean(each) for each in (letter.letter_id, *said) if each))


def _plain(letter: Foreseen) -> dict[str, Any]:
    answers = [{"who": each.question, "said": each.said, "why": each.why or None} for each in letter.answers]
    return {
        "letter_id": letter.letter_id,
        "task": letter.task,
        "expected": letter.expected,
        "would_be_sent": letter.is_sent,
        "why": letter.why or None,
        "answers": answers,
    }


def _print_plain(choice: Choice, found: Forecast, asker: Asker | None, each: Mapping[str, Any]) -> None:
    answers: dict[str, dict[str, int]] = {}
    for (who, said), count in found.answers.items():
        answers.setdefault(who, {})[said] = count
    asked = {"answers": answers, "asked": asker.asked, "not_asked": asker.left_out} if asker else {}
    print_json(
        {
            "chosen": str(choice),
            "letters": found.letters,
            "would_be_sent": found.would_be_sent,
            "expected": dict(found.expected),
            "refused": dict(found.refused),
            "notes": dict(found.notes),
            **asked,
            **each,
        }
    )
