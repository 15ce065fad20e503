"""
What the demo found: the two columns side by side, and whether every number is as it must be.
"""

from dataclasses import dataclass

from example_project.demo.plan import Fate

_COLUMNS = ("struck", "lost", "twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one side's orders, by the gateway's ledger and the shop's rows."""

    title: str
    fired: dict
    lost: frozenset
    duplicated: frozenset
    charged: int
    strangers: frozenset
    """What was charged and is nobody's order."""
    unshipped: frozenset
    points: int
    points_due: int
    resent: int
    dead_lettered: int
    replayed: int
    discarded: int

    @classmethod
    def of(cls, side, plan, *, dead_lettered=0, discarded=0):
        """Read a side's ledger and rows."""
        charges = side.charges()
        ids = [order.id for order in plan.orders]
        return cls(
            title=side.title,
            fired=dict(side.fired),
            lost=frozenset(each for each in ids if not charges[each]),
            duplicated=frozenset(each for each in ids if charges[each] > 1),
            charged=sum(charges[each] > 0 for each in ids),
            strangers=frozenset(charges) - frozenset(ids),
            unshipped=frozenset(ids) - side.shipped(),
            points=side.points(),
            points_due=sum(order.amount // 100 for order in plan.orders),
            resent=side.resent,
            dead_lettered=dead_lettered,
            replayed=side.replayed,
            discarded=discarded,
        )


def table(plan, plain, guarded):
    """Return the two columns, a line for each fault and one for all."""
    planned = plan.planned()
    width = max(len(fate) for fate in Fate)
    head = "".join(f"{name:>8}" for name in _COLUMNS)
    lines = [
        f"{'':{width}} {'':>8} {'':>9}   {plain.title:^24}   {guarded.title:^24}",
        f"{'what was done to the orders':{width}} {'orders':>8} {'planned':>9}   {head}   {head}",
    ]
    for fate in Fate:
        ids = {order.id for order in plan.of(fate)}
        cells = [
            f"{_or_dash(found.fired.get(fate)):>8}{len(found.lost & ids):>8}{len(found.duplicated & ids):>8}"
            for found in (plain, guarded)
        ]
        lines.append(f"{fate:{width}} {len(ids):>8} {_or_dash(planned.get(fate)):>9}   {cells[0]}   {cells[1]}")
    totals = [f"{'':>8}{len(each.lost):>8}{len(each.duplicated):>8}" for each in (plain, guarded)]
    lines.append(f"{'all orders':{width}} {len(plan.orders):>8} {'':>9}   {totals[0]}   {totals[1]}")
    for what, plains, guardeds in (
        ("orders without a parcel", len(plain.unshipped), len(guarded.unshipped)),
        ("customers' points not given", plain.points_due - plain.points, guarded.points_due - guarded.points),
    ):
        lines.append(f"{what:{width}} {'':>8} {'':>9}   {plains:>24}   {guardeds:>24}")
    return lines


def objections(plan, plain, guarded):
    """Return what is not as it must be; nothing if the demo has shown what it says."""
    found = []
    for fate, planned in plan.planned().items():
        found += [
            f"{each.title}: '{fate}' struck {each.fired.get(fate, 0)} of {planned} times"
            for each in (plain, guarded)
            if each.fired.get(fate, 0) < planned
        ]
    found += [f"{each.title}: charged for {sorted(each.strangers)}" for each in (plain, guarded) if each.strangers]
    found += _objections_to_guarded(plan, guarded)
    if not plain.lost and not plain.duplicated:
        found.append("plain Celery lost and doubled nothing: the faults prove nothing")
    return found


def _objections_to_guarded(plan, guarded):
    found = []
    if guarded.lost:
        found.append(f"lost {sorted(guarded.lost)}")
    if guarded.duplicated:
        found.append(f"charged twice {sorted(guarded.duplicated)}")
    if guarded.unshipped:
        found.append(f"never shipped {sorted(guarded.unshipped)}")
    if guarded.points != guarded.points_due:
        found.append(f"{guarded.points} points given, {guarded.points_due} due")
    if guarded.resent:
        found.append(f"{guarded.resent} orders had to be sent again: their messages were lost")
    if guarded.discarded != len(plan.bad_payloads):
        found.append(f"{guarded.discarded} bad payloads in letters, not {len(plan.bad_payloads)}")
    if guarded.replayed != guarded.dead_lettered - guarded.discarded:
        found.append(f"{guarded.replayed} of {guarded.dead_lettered - guarded.discarded} letters replayed")
    if guarded.replayed < len(plan.of(Fate.STUCK)):
        found.append(f"only {guarded.replayed} letters replayed")
    return found


def verdict(guarded, orders, reasons):
    """Return the last line."""
    counts = f"orders={orders} charged={guarded.charged} lost={len(guarded.lost)} duplicated={len(guarded.duplicated)}"
    work = f"resent={guarded.resent} dead_lettered={guarded.dead_lettered} replayed={guarded.replayed}"
    return f"demo: {counts} {work} {'FAILED: ' + '; '.join(reasons) if reasons else 'ok'}"


def _or_dash(number):
    return "-" if number is None else number
