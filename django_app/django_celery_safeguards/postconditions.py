"""Post-conditions for `Safeguards(ensure=...)` on what a body has done to the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, repr=False)
class UpdatedExactly:
    """See `updated_exactly`."""

    count: int
    of: str | None = None

    def __repr__(self) -> str:
        return f"updated_exactly({self.count}{f', of={self.of!r}' if self.of is not None else ''})"

    def __call__(self, result: Any, /) -> bool:
        """
        Return True for a result that says so many rows.

        Raises:
            ValueError: it says another number, or none.

        """
        counted = result
        if self.of is not None:
            counted = result.get(self.of) if isinstance(result, Mapping) else None
        if isinstance(counted, bool) or not isinstance(counted, int):
            where = f" under {self.of!r}" if self.of is not None else ""
            raise ValueError(f"the body returned no number of rows{where}: {result!r}")  # noqa: TRY004 - a wrong result
        if counted != self.count:
            raise ValueError(f"{counted} rows were updated, and not {self.count}")
        return True


def updated_exactly(count: int, *, of: str | None = None) -> UpdatedExactly:
    """
    Require that a body has updated so many rows, by the number that it returns.

    An `UPDATE` with a condition that no longer holds updates nothing, and says so in a number that is easily dropped:

        @shared_task(base=SafeTask, safeguards=Safeguards(repeatable=True, ensure=updated_exactly(1)))
        def cancel(order_id):
            return Order.objects.filter(id=order_id, state="open").update(state="cancelled")

    It is asked after the body: what that has committed stays.

    Args:
        count: how many rows.
        of: the name under which a body that returns a dict has the number; without it the result is the number.

    """
    return UpdatedExactly(count, of)
