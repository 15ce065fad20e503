"""
Tasks of each kind that a person can meet as a dead letter.
"""

import os

from celery_safeguards import DidNotHappen, Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from tests.browser.desk import where
from tests.support.announce import announce

_ONCE = RetryPolicy(attempts=1)


def note(**arguments):
    announce("noted", **arguments)


def mail(**arguments):
    announce("mailed", **arguments)


def charge(order_id, amount):
    if amount < 0:
        raise ValueError(f"{amount} cannot be charged")
    announce("charged", order_id=order_id)
    return f"ch_{order_id}"


def pay(order_id):
    announce("paid", order_id=order_id)


def find_payment(order_id):
    if order_id.startswith("refused"):
        raise ConnectionError(f"the bank knows no order {order_id}")
    return DidNotHappen()


def log_in(user, password):
    raise ValueError(f"the directory refuses {user} with {password}")


def typed(**values):
    """Fails in a worker that has not been mended."""
    if where.BROKEN in os.environ:
        raise ValueError("\x00 no such order" + "!" * int(os.environ[where.BROKEN]))
    announce("typed", values=repr(values))


def later(number):
    announce("later", number=number)


def add_tasks(app):
    """Register them with an app, and with no other."""
    for body, safeguards in (
        (note, Safeguards(repeatable=True, retry=_ONCE)),
        (mail, Safeguards(retry=_ONCE)),
        (typed, Safeguards(repeatable=True, retry=_ONCE)),
        *([(later, Safeguards(repeatable=True, retry=_ONCE))] if where.DEPLOYED in os.environ else []),
        (
            charge,
            Safeguards(
                idempotent=Idempotent("payment:{order_id}", on_unknown="quarantine", quiet_seconds=0), retry=_ONCE
            ),
        ),
        (
            pay,
            Safeguards(
                idempotent=Idempotent("pay:{order_id}", on_unknown=Verify(find_payment, after_seconds=0)), retry=_ONCE
            ),
        ),
        (log_in, Safeguards(idempotent=Idempotent("login:{user}", on_unknown="rerun"), retry=_ONCE)),
    ):
        app.task(body, name=f"desk.{body.__name__}", base=SafeTask, safeguards=safeguards, shared=False)
