"""
What follows a success: its links, its chain, its place in a chord; sent at least once, by whoever is first.

Celery's tracer sends links and the chain itself, after the body. When the broker refuses, it stores FAILURE, and the
worker acknowledges: the rest of the chain is gone (celery 5.5 to 5.7, `app/trace.py`). Here the pipeline sends them,
after the settle and before it returns, and takes them off the request, so that the tracer finds nothing to send:

    settle done, keeping the right to send → send links and chain → mark `continued_by` this task id → acknowledge
    a second delivery of the id in between: put off
    killed before the send, or refused by the broker: the redelivery finds *done, not continued* and sends
    killed between send and mark: sent twice; both carry the same parent id, and a keyed link is one operation

Without a key there is no record and no mark: a delivery whose continuation the broker refuses is dropped all the same,
and its redelivery runs the body again.

A chord's part is reported here too, once the result is stored. Celery's result back end sends the body itself; when the
broker refuses, it fails the chord and forgets the parts. The Redis back end of celery 5.7 forgets only while it holds
its claim on the chord, so the claim is deleted under it, and an exception it does not catch goes past its handlers:

    part reported, chord claimed → body refused → claim deleted → delivery dropped
    the redelivery reports the part again, which counts once → chord claimed → body sent

Other back ends and versions cannot be held. There the body becomes a letter (`refusing.py`), and the chord fails.

A duplicate under the same id that finds its mark sends and reports nothing. One under another id has a canvas of its
own.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

from celery.canvas import Signature, group, maybe_signature
from redis import Redis, RedisError

from celery_safeguards._compat import ignores_result
from celery_safeguards.admission.store import Continuing
from celery_safeguards.errors import DeadLettered, DroppedLocally, StoreUnavailable
from celery_safeguards.headers import Lineage
from celery_safeguards.ledger.record import Record, ResultForm
from celery_safeguards.outcome import Outcome
from celery_safeguards.pipeline.burial import compose_letter, write_letter
from celery_safeguards.pipeline.delivery import TO_MARK, Delivery
from celery_safeguards.pipeline.failing import error_text
from celery_safeguards.pipeline.guarding import guarded_publish
from celery_safeguards.pipeline.publishes import send_kept
from celery_safeguards.pipeline.refusing import PASSING, keep_refused, unsent_messages
from celery_safeguards.retry.classify import classify
from celery_safeguards.signals import end_delivery
from celery_safeguards.wiring import Wiring

CHORD_CLAIM_SECONDS = 30.0
"""
Celery's Redis back end claims a chord before it sends the body, by default for 6 s and the publish's retries (celery
5.7, `backends/redis.py`). Reported again within that, a part finds a dead sender's claim, and nobody sends the body.
"""


def has_continuation(request: Any) -> bool:
    """Whether anything waits for this task's result: a link, the rest of a chain, a chord."""
    return bool(request.callbacks or request.chain or request.chord)


def seconds_to_send(delivery: Delivery, form: ResultForm = ResultForm.STORED, publishes: Sequence[str] = ()) -> float:
    """
    Return for how long a delivery keeps the right to send what follows; 0: nothing does.

    Args:
        delivery: whose work is done.
        form: of the result; whatever a body handed on before it raised `Ignore` took what follows with it.
        publishes: what an atomic body has published.

    """
    request = delivery.request
    is_waited_for = has_continuation(request) and not request.is_eager and form is not ResultForm.IGNORED
    if not is_waited_for and not publishes:
        return 0.0
    return max(delivery.gate.lease_seconds, CHORD_CLAIM_SECONDS if request.chord else 0.0)


