"""What `worker/withdrawn.py` takes for granted of Celery's requests; each test is one fact."""

from inspect import getsource, signature

from celery import Celery
from celery.app.task import Context
from celery.worker.request import Request


def test_one_method_acknowledges_whatever_is_revoked_or_has_expired():
    """`SafeRequest` leaves the trace in it (celery `worker/request.py`, `Request._announce_revoked`)."""
    assert ["self", "reason", "terminated", "signum", "expired"] == list(
        signature(Request._announce_revoked).parameters
    )
    for caller in (Request.revoked, Request.terminate, Request.on_failure):
        assert "self._announce_revoked(" in getsource(caller)
    assert "self.acknowledge()" in getsource(Request._announce_revoked)


def test_a_copy_of_a_request_has_its_expiry_as_a_moment():
    """In seconds it would begin anew (celery `app/task.py`, `Context.as_execution_options`)."""
    moment = "2026-05-01T10:00:00+00:00"
    with Celery("facts", broker="memory://", set_as_current=False) as app:
        task = app.task(_body, name="facts.body", shared=False)
        request = Context({"id": "1", "args": (), "kwargs": {}, "expires": moment})

        signature_ = app.tasks[task.name].signature_from_request(request, retries=1, countdown=5)
        message = app.amqp.as_task_v2("1", "facts.body", expires=signature_.options["expires"])

    assert moment == message.headers["expires"]


def _body():
    return None
