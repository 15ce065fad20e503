"""
A pytest plugin that runs Celery's own suite on `SafeTask`, changed as a team would change it and no further.

- `Celery(task_cls=...)`: every task of the suite's apps, `shared_task` included, is built on it.
- `celery.Task`, which the suite's class-based tasks import as their base, is it.
- The options that `SafeTask` refuses, since its own policy takes their place, are said in its words:

| the suite's option | becomes |
|---|---|
| any of these | `rules=(..., RetryRule(Exception, retryable=False))`: nothing is retried unasked, as in Celery |
| `max_retries=n` | `attempts=n + 1` |
| `default_retry_delay=s` | `base_seconds=s`, growing no further; 180 s where only others stand, as in Celery |
| `autoretry_for=(E,)` | `RetryRule(E, retryable=True)` |
| `retry_kwargs={"max_retries": n}` | as `max_retries` |
| `retry_backoff=True` | `base_seconds=1, factor=2, cap_seconds=600`, which are Celery's |

An option that is not in the table stays where it is, and `SafeTask` says what it thinks of it.
"""

from typing import Any

import celery
import pytest

from celery_safeguards import RetryPolicy, RetryRule, Safeguards, SafeTask

_REPLACED = ("max_retries", "default_retry_delay", "autoretry_for", "retry_kwargs", "retry_backoff")
_CELERYS_DELAY_SECONDS = 180.0
_CELERYS_RETRIES = 3


class GuardedTask(SafeTask):
    """`SafeTask` that takes the options of the suite's tasks, in place of the team that would rewrite them."""

    abstract = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if str(vars(cls).get("name")).startswith("celery."):
            return  # one of Celery's built-in tasks, which `SafeTask` leaves alone
        given = {name: vars(cls)[name] for name in _REPLACED if name in vars(cls)}
        for name in given:
            delattr(cls, name)
        if given:
            cls.safeguards = Safeguards(retry=said_as_a_policy(given))


def said_as_a_policy(given: dict[str, Any]) -> RetryPolicy:
    """Return what Celery's retry options of one task ask for; see the table above."""
    retries = given.get("max_retries", given.get("retry_kwargs", {}).get("max_retries", _CELERYS_RETRIES))
    if given.get("retry_backoff"):
        delays = {"base_seconds": 1.0, "factor": 2.0, "cap_seconds": 600.0}
    else:
        seconds = float(given.get("default_retry_delay", _CELERYS_DELAY_SECONDS))
        delays = {"base_seconds": seconds, "factor": 1.0, "cap_seconds": seconds}
    asked_for = [RetryRule(error, retryable=True) for error in given.get("autoretry_for", ())]
    return RetryPolicy(attempts=retries + 1, rules=(*asked_for, RetryRule(Exception, retryable=False)), **delays)


@pytest.fixture(scope="session")
def celery_parameters():
    """Return what Celery's own fixtures build the suite's apps with."""
    return {"task_cls": GuardedTask}


celery.Task = GuardedTask
