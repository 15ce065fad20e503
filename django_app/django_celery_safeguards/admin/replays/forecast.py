"""
A dry run on a page: how many letters would become what, and the first of them one by one.

Asked for, the tasks' own `verify` and `ensure` are called in the web process, which knows of tasks what it can import;
of others it says so. What they quote is payload, and shown with its permission alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from celery_safeguards.printable import clean
from celery_safeguards.replay.expecting import IN_WORDS
from celery_safeguards.replay.many.asking import Answer, Asker
from celery_safeguards.replay.many.choosing import Choice
from celery_safeguards.replay.many.forecasting import Forecast, Foreseen, foresee
from django_celery_safeguards.admin.pages import payload, presenting
from django_celery_safeguards.admin.pages.shown import shown_store
from django_celery_safeguards.admin.replays.start_form import MOST_ASKED
from django_celery_safeguards.models import DeadLetter
from django_celery_safeguards.sql import row_id

_LOOKED_AT = 1_000
_ONE_BY_ONE = 100
_ASK_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One letter of it, for people."""

    letter: SafeString
    task: SafeString | str
    expected: str
    texts: SafeString | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownForecast:
    """
    What a dry run has found, for a template.

    Attributes:
        counts: lists with a heading each; pairs, for a template asks a counter for its method and gets its count.
        lines: the first letters, one by one.
        left_out: letters that nobody was asked about, since a bound was reached.
        is_cut: whether there may be older letters, which were not looked at.

    """

    letters: int
    would_be_sent: int
    counts: Sequence[tuple[str, Sequence[tuple[str, int]]]]
    lines: Sequence[Line]
    left_out: int
    is_cut: bool


def shown_forecast(
    admin_site: Any, request: Any, app: Any, choice: Choice, *, may_run_twice: bool, asks: bool
) -> ShownForecast:
    """Make a dry run of the newest letters of a choice."""
    found = Forecast()
    lines: list[Line] = []
    asker = Asker(app, most=MOST_ASKED, seconds=_ASK_SECONDS) if asks else None
    for letter in foresee(app, choice, may_run_twice=may_run_twice, most=_LOOKED_AT, asker=asker):
        found.count(letter)
        if len(lines) < _ONE_BY_ONE:
            lines.append(_line(admin_site, letter, shows_payload=payload.may_see(request)))
    counts = (
        ("Expected", [(IN_WORDS[each], count) for each, count in found.expected.most_common()]),
        (
            "Answers",
            [(f"{who}: {said.replace('_', ' ')}", count) for (who, said), count in found.answers.most_common()],
        ),
        ("Not sent", [(clean(why, 500), count) for why, count in found.refused.most_common()]),
        ("Of those sent", [(clean(note, 500), count) for note, count in found.notes.most_common()]),
    )
    return ShownForecast(
        letters=found.letters,
        would_be_sent=found.would_be_sent,
        counts=[(heading, each) for heading, each in counts if each],
        lines=lines,
        left_out=asker.left_out if asker else 0,
        is_cut=found.letters >= _LOOKED_AT,
    )


def _line(admin_site: Any, letter: Foreseen, *, shows_payload: bool) -> Line:
    texts = [
        *([letter.why] if letter.why else []),
        *(_said(each, shows_payload=shows_payload) for each in letter.answers),
    ]
    id_ = row_id(shown_store().namespace, letter.letter_id)
    return Line(
        letter=presenting.link_to(admin_site, DeadLetter, id_, letter.letter_id),
        task=presenting.dotted(letter.task),
        expected=IN_WORDS[letter.expected],
        texts=presenting.lines(texts) if texts else "",
    )


def _said(answer: Answer, *, shows_payload: bool) -> str:
    # Of a task that is not known here nothing was asked, and nothing is quoted.
    return str(answer if shows_payload or answer.question == "task" else Answer(answer.question, answer.said))
