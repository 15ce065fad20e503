"""
A store with as many dead letters as are wanted, as a fleet leaves them behind in two weeks.

    one letter of each cause ──bury──▶ its row, as the store writes it ──copies──▶ letters, their terms; then the groups

Each copy has names, arguments, a time and a state of its own, and the terms that follow from them. What was made is
compared with what the store reads of it: a letter with its row and its terms, a group's numbers with its letters.
"""

import base64
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from django.db import connections, transaction
from django.db.models import Count

from benchmarks import triage_letters as made
from celery_safeguards.clock import to_us
from celery_safeguards.deadletter.group import HOUR_SECONDS, MOST_HOURS, STATUSES
from celery_safeguards.deadletter.letter import STATES, Letter
from celery_safeguards.deadletter.terms import facet_term, facets_of, name_term, terms_of
from celery_safeguards.pipeline.indexing import indexed
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.models import DeadLetter, LetterTerm
from django_celery_safeguards.sql import Table, row_id

DAYS = 14
_STATE_SHARES = (50, 6, 15, 20, 4, 5)
"""In the order of `STATES`."""

_A_BATCH = 5_000


@dataclass(slots=True)
class Cause:
    """A letter of one cause as the store has written it, and what its copies count; the newest copy comes first."""

    letter: Letter
    row: dict
    counts: Counter = field(default_factory=Counter)
    hours: Counter = field(default_factory=Counter)
    newest: int | None = None
    oldest: int = 0


