"""
What other packages look at when a worker starts, beside its own findings; the Django app, for instance, at settings.

This module loads nothing of a worker: a web process may name a look, too.
"""

from collections.abc import Callable, Iterable
from typing import Any

from celery_safeguards.findings import Finding

Look = Callable[[Any], Iterable[Finding]]
"""Takes the worker's app and returns what it has found."""
_LOOKS: list[Look] = []


def look_also(look: Look) -> None:
    """Have every worker of this process look there as well; a look that is named twice is made once."""
    if look not in _LOOKS:
        _LOOKS.append(look)


def further_findings(app: Any) -> list[Finding]:
    """Return what the other packages have found."""
    return [finding for look in _LOOKS for finding in look(app)]
