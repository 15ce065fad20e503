"""The pages of the admin that the benchmark asks for, and how long each of them takes."""

import math
import random
import re
import statistics
import sys
import time
from urllib.parse import urlencode

from benchmarks import triage_letters as made
from benchmarks.triage_rows import Rows
from celery_safeguards import Idempotent, Safeguards, SafeTask
from django_celery_safeguards.admin.groups.listing import LetterGroupAdmin
from django_celery_safeguards.admin.letters.listing import DeadLetterAdmin
from django_celery_safeguards.models import DeadLetter, LetterGroup
from django_celery_safeguards.sql import row_id
from tests.browser.desk.celery import make_app

_ADMIN = "/admin/django_celery_safeguards"
_WARM_UP = 3
_ROWS = re.compile(r'name="_selected_action"|<th class="field-cause">')


def filled(alias, count):
    """Return the letters of a database, once they are there."""
    app = make_app(f"django://{alias}", set_as_current=False)
    policy = Safeguards(idempotent=Idempotent("payment:{order_id}", on_unknown="quarantine"))
    app.task(_pay, name=made.BUSIEST_TASK, base=SafeTask, safeguards=policy, shared=False)
    began = time.monotonic()
    rows = Rows(app, alias, count)
    rows.fill()
    print(f"{alias}: {count:,} letters in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return rows


def _pay(order_id, amount, customer, items):
    """Never runs here: what a replay of its letters would do is on their pages."""


def measured(client, few, many, repetitions):
    """Return, for each of two stores, the p95 of each page in ms; and how many times longer the second one's take."""
    took = {few: {}, many: {}}
    for repetition in range(-_WARM_UP, repetitions):
        stores = (few, many) if repetition % 2 else (many, few)
        pages = {rows: pages_of(rows, random.Random(repetition)) for rows in stores}
        for name in pages[few]:
            for rows in stores:
                seconds = _asked(client, rows, *pages[rows][name])
                if repetition >= 0:
                    took[rows].setdefault(name, []).append(seconds)
    p95s = {rows: {name: _p95_ms(seconds) for name, seconds in pages.items()} for rows, pages in took.items()}
    pairs = {name: zip(took[many][name], seconds, strict=True) for name, seconds in took[few].items()}
    return p95s, {name: round(statistics.median(a / b for a, b in pair), 2) for name, pair in pairs.items()}


def pages_of(rows, chance):
    """Return the pages of a store: the path of each, and a text that it shows or how many rows it has at least."""
    number = chance.randrange(rows.count)
    name = made.name_of(number)
    half = f"{round(rows.time_of(rows.count // 2) * 1e6)}.8"
    group, task = {"fingerprint": rows.busiest_group}, {"task": made.BUSIEST_TASK}
    lists = {
        "first": ({}, 50),
        "middle": ({"older": half}, 50),
        "last": ({"newer": "0."}, 50),
        "state": ({"state": "open"}, 50),
        "state, middle": ({"state": "open", "older": half}, 50),
        "state, last": ({"state": "open", "newer": "0."}, 50),
        "state, rare": ({"state": "replaying"}, 1),
        "state, any": ({"state": "any"}, 50),
        "kind": ({"kind": made.BUSIEST_KIND.value}, 50),
        "kind, last": ({"kind": made.BUSIEST_KIND.value, "newer": "0."}, 50),
        "kind, rare": ({"kind": made.RARE_KIND.value}, 1),
        "task": (task, 50),
        "task, middle": ({**task, "older": half}, 50),
        "task, rare": ({"task": made.RARE_TASK}, 1),
        "failed, last day": ({"failed": "day"}, 20),
        "failed, last week": ({"failed": "week"}, 50),
        "failed, before that": ({"failed": "older"}, 50),
        "failed, before that, last": ({"failed": "older", "newer": "0."}, 50),
        "group": (group, 50),
        "group, last": ({**group, "newer": "0."}, 50),
        "group, state": ({**group, "state": "open"}, 50),
        "group, another kind": ({**group, "kind": made.RARE_KIND.value}, 0),
        "task, kind, state": ({**task, "kind": made.BUSIEST_KIND.value, "state": "open"}, 50),
        "task, rare kind": ({**task, "kind": made.RARE_KIND.value}, 0),
        "task, rare kind, last week": ({**task, "kind": made.RARE_KIND.value, "failed": "week"}, 0),
    }
    searches = {
        "key": (f"payment:{name}", 1),
        "key's beginning": (f"payment:{name[:-2]}*", 1),
        "task id": (f"task-{name}", 1),
        "letter id": (f"letter-{name}", 1),
        "argument": (f"order_id={name}", 1),
        "value": (name, 1),
        "value of many": (f"customer.email={made.BUSIEST_CUSTOMER}", 50),
        "task": (made.BUSIEST_TASK, 50),
        "queue": (f"queue:{rows.namespace}", 50),
        "error": ("error:shop.errors.Error0", 50),
        "no such": (f"payment:{name}x", 0),
    }
    groups = {
        "first": ({}, 50),
        "last": ({"newer": "0."}, 50),
        "status": ({"status": "open"}, 50),
        "kind": ({"kind": "bug"}, 50),
        "failed, last week": ({"failed": "week"}, 50),
        "search": ({"q": "Error7"}, 1),
    }
    letter, busiest = row_id(rows.namespace, f"letter-{name}"), row_id(rows.namespace, rows.busiest_group)
    return {
        **{f"letters: {page}": (_list(DeadLetter, query), shown) for page, (query, shown) in lists.items()},
        **{f"search: {what}": (_list(DeadLetter, {"q": text}), shown) for what, (text, shown) in searches.items()},
        "letter": (f"{_ADMIN}/deadletter/{letter}/change/", f"task-{name}"),
        **{f"groups: {page}": (_list(LetterGroup, query), shown) for page, (query, shown) in groups.items()},
        "group of 60 %": (f"{_ADMIN}/lettergroup/{busiest}/change/", rows.busiest_group),
    }


def _list(model, query):
    known = {DeadLetter: DeadLetterAdmin, LetterGroup: LetterGroupAdmin}[model].list_filter
    assert query.keys() <= {each.parameter_name for each in known} | {"older", "newer", "q"}
    return f"{_ADMIN}/{model.__name__.lower()}/?{urlencode(query)}"


def _asked(client, rows, path, shown):
    """Return how long a page takes, and refuse one that does not show what it should."""
    rows.app.set_current()
    began = time.perf_counter()
    answer = client.get(path)
    seconds = time.perf_counter() - began
    text = answer.content.decode()
    assert answer.status_code == 200, f"{path}: {answer.status_code}"
    assert shown in text if isinstance(shown, str) else len(_ROWS.findall(text)) >= shown, f"{path}: not {shown}"
    return seconds


def _p95_ms(seconds):
    return round(sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1] * 1_000, 1)
