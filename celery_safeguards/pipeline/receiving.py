"""A keyed message as it arrives: its key, its fingerprint, its lock, and whom it asks."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from celery_safeguards.admission.gate import Gate
from celery_safeguards.errors import KeyRefused
from celery_safeguards.headers import OWNER, Lineage
from celery_safeguards.ledger.decide import Arrival
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.pipeline.delivery import Delivery
from celery_safeguards.pipeline.locking import lock_ask
from celery_safeguards.pipeline.refusing import bury_nameless
from celery_safeguards.wiring import Wiring

GateOf = Callable[[Wiring, str, Arrival, LockAsk | None], Gate]


def received(task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gate_of: GateOf) -> Delivery:
    """
    Return a keyed message in the hands of this process.

    Args:
        task: of the message.
        request: of the delivery.
        args: of the body.
        kwargs: of the body.
        gate_of: opens the dialogue about a key.

    Raises:
        DeadLettered: its arguments name no operation, or no entity to lock.

    """
    wiring, lineage = Wiring.of(task.app), Lineage.from_headers(request.headers)
    owner = getattr(request, OWNER, None) or uuid.uuid4().hex
    try:
        if lineage.key is None or lineage.fingerprint is None:
            # A producer that is not ours: the key is made here, and travels with every copy from now on.
            lineage = _with_key(task, request, lineage)
        lock = None if task.lock_plan is None else lock_ask(task, request, owner)
    except KeyRefused as error:
        bury_nameless(task, request, lineage, error)
    key = lineage.key or ""
    arrival = Arrival(
        task_id=request.id,
        owner=owner,
        fingerprint=lineage.fingerprint or "",
        seen=lineage.seen,
        epoch=lineage.epoch,
        letter_id=lineage.letter_id,
        verdict=lineage.verdict,
    )
    return Delivery(
        task=task,
        request=request,
        args=args,
        kwargs=kwargs,
        policy=task.policy,
        plan=task.plan,
        wiring=wiring,
        lineage=lineage,
        key=key,
        gate=gate_of(wiring, key, arrival, lock),
        lock=lock,
    )


def _with_key(task: Any, request: Any, lineage: Lineage) -> Lineage:
    plan, args, kwargs = task.plan, request.args, request.kwargs
    key = lineage.key or plan.key(args, kwargs)
    # Models come here by pickle, and by `apply`, which sends nothing.
    fingerprint = lineage.fingerprint or plan.fingerprint(*task.plain_arguments(args, kwargs))
    return replace(lineage, key=key, fingerprint=fingerprint)
