"""Idempotency records: the list, and the page of one in words."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.clock import to_us
from celery_safeguards.ledger.record import Record, RecordUnreadable, State
from celery_safeguards.pipeline.indexing import shown_failure
from celery_safeguards.printable import clean, counted
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.filters import RecordStateFilter, ScopeFilter
from django_celery_safeguards.admin.pages.letter_rows import reading_of, seen_letter_of
from django_celery_safeguards.admin.pages.payload import payload
from django_celery_safeguards.admin.pages.reading import ReadOnlyAdmin
from django_celery_safeguards.admin.pages.shown import shown_store
from django_celery_safeguards.celery_apps import current_app_with_tasks
from django_celery_safeguards.models import DeadLetter
from django_celery_safeguards.paging import Found, Source
from django_celery_safeguards.rows import HEAD, record_id, record_of
from django_celery_safeguards.sql import row_id

_FIELDS = (
    *("state_shown", "key_shown", "task_shown", "letter", "claim"),
    *("starts", "doubt", "failure", "outcome", "steps", "kept"),
)


class IdempotencyRecordAdmin(ReadOnlyAdmin):
    """Who holds a key, how often its work was started, how it ended."""

    list_display = ("key_short", "scope_short", "state_shown", "claim_short", "task_short", "series_age")
    list_filter = (RecordStateFilter, ScopeFilter)
    ordering = ("-expires_us", "-id")
    empty_in_words = "No work with a key is known: it was never started, or is over for longer than it is kept."
    search_fields = ("key",)
    search_help_text = (
        "A key as letters and logs write it, exactly, of any task known here; or SCOPE#KEY; or a row's id."
    )
    large_fields = ("body",)

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Show all of it."""
        return ((None, {"fields": _FIELDS}),)

    def sources(self, request: Any, chosen: Mapping[str, Any], text: str) -> Sequence[Source]:
        """Find by the id that a key makes with each scope: an index of names would be written by every start."""
        if not text:
            return super().sources(request, chosen, text)
        namespace = shown_store().namespace
        scope, has_scope, key = text.partition("#")
        named = [RecordKey(each, text) for each in self.scopes()] + ([RecordKey(scope, key)] if has_scope else [])
        ids = [text, *(record_id(namespace, each) for each in named)]
        return [Found(self.get_queryset(request).filter(pk__in=ids, **chosen))]

    def scopes(self) -> list[str]:
        """Return the scopes of the idempotent tasks that are known here."""
        tasks = current_app_with_tasks().tasks.values()
        return sorted(
            {plan.record_key("").scope for each in tasks if (plan := getattr(each, "plan", None)) is not None}
        )

    @admin.display(description="key")
    def key_short(self, obj: Any) -> str:
        """For the list."""
        return presenting.short(obj.key)

    @admin.display(description="scope")
    def scope_short(self, obj: Any) -> str:
        """For the list."""
        return presenting.short(obj.scope)

    @admin.display(description="task")
    def task_short(self, obj: Any) -> str:
        """For the list."""
        return presenting.short(obj.task)

    @admin.display(description="state")
    def state_shown(self, obj: Any) -> SafeString:
        """In words."""
        return presenting.state_mark(obj.state)

    @admin.display(description="lease")
    def claim_short(self, obj: Any) -> str:
        """For the list."""
        return presenting.lease(obj.lease_until_us) if obj.state == State.IN_PROGRESS else presenting.NOTHING

    @admin.display(description="age")
    def series_age(self, obj: Any) -> SafeString | str:
        """Since its first start."""
        return presenting.age(obj.series_began_us)

    @admin.display(description="key")
    def key_shown(self, obj: Any) -> SafeString | str:
        """With its scope."""
        return presenting.pairs([("key", _read(obj).key or obj.key), ("scope", _read(obj).scope or obj.scope)])

    @admin.display(description="task")
    def task_shown(self, obj: Any) -> str:
        """Whole."""
        return f"{clean(obj.task)}, last as {clean(_read(obj).task_id) or 'a task unknown'}"

    @admin.display(description="dead letter")
    def letter(self, obj: Any) -> SafeString | str:
        """With a link."""
        record = _read(obj)
        if not record.letter_id:
            return "none"
        id_ = row_id(obj.namespace, record.letter_id)
        if not DeadLetter.objects.using(obj._state.db).filter(pk=id_).exists():  # noqa: SLF001 - where it is from
            return f"{clean(record.letter_id)}, which is not in this store"
        released = ", discarded: a new publication begins a new series" if record.released else ""
        link = presenting.link_to(self.admin_site, DeadLetter, id_, record.letter_id)
        return presenting.joined(link, released)

    @admin.display(description="claim")
    def claim(self, obj: Any) -> SafeString | str:
        """Who has it, and for how long."""
        record = _read(obj)
        if record.state is not State.IN_PROGRESS:
            return f"nobody holds it; its last fence is {record.fence}"
        is_live = "yes" if record.is_live(to_us(time.time())) else "no: its lease is over, or its owner was seen to die"
        return presenting.pairs(
            [
                ("is held", is_live),
                ("owner", record.owner),
                ("fence", record.fence),
                ("lease until", presenting.moment(record.lease_until_us)),
                ("owner seen to die", presenting.moment(record.lost_us)),
                ("held to ask verify", "yes" if record.asking else "no"),
            ]
        )

    @admin.display(description="starts")
    def starts(self, obj: Any) -> SafeString | str:
        """How often, since when, under which ids."""
        record = _read(obj)
        return presenting.pairs(
            [
                ("attempts", record.attempt),
                ("starts without an outcome", record.lost_starts),
                ("series began", presenting.moment(record.series_began_us)),
                ("not before", presenting.moment(record.not_before_us)),
                ("task ids", presenting.lines(record.series)),
            ]
        )

    @admin.display(description="doubt")
    def doubt(self, obj: Any) -> SafeString | str:
        """Whether an effect is open."""
        record = _read(obj)
        possible = "an outside effect is possible" if record.effect_possible else "no outside effect is open"
        asked: list[tuple[str, object]] = (
            [("verify had no clear answer", counted(record.asked, "time"))] if record.asked else []
        )
        return presenting.pairs(
            [("last attempt", possible), ("in doubt since", presenting.moment(record.doubt_us)), *asked]
        )

    @payload
    @admin.display(description="last failure")
    def failure(self, obj: Any) -> SafeString | str:
        """As the attempt reported it."""
        record = _read(obj)
        row = DeadLetter.objects.using(obj._state.db).filter(pk=row_id(obj.namespace, record.letter_id)).first()  # noqa: SLF001 - where it is from
        seen = seen_letter_of(row) if row is not None and reading_of(row).letter else None
        wiring = Wiring.of(current_app_with_tasks())
        return presenting.mapping(shown_failure(wiring, record.failure, seen, record.task), "last failure")

    @admin.display(description="outcome")
    def outcome(self, obj: Any) -> SafeString | str:
        """Where one is recorded; the result itself is left out, it may be large or a secret."""
        record = _read(obj)
        if record.state is not State.DONE:
            return "none yet"
        sent = presenting.lines(record.continued_by)
        unsent = (
            [("published, not known to be sent", counted(len(record.publishes), "message"))] if record.publishes else []
        )
        result = record.result_form.value.replace("_", " ")
        return presenting.pairs([("result", result), ("followed up for", sent), *unsent])

    @admin.display(description="steps")
    def steps(self, obj: Any) -> SafeString | str:
        """Of the body, by name."""
        ended = {True: "done", False: "begun, not known to have ended"}
        return presenting.pairs([(name, ended[result is not None]) for name, result in _read(obj).steps.items()])

    @admin.display(description="kept")
    def kept(self, obj: Any) -> SafeString | str:
        """How, and for how long."""
        until = presenting.moment(obj.expires_us) if obj.expires_us else "until its letter is replayed or discarded"
        return presenting.pairs(
            [("until", until), ("revision", obj.rev), ("format", obj.format), ("fingerprint", _read(obj).fingerprint)]
        )


def _read(obj: Any) -> Record:
    """Return a row's record, read once; of one that cannot be read, what its columns say."""
    found: Record | None = getattr(obj, "_safeguards_record", None)
    if found is None:
        try:
            found = record_of([*(getattr(obj, name) for name in HEAD), obj.body])
        except RecordUnreadable:
            heads = {name: getattr(obj, name) for name in HEAD}
            found = Record(**{**heads, "scope": obj.scope, "key": obj.key, "task": obj.task})
        obj._safeguards_record = found  # noqa: SLF001 - Django asks for each field of a page by itself
    return found
