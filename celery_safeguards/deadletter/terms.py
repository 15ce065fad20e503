"""
What a letter is found by: opaque terms, one for each of its names, for its queue and its error, and for each value of
a searchable argument.

    key "payment:7", task id "t-1"       ─┐
    queue "payments", error "Declined"   ─┤
    order_id=4711, order_id="4711"       ─┼─ one text, one digest ──▶ a term: 32 hex digits ──▶ an index in each store
    email="Ann@Example.com", sensitive   ─┘  keyed by a secret

The promise: an index holds no plain copy of an argument, and of a sensitive one nothing that could be guessed without
the secret. (An unkeyed digest only saves the copy: whoever can read the table can try all order numbers.)

A person types text, so a value is its text:

| value | text |
|---|---|
| str | NFC, without blanks around it; with an `@` also in lower case; a UUID with hyphens and in lower case |
| int, float, bool | as JSON writes it |
| datetime, Decimal, UUID and their like | as Celery's JSON carries it |
| None, a mapping | none: it cannot be searched for |
"""

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from celery_safeguards.deadletter.letter import Letter

TERM_CHARS = 32
MOST_VALUE_CHARS = 1_000
"""A longer text is nothing that a person types."""
FACETS = ("queue", "error")
"""What many letters have in common, and an index has no column for: `queue:NAME` and `error:CLASS` find them."""

_NAMES = ("id", "key", "task_id", "replay_task_id", "root_id", "parent_id", "group_id")
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_KEY_OF_KEYS = b"celery-safeguards.search:"


def names_of(letter: Letter) -> list[tuple[str, str]]:
    """Return what a letter's names are called, and the names: its key and its ids, of earlier replays as well."""
    named = [(label, getattr(letter, label)) for label in _NAMES]
    named.append(("correlation_id", letter.wire.properties.get("correlation_id")))
    named += [("earlier_task_id", name) for name in letter.earlier_task_ids]
    return [(label, name) for label, name in named if isinstance(name, str) and name.strip()]


@lru_cache(maxsize=8_192)
def name_term(name: str) -> str:
    """Return the term of a key or an id; one kind for all, since whoever has one need not know which it is."""
    return _digest("name", name.strip())


def facets_of(letter: Letter) -> list[tuple[str, str]]:
    """Return the queue that a letter's message came by, which is its routing key, and the class of its error."""
    given = {"queue": letter.wire.delivery_info.get("routing_key"), "error": letter.error_type}
    return [(facet, each.strip()) for facet, each in given.items() if isinstance(each, str) and each.strip()]


@lru_cache(maxsize=1_024)
def facet_term(facet: str, value: str) -> str:
    """Return the term of one of `FACETS`; an error's class may be given with its module or without."""
    return _digest(facet, value.strip().rpartition(".")[2] if facet == "error" else value.strip())


def plain_terms(text: str) -> tuple[str, ...]:
    """Return the terms of what a person types that are of no argument: of a key, an id, `queue:NAME`, `error:CLASS`."""
    facet, _, value = text.partition(":")
    facet = facet.strip()
    return (name_term(text), *((facet_term(facet, value),) if facet in FACETS and value.strip() else ()))


def argument_term(argument: str, text: str, secret: str = "") -> str:
    """
    Return the term of an argument's value.

    Args:
        argument: its name, dotted into mappings.
        text: of the value, see `text_of`.
        secret: keys the digest of a sensitive one.

    """
    return _digest("argument", argument, text, secret=secret)


def terms_of(letter: Letter) -> tuple[str, ...]:
    """Return all terms of a letter, each once, in an order of their own: what a store keeps in its index."""
    names = (name_term(name) for _, name in names_of(letter))
    return tuple(sorted({*letter.terms, *names, *(facet_term(*facet) for facet in facets_of(letter))}))


def text_of(value: object) -> str | None:
    """Return the text of a value of JSON's, or None: it has none."""
    if isinstance(value, str):
        return typed_text(value) if len(value) <= MOST_VALUE_CHARS else None
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if is_tagged(value):
        inner = value["__value__"]
        # A UUID is `{"hex": ...}` there.
        return text_of(inner.get("hex") if isinstance(inner, dict) else inner)
    return None


def is_tagged(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is kombu's envelope of a type that JSON has no form for."""
    return isinstance(value, dict) and value.keys() == {"__type__", "__value__"}


def typed_text(text: str) -> str | None:
    """Return the one form of a text, as a person types it or a message carries it; None: it is blank."""
    text = unicodedata.normalize("NFC", text).strip()
    if _UUID.fullmatch(text):
        plain = text.replace("-", "").lower()
        return "-".join((plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:]))
    return (unicodedata.normalize("NFC", text.lower()) if "@" in text else text) or None


def _digest(*parts: str, secret: str = "") -> str:
    whole = _joined(each.encode("utf-8", "surrogatepass") for each in parts)
    if not secret:
        return hashlib.sha256(whole).hexdigest()[:TERM_CHARS]
    # Derived: the secret may be one that signs other things, too.
    key = hashlib.sha256(_KEY_OF_KEYS + secret.encode("utf-8", "surrogatepass")).digest()
    return hmac.new(key, whole, hashlib.sha256).hexdigest()[:TERM_CHARS]


def _joined(parts: Iterable[bytes]) -> bytes:
    # Lengths, not a separator: a name may hold any character.
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)
