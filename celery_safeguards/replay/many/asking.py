"""
What a task's own functions say of a letter's work, asked before anything is sent: `verify`, and `ensure`.

Both are declared safe to ask, and a worker asks them as often as it must. Here nobody acts on the answers: no claim is
taken, and nothing is written. So an answer is what was true at that moment, for a person who is about to decide.

- `verify` is asked where admission would ask it; not before its `after_seconds` are over, since a request of the lost
  attempt may still land.
- `ensure` is asked with the stored result where the work is done, else with None: it may say that the effect is there.
  One that needs a result cannot tell.

Each has the time-outs that it has in a worker, its own. Bounded here: so many letters, and none once the time is over.
What they raise is told and never raised. Where the task's code is not imported, it is said that nobody was asked.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from celery_safeguards.clock import to_seconds
from celery_safeguards.deadletter.letter import Letter, LetterTruncated
from celery_safeguards.errors import ConfigurationError, KeyRefused
from celery_safeguards.ledger.key import bind, body_signature
from celery_safeguards.ledger.record import ResultForm, State
from celery_safeguards.pipeline.ensuring import PostconditionFailed, check_postcondition
from celery_safeguards.pipeline.indexing import shown_error
from celery_safeguards.pipeline.results import stored_result
from celery_safeguards.pipeline.verifying import ask_outside
from celery_safeguards.policy import CannotTell, DidNotHappen, Happened, Policy
from celery_safeguards.replay.copies.edit import EditRefused, opened
from celery_safeguards.replay.expecting import Expectation, Expected
from celery_safeguards.replay.plan import Work
from celery_safeguards.wiring import Wiring

logger = logging.getLogger(__name__)


class Said(StrEnum):
    """What was answered; the first three by `verify`, the next two by `ensure`."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    CANNOT_TELL = "cannot_tell"
    HOLDS = "holds"
    DOES_NOT_HOLD = "does_not_hold"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one of them said of one letter; `why` holds nothing that is masked."""

    question: Literal["verify", "ensure", "task"]
    said: Said
    why: str = ""

    def __str__(self) -> str:
        return f"{self.question}: {self.said.replace('_', ' ')}{f' ({self.why})' if self.why else ''}"


class Asker:
    """
    Asks what the tasks of letters know, within bounds.

    Args:
        app: see `outlook`.
        most: letters that are asked about.
        seconds: no letter is begun after so long; one that is being asked about is waited for.

    """

    def __init__(self, app: Any, *, most: int, seconds: float) -> None:
        self._app, self._most = app, most
        self._wiring = Wiring.of(app)
        self._ends = self._wiring.clock.monotonic_seconds() + seconds
        self.asked = 0
        """Letters that were asked about."""
        self.left_out = 0
        """Letters that were not, since a bound was reached."""

    def ask(self, letter: Letter, work: Work, expectation: Expectation) -> tuple[Answer, ...]:
        """Return what the functions of a letter's task say; none: it has none, or they tell nothing here."""
        if work.policy is None:
            return (Answer("task", Said.NOT_ASKED, f"the code of task {letter.task} is not known to this process"),)
        verifies = _is_verified(work.policy, expectation)
        if not verifies and work.policy.ensure is None:
            return ()
        if self.asked >= self._most or self._wiring.clock.monotonic_seconds() >= self._ends:
            self.left_out += 1
            return ()
        self.asked += 1
        try:
            arguments = self._arguments(letter)
        except (EditRefused, KeyRefused, LetterTruncated, ConfigurationError) as error:
            return (Answer("task", Said.NOT_ASKED, self._shown(letter, f"its arguments: {error}")),)
        answers = [self._verify(letter, work, expectation, arguments)] if verifies else []
        if work.policy.ensure is not None:
            answers.append(self._ensure(letter, work, arguments))
        return tuple(answers)

    def _arguments(self, letter: Letter) -> Mapping[str, Any]:
        found = opened(letter)
        if found.unopened:
            raise EditRefused("a value is of a type that is not known to this process")
        return bind(body_signature(self._app.tasks[letter.task].run), found.edit.args, found.edit.kwargs)

    def _verify(self, letter: Letter, work: Work, expectation: Expectation, arguments: Mapping[str, Any]) -> Answer:
        if expectation.due_us > work.now_us:
            left_seconds = to_seconds(expectation.due_us - work.now_us)
            return Answer("verify", Said.NOT_ASKED, f"its request may still land for {left_seconds:.0f} s")
        verify = work.policy and work.policy.idempotent and work.policy.idempotent.verify
        if not verify:
            raise TypeError("only a task that verifies is asked")
        verdict = ask_outside(verify, arguments, letter.key or "")
        match verdict:
            case Happened():
                return Answer("verify", Said.HAPPENED)
            case DidNotHappen():
                return Answer("verify", Said.DID_NOT_HAPPEN)
            case CannotTell():
                return Answer("verify", Said.CANNOT_TELL, self._shown(letter, verdict.reason))

    def _ensure(self, letter: Letter, work: Work, arguments: Mapping[str, Any]) -> Answer:
        record, ensure = work.record, work.policy and work.policy.ensure
        if not ensure:
            raise TypeError("only a task with a post-condition is asked")
        is_done = record is not None and record.state is State.DONE
        has_result = is_done and record is not None and record.result_form is ResultForm.STORED
        asked = "asked with the stored result" if has_result else "asked without a result"
        try:
            check_postcondition(ensure, stored_result(record) if has_result and record else None, arguments)
        except PostconditionFailed as error:
            fails = error.__cause__ is None or isinstance(error.__cause__, AssertionError)
            said = Said.DOES_NOT_HOLD if fails else Said.CANNOT_TELL
            return Answer("ensure", said, self._shown(letter, f"{asked}: {error}"))
        return Answer("ensure", Said.HOLDS, asked)

    def _shown(self, letter: Letter, text: str) -> str:
        return shown_error(self._wiring, letter.wire, self._app.tasks[letter.task], text)


def _is_verified(policy: Policy, expectation: Expectation) -> bool:
    """Whether admission would ask `verify`, now or once it may."""
    if policy.idempotent is None or policy.idempotent.verify is None:
        return False
    is_early = expectation.expected is Expected.WOULD_WAIT and expectation.due_us > 0
    return expectation.expected is Expected.VERIFIED_FIRST or is_early
