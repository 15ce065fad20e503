"""Lists and pages that only read: whose rows, by which connection, in which order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.urls import path, reverse

from django_celery_safeguards.admin.pages.away import or_away
from django_celery_safeguards.admin.pages.payload import seen_by
from django_celery_safeguards.admin.pages.placed_list import BEFORE, OnlySelected, PlacedList, can_be_asked
from django_celery_safeguards.admin.pages.shown import shown_store
from django_celery_safeguards.paging import Rows, Source


class ReadOnlyAdmin(admin.ModelAdmin):
    """A model whose rows are written by the stores alone, read from the database that they are in."""

    actions_on_bottom = False
    action_form = OnlySelected
    list_per_page = 50
    # An order by any other column would sort the table.
    sortable_by = ()
    # A count for each choice of each filter would read the table once for each.
    show_facets = admin.ShowFacets.NEVER
    # The change form's own is for a form; these pages have none.
    change_form_template = "admin/django_celery_safeguards/detail.html"
    change_list_template = "admin/django_celery_safeguards/list.html"
    # Django's own says its times in the project's zone, and not which; all other pages are in UTC.
    object_history_template = "admin/django_celery_safeguards/log.html"
    large_fields: tuple[str, ...] = ()
    """Columns that a list does not read."""

    narrowed_by: tuple[str, ...] = ()
    """Columns of filters that an index begins with; what others narrow a list to is asked of each row."""

    placed_in_words = ""
    """What has happened at the time that the list is in the order of; empty: nobody looks for such a time."""

    empty_in_words = "There are none."
    """What a list says that has no rows, narrowed to nothing."""

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

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        """Return a row; of an id that no row can have, none."""
        return super().get_object(request, object_id, from_field) if can_be_asked(object_id) else None

    def response_action(self, request: Any, queryset: Any, **options: Any) -> Any:
        """
        Do what was chosen to the rows that were ticked; ids that no row can have are those of none.

        `options`: where the action was chosen, which Django says from 6.1 on.
        """
        ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
        return super().response_action(request, queryset, **options) if all(map(can_be_asked, ticked)) else None

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """
        Let an address narrow a list by its filters alone.

        Django's own answer lets whoever sees a list ask for rows by any column: `?letter__contains=` would tell a
        hidden text letter by letter.
        """
        return lookup in {each.parameter_name for each in self.list_filter}

    @property
    def urls(self) -> list[Any]:
        """Return the paths of all its pages, each of which says so where a database does not answer."""
        patterns: list[Any] = self.get_urls()
        for each in patterns:
            each.callback = or_away(self, each.callback)
        return patterns

    def url_of(self, page: str, *args: str) -> str:
        """Return the address of a page that Django makes for the model: `changelist`, `change`, `history`."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return str(reverse(name, args=args, current_app=self.admin_site.name))

    def url_of_view(self, name: str, *args: str) -> str:
        """Return the address of one of its own."""
        return str(reverse(f"admin:{name}", args=args, current_app=self.admin_site.name))

    def page_of(self, request: Any, object_id: str) -> str:
        """Return the address of a row's page, from which "Back to the list" leads to the list as it was narrowed."""
        return self.with_filters(request, self.url_of("change", object_id))

    def with_filters(self, request: Any, url: str) -> str:
        """Return an address that carries, as Django's own do, how the list was narrowed that somebody came from."""
        context = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}
        return str(add_preserved_filters(context, url))

    def view_at(self, route: str, view: Callable[..., Any], name: str) -> Any:
        """Return the path of one of its own, for those of the staff; it stands before Django's, which take any id."""
        return path(route, self.admin_site.admin_view(view), name=name)

    def log_link(self, request: Any, object_id: str) -> tuple[str, str]:
        """Return the link to what was done to a row."""
        return "Log of the admin", self.with_filters(request, self.url_of("history", object_id))

    @property
    def placed_by(self) -> str:
        """The column of times that the list is in the order of."""
        return str(self.ordering[0]).removeprefix("-")

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:
        """Return the list that is walked by places."""
        return PlacedList

    def sources(self, request: Any, chosen: Mapping[str, Any], text: str) -> Sequence[Source]:
        """
        Return where the rows of a page are read from.

        Args:
            request: of the page.
            chosen: conditions of the filters; those of time have a `__` in their names.
            text: what is searched for; may be empty.

        """
        leading = {name: value for name, value in chosen.items() if "__" in name or name in self.narrowed_by}
        rest = {name: value for name, value in chosen.items() if name not in leading}

        def also(rows: Any) -> Any:
            return super(ReadOnlyAdmin, self).get_search_results(request, rows.filter(**rest), text)[0]

        return [Rows(self.get_queryset(request).filter(**leading), also if rest or text else None)]

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Return all rows: pages are searched by `sources`, and actions are for rows that were ticked."""
        return queryset, False

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

    def history_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Show what was done to a row in the admin, with a way back to its page."""
        context = {"title": "Log of the admin", "row_url": self.page_of(request, object_id), **(extra_context or {})}
        return super().history_view(request, object_id, context)

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Say above the list why there is nothing in it, where it is not for lack of rows."""
        context = {"notice": shown_store().notice, "before": request.GET.get(BEFORE, ""), **(extra_context or {})}
        return super().changelist_view(request, context)