class Rows:
    """
    The letters of one store.

    Args:
        app: the Celery app whose store it is.
        alias: the name of its database, which has the tables and no rows.
        count: how many.

    """

    def __init__(self, app, alias, count):
        self.app, self.alias, self.count = app, alias, count
        self._wiring, self.namespace = Wiring.of(app), app.conf.safeguards_namespace
        self._random, self._now = random.Random(count), time.time()
        self.busiest_group = ""

    def time_of(self, number):
        """Return when a letter has failed: they are spread evenly, the newest first."""
        return self._now - (number + 0.5) * DAYS * 86_400 / self.count

    def fill(self):
        """Make them, and let the database know what its tables hold, as it would learn by itself."""
        causes = [self._bury(number) for number in range(made.CAUSES)]
        self.busiest_group = causes[0].letter.fingerprint
        LetterTerm.objects.using(self.alias).all().delete()
        of_letters = made.cause_of_each(self.count)
        self._random.shuffle(of_letters)
        with self._without_indexes():
            for first in range(0, self.count, _A_BATCH):
                some = range(first, min(first + _A_BATCH, self.count))
                copies = [self._copy(number, causes[of_letters[number]]) for number in some]
                self._insert(DeadLetter, [row for row, _ in copies])
                self._insert(LetterTerm, [row for _, rows in copies for row in rows])
        for cause in causes:
            self._count(cause)
        wrapper = connections[self.alias]
        with wrapper.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE" if wrapper.vendor == "postgresql" else "ANALYZE")
        self._look(causes[0])

    def _bury(self, number):
        letter = indexed(self._wiring, made.letter(number, self.namespace), self.app.tasks)
        self._wiring.letters.bury(letter)
        if number:
            self._wiring.letters.declare_group(letter.fingerprint, STATUSES[number % len(STATUSES)], "bench")
        row = DeadLetter.objects.using(self.alias).get(letter_id=letter.id)
        values = {each.attname: getattr(row, each.attname) for each in DeadLetter._meta.fields}  # noqa: SLF001 - Django's way
        row.delete()
        return Cause(letter, values)

    def _copy(self, number, cause):
        """Return the row of a letter, and those of its terms."""
        name, customer, at = made.name_of(number), made.customer_of(number), self.time_of(number)
        (state,) = self._random.choices(STATES, _STATE_SHARES)
        search, template = self._wiring.search, cause.letter
        found_by = [*search.argument_terms("order_id", name), *search.argument_terms("customer.email", customer)]
        swaps = [(made.NUMBER, name), (made.CUSTOMER, customer), *zip(template.terms, found_by, strict=True)]
        in_json = [
            *swaps,
            (repr(made.FIRST_SECONDS), repr(at - 60)),
            (repr(made.LAST_SECONDS), repr(at)),
            ('"state":"open"', f'"state":"{state}"'),
            ('"archived_from":null', '"archived_from":"open"' if state == "archived" else '"archived_from":null'),
        ]
        body = template.wire.body
        before, _, after = cause.row["letter"].partition(base64.b64encode(body).decode())
        carried = base64.b64encode(_swapped(body.decode(), swaps).encode()).decode()
        names = {each: cause.row[each].replace(made.NUMBER, name) for each in ("letter_id", "key", "task_id", "error")}
        row = {
            **cause.row,
            **names,
            "id": row_id(self.namespace, names["letter_id"]),
            "state": state,
            "first_failed_us": to_us(at - 60),
            "last_failed_us": to_us(at),
            "letter": f"{_swapped(before, in_json)}{carried}{_swapped(after, in_json)}",
        }
        cause.counts[state] += 1
        cause.hours[int(at // HOUR_SECONDS)] += 1
        cause.newest, cause.oldest = number if cause.newest is None else cause.newest, number
        found_by += [name_term(names[each]) for each in ("letter_id", "key", "task_id")]
        found_by += [facet_term(*facet) for facet in facets_of(template)]
        return row, [
            {"namespace": self.namespace, "term": term, "letter_row": row["id"], "last_failed_us": to_us(at)}
            for term in found_by
        ]

    def _insert(self, model, rows):
        wrapper = connections[self.alias]
        table, columns, values = Table(model, wrapper), list(rows[0]), [tuple(row.values()) for row in rows]
        with transaction.atomic(using=self.alias), wrapper.cursor() as cursor:
            if wrapper.vendor == "postgresql":
                with cursor.copy(f"COPY {table.name} ({table.list(columns)}) FROM STDIN") as copy:
                    for row in values:
                        copy.write_row(row)
            else:
                cursor.executemany(table.insert(columns), values)

    def _count(self, cause):
        """Write what a group counts."""
        store = self._wiring.letters
        group = replace(
            store.get_group(cause.letter.fingerprint),
            counts=dict(cause.counts),
            failures=cause.counts.total(),
            hours=dict(sorted(cause.hours.items())[-MOST_HOURS:]),
            sample=f"the gateway has refused order {made.name_of(cause.newest)}",
            sample_letter_id=f"letter-{made.name_of(cause.newest)}",
            first_failed_seconds=self.time_of(cause.oldest),
            last_failed_seconds=self.time_of(cause.newest),
        )
        groups = store._groups  # noqa: SLF001 - nobody else has to say what a group counts
        groups._house.connection.run(lambda cursor: groups._write(cursor, group, is_new=False))  # noqa: SLF001

    @contextlib.contextmanager
    def _without_indexes(self):
        """Build indexes once all rows are there: one by one that would take several times as long."""
        wrapper, models = connections[self.alias], (DeadLetter, LetterTerm)
        indexes = [(model, index) for model in models for index in model._meta.indexes]  # noqa: SLF001 - see above
        with wrapper.schema_editor() as editor:
            for model, index in indexes:
                editor.remove_index(model, index)
        yield
        with wrapper.schema_editor() as editor:
            for model, index in indexes:
                editor.add_index(model, index)

    def _look(self, busiest):
        """Refuse rows that are not as the store would have written them."""
        rows, terms = DeadLetter.objects.using(self.alias), LetterTerm.objects.using(self.alias)
        for number in self._random.sample(range(self.count), 50):
            letter = self._wiring.letters.get(f"letter-{made.name_of(number)}")
            row = rows.get(pk=row_id(self.namespace, letter.id))
            found_by = set(terms.filter(letter_row=row.pk).values_list("term", flat=True))
            as_read = (letter.state, letter.fingerprint, letter.key, to_us(letter.last_failed_seconds))
            assert as_read == (row.state, row.fingerprint, row.key, row.last_failed_us)
            assert set(terms_of(letter)) == found_by
            assert indexed(self._wiring, letter, self.app.tasks) == letter
        states = rows.filter(fingerprint=self.busiest_group).order_by().values_list("state").annotate(Count("pk"))
        assert dict(states) == self._wiring.letters.get_group(self.busiest_group).counts == busiest.counts
        assert rows.count() == self.count


def _swapped(text, swaps):
    for old, new in swaps:
        text = text.replace(old, new)
    return text
