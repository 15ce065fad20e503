"""Failures by hour as a small chart, drawn by the server: bars, and the same in words for who cannot see them."""

import time
from collections.abc import Mapping

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from celery_safeguards.deadletter.group import HOUR_SECONDS
from celery_safeguards.printable import counted

_HEIGHT = 24
_LOWEST = 2
DAY_HOURS, WEEK_HOURS = 24, 168
_WIDTHS = {DAY_HOURS: 6, WEEK_HOURS: 4}


def sparkline(hours: Mapping[int, int], last_hours: int) -> SafeString:
    """
    Return the failures of the last hours, the newest at the right.

    Args:
        hours: failures by hours since the epoch.
        last_hours: `DAY_HOURS` or `WEEK_HOURS`.

    """
    end = int(time.time() // HOUR_SECONDS) + 1
    counts = [hours.get(hour, 0) for hour in range(end - last_hours, end)]
    most, width = max(counts), _WIDTHS[last_hours]
    bars = []
    for place, count in enumerate(counts):
        if count:
            height = max(_LOWEST, _HEIGHT * count // most)
            bars.append((place * width, _HEIGHT - height, width - 1, height))
    drawn = format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"></rect>', bars)
    words = f"{counted(sum(counts), 'failure')} in the last {last_hours} hours, {most} in the worst of them"
    return format_html(
        '<svg class="sg-spark" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}" '
        'preserveAspectRatio="none"><title>{}</title>{}</svg>',
        *(words, last_hours * width, _HEIGHT, last_hours * width, _HEIGHT, words, drawn),
    )
