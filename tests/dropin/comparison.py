"""
What the two sides say together. Pure.

| stock | `SafeTask` | |
|---|---|---|
| passed | passed | fine |
| failed | failed | the suite's own fault, or the machine's |
| failed | passed | told, and fine |
| passed | failed, or not run | a **defect**, unless it is listed by name with the promise that it contradicts |
| skipped | | not compared |
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Outcomes = dict[str, tuple[str, str]]
"""By test: `passed`, `failed` or `skipped`, and what it said when it failed."""
_KNOWN = Path(__file__).with_name("known.toml")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Names of tests, by what both sides say of them."""

    passed: list[str]
    failed_on_both: list[str]
    failed_on_stock: list[str]
    known: list[str]
    defects: list[str]
    listed_in_vain: list[str]
    """Listed as contradicting a promise, and passed: to be taken off the list."""

    @property
    def exit_status(self) -> int:
        """1 if there is a defect, or nothing to compare."""
        return int(bool(self.defects) or not (self.passed or self.known))

    def table(self, known: Mapping[str, str]) -> str:
        """Return it for people."""
        rows = [
            ("passed on both", self.passed, False),
            ("failed on both", self.failed_on_both, True),
            ("failed on stock only", self.failed_on_stock, True),
            ("contradict a promise", self.known, True),
            ("listed, and passed", self.listed_in_vain, True),
            ("DEFECTS", self.defects, True),
        ]
        lines = []
        for title, names, is_listed in rows:
            lines.append(f"{title:<22}{len(names):>5}")
            lines += [
                f"    {each}" + (f"\n        {known[each]}" if each in known else "") for each in names if is_listed
            ]
        return "\n".join(lines)


def compare(stock: Outcomes, guarded: Outcomes, known: Mapping[str, str]) -> Comparison:
    """
    Compare both sides.

    Args:
        stock: outcomes on plain tasks.
        guarded: outcomes on `SafeTask`.
        known: by test, why it contradicts a promise.

    """
    ran = {name: outcome for name, (outcome, _) in sorted(stock.items()) if outcome != "skipped"}

    def both(on_stock: str, *on_guarded: str) -> list[str]:
        ends = {name: guarded.get(name, ("not run", ""))[0] for name in ran}
        return [name for name, outcome in ran.items() if outcome == on_stock and ends[name] in on_guarded]

    broken = both("passed", "failed", "skipped", "not run")
    passed = both("passed", "passed")
    return Comparison(
        passed=passed,
        failed_on_both=both("failed", "failed", "skipped", "not run"),
        failed_on_stock=both("failed", "passed"),
        known=[name for name in broken if name in known],
        defects=[name for name in broken if name not in known],
        listed_in_vain=[name for name in passed if name in known],
    )


def known_contradictions(file: Path = _KNOWN) -> dict[str, str]:
    """Return by test why it contradicts a promise."""
    listed = tomllib.loads(file.read_text()).get("contradicts", [])
    return {each["test"]: f"{each['promise']} {each['reason']}" for each in listed}
