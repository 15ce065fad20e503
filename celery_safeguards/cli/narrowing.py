"""Which letters a command is about: by what they are found by, and by what lists are narrowed by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from celery_safeguards.deadletter.letter import STATES
from celery_safeguards.deadletter.search import Search
from celery_safeguards.outcome import FailureKind
from celery_safeguards.printable import clean

KINDS = click.Choice([kind.value for kind in FailureKind])
in_group = click.option("--group", "fingerprint", metavar="GROUP", help="Only letters of this group.")
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--find", "text", metavar="TEXT", help="By a key, an id, or a value of any searchable argument, exactly."
    ),
    click.option("--argument", metavar="NAME=VALUE", help="By the value of a searchable argument, exactly."),
    click.option(
        "--state",
        type=click.Choice([*STATES, "any"]),
        help="Only letters in this state.  [default: open; of a search: any]",
    ),
    click.option("--task", help="Only this task's."),
    click.option("--kind", type=KINDS, help="Only failures of this kind."),
    in_group,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """What the options of `narrowing` were given, by their names."""

    text: str | None
    argument: str | None
    state: str | None
    task: str | None
    kind: str | None
    fingerprint: str | None

    def sought(self, search: Search) -> tuple[tuple[str, ...], str]:
        """Return the terms of what is searched for, and its text."""
        if self.text is not None and self.argument is not None:
            raise click.UsageError("--find and --argument: give one of them")
        if self.argument is not None:
            return terms_of_argument(search, self.argument), self.argument
        if self.text is not None and not self.text.strip():
            raise click.UsageError("--find: give a text")
        return ((), "") if self.text is None else (search.terms_for(self.text), self.text)

    def options(self, search: Search) -> dict[str, Any]:
        """Return what `LetterStore.list` takes."""
        terms, _ = self.sought(search)
        state = self.state or ("any" if terms else "open")
        return {
            "state": None if state == "any" else state,
            "task": self.task,
            "kind": FailureKind(self.kind) if self.kind else None,
            "fingerprint": self.fingerprint,
            "terms": terms,
        }


def narrowing(command: Any) -> Any:
    """Give a command the options of `Narrowed`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def terms_of_argument(search: Search, argument: str) -> tuple[str, ...]:
    """Return the terms of NAME=VALUE."""
    name, equals, value = argument.partition("=")
    if not equals or not value.strip():
        raise click.UsageError(f"--argument {clean(name, 80)}: give NAME=VALUE")
    return search.argument_terms(name, value)
