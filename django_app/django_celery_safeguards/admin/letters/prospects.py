"""What can be done to letters, and what a person is told of each letter before it is done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms

from celery_safeguards.deadletter.archiving import ARCHIVABLE
from celery_safeguards.replay.plan import Need
from django_celery_safeguards.admin.letters.deeds import (
    Done,
    Given,
    archive_letter,
    discard_letter,
    replay_letter,
    resolve_letter,
    restore_letter,
    resume_letter,
)
from django_celery_safeguards.admin.letters.forms import DidNotHappenForm, HappenedForm, ReplayForm
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.asking import MOST_AT_ONCE, ReasonForm
from django_celery_safeguards.admin.pages.letter_rows import outlook_of, reading_of
from django_celery_safeguards.admin.pages.rights import may

IN_WORDS = {"yes": "yes", "asks": "with consent", "no": "no"}
"""Whether it will be done, by the marks of prospects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """
    One thing that can be done to letters.

    Attributes:
        permission: codename, of this app.
        button: in the imperative.
        question: the heading of the page that asks.
        will: what happens to a letter.
        run: does it to one letter.
        most_at_once: letters; a result is that of one.
        asks_why: also of one letter; of several a reason is always asked for.

    """

    name: str
    permission: str
    button: str
    question: str
    will: str
    form: type[forms.Form]
    run: Callable[[Any, str, Given], Done]
    most_at_once: int = MOST_AT_ONCE
    asks_why: bool = True

    def form_for(self, letters: int, data: Any = None) -> Any:
        """Return the form for so many letters."""
        form = self.form(data)
        form.fields["reason"].required = self.asks_why or letters > 1
        return form

    def is_allowed(self, request: Any) -> bool:
        """Whether whoever asks may do it."""
        return may(request, self.permission)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """One letter on the page that asks."""

    row: Any
    picked: str
    mark: str
    texts: Any
    needs_consent: bool = False

    @property
    def in_words(self) -> str:
        """Whether it will be done."""
        return IN_WORDS[self.mark]

    @property
    def task(self) -> str:
        """For people."""
        return presenting.short(self.row.task)

    @property
    def key(self) -> str:
        """For people."""
        return presenting.short(self.row.key)


REPLAY = Deed(
    name="replay",
    permission="replay_deadletter",
    button="Replay",
    question="Send this work again?",
    will="It is sent again.",
    asks_why=False,
    form=ReplayForm,
    run=replay_letter,
)
DISCARD = Deed(
    name="discard",
    permission="discard_deadletter",
    button="Discard",
    question="Give this work up?",
    will="It is given up: it stays readable, and is never sent again.",
    form=ReasonForm,
    run=discard_letter,
)
HAPPENED = Deed(
    name="happened",
    permission="resolve_deadletter",
    button="It happened",
    question="Has this work happened?",
    will="It is recorded as done, with the result below. Its body does not run.",
    most_at_once=1,
    form=HappenedForm,
    run=resolve_letter,
)
DID_NOT_HAPPEN = Deed(
    name="did-not-happen",
    permission="resolve_deadletter",
    button="It did not happen",
    question="Has this work not happened?",
    will="It is sent again, and its body runs.",
    form=DidNotHappenForm,
    run=resolve_letter,
)
RESUME = Deed(
    name="resume",
    permission="replay_deadletter",
    button="Resume the replay",
    question="Send this replay again?",
    will="It is sent again, under the task id that it has.",
    asks_why=False,
    form=ReplayForm,
    run=resume_letter,
)
ARCHIVE = Deed(
    name="archive",
    permission="archive_deadletter",
    button="Archive",
    question="Put this work away?",
    will="It is put away: no list shows it unasked, and it can be restored. A success still closes it.",
    form=ReasonForm,
    run=archive_letter,
)
RESTORE = Deed(
    name="restore",
    permission="archive_deadletter",
    button="Restore",
    question="Bring this work back?",
    will="It is brought back to where it was:",
    asks_why=False,
    form=ReasonForm,
    run=restore_letter,
)
DEEDS = {deed.name: deed for deed in (REPLAY, RESUME, HAPPENED, DID_NOT_HAPPEN, DISCARD, ARCHIVE, RESTORE)}


