"""Locks: who holds one, since when, and who waits for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from celery_safeguards.locks.shown import who as in_words
from celery_safeguards.locks.store import LockUnreadable
from celery_safeguards.printable import clean
from django_celery_safeguards.admin.locks.release import ReleasesLocks, body_of, holder_of, name_of
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.pages.shown import shown_store
from django_celery_safeguards.models import LockWaiter
from django_celery_safeguards.paging import Found, Rows, Source
from django_celery_safeguards.rows import PLACE, lock_id, place_of

_FIELDS = ((None, {"fields": ("name_shown", "held", "holder", "times", "kept_for", "line", "release")}),)


class LeaseLockAdmin(ReleasesLocks, ReadOnlyAdmin):
    """Locks; what is done to one is in `release`."""

    list_display = ("name_short", "held", "who", "lease", "age")
    ordering = ("-used_us", "-id")
    empty_in_words = "No lock was taken lately."
    search_fields = ("name",)
    search_help_text = "A lock's name, exactly; with * at the end, names by their beginning."

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Show all of it."""
        return _FIELDS

    def sources(self, request: Any, chosen: Mapping[str, Any], text: str) -> Sequence[Source]:
        """Find by the id that a name makes."""
        rows = self.get_queryset(request)
        if text.endswith("*"):
            beginning = text.removesuffix("*")
            return [Rows(rows, lambda found: found.filter(name__startswith=beginning))]
        if text:
            return [Found(rows.filter(pk__in=[text, lock_id(shown_store().namespace, text)]))]
        return super().sources(request, chosen, text)

    @admin.display(description="lock")
    def name_short(self, obj: Any) -> str:
        """For the list."""
        return presenting.short(obj.name)

    @admin.display(description="state")
    def held(self, obj: Any) -> SafeString:
        """Held while its lease runs; lapsed: its owner has not released it, and anybody may have it."""
        return presenting.state_mark(presenting.lock_state(obj.owner, obj.lease_until_us))

    @admin.display(description="owner")
    def who(self, obj: Any) -> str:
        """Who holds it, or held it last."""
        holder = holder_of(obj)
        if obj.owner and name_of(obj) is None:
            return presenting.DAMAGED
        return presenting.short(in_words(holder)) if obj.owner or holder else "nobody"

    @admin.display(description="lease")
    def lease(self, obj: Any) -> str:
        """How long it still runs."""
        return presenting.lease(obj.lease_until_us) if obj.owner else presenting.NOTHING

    @admin.display(description="held for")
    def age(self, obj: Any) -> SafeString | str:
        """Since it was taken."""
        return presenting.age(obj.since_us) if obj.owner else presenting.NOTHING

    @admin.display(description="name")
    def name_shown(self, obj: Any) -> str:
        """Whole."""
        return clean(body_of(obj).get("name", obj.name))

    @admin.display(description="held by, or held last by")
    def holder(self, obj: Any) -> SafeString | str:
        """As it named itself."""
        given = holder_of(obj)
        named = [(name.replace("_", " "), given.get(name)) for name in ("task", "task_id", "worker", "host", "pid")]
        rows = [*named, ("owner", obj.owner or "nobody"), ("fence", obj.fence)]
        return presenting.pairs([(name, value) for name, value in rows if value])

    @admin.display(description="times")
    def times(self, obj: Any) -> SafeString | str:
        """Of the store."""
        return presenting.pairs(
            [
                ("taken", presenting.moment(obj.since_us)),
                ("lease until", presenting.moment(obj.lease_until_us)),
            ]
        )

    @admin.display(description="kept for")
    def kept_for(self, obj: Any) -> SafeString | str:
        """Whose turn it is, for a moment."""
        if not obj.reserved_for:
            return "nobody"
        return presenting.pairs([("owner", obj.reserved_for), ("until", presenting.moment(obj.reserved_until_us))])

    @admin.display(description="in line")
    def line(self, obj: Any) -> SafeString | str:
        """Who waits, the longest first."""
        rows = LockWaiter.objects.using(obj._state.db).filter(lock_id=obj.pk).order_by("since_us")  # noqa: SLF001
        shown = [_in_line(row) for row in rows.values_list(*PLACE)]
        return presenting.pairs(shown) if shown else "nobody"

    @admin.display(description="release")
    def release(self, obj: Any) -> str:
        """Where to."""
        if not obj.owner:
            return "Nobody holds it."
        return (
            "By the button below, with the permission release_leaselock, or by celery -A <project> safeguards locks "
            "release: both find out whether the owner is dead."
        )


def _in_line(row: Sequence[Any]) -> tuple[str, SafeString]:
    heard = presenting.joined("last heard ", presenting.moment(row[PLACE.index("heard_us")]))
    try:
        return in_words(place_of(row).holder), heard
    except LockUnreadable:
        return presenting.DAMAGED, heard
