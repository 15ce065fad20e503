"""Lists and pages that only read: whose rows, by which connection, counted how."""

from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.utils.functional import cached_property

from django_celery_safeguards.admin.payload import seen_by
from django_celery_safeguards.admin.shown import shown_store

COUNTED_AT_MOST = 10_000


class BoundedPaginator(Paginator):
    """Counts no further than a person leafs: counting a table of millions would take longer than reading the page."""

    @cached_property
    def count(self) -> int:
        """How many rows there are, `COUNTED_AT_MOST` at most."""
        return int(self.object_list.order_by()[:COUNTED_AT_MOST].count())

    @property
    def is_bounded(self) -> bool:
        """Whether there are perhaps more."""
        return bool(self.count >= COUNTED_AT_MOST)


class ReadOnlyAdmin(admin.ModelAdmin):
    """A model whose rows are written by the stores alone, read from the database that they are in."""

    actions_on_bottom = False
    list_per_page = 50
    list_max_show_all = 200
    paginator = BoundedPaginator
    show_full_result_count = False
    # A count for each choice of each filter would read the table once for each.
    show_facets = admin.ShowFacets.NEVER
    # The change form's own is for a form; these pages have none.
    change_form_template = "admin/django_celery_safeguards/detail.html"
    change_list_template = "admin/django_celery_safeguards/list.html"
    large_fields: tuple[str, ...] = ()
    """Columns that a list does not read."""

    class Media:
        """The few rules that Django's own style sheets lack."""

        css = {"all": ("django_celery_safeguards/admin.css",)}  # noqa: RUF012 - Django's way

    def get_queryset(self, request: Any) -> Any:
        """Return the rows of the Celery app's store, and no others; see `shown_store`."""
        shown = shown_store()
        if shown.alias is None:
            return self.model.objects.none()
        rows = self.model.objects.using(shown.alias).filter(namespace=shown.namespace).defer(*self.large_fields)
        return seen_by(request, rows)

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """
        Let an address narrow a list by its filters alone.

        Django's own answer lets whoever sees a list ask for rows by any column: `?letter__contains=` would tell a
        hidden text letter by letter.
        """
        return lookup in {each.parameter_name for each in self.list_filter}

    def has_add_permission(self, request: Any) -> bool:
        """Nobody has."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Nobody has."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Nobody has."""
        return False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> tuple[str, ...]:
        """All that is shown is shown as text."""
        return tuple(name for _, options in self.get_fieldsets(request, obj) for name in options["fields"])

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Say above the list why there is nothing in it, where it is not for lack of rows."""
        return super().changelist_view(request, {"notice": shown_store().notice, **(extra_context or {})})
