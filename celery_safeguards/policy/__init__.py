"""
What a task asks for: frozen values, checked when they are made, reusable and comparable.

    PAYMENTS = Safeguards(retry=RetryPolicy(attempts=6))

    @shared_task(base=SafeTask, bind=True, safeguards=PAYMENTS | Safeguards(
        idempotent=Idempotent("payment:{order_id}", on_unknown=Verify(find_payment, after_seconds=30)),
    ))
    def charge(self, order_id): ...

One rule joins values, for `|`, for class attributes along the inheritance and for the decorator's option: what the
later one sets wins, what it leaves out stays. A task declares one of `idempotent`, `repeatable` and `at_most_once`;
setting one of them in a later value replaces the earlier declaration.
"""

from celery_safeguards.policy._checks import UNSET, Unset
from celery_safeguards.policy.entity_lock import Busy, EntityLock
from celery_safeguards.policy.idempotent import WEEK_SECONDS, Idempotent
from celery_safeguards.policy.safeguards import Declared, OnStoreDown, Policy, Safeguards
from celery_safeguards.policy.verdict import (
    CannotTell,
    DidNotHappen,
    Happened,
    Verdict,
    Verify,
    call_with_named,
)

__all__ = [
    "UNSET",
    "WEEK_SECONDS",
    "Busy",
    "CannotTell",
    "Declared",
    "DidNotHappen",
    "EntityLock",
    "Happened",
    "Idempotent",
    "OnStoreDown",
    "Policy",
    "Safeguards",
    "Unset",
    "Verdict",
    "Verify",
    "call_with_named",
]
