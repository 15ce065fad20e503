"""
What a project's tests need: a store that knows nothing, for each test.

A test that runs tasks eagerly would find what an earlier one has done: `TestCase` rolls back its rows, and with them
the ids that keys are made of, while what the safeguards know is committed apart from it, or lies in Redis.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from celery import current_app

from celery_safeguards.conf import MEMORY_URL, Settings
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.connection import close_own_of_this_thread


@contextmanager
def fresh_store(url: str = MEMORY_URL, *, app: Any = None) -> Iterator[Wiring]:
    """
    Give an app's guarded tasks a store of their own for the length of a `with`; keyed work starts at once.

        class OrderTests(TestCase):
            def setUp(self):
                self.enterContext(fresh_store())

    In a `TestCase` keep it in memory: the safeguards' own connection sees none of the test's rows, and on SQLite waits
    for its transaction. In a `TransactionTestCase` it may be the project's database, `"django://default"`, whose tables
    are emptied after each test.

    Args:
        url: as `safeguards_store_url` takes it.
        app: the current one unless given.

    Returns:
        What the tasks work with; `.admission`, `.locks` and `.letters` can be asked.

    """
    given = current_app._get_current_object() if app is None else app  # noqa: SLF001 - the app behind Celery's proxy
    wiring = Wiring.from_settings(replace(Settings.of(given), store_url=url))
    with wiring.in_place_for(given):
        wiring.admission.declare_new()
        try:
            yield wiring
        finally:
            # The runner drops its database at the end, which PostgreSQL refuses while anybody is connected.
            close_own_of_this_thread()
