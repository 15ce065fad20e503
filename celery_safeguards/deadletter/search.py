"""
Which arguments letters are found by, how their terms come out of a message, and what a person's words mean.

    safeguards_searchable_arguments = ["order_id", "customer.email"]

    charge(4711, customer={"email": "ann@example.com"})      bound to the task's signature, read from the JSON body
        order_id = 4711, customer.email = ann@example.com    one term for each; in a list, one for each member

Positional arguments have the names of the signature, where the process that writes the letter knows the task. Where it
does not, only what was passed by keyword has a name. Values at their default are not in a message, and not found.

The promise: a letter is written whatever its arguments are. What cannot be read is left out, and the letter says so:
a body that is no JSON (nothing is unpickled), cut, or nested too deep; a text that is too long; too many values.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from celery_safeguards.conf import PREFIX, Settings, is_under
from celery_safeguards.deadletter.arguments import plain_of
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.terms import (
    argument_term,
    facet_term,
    facets_of,
    is_tagged,
    name_term,
    names_of,
    plain_terms,
    text_of,
    typed_text,
)
from celery_safeguards.errors import ConfigurationError, nearest

MOST_TERMS = 64
"""How many terms the arguments of one letter have."""
_DEEPEST = 20
logger = logging.getLogger(__name__)


class _LeftOut(ValueError):
    """Raised where a value cannot be searched for; says why, without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """
    The searchable arguments of one fleet; the same in whatever writes letters and whatever looks for them.

    Attributes:
        arguments: their names, dotted into mappings.
        sensitive: names of arguments whose terms are keyed, with all that is in them.
        secret: keys them.

    """

    arguments: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    secret: str = field(default="", repr=False)

    @classmethod
    def of(cls, settings: Settings) -> "Search":
        """Return what the settings ask for."""
        return cls(
            arguments=settings.searchable_arguments,
            sensitive=settings.sensitive_arguments,
            secret=settings.search_secret or "",
        )

    def indexed(self, letter: Letter, signature: inspect.Signature | None = None) -> Letter:
        """
        Return a letter with the terms of its arguments.

        Args:
            letter: with its whole message, as far as it was kept.
            signature: of its task, without `self`; None: it is not known here.

        """
        if not self.arguments:
            return replace(letter, terms=(), terms_note="")
        try:
            terms, notes = self._terms_of_arguments(letter, signature)
        except Exception as error:
            # The arguments are strangers', and a failure must be recorded whatever they do.
            logger.exception("letter %s: its arguments cannot be searched", letter.id)
            terms, notes = (), [f"its arguments cannot be read: {type(error).__name__}"]
        return replace(letter, terms=terms, terms_note="; ".join(notes))

    def terms_for(self, text: str) -> tuple[str, ...]:
        """
        Return the terms of what a person types.

        A key, an id, `queue:NAME`, `error:CLASS`, `name=value`, or a value of any of the arguments.
        """
        name, equals, value = text.partition("=")
        if equals and name.strip() in self.arguments:
            return (*self.argument_terms(name, value), *plain_terms(text))
        each = (term for argument in self.arguments for term in self._terms(argument, text))
        return (*plain_terms(text), *each)

    def argument_terms(self, name: str, value: str) -> tuple[str, ...]:
        """
        Return the terms of an argument's value, as a person types it; none for a blank.

        Raises:
            ConfigurationError: it is no searchable argument.

        """
        name = name.strip()
        if name not in self.arguments:
            known = f"{', '.join(self.arguments) or 'nothing'}{nearest(name, self.arguments)}"
            raise ConfigurationError(f"{name!r} cannot be searched for: {PREFIX}searchable_arguments names {known}")
        return self._terms(name, value)

    def matches(self, letter: Letter, text: str) -> tuple[str, ...]:
        """Return what of a letter a person's text has found, by name."""
        wanted = set(self.terms_for(text))
        found = [label for label, name in names_of(letter) if name_term(name) in wanted]
        found += [facet for facet, value in facets_of(letter) if facet_term(facet, value) in wanted]
        value = text.partition("=")[2]
        for argument in self.arguments:
            given = {*self._terms(argument, text), *(self._terms(argument, value) if value else ())}
            if given & wanted & set(letter.terms):
                found.append(argument)
        return tuple(dict.fromkeys(found))

    def _terms(self, argument: str, text: str) -> tuple[str, ...]:
        form = typed_text(text)
        return () if form is None else (self._term(argument, form),)

    def _term(self, argument: str, text: str) -> str:
        return argument_term(argument, text, self.secret if is_under(argument, self.sensitive) else "")

    def _terms_of_arguments(
        self, letter: Letter, signature: inspect.Signature | None
    ) -> tuple[tuple[str, ...], list[str]]:
        plain, note = plain_of(letter.wire)
        if plain is None:
            return (), [note]
        named, note = _named(plain["args"], plain["kwargs"], signature)
        notes = [note] if note else []
        terms: dict[str, None] = {}
        for argument in self.arguments:
            try:
                for text in _texts(named, argument):
                    terms[self._term(argument, text)] = None
                    if len(terms) > MOST_TERMS:
                        break
            except _LeftOut as why:
                notes.append(f"{argument}: {why}")
        if len(terms) > MOST_TERMS:
            notes.append(f"more than {MOST_TERMS} values")
        return tuple(terms)[:MOST_TERMS], notes


def _named(args: Any, kwargs: Any, signature: inspect.Signature | None) -> tuple[Mapping[str, Any], str]:
    """Return arguments by name, and what is wrong with them."""
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return {}, "its arguments are no list and no mapping"
    if signature is None:
        return kwargs, "its task is not known here, and positional arguments have no names" if args else ""
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return kwargs, "its arguments do not fit the task's signature, and positional ones have no names"
    named = dict(bound)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named, ""


def _texts(named: Mapping[str, Any], argument: str) -> Iterator[str]:
    first, *path = argument.split(".")
    for value in _values(named[first], path) if first in named else ():
        text = _text(value)
        if text is not None:
            yield text


def _values(value: Any, path: Sequence[str], depth: int = 0) -> Iterator[Any]:
    """Yield what a path leads to; of a list, in each of its members."""
    if depth > _DEEPEST:
        raise _LeftOut(f"nested deeper than {_DEEPEST} levels")
    if isinstance(value, list | tuple):
        for each in value:
            yield from _values(each, path, depth + 1)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:], depth + 1)


def _text(value: Any) -> str | None:
    if isinstance(value, dict) and not is_tagged(value):
        raise _LeftOut("a mapping: name what is in it, with a dot")
    text = text_of(value)
    if text is None and isinstance(value, str) and value.strip():
        raise _LeftOut(f"a text of {len(value)} characters")
    return text
