"""
What this package takes for granted of Celery, kombu and billiard beneath their documented surface.

Each test is one fact, tried on Celery's own classes and no others of ours than the one that rests on it. A release that
changes one fails here by name, before it fails somewhere as a lost message.
"""

import pickle
import sys
from types import SimpleNamespace

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery, Task, states
from celery.app import trace
from celery.app.task import Context
from celery.bootsteps import Blueprint
from celery.exceptions import Ignore, Retry, reraise
from celery.utils.imports import symbol_by_name
from celery.worker import strategy
from celery.worker.request import Request
from kombu.transport.redis import Channel as RedisChannel

from celery_safeguards import SafeTask
from celery_safeguards._compat import custom_headers, drop_locally, made_app, raised_in_child
from celery_safeguards.pipeline.refusing import is_dispatched_by_celery
from celery_safeguards.worker.intake import IntakeStep
from celery_safeguards.worker.request import SafeRequest
from celery_safeguards.worker.steps import CheckStep, LeaseStep


@pytest.fixture
def app(namespace):
    """An app with a broker and results in memory."""
    with Celery(namespace, broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        app.conf.task_default_queue = namespace
        yield app


@pytest.fixture
def queue(app):
    """The app's queue; one message may be unacknowledged at a time."""
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        channel.basic_qos(0, 1, False)
        queue = app.amqp.queues[app.conf.task_default_queue](channel)
        queue.declare()
        yield queue
        queue.delete()


@pytest.fixture
def echo(app):
    """A plain bound task."""

    @app.task(bind=True, name="facts.echo", shared=False)
    def echo(self, number):
        return number

    return app.tasks[echo.name]


# --- headers and requests


def test_custom_headers_are_what_celery_itself_does_not_send(echo, queue):
    """A new header of Celery's would be copied into every retry as if it were the user's (`_compat`)."""
    echo.apply_async(
        (1,), headers={"x-tenant": "a", "sg_key": "op:1"}, expires=60, time_limit=5, priority=3, shadow="s", countdown=1
    )

    message = queue.get(accept=["json"])

    assert custom_headers(message.headers) == {"x-tenant": "a", "sg_key": "op:1"}


def test_context_collects_custom_headers_unless_they_are_given():
    """A worker gives them, so that what is only between main process and child is no header."""
    assert Context({"id": "1", "sg_key": "op:1"}).headers == {"sg_key": "op:1"}
    assert Context({"id": "1", "sg_owner": "o", "headers": {"sg_key": "op:1"}}).headers == {"sg_key": "op:1"}


def test_context_gives_what_the_request_was_given():
    """Owner and raw message reach the child as attributes of its request."""
    assert Context({"id": "1", "sg_owner": "o"}).sg_owner == "o"


def test_headers_survive_signature_from_request(echo):
    """Retries, deferrals and eager copies are made by it (celery/celery#7523)."""
    request = Context({"id": "1", "args": (1,), "kwargs": {}, "headers": {"sg_key": "op:1"}})

    signature = echo.signature_from_request(request, countdown=3, retries=2)

    assert signature.options["headers"] == {"sg_key": "op:1"}
    assert {name: signature.options[name] for name in ("task_id", "countdown", "retries")} == {
        "task_id": "1",
        "countdown": 3,
        "retries": 2,
    }


def test_headers_given_to_signature_from_request_replace_the_collected_ones(echo):
    """So that a copy gets exactly the headers that were decided on."""
    request = Context({"id": "1", "args": (1,), "kwargs": {}, "headers": {"sg_key": "op:1"}})

    signature = echo.signature_from_request(request, headers={"sg_key": "op:1", "sg_seen": 3})

    assert signature.options["headers"] == {"sg_key": "op:1", "sg_seen": 3}


def test_delivery_info_leads_a_copy_back_to_its_queue(echo):
    """A message sent to the anonymous exchange names its queue as the routing key."""
    info = {"exchange": "", "routing_key": "slow", "priority": 7}
    request = Context({"id": "1", "args": (1,), "kwargs": {}, "delivery_info": info})

    options = echo.signature_from_request(request).options

    assert (options["queue"], options["priority"]) == ("slow", 7)


def test_request_class_may_be_named_by_text(app, echo, queue):
    """The worker's side is named, not imported: web processes do not load it."""
    assert symbol_by_name(SafeTask.Request) is SafeRequest
    type(echo).Request = SafeTask.Request
    received = []

    class Consumer(SimpleNamespace):
        __hash__ = object.__hash__

    consumer = Consumer(
        hostname="facts",
        connection_errors=(),
        event_dispatcher=None,
        timer=SimpleNamespace(call_at=None),
        apply_eta_task=None,
        disable_rate_limits=True,
        task_buckets={},
        on_task_request=received.append,
        _limit_task=None,
        _limit_post_eta=None,
        pool=SimpleNamespace(apply_async=None),
        controller=SimpleNamespace(state=SimpleNamespace(revoked=set())),
    )
    echo.delay(1)
    message = queue.get(accept=["json"])

    handler = strategy.default(echo, app, consumer)
    handler(message, None, message.ack_log_error, message.reject_log_error, [])

    (request,) = received
    assert isinstance(request, SafeRequest)
    assert request.request_dict["sg_owner"] == request.sg_owner
    assert request.request_dict["sg_wire"]["body"] is message.body


def test_request_calls_its_own_acknowledge_and_reject(echo, queue):
    """The keeper forgets an owner there: an ack that goes past them would renew a claim for ever."""
    calls = []

    class Watched(Request):
        def acknowledge(self):
            calls.append("acknowledge")

        def reject(self, requeue=False):
            calls.append(f"reject {requeue}")

    type(echo).acks_late = True
    echo.delay(1)
    message = queue.get(accept=["json"])
    request = Watched(message, app=echo.app, task=echo)

    request.on_success((False, 1, 0.1))
    request.on_failure(_info(Ignore()))
    request.on_failure(_info(ValueError("no stock")))

    assert calls == ["acknowledge"] * 3


def _info(error):
    try:
        reraise(type(error), error)
    except type(error):
        return ExceptionInfo()


# --- the tracer


def test_tracer_goes_through_call_where_it_is_overridden(app):
    """There is where a delivery enters; a tracer that bound `run` would switch every safeguard off."""
    calls = []

    class Guarded(Task):
        name = "facts.guarded"

        def __call__(self, *args, **kwargs):
            calls.append(self.request.id)
            return "from call"

        def run(self):
            return "from run"

    task = app.register_task(Guarded())

    result = trace.build_tracer(task.name, task, app=app)("t1", (), {}, {"id": "t1"})

    assert (result.retval, calls) == ("from call", ["t1"])


def test_request_in_a_tracer_is_marked_as_no_direct_call(app):
    """`called_directly` tells a delivery from `task(1)`, `_protected` a body that runs from one that begins."""
    seen = []

    @app.task(bind=True, shared=False, name="facts.mark")
    def mark(self):
        top = self.request_stack.top
        seen.append((top.called_directly, top._protected))

    task = app.tasks[mark.name]
    task()
    trace.build_tracer(task.name, task, app=app)("t1", (), {}, {"id": "t1"})

    assert seen == [(True, 0), (False, 0)]


def test_worker_does_not_push_a_second_request_for_one_that_is_marked(app):
    """Under the worker's protection a marked request takes the plain way: a new frame, the body, no second claim."""
    depth = []

    class Guarded(Task):
        name = "facts.protected"

        def __call__(self, *args, **kwargs):
            top = self.request_stack.top
            if top is None or top._protected:
                return super().__call__(*args, **kwargs)
            top._protected = 1
            return self.run(*args, **kwargs)

        def run(self, number):
            depth.append(len(self.request_stack))
            return self(number - 1) if number else "end"

    task = app.register_task(Guarded())
    trace._install_stack_protection()
    try:
        result = trace.build_tracer(task.name, task, app=app)("t1", (1,), {}, {"id": "t1"})
    finally:
        trace.reset_worker_optimizations(app)

    assert (result.retval, depth) == ("end", [1, 2])


def test_tracer_sends_nothing_that_was_taken_off_the_request(app, queue):
    """The pipeline sends what follows itself, and must not see it sent twice (`pipeline/continuing`)."""

    @app.task(bind=True, shared=False, name="facts.first")
    def first(self):
        self.request.callbacks = self.request.chain = None

    @app.task(shared=False, name="facts.next")
    def following(value):
        return value

    task = app.tasks[first.name]
    link = following.s()
    trace.build_tracer(task.name, task, app=app)("t1", (), {}, {"id": "t1", "callbacks": [link], "chain": [link]})

    assert queue.get(accept=["json"]) is None


def test_tracer_calls_on_success_after_the_result_is_stored(app):
    """A chord's part is reported with the result; only then may the record be marked."""
    seen = []

    class Watched(Task):
        name = "facts.watched"

        def run(self):
            return "done"

        def on_success(self, retval, task_id, args, kwargs):
            seen.append(self.app.AsyncResult(task_id).state)

    task = app.register_task(Watched())

    trace.build_tracer(task.name, task, app=app)("facts-stored", (), {}, {"id": "facts-stored"})

    assert seen == [states.SUCCESS]


def test_tracer_stores_nothing_and_calls_no_hook_for_ignore(app):
    """A deferral must leave no trace in the result back end, or its copy's success would come second."""
    seen = []

    class Ignoring(Task):
        name = "facts.ignoring"

        def run(self):
            raise Ignore

        def on_failure(self, *args):
            seen.append("on_failure")

        def on_retry(self, *args):
            seen.append("on_retry")

        def after_return(self, *args):
            seen.append("after_return")

    task = app.register_task(Ignoring())

    result = trace.build_tracer(task.name, task, app=app)("facts-ignored", (), {}, {"id": "facts-ignored"})

    assert (result.info.state, seen, app.AsyncResult("facts-ignored").state) == (states.IGNORED, [], states.PENDING)


def test_apply_runs_the_signature_of_a_retry(echo):
    """An eager retry is a `Retry` that carries what to run next."""

    @echo.app.task(bind=True, shared=False, name="facts.eager")
    def eager(self, number):
        if number < 3:
            sig = self.signature_from_request(self.request, (number + 1,), {}, retries=self.request.retries + 1)
            raise Retry(is_eager=True, sig=sig, when=0)
        return number, self.request.retries

    assert eager.apply((1,)).get() == (3, 2)


def test_continuation_sent_by_celery_is_told_by_its_stack(app, queue):
    """A refusal must raise in user code, and not while Celery sends the next of a chain (`pipeline/refusing`)."""
    told = []

    class Watched(Task):
        name = "facts.told"

        def run(self, *args):
            return None

        def apply_async(self, *args, **kwargs):
            told.append(is_dispatched_by_celery(sys._getframe(1)))
            return super().apply_async(*args, **kwargs)

    task = app.register_task(Watched())
    task.delay()
    task.s().apply_async()
    trace.build_tracer(task.name, task, app=app)("t1", (), {}, {"id": "t1", "callbacks": [task.s()]})

    assert told == [False, False, True]


# --- registration


def test_registering_an_unnamed_class_names_its_instance_after_the_rule_that_is_used_here(app):
    """`on_bound` sees the class only: it must come to the same name, or the scope of every key would change."""

    class Unnamed(Task):
        def run(self):
            return None

    task = app.register_task(Unnamed())

    assert (Unnamed.name, task.name) == (None, app.gen_task_name("Unnamed", __name__))


def test_task_is_listed_before_it_is_bound(app):
    """So a refused one has to be taken off the list again; a later Celery may do so itself."""

    class Refusing(Task):
        @classmethod
        def on_bound(cls, app):
            raise ValueError("refused")

    @app.task(base=Refusing, shared=False, name="facts.refused")
    def refused():
        return None

    with pytest.raises(ValueError, match="refused"):
        refused.delay()

    assert "facts.refused" in app._tasks


def test_bootsteps_may_be_named_by_text():
    """The worker's steps are named in the app, and loaded in workers only."""

    class Steps(Blueprint):
        default_steps = frozenset(
            {
                "celery_safeguards.worker.steps:LeaseStep",
                "celery_safeguards.worker.steps:CheckStep",
                "celery_safeguards.worker.intake:IntakeStep",
            }
        )

    assert set(Steps().claim_steps().values()) == {LeaseStep, CheckStep, IntakeStep}


# --- what children report


def test_error_of_a_child_is_found_in_its_report():
    """A wrapped exception that is not unwrapped would be taken for a failure like any other."""
    error = Ignore("put off")

    assert raised_in_child(_info(error)) is error


def test_error_of_a_child_is_found_after_pickle():
    """Prefork pools send the report through a pipe."""
    report = pickle.loads(pickle.dumps(_info(Ignore("put off"))))

    assert repr(raised_in_child(report)) == repr(Ignore("put off"))


def test_wrapper_of_a_childs_error_still_has_its_name():
    """It is known by name, since billiard has moved the class between versions."""
    assert type(_info(ValueError("x")).exception).__name__ == "ExceptionWithTraceback"


# --- the broker


def test_dropped_message_frees_its_slot_and_is_not_put_back_by_a_shutdown(echo, queue):
    """Without the slot a worker with prefetch 1 stands still; put back at once it would run beside its new owner."""
    echo.delay(1)
    message = queue.get(accept=["json"])
    qos = message.channel.qos
    qos.append(message, message.delivery_tag)
    can_consume = [qos.can_consume()]
    request = Request(message, app=echo.app, task=echo)

    drop_locally(request)
    can_consume.append(qos.can_consume())
    qos.restore_unacked()

    assert (can_consume, request.acknowledged, message.acknowledged) == ([False, True], True, False)
    assert queue.get(accept=["json"]) is None


def test_redis_channel_is_known_by_its_poll_flag():
    """The channel that must be closed twice is told from others by it (`_compat.close_to_the_end`)."""
    assert RedisChannel._in_poll is False


# --- the current app


def test_app_that_is_current_is_found_and_none_is_made(monkeypatch):
    """A check would leave Celery's fall-back app behind, and every later `shared_task` would be bound to it."""
    from celery import _state

    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)
    assert made_app() is None
    assert _state.default_app is None

    with Celery("facts") as app:
        assert made_app() is app
        monkeypatch.setattr(_state._tls, "current_app", None)
        app.set_default()
        assert made_app() is app
