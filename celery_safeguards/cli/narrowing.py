"""Which letters a command is about: by what they are found by, and by what lists are narrowed by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from celery_safeguards.deadletter.letter import STATES
from celery_safeguards.deadletter.search import Search
from celery_safeguards.deadletter.terms import FACETS, facet_term
from celery_safeguards.outcome import FailureKind
from celery_safeguards.printable import clean

KINDS = click.Choice([kind.value for kind in FailureKind])
in_group = click.option("--group", "fingerprint", metavar="GROUP", help="Only letters of this group.")
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--find",
        "text",
        metavar="TEXT",
        help="By a key, an id, queue:NAME, error:CLASS, or a value of any searchable argument, exactly.",
    ),
    click.option("--argument", metavar="NAME=VALUE", help="By the value of a searchable argument, exactly."),
    click.option("--queue", help="Only letters whose message came by this queue."),
    click.option("--error", help="Only letters of this class of error, with its module or without."),
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
    queue: str | None
    error: str | None
    state: str | None
    task: str | None
    kind: str | None
    fingerprint: str | None

    def sought(self, search: Search) -> tuple[tuple[str, ...], str]:
        """Return the terms of what is searched for, and its text."""
        given = {name: getattr(self, name) for name in ("text", "argument", *FACETS)}
        sought = [name for name, value in given.items() if value is not None]
        if not sought:
            return (), ""
        if len(sought) > 1:
            raise click.UsageError("--find, --argument, --queue and --error: give one of them")
        (name,) = sought
        value = given[name]
        if not value.strip():
            raise click.UsageError(f"--{'find' if name == 'text' else name}: give a text")
        if name == "argument":
            return terms_of_argument(search, value), value
        return (search.terms_for(value), value) if name == "text" else ((facet_term(name, value),), f"{name}:{value}")

    def options(self, search: Search) -> dict[str, Any]:
        """Return what `LetterStore.list` takes."""
        terms, _ = self.sought(search)
        names_one = self.text is not None or self.argument is not None
        state = self.state or ("any" if names_one else "open")
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
