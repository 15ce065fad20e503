"""The page of one dead letter: all that is needed to understand it, as the command line shows it."""

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.arguments import arguments_of
from celery_safeguards.printable import clean
from django_celery_safeguards.admin.pages import presenting
from django_celery_safeguards.admin.pages.letter_rows import letter_of, outlook_of, reading_of, seen_letter_of
from django_celery_safeguards.admin.pages.payload import NEEDED, history_of, is_shown, payload
from django_celery_safeguards.admin.pages.shown import kept_for, playbook_for, seen_text
from django_celery_safeguards.models import DeadLetter, IdempotencyRecord, LetterGroup
from django_celery_safeguards.rows import record_id
from django_celery_safeguards.sql import row_id

_READABLE = (
    (
        None,
        {
            "fields": (
                "state_shown",
                "task_shown",
                "key_shown",
                "kind_shown",
                "reason_shown",
                "group_shown",
                "playbook",
                "failures",
                "kept",
            )
        },
    ),
    ("Replay", {"fields": ("outlook_shown",)}),
    ("Arguments", {"fields": ("arguments",)}),
    ("Error", {"fields": ("error_shown", "traceback")}),
    ("Attempts", {"fields": ("attempt_history",)}),
    ("History", {"fields": ("history",)}),
    ("Message", {"fields": ("ids", "origin", "headers", "properties")}),
)
_UNREADABLE = (
    (None, {"fields": ("state_shown", "task_shown", "key_shown", "kind_shown", "reason_shown", "failures")}),
    ("The letter cannot be read", {"fields": ("problem", "stored_text")}),
)