def possible_deeds(row: Any) -> list[Deed]:
    """Return what can be done to a letter as it stands; whoever is faster may make it impossible."""
    letter = reading_of(row).letter
    if letter is None:
        return []
    if letter.state not in {"open", "replaying"}:
        return [RESTORE if letter.state == "archived" else ARCHIVE]
    found, is_open = outlook_of(row), letter.state == "open"
    deeds = []
    if found.refused is None or found.needs is Need.CONSENT:
        deeds.append(REPLAY if is_open else RESUME)
    if found.needs is Need.VERDICT:
        deeds.append(HAPPENED)
    if found.needs is Need.VERDICT or (found.needs is Need.CONSENT and is_open):
        deeds.append(DID_NOT_HAPPEN)
    return [*deeds, ARCHIVE, DISCARD] if is_open else deeds


def prospect_of(deed: Deed, row: Any) -> Prospect:
    """Return what a deed would do to a letter."""
    letter = reading_of(row).letter
    said: dict[str, Any] = {"row": row, "picked": picked_of(row)}
    if letter is None:
        return Prospect(**said, mark="no", texts=presenting.lines([f"It cannot be read: {reading_of(row).problem}"]))
    if deed is DISCARD:
        return _prospect_of_discard(letter, said)
    if deed in {ARCHIVE, RESTORE}:
        return _prospect_of_move(deed, letter, said)
    found = outlook_of(row)
    if deed in possible_deeds(row):
        if deed.form is ReplayForm and found.needs is Need.CONSENT:
            texts = ["It may run twice, so it is sent only with consent.", f"Why: {found.refused}.", *found.notes]
            return Prospect(**said, mark="asks", texts=presenting.lines(texts), needs_consent=True)
        return Prospect(**said, mark="yes", texts=presenting.lines([deed.will, *found.notes]))
    elsewhere = _not_this_but_another(deed, letter.state, found.needs)
    refused = presenting.lines([elsewhere]) if elsewhere else presenting.outlook_in_words(found)
    return Prospect(**said, mark="no", texts=refused)


def _not_this_but_another(deed: Deed, state: str, needs: Need) -> str:
    """Return what can be done in place of a deed that is none for a letter as it stands; '': nothing else."""
    if deed is REPLAY and state == "replaying":
        return "It is being replayed. If that was cut short, resume it on its page."
    if deed is RESUME and state == "open":
        return "It is open, and no replay of it was cut short: replay it on its page."
    if deed in {HAPPENED, DID_NOT_HAPPEN} and state in {"open", "replaying"} and needs is Need.NOTHING:
        return "Nobody has to say whether it happened: it is sent as it is, from its page."
    return ""


def _prospect_of_discard(letter: Any, said: dict[str, Any]) -> Prospect:
    if letter.state != "open":
        return Prospect(**said, mark="no", texts=presenting.lines([f"The letter is {letter.state}."]))
    texts = [DISCARD.will]
    if letter.key is not None:
        texts.append(f"Key {letter.key} is free for a new publication.")
    if letter.effect_possible:
        texts.append("An outside effect is possible, and stays unknown.")
    return Prospect(**said, mark="yes", texts=presenting.lines(texts))


def _prospect_of_move(deed: Deed, letter: Any, said: dict[str, Any]) -> Prospect:
    if letter.state not in (ARCHIVABLE if deed is ARCHIVE else {"archived"}):
        return Prospect(**said, mark="no", texts=presenting.lines([f"The letter is {letter.state}."]))
    texts = [deed.will if deed is ARCHIVE else f"{deed.will} {letter.work_state}."]
    if deed is ARCHIVE and letter.state == "open" and letter.key is not None:
        texts.append(f"Key {letter.key} stays taken: until it is restored, nobody does this work.")
    return Prospect(**said, mark="yes", texts=presenting.lines(texts))


def picked_of(row: Any) -> str:
    """Return a row and the failure that a person has looked at."""
    return f"{row.pk}:{row.last_failed_us}"