def continue_canvas(delivery: Delivery, record: Record, result: Any, *, is_own_settle: bool = False) -> None:
    """
    Send what follows, unless this id's continuation was sent before.

    Args:
        delivery: whose work is done.
        record: as it stands.
        result: what the next task gets.
        is_own_settle: this delivery has settled, and kept the right to send.

    Raises:
        Deferred: another delivery is sending.
        DroppedLocally: the broker did not take it; the redelivery will send it.
        DeadLettered: it can never be sent, for instance because the result does not fit the next task.

    """
    request = delivery.request
    right_seconds = seconds_to_send(delivery, record.result_form, record.publishes)
    if not right_seconds:
        return
    if record.continuing != request.id or not is_own_settle:
        match delivery.gate.begin_continuing(right_seconds):
            case Continuing.SENT:
                request.callbacks = request.chain = request.chord = None
                return
            case Continuing.BUSY:
                delivery.put_off("what follows it is being sent", record)
            case Continuing.GO:
                pass
    _send_publishes(delivery.task, request, record.publishes)
    is_ignored = record.result_form is ResultForm.IGNORED
    if not request.is_eager and not is_ignored:
        send_what_follows(delivery.task, request, result)
        report_part(delivery.task, request, result)
    # Of a delivery that the body has ignored Celery stores and reports no end.
    if request.chord and not request.is_eager and not is_ignored:
        setattr(request, TO_MARK, delivery)
    else:
        _mark(delivery)


def send_publishes(delivery: Delivery, record: Record) -> None:
    """
    Send what an atomic body has published where nothing else can follow; marked once the failure of that is reported.

    Raises as `continue_canvas` does.
    """
    if not record.publishes:
        return
    right_seconds = seconds_to_send(delivery, record.result_form, record.publishes)
    if delivery.gate.begin_continuing(right_seconds) is Continuing.BUSY:
        delivery.put_off("what follows it is being sent", record)
    _send_publishes(delivery.task, delivery.request, record.publishes)
    setattr(delivery.request, TO_MARK, delivery)


def _send_publishes(task: Any, request: Any, publishes: Sequence[str]) -> None:
    """Send what an atomic body has published; raises as `send_what_follows` does, to an eager caller what it is."""
    try:
        send_kept(task.app, publishes)
    except Exception as error:
        if request.is_eager:
            raise
        if classify(error).kind in PASSING:
            raise _dropped(task, request, error) from error
        _bury_continuation(task, request, error)


def send_what_follows(task: Any, request: Any, result: Any) -> None:
    """
    Send links and chain, and take them off the request: the tracer finds nothing more to send.

    Raises:
        DroppedLocally: the broker did not take them.
        DeadLettered: they can never be sent; a letter keeps the message.

    """
    try:
        _send(task, request, result)
    except Exception as error:
        # Whatever sending raises, from the broker to the next task's own argument check. A message that is acknowledged
        # before its body runs does not come back.
        if task.acks_late and classify(error).kind in PASSING:
            raise _dropped(task, request, error) from error
        _bury_continuation(task, request, error)
    request.callbacks = request.chain = None


def report_part(task: Any, request: Any, result: Any) -> None:
    """
    Store the result and report the part of a chord, and take the chord off the request.

    It stays there where only Celery's tracer can tell what follows, such as a result that cannot be encoded.

    Raises:
        DroppedLocally: the broker did not take the chord's body, or the result back end did not answer.

    """
    chord = request.chord
    if not chord:
        return
    try:
        request.chord = _with_held_body(task, request)
        # The result first: a back end may read what all members have stored.
        task.backend.mark_as_done(request.id, result, request, store_result=not ignores_result(task, request))
    except _BodyHeld as held:
        raise _dropped(task, request, held.refusal) from held
    except Exception as error:
        request.chord = chord
        if _comes_back(task) and classify(error).kind in PASSING:
            raise _dropped(task, request, error) from error
    else:
        request.chord = None


def hand_on(task: Any, request: Any, result: Any) -> Any:
    """Send what follows where no record keeps a right to, and return the result. See `send_what_follows`."""
    if has_continuation(request) and not request.is_eager:
        send_what_follows(task, request, result)
        report_part(task, request, result)
    return result


def mark_reported(request: Any) -> None:
    """Mark this id: the tracer has stored its end, and reported a chord's part or a failure."""
    delivery = getattr(request, TO_MARK, None)
    if delivery is not None:
        _mark(delivery)


