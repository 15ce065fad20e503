"""
Writes to the project's database that a late owner of a lock cannot make.

The row itself refuses it, by a column with the fencing token of whoever entered last: a `BigIntegerField(default=0)`.

    t0 A has the lock, token 7    t1 A is frozen past its lease    t2 B has it, token 8, enters, reads, writes
    t3 A wakes and writes with token 7 → `FencedOut`

Between t2's lock and t2's entering, A may still write: so enter first, then read, then write. A is compared with the
row as it is when its write reaches it: where B's transaction is open, A waits for its end, and is refused by what that
has written. `celery_safeguards.fenced_enter` does the same for Redis.
"""

from typing import Any, Protocol

from django.core.exceptions import FieldDoesNotExist
from django.db import transaction
from django.db.models import Field, QuerySet

from celery_safeguards.errors import ConfigurationError, FencedOut


class HasToken(Protocol):
    """`self.safe.lock`, or what `hold` gives."""

    @property
    def token(self) -> int:
        """The fencing token; it grows with each owner."""
        ...


def fenced_enter(queryset: "QuerySet[Any]", lock: HasToken, /, *, fence_field: str = "fence") -> int:
    """
    Refuse from now on whatever an earlier owner of the lock writes to these rows by `fenced_update`.

    In a transaction it holds from now on as well: an earlier owner waits for its end.

    Args:
        queryset: the rows that the lock protects, filtered by columns of their own table.
        lock: `self.safe.lock`, or what `hold` gives.
        fence_field: name of the column for the token.

    Returns:
        How many rows were entered.

    Raises:
        FencedOut: a newer owner has entered one of them; none was entered.
        DoesNotExist: there is no such row, so nothing is protected; the model's own error.
        ConfigurationError: the queryset or the column cannot be compared in one statement.

    """
    entered = _write(queryset, lock, fence_field, {})
    if not entered:
        raise queryset.model.DoesNotExist(f"{queryset.model.__name__}: no row to enter, so nothing is protected")
    return entered


def fenced_update(queryset: "QuerySet[Any]", lock: HasToken, /, *, fence_field: str = "fence", **values: Any) -> int:
    """
    Update these rows, unless a newer owner of their lock has entered.

    Args:
        queryset: rows that the lock protects, filtered by columns of their own table; further conditions may be among
            them, such as `free__gte=count`.
        lock: `self.safe.lock`, or what `hold` gives.
        fence_field: name of the column for the token.
        **values: as `QuerySet.update` takes them.

    Returns:
        How many rows were updated; 0: none matches.

    Raises:
        FencedOut: a newer owner has entered one of them; none was updated.
        ConfigurationError: the queryset or a column cannot be compared and written in one statement.

    """
    return _write(queryset, lock, fence_field, values)


def _write(queryset: Any, lock: HasToken, fence_field: str, values: dict[str, Any]) -> int:
    model, token = queryset.model, lock.token
    for name in (fence_field, *values):
        _refuse_other_table(model, name)
    is_newer = {f"{fence_field}__gt": token}
    # Asked for the database that writes: a replica may not know yet who has entered.
    alias = queryset.select_for_update().db
    rows = queryset.using(alias).exclude(**is_newer)
    if rows.query.count_active_tables() > 1:
        # Django would pick the rows by a subquery: PostgreSQL does not ask that again of a row that has changed since.
        raise ConfigurationError(f"{model.__name__}: filter the rows to fence by columns of their own table")
    with transaction.atomic(using=alias):
        written = int(rows.update(**{**values, fence_field: token}))
        newest = queryset.using(alias).filter(**is_newer).values_list(fence_field, flat=True).first()
        if newest is not None:
            raise FencedOut(
                f"{model.__name__}: token {token} is older than {newest}: another owner of the lock has entered"
            )
    return written


def _refuse_other_table(model: Any, name: str) -> None:
    try:
        field: Field[Any, Any] = model._meta.get_field(name)  # noqa: SLF001 - Django's documented way to a field
    except FieldDoesNotExist as error:
        raise ConfigurationError(f"{model.__name__} has no field {name!r}") from error
    if field.model._meta.concrete_model is not model._meta.concrete_model:  # noqa: SLF001
        raise ConfigurationError(f"{model.__name__}.{name} is in a parent's table: fence that model")
