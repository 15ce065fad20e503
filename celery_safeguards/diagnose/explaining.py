"""The page of a finding: `pages.md` has one section for each id of the table, under its id and title."""

import re
from importlib import resources

from celery_safeguards.findings import KINDS

_HEADING = re.compile(r"^## (SG\d{3}) .+$", re.MULTILINE)


def pages() -> dict[str, str]:
    """Return every page by id, as Markdown with its heading."""
    text = resources.files(__package__ or "").joinpath("pages.md").read_text(encoding="utf-8")
    starts = [(match[1], match.start()) for match in _HEADING.finditer(text)]
    ends = [start for _, start in starts[1:]] + [len(text)]
    return {id_: text[start:end].strip() for (id_, start), end in zip(starts, ends, strict=True)}


def explain(finding_id: str) -> str:
    """
    Return what a finding means and what to do about it, with its severity.

    Raises:
        KeyError: no finding has this id.

    """
    kind = KINDS[finding_id]
    heading, _, body = pages()[finding_id].partition("\n")
    return f"{heading.removeprefix('## ')} ({kind.severity})\n{body}"
