"""
Values in words, as HTML.

Everything from outside goes through `celery_safeguards.printable` first and is then escaped: HTML, a bidirectional
mark, a NUL and half a surrogate pair all arrive as the characters they are written with.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from celery_safeguards.clock import to_seconds, to_us
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.printable import clean, clean_lines, duration, when
from celery_safeguards.replay.outlook import Outlook
from celery_safeguards.replay.plan import Need

NOTHING = "-"
DAMAGED = "what is stored is damaged, or written by a newer version"
_LIST_CHARS = 80
_BOX_CHARS = 50_000


def short(text: object) -> str:
    """Return text for a cell of a list."""
    return clean(text, _LIST_CHARS) or NOTHING


def dotted(name: str) -> SafeString | str:
    """Return a task's name for a cell of a list: it breaks after its dots."""
    # The mark that lets a line end there, and no text of anybody's.
    breaking = SafeString(".<wbr>")
    return format_html_join(breaking, "{}", ((part,) for part in short(name).split(".")))


def block(text: str, label: str, *, keep: Literal["first", "last"] = "first") -> SafeString:
    """Return text of many lines as a box that scrolls, also by the keyboard; of a long one the part to keep."""
    return _box("\n".join(clean_lines(clean_text(text, _BOX_CHARS, keep=keep))), label)


def moment(us: int) -> SafeString | str:
    """Return a time of the store in UTC, and how long ago it was or will be; 0 is never."""
    if not us:
        return NOTHING
    seconds = to_seconds(us)
    away = seconds - time.time()
    how_far = f"in {duration(away)}" if away > 0 else f"{duration(-away)} ago"
    return format_html(
        '<time datetime="{}">{}</time> <span class="sg-quiet">{}</span>', when(seconds), _utc(seconds), how_far
    )


def age(us: int) -> SafeString | str:
    """Return how long ago a time was, for a cell of a list."""
    if not us:
        return NOTHING
    seconds = to_seconds(us)
    return format_html('<time datetime="{}">{}</time>', when(seconds), duration(max(0.0, time.time() - seconds)))


def stamp(us: int) -> SafeString | str:
    """Return a time of the store in UTC, for a cell of a list."""
    if not us:
        return NOTHING
    return format_html('<time datetime="{}">{}</time>', when(to_seconds(us)), _utc(to_seconds(us)))


def lease(until_us: int) -> str:
    """Return how long a lease still runs."""
    left = to_seconds(until_us) - time.time()
    return f"runs for {duration(left)}" if left > 0 else f"over for {duration(-left)}"


def lock_state(owner: str, until_us: int) -> str:
    """Return how a lock stands, as the command line says it."""
    if not owner:
        return "free"
    return "held" if to_seconds(until_us) > time.time() else "lapsed"


def joined(*parts: object) -> SafeString:
    """Return texts and HTML behind each other."""
    return format_html_join("", "{}", [(_html(part),) for part in parts])


def pairs(rows: Iterable[tuple[str, object]]) -> SafeString | str:
    """Return names and values below each other."""
    body = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td></tr>', [(clean(a), _html(b)) for a, b in rows])
    return format_html('<table class="sg-pairs">{}</table>', body) if body else NOTHING


def lines(texts: Iterable[object]) -> SafeString | str:
    """Return sentences as a list."""
    items = format_html_join("", "<li>{}</li>", [(_html(text),) for text in texts])
    return format_html('<ul class="sg-lines">{}</ul>', items) if items else NOTHING


def mapping(values: Mapping[str, Any], label: str) -> SafeString | str:
    """Return a mapping as JSON, one entry on a line."""
    if not values:
        return NOTHING
    return block("\n".join(f"{clean(name)}: {clean(_as_json(value))}" for name, value in values.items()), label)


def state_mark(state: str) -> SafeString:
    """Return a state as a mark that does not depend on its colour."""
    return format_html('<span class="sg-state sg-{}">{}</span>', state, state.replace("_", " "))


def below(first: object, second: object) -> SafeString:
    """Return two short texts below each other, for a cell of a list."""
    return format_html('{}<br><span class="sg-quiet">{}</span>', _short(first), _short(second) if second else "")


def history(entries: Iterable[HistoryEntry]) -> SafeString | str:
    """Return what was done to a letter, the oldest first."""
    rows = [
        (stamp(to_us(entry.at_seconds)), clean(entry.what), clean(entry.who or "the system"), clean(entry.detail))
        for entry in entries
    ]
    return table(("when", "what", "who", "details"), rows) if rows else "nothing yet"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> SafeString:
    """Return rows of texts and HTML under the names of their columns."""
    head = tuple(head)
    names = format_html_join("", '<th scope="col">{}</th>', [(name,) for name in head])
    # Where a row's cells stand below each other, each says what it is.
    cells = [[(name, _html(cell)) for name, cell in zip(head, row, strict=True)] for row in rows]
    rows_ = [(format_html_join("", '<td data-label="{}">{}</td>', each),) for each in cells]
    body = format_html_join("", "<tr>{}</tr>", rows_)
    whole = '<div class="sg-wide"><table class="sg-history"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    return format_html(whole, names, body)


def outlook_in_words(found: Outlook) -> SafeString | str:
    """Return what a replay needs and does."""
    if found.refused is None:
        first = "Yes."
    elif found.needs is Need.NOTHING:
        first = f"No: {found.refused}."
    else:
        first = f"Not as it is: {found.refused}."
    return lines([first, *found.notes])


def address_or_text(text: str) -> SafeString | str:
    """Return a page of somebody else's as a link, and a sentence as it is."""
    if not text.startswith(("https://", "http://")):
        return clean(text) or NOTHING
    return format_html('<a href="{}" rel="noopener noreferrer">{}</a>', text, clean(text))


def link_to(admin_site: Any, model: Any, id_: str, text: str) -> SafeString:
    """Return a link to a row's page in the same admin: a project may have several."""
    opts = model._meta  # noqa: SLF001 - Django's documented way to a model's names
    url = reverse(f"admin:{opts.app_label}_{opts.model_name}_change", args=[id_], current_app=admin_site.name)
    return format_html('<a href="{}">{}</a>', url, clean(text))


def _short(value: object) -> object:
    return value if isinstance(value, SafeString) else short(value)


def _box(text: str, label: str) -> SafeString:
    return format_html('<pre class="sg-box" tabindex="0" role="region" aria-label="{}">{}</pre>', label, text)


def _html(value: object) -> object:
    return value if isinstance(value, SafeString) else clean(value)


def _utc(seconds: float) -> str:
    return when(seconds).replace("T", " ").replace("+00:00", " UTC")


def _as_json(value: object) -> str:
    return json.dumps(value, default=repr, ensure_ascii=True)