def _send(task: Any, request: Any, result: Any) -> None:
    """Send as `build_tracer` of celery 5.5 to 5.7 does: groups one by one, other links as one group, then the chain."""
    app, priority = task.app, None
    if app.conf.task_inherit_parent_priority:
        priority = (request.delivery_info or {}).get("priority")
    family = {"parent_id": request.id, "root_id": request.root_id or request.id, "priority": priority}
    links = [maybe_signature(link, app=app) for link in request.callbacks or ()]
    singles = [link for link in links if not isinstance(link, group)]
    for link in links:
        if isinstance(link, group):
            link.apply_async((result,), **family)
    if len(singles) == 1:
        _publish(app, singles[0], result, family)
    elif singles:
        group(singles, app=app).apply_async((result,), **family)
    if request.chain:
        _publish(app, maybe_signature(request.chain[-1], app=app), result, {"chain": request.chain[:-1], **family})


def _publish(app: Any, signature: Any, result: Any, options: dict[str, Any]) -> None:
    """Send one signature. One message has a deadline; a canvas may be thousands, each with its own if guarded."""
    if type(signature) is not Signature:
        signature.apply_async((result,), **options)
        return
    with guarded_publish(app, signature.task):
        signature.apply_async((result,), **options)


class _BodyHeld(BaseException):
    """Raised past the back end's own handlers, which would fail the chord."""

    def __init__(self, refusal: Exception) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def _with_held_body(task: Any, request: Any) -> Any:
    """Return the chord's body as a signature whose `delay`, which back ends call, holds or keeps what is refused."""
    body = maybe_signature(request.chord, app=task.app)
    send = body.delay

    def send_or_hold(*values: Any) -> Any:
        with unsent_messages() as unsent:
            try:
                return send(*values)
            except Exception as error:
                if classify(error).kind not in PASSING:
                    raise
                if _comes_back(task) and _give_up_chord(task.backend, request.group):
                    raise _BodyHeld(error) from error
                keep_refused(task.app, unsent, error, body.options.get("serializer"))
                raise

    body.delay = send_or_hold
    return body


def _comes_back(task: Any) -> bool:
    """Whether a dropped delivery reports its part again: not if it is acknowledged, or if Celery skips the stored."""
    return bool(task.acks_late and not task.app.conf.worker_deduplicate_successful_tasks)


def _give_up_chord(backend: Any, group_id: str) -> bool:
    """Delete the claim on a chord, and return whether there was one; without it the parts stay (celery 5.7)."""
    client = getattr(backend, "client", None)
    if not isinstance(client, Redis):
        return False
    try:
        return bool(client.delete(backend.get_key_for_group(group_id, ".c")))
    except RedisError:
        return False


def _dropped(task: Any, request: Any, error: Exception) -> DroppedLocally:
    end_delivery(task, request.id, Outcome.FENCED, None, f"its continuation could not be sent ({error!r})")
    return DroppedLocally(repr(error))


def _mark(delivery: Delivery) -> None:
    try:
        delivery.gate.end_continuing()
    except StoreUnavailable as error:
        # It is sent; without the mark a redelivery sends it once more, which a continuation must bear anyway.
        delivery.log(f"its continuation is sent but not marked: {error}")


def _bury_continuation(task: Any, request: Any, error: Exception) -> NoReturn:
    """The work is done and stays done; what could not follow it becomes a letter, from which it can be sent again."""
    wiring = Wiring.of(task.app)
    text = error_text(wiring, error)
    letter = compose_letter(
        wiring,
        request,
        letter_id=f"continuation-{request.id}",
        kind=classify(error).kind,
        reason="the work is done, but what follows it cannot be sent",
        effect_possible=False,
        error=text,
        attempts=0,
        key=Lineage.from_headers(request.headers).key,
    )
    write_letter(wiring, letter, tasks=task.app.tasks)
    end_delivery(task, request.id, Outcome.DEAD_LETTERED, letter.key, letter.reason)
    raise DeadLettered(letter.id, letter.kind.value, f"{text.type}: {text.message}") from error
