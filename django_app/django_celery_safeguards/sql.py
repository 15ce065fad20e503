"""
What the stores say to a database, and where databases differ.

PostgreSQL, SQLite and MariaDB share all of it but the clock, how a transaction begins, and whether an INSERT can step
back before a row that is there and return what it wrote. Where it can, a first delivery is one statement and its
outcome another; elsewhere both are transactions, by the same rules.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model

from celery_safeguards.clock import SystemClock, to_us

_NOW_US = {
    "postgresql": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    # One host: its clock is everybody's. SQLite's own has milliseconds only.
    "sqlite": "sg_now_us()",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """
    How a database is spoken to.

    Attributes:
        vendor: as Django names it.
        now_us: the database's time in whole microseconds, of the moment and not of the transaction.
        begin: begins a transaction in which what was read can be written without a second thought.
        for_update: ends a SELECT whose rows stay as they are until the transaction ends.
        returns: whether `INSERT ... ON CONFLICT DO NOTHING RETURNING` and `UPDATE ... RETURNING` are there.
        reads_rows: whether one parameter can hold many rows, as JSON: psycopg takes longer over an array, or over a
            thousand parameters, than the server over the work.

    """

    vendor: str
    now_us: str
    begin: str
    for_update: str
    returns: bool
    reads_rows: bool

    @classmethod
    def of(cls, wrapper: Any) -> "Dialect":
        """Return the dialect of one of Django's connections, without opening it."""
        return cls(
            vendor=wrapper.vendor,
            now_us=_NOW_US[wrapper.vendor],
            # A writer that begins by reading would find, at its first write, that another one was faster.
            begin="BEGIN IMMEDIATE" if wrapper.vendor == "sqlite" else "BEGIN",
            for_update="" if wrapper.vendor == "sqlite" else " FOR UPDATE",
            # SQLite has it since 3.35, and Debian 11 is older; MariaDB has it for inserts alone.
            returns=wrapper.vendor != "mysql" and wrapper.features.can_return_columns_from_insert,
            reads_rows=wrapper.vendor == "postgresql",
        )


def is_supported(vendor: str) -> bool:
    """Whether the stores can speak to this database."""
    return vendor in _NOW_US


def set_up_clock(raw: Any) -> None:
    """Give a connection of SQLite the clock in microseconds."""
    raw.create_function("sg_now_us", 0, lambda: to_us(SystemClock.wall_seconds()))


class Table:
    """One model's table as SQL names it, every name quoted: `key` and `group` are words of some database's own."""

    def __init__(self, model: type[Model], wrapper: Any) -> None:
        quote = wrapper.ops.quote_name
        self.name = quote(model._meta.db_table)  # noqa: SLF001 - Django's documented way to a table's name
        self._quoted = {each.column: quote(each.column) for each in model._meta.fields}  # noqa: SLF001
        self._types = {each.column: each.db_type(wrapper) for each in model._meta.fields}  # noqa: SLF001

    def list(self, columns: Iterable[str]) -> str:
        """Return columns, separated by commas."""
        return ", ".join(self._quoted[each] for each in columns)

    def sets(self, columns: Iterable[str]) -> str:
        """Return assignments of a parameter to each column."""
        return ", ".join(f"{self._quoted[each]} = %s" for each in columns)

    def are(self, columns: Iterable[str]) -> str:
        """Return the condition that each column is its parameter."""
        return " AND ".join(f"{self._quoted[each]} = %s" for each in columns)

    def select(self, columns: Sequence[str], *, by: Sequence[str] = ("id",), also: str = "") -> str:
        """Return a SELECT of the rows whose columns `by` are the parameters; `also`: more columns, as SQL."""
        return f"SELECT {self.list(columns)}{also} FROM {self.name} WHERE {self.are(by)}"

    def select_some(self, columns: Sequence[str], rows: int, *, also: str = "") -> str:
        """Return a SELECT of so many rows by their ids; `also`: more columns, as SQL."""
        return f"SELECT {self.list(columns)}{also} FROM {self.name} WHERE {self.list(['id'])} IN ({parameters(rows)})"

    def insert(self, columns: Sequence[str]) -> str:
        """Return an INSERT of one row, a parameter for each column."""
        return f"INSERT INTO {self.name} ({self.list(columns)}) VALUES ({parameters(len(columns))})"

    def update(self, columns: Sequence[str], *, by: Sequence[str] = ("id",)) -> str:
        """Return an UPDATE, first a parameter for each column, then for each of `by`."""
        return f"UPDATE {self.name} SET {self.sets(columns)} WHERE {self.are(by)}"

    def update_each(self, columns: Sequence[str]) -> str:
        """Return an UPDATE of many rows by their ids; its parameter: what `rows_as_json` makes of columns and ids."""
        given = (*columns, "id")
        typed = ", ".join(f"{self._quoted[each]} {self._types[each]}" for each in given)
        sets = ", ".join(f"{self._quoted[each]} = given.{self._quoted[each]}" for each in columns)
        id_ = self._quoted["id"]
        rows = f"json_to_recordset(%s::json) AS given ({typed})"
        return f"UPDATE {self.name} SET {sets} FROM {rows} WHERE {self.name}.{id_} = given.{id_}"

    def delete(self, *, by: Sequence[str] = ("id",)) -> str:
        """Return a DELETE of the rows whose columns `by` are the parameters."""
        return f"DELETE FROM {self.name} WHERE {self.are(by)}"


def rows_as_json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as `Table.update_each` is given them; no text in them may hold a NUL."""
    return json.dumps([dict(zip(columns, row, strict=True)) for row in rows], ensure_ascii=False, separators=(",", ":"))


def parameters(count: int) -> str:
    """Return so many places for parameters."""
    return ", ".join(["%s"] * count)


# A claim and its outcome, and each renewal between, ask for the same one.
@functools.lru_cache(maxsize=1_024)
def row_id(namespace: str, *names: str) -> str:
    """Return the id of a row: of bounded length, and the same for no two names."""
    # Lengths, not a separator: a name may hold any character.
    whole = b"".join(f"{len(part)}:".encode() + part for part in (_as_bytes(each) for each in (namespace, *names)))
    return hashlib.sha256(whole).hexdigest()


def shown(text: str | None, max_chars: int) -> str:
    """Return a text as a column for people holds it: without NUL and halves of pairs, and cut."""
    clean = (text or "")[:max_chars].replace("\x00", "\ufffd")
    return clean.encode("utf-8", "replace").decode()


def _as_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