class LetterPage:
    """The fields of a letter's page; each is a value in words."""

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Show what can be read."""
        return _READABLE if obj is None or reading_of(obj).letter else _UNREADABLE

    @admin.display(description="state", ordering="state")
    def state_shown(self, obj: Any) -> SafeString:
        """In words."""
        letter = reading_of(obj).letter
        was = (f" was {letter.archived_from}",) if letter is not None and letter.archived_from else ()
        return presenting.joined(presenting.state_mark(obj.state), *was)

    @admin.display(description="task")
    def task_shown(self, obj: Any) -> str:
        """Whole."""
        return clean(obj.task)

    @admin.display(description="key")
    def key_shown(self: Any, obj: Any) -> SafeString | str:
        """With a link to its record."""
        letter = reading_of(obj).letter
        if letter is not None and letter.erased:
            return "erased"
        if letter is None or letter.key is None:
            return clean(obj.key) or "none: each message is work of its own"
        id_ = record_id(obj.namespace, RecordKey(letter.scope or "", letter.key))
        if not IdempotencyRecord.objects.using(obj._state.db).filter(pk=id_).exists():  # noqa: SLF001 - where it is from
            return f"{clean(letter.key)}, of {clean(letter.scope)}; its record is gone from the store"
        return presenting.link_to(self.admin_site, IdempotencyRecord, id_, f"{letter.key}, of {letter.scope}")

    @admin.display(description="kind")
    def kind_shown(self, obj: Any) -> str:
        """With what it leaves open."""
        letter = reading_of(obj).letter
        if letter is None:
            return clean(obj.kind)
        return f"{letter.kind}: an outside effect is {'' if letter.effect_possible else 'not '}possible"

    @payload
    @admin.display(description="reason")
    def reason_shown(self, obj: Any) -> str:
        """Why no further attempt is made."""
        is_whole = reading_of(obj).letter is not None
        return clean(seen_letter_of(obj).reason if is_whole else seen_text("reason", obj.reason)) or presenting.NOTHING

    @admin.display(description="group")
    def group_shown(self: Any, obj: Any) -> SafeString | str:
        """With a link to those of the same cause."""
        if not obj.fingerprint:
            return "none yet: it is of an older version"
        return presenting.link_to(self.admin_site, LetterGroup, row_id(obj.namespace, obj.fingerprint), obj.fingerprint)

    @admin.display(description="playbook")
    def playbook(self, obj: Any) -> SafeString | str:
        """What the project has written down for its failure."""
        letter = letter_of(obj)
        return presenting.address_or_text(playbook_for(letter.fingerprint, letter.task, letter.kind))

    @admin.display(description="failures")
    def failures(self, obj: Any) -> SafeString | str:
        """How often it was started, and when it failed."""
        rows: list[tuple[str, object]] = [
            ("first failed", presenting.moment(obj.first_failed_us)),
            ("last failed", presenting.moment(obj.last_failed_us)),
            ("attempts", obj.attempts),
        ]
        letter = reading_of(obj).letter
        if letter is not None:
            rows += [("in release", letter.release)] if letter.release else []
            rows += [("starts without an outcome", letter.lost_starts), ("deliveries", letter.deliveries)]
        return presenting.pairs(rows)

    @admin.display(description="kept")
    def kept(self, obj: Any) -> str:
        """How long it still is, and why."""
        return kept_for(letter_of(obj))

    @admin.display(description="would it be sent")
    def outlook_shown(self, obj: Any) -> SafeString | str:
        """What a replay needs and does."""
        return presenting.outlook_in_words(outlook_of(obj))

    @payload
    @admin.display(description="as decoded")
    def arguments(self, obj: Any) -> SafeString | str:
        """As the command line shows them."""
        found = arguments_of(seen_letter_of(obj).wire)
        shown: list[tuple[str, object]] = [(name, presenting.block(value, name)) for name, value in found.shown]
        noted = (("note", found.note), ("not found by", seen_letter_of(obj).terms_note))
        return presenting.pairs([*shown, *((name, note) for name, note in noted if note)])

    @admin.display(description="error")
    def error_shown(self, obj: Any) -> SafeString | str:
        """Type and message."""
        letter = seen_letter_of(obj)
        said: list[tuple[str, object]] = [("type", letter.error_type)] if letter.error_type else []
        message = presenting.block(letter.error_message, "error message") if is_shown(obj) else NEEDED
        return presenting.pairs([*said, ("message", message)])

    @payload
    @admin.display(description="traceback")
    def traceback(self, obj: Any) -> SafeString | str:
        """Its last part, as far as it was kept."""
        text = seen_letter_of(obj).traceback.rstrip()
        return presenting.block(text, "traceback", keep="last") if text else presenting.NOTHING

    @admin.display(description="failed attempts")
    def attempt_history(self, obj: Any) -> SafeString | str:
        """Of all replays, the oldest first."""
        letter = seen_letter_of(obj)
        found = [each if is_shown(obj) else each.without_texts() for each in letter.attempt_history]
        if not found:
            return "not known: it never began, or failed under an older version"
        # An id is long, and all of one message have the same.
        ids = len({each.task_id for each in found} | {letter.task_id}) > 1
        head = ("attempt", "when", "how it ended", "error", "worker, release", *(["as task"] if ids else []))
        rows = [
            (
                *(each.number, presenting.stamp(to_us(each.at_seconds)), each.ended),
                ": ".join(filter(None, (each.error_type.rpartition(".")[2], each.message))) or presenting.NOTHING,
                presenting.below(each.worker, each.release),
                *([each.task_id] if ids else []),
            )
            for each in found
        ]
        return presenting.table(head, rows)

    @admin.display(description="what was done")
    def history(self, obj: Any) -> SafeString | str:
        """The oldest first."""
        return presenting.history(history_of(obj, seen_letter_of(obj).history))

    @admin.display(description="ids")
    def ids(self: Any, obj: Any) -> SafeString | str:
        """What links it to other work."""
        letter = letter_of(obj)
        origin = letter.edited_from
        named: tuple[tuple[str, object], ...] = (
            ("letter", letter.id),
            ("task id", letter.task_id),
            ("replayed as", letter.replay_task_id),
            ("before that", ", ".join(letter.earlier_task_ids)),
            ("root", letter.root_id),
            ("parent", letter.parent_id),
            ("canvas group", letter.group_id),
            (
                "edited from",
                origin and presenting.link_to(self.admin_site, DeadLetter, row_id(obj.namespace, origin), origin),
            ),
        )
        return presenting.pairs([(name, value) for name, value in named if value])

    @admin.display(description="origin")
    def origin(self, obj: Any) -> SafeString | str:
        """Where it failed, and how it came there."""
        letter = letter_of(obj)
        wire = letter.wire
        whole = wire.body_bytes if wire.truncated and wire.body_bytes is not None else len(wire.body)
        kept = f", of which {len(wire.body)} are kept" if wire.truncated else ""
        return presenting.pairs(
            [
                ("failed on", f"{letter.host or 'a host unknown'}, process {letter.pid or 'unknown'}"),
                ("exchange", wire.delivery_info.get("exchange") or "the default one"),
                ("routing key", wire.delivery_info.get("routing_key") or presenting.NOTHING),
                ("body", f"{whole} bytes of {wire.content_type or 'unknown type'}{kept}"),
            ]
        )

    @payload
    @admin.display(description="headers")
    def headers(self, obj: Any) -> SafeString | str:
        """As the broker carried them."""
        return presenting.mapping(seen_letter_of(obj).wire.headers, "headers")

    @payload
    @admin.display(description="properties")
    def properties(self, obj: Any) -> SafeString | str:
        """As the broker carried them."""
        return presenting.mapping(seen_letter_of(obj).wire.properties, "properties")

    @admin.display(description="why")
    def problem(self, obj: Any) -> str:
        """Why it cannot be read."""
        return clean(reading_of(obj).problem)

    @payload
    @admin.display(description="what is stored")
    def stored_text(self, obj: Any) -> SafeString | str:
        """Its beginning."""
        return presenting.block(seen_text("argument", obj.letter), "stored text")
