"""
Django's change list, walked by places and jumped into by a time: by links and a form, without scripts.

    ?newer=PLACE   ?older=PLACE   ?before=2026-11-30T12:00     and filters and search, which every link keeps

Nothing can be ordered by a column, which would sort the table, and nothing done to more rows than are shown.
"""

import re
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList

from celery_safeguards.clock import to_us
from celery_safeguards.printable import clean
from django_celery_safeguards import ranges
from django_celery_safeguards.paging import OLDEST, Direction, page_of
from django_celery_safeguards.ranges import Place

_OLDER, _NEWER, BEFORE = "older", "newer", "before"
PRESERVED_FILTERS = "_changelist_filters"
"""As Django names, in an address, what a list was narrowed to."""

PLACES = frozenset({_OLDER, _NEWER, BEFORE})
_PLACE = re.compile(r"([0-9]{1,18})\.([0-9a-f]{0,65})")


class PlacedList(ChangeList):
    """A change list whose pages are places; its `model_admin` is a `ReadOnlyAdmin`."""

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        """Return what actions are for, whatever was searched for; the page's place is no filter, and of no link."""
        if not all(can_be_asked(value) for value in request.GET.values()):
            raise IncorrectLookupParameters("a NUL")
        self.places = {name: request.GET[name] for name in PLACES if request.GET.get(name)}
        for name in PLACES:
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        return super().get_queryset(request, exclude_parameters)

    def get_ordering(self, request: Any, queryset: Any) -> list[str]:
        """Return the one order that lists have."""
        return list(self.model_admin.ordering)

    def get_results(self, request: Any) -> None:
        """Read the page."""
        chosen = {name: value for each in self.filter_specs for name, value in each.chosen().items()}
        sources = self.model_admin.sources(request, chosen, self.query.strip())
        self.page = page_of(sources, self.model_admin.placed_by, self._direction(request), self.list_per_page)
        rows = self.root_queryset.in_bulk([id_ for _, id_ in self.page.places])
        self.result_list = [rows[id_] for _, id_ in self.page.places if id_ in rows]
        # Equal: then nothing says how many there are, and nothing offers to choose all of them.
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_admin_actions, self.show_full_result_count = bool(self.result_list), False
        self.can_show_all = self.multi_page = False

    @property
    def looked_at(self) -> int:
        """How many rows a page looks at."""
        return ranges.MOST_LOOKED_AT

    @property
    def page_links(self) -> list[tuple[str, str]]:
        """The names of pages, and their addresses; empty: the page is not there, or is this one."""
        newer, older = self.page.newer, self.page.older
        return [
            ("Newest", self.get_query_string() if self.places else ""),
            ("Newer", self._link(_NEWER, newer)),
            ("Older", self._link(_OLDER, older)),
            ("Oldest", self._link(_NEWER, OLDEST) if older else ""),
        ]

    def _link(self, name: str, place: Place | None) -> str:
        return "" if place is None else str(self.get_query_string({name: f"{place[0]}.{place[1]}"}))

    def _direction(self, request: Any) -> Direction:
        given = self.places
        if _NEWER in given:
            return Direction(_place(given[_NEWER]), is_up=True)
        if _OLDER in given:
            return Direction(_place(given[_OLDER]))
        if BEFORE in given:
            us = _us_of(given[BEFORE])
            if us is not None:
                return Direction((us, ""))
            said = f"{clean(given[BEFORE], 40)} is no time, such as 2026-11-30T12:00: this is the newest page."
            messages.error(request, said)
        return Direction()


class OnlySelected(ActionForm):
    """Actions are for the rows that were ticked: all of the list would be rows that nobody has seen."""

    def clean_select_across(self) -> bool:
        """Never."""
        return False


def can_be_asked(text: str) -> bool:
    """Whether a database can be asked for a text: PostgreSQL's have no NUL."""
    return "\x00" not in text


def _place(text: str) -> Place:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise IncorrectLookupParameters(f"{text[:40]!r} is no place of a list")
    return int(found[1]), found[2]


def _us_of(text: str) -> int | None:
    """Return a time that a person has typed, in UTC unless it says otherwise."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return max(0, to_us((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()))
    except (ValueError, OverflowError):
        return None
