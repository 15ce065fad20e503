"""
Every way to make a task, with one body: what a task is must not depend on how it was declared.

Celery has lost options for class-based tasks alone (celery/celery#4684), and pushed a second, empty request where
`__call__` was overridden (celery/celery#4993). A real worker of each kind runs in a thread of this process, on the
memory broker.
"""

import pytest
from celery import Celery, chord, shared_task
from celery.contrib.testing.worker import start_worker
from celery.result import allow_join_result

from celery_safeguards import RetryPolicy, Safeguards, SafeTask, current_safe
from celery_safeguards.errors import DeadLettered, SafeguardsError
from celery_safeguards.wiring import Wiring
from tests.integration.declarations.declared import KEY, KEYED, settings

AT_ONCE = RetryPolicy(attempts=4, base_seconds=0.001, factor=1, cap_seconds=0.001)


# --- one body, declared in every way


def _body(task, number):
    """Say what a body can see of itself; fail on the first start."""
    safe = current_safe()
    seen = (task.request.id, task.request.retries, safe.attempt, safe.idempotency_key)
    _SEEN.setdefault(task.request.id, []).append(seen)
    if task.request.retries == 0:
        raise ConnectionRefusedError("gateway is down")
    return {"paid": number}


_SEEN = {}
_OPTIONS = Safeguards(idempotent=KEY, retry=AT_ONCE)


def by_decorator(app):
    """Declare by the app's decorator."""

    @app.task(base=SafeTask, bind=True, safeguards=_OPTIONS, name="way.by_decorator", shared=False)
    def pay(self, number):
        return _body(self, number)

    return pay


def by_shared_task(app):
    """Declare by `shared_task`, as reusable Django apps do."""

    @shared_task(base=SafeTask, bind=True, safeguards=_OPTIONS, name=f"{app.main}.shared")
    def pay(self, number):
        return _body(self, number)

    return pay


def by_another_first_name(app):
    """Declare a bound body whose first parameter is not called self."""

    @app.task(base=SafeTask, bind=True, safeguards=_OPTIONS, name="way.by_another_first_name", shared=False)
    def pay(this, number):
        return _body(this, number)

    return pay


def by_no_bind(app):
    """Declare a body that is a plain function."""

    @app.task(base=SafeTask, safeguards=_OPTIONS, name="way.by_no_bind", shared=False)
    def pay(number):
        return _body(pay, number)

    return pay


def by_class(app):
    """Declare by a class with a name."""

    class Pay(SafeTask):
        name = "declared.pay"
        safeguards = _OPTIONS

        def run(self, number):
            return _body(self, number)

    return app.register_task(Pay())


def by_class_without_a_name(app):
    """Declare by a class that leaves its name to Celery."""

    class Pay(SafeTask):
        safeguards = _OPTIONS

        def run(self, number):
            return _body(self, number)

    return app.register_task(Pay())


def by_subclass_that_overrides_run(app):
    """Declare by a class whose parent holds the safeguards."""

    class Payments(SafeTask):
        safeguards = _OPTIONS

        def run(self, number):
            raise NotImplementedError

    class Pay(Payments):
        name = "declared.pay_by_run"

        def run(self, number):
            return _body(self, number)

    return app.register_task(Pay())


def by_subclass_that_overrides_call(app):
    """Declare on a base that wraps every call, as tracing libraries and tenant switches do."""

    class Traced(SafeTask):
        calls = 0

        def __call__(self, *args, **kwargs):
            type(self).calls += 1
            return super().__call__(*args, **kwargs)

    @app.task(base=Traced, bind=True, safeguards=_OPTIONS, name="way.by_subclass_that_overrides_call", shared=False)
    def pay(self, number):
        assert type(self).calls > 0
        return _body(self, number)

    return pay


def by_call_that_runs_the_body(app):
    """Declare on a base whose call runs the body itself, as Flask's documentation has it for its app context."""

    class InContext(SafeTask):
        def __call__(self, *args, **kwargs):
            return self.run(*args, **kwargs)

    @app.task(base=InContext, bind=True, safeguards=_OPTIONS, name="way.by_call_that_runs_the_body", shared=False)
    def pay(self, number):
        return _body(self, number)

    return pay


def by_call_that_runs_a_plain_function(app):
    """Declare a body that is a plain function on such a base."""

    class InContext(SafeTask):
        def __call__(self, *args, **kwargs):
            return self.run(*args, **kwargs)

    @app.task(base=InContext, safeguards=_OPTIONS, name="way.by_call_that_runs_a_plain_function", shared=False)
    def pay(number):
        return _body(pay, number)

    return pay


def by_mixin(app):
    """Declare with a foreign class in front that calls on."""

    class Tenant:
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    class Pay(Tenant, SafeTask):
        name = "declared.pay_by_mixin"
        safeguards = _OPTIONS

        def run(self, number):
            return _body(self, number)

    return app.register_task(Pay())


WAYS = [
    by_decorator,
    by_shared_task,
    by_another_first_name,
    by_no_bind,
    by_class,
    by_class_without_a_name,
    by_subclass_that_overrides_run,
    by_subclass_that_overrides_call,
    by_call_that_runs_the_body,
    by_call_that_runs_a_plain_function,
    by_mixin,
]


def expected_of(task_id):
    """Return what the body sees of itself, start by start."""
    return [(task_id, 0, 1, "op:7"), (task_id, 1, 2, "op:7")]


def test_every_declaration_is_guarded_in_a_worker(app):
    """A declaration that is silently unguarded charges twice, and no test of the other ways shows it."""
    # One worker for all: Celery's own worker for tests takes seconds to stop, and two of them stop each other.
    tasks = {declare.__name__: declare(app) for declare in WAYS}
    found, expected = {}, {}

    with start_worker(app, pool="solo", perform_ping_check=False), allow_join_result():
        for way, task in tasks.items():
            first = task.delay(7)
            results = [first.get(timeout=20)]
            second = task.delay(7)
            results.append(second.get(timeout=20))
            found[way] = (results, [_SEEN.pop(each.id, []) for each in (first, second)])
            expected[way] = ([{"paid": 7}] * 2, [expected_of(first.id), []])

    assert found == expected


@pytest.mark.parametrize("declare", WAYS)
@pytest.mark.parametrize("eager", ["always_eager", "apply"])
def test_every_declaration_is_guarded_in_eager_mode(app, declare, eager):
    """Most test suites run tasks this way: it must show the same task."""
    task = declare(app)
    app.conf.task_always_eager = eager == "always_eager"
    call = task.delay if eager == "always_eager" else lambda number: task.apply((number,))

    first, second = call(7), call(7)

    assert [first.get(), second.get()] == [{"paid": 7}] * 2
    assert [_SEEN.pop(each.id, []) for each in (first, second)] == [expected_of(first.id), []]


@pytest.mark.parametrize("declare", WAYS)
def test_every_declaration_called_directly_is_a_plain_call(app, declare):
    """A direct call has no message: it takes no claim and leaves no record."""
    task = declare(app)
    task.plan.key((7,), {})

    with pytest.raises(SafeguardsError, match="no guarded task runs here"):
        task(7)

    assert Wiring.of(app).admission.read(task.plan.record_key("op:7")) is None


# --- a whole app


def test_app_may_make_all_its_tasks_guarded(namespace):
    """`task_cls` is how a project guards everything at once; Celery's own tasks derive from it as well."""
    with Celery(namespace, broker="memory://", backend="cache+memory://", task_cls=SafeTask) as app:
        app.conf.update(settings(namespace))

        @app.task(safeguards=KEYED, shared=False)
        def pay(number):
            return current_safe().idempotency_key

        @app.task(shared=False)
        def plain(number):
            return number

        assert pay.apply((7,)).get() == "op:7"
        assert isinstance(app.tasks[plain.name], SafeTask)
        assert app.tasks["celery.chord_unlock"].is_built_in


def test_task_cls_may_be_given_by_name(namespace):
    """A settings file names the class as text."""
    with Celery(namespace, broker="memory://", task_cls="celery_safeguards:SafeTask") as app:
        app.conf.update(settings(namespace))

        @app.task(safeguards=KEYED, shared=False)
        def pay(number):
            return current_safe().idempotency_key

        assert pay.apply((7,)).get() == "op:7"


def test_celerys_own_tasks_work_under_a_guarded_app(namespace, tmp_path):
    """`chord_unlock` retries itself without an end, `map` and `chunks` call tasks: guards must not change them."""
    with Celery(namespace, broker="memory://", backend=f"file://{tmp_path}", task_cls=SafeTask) as app:
        app.conf.update(settings(namespace), result_chord_retry_interval=0.05)

        @app.task(safeguards=Safeguards(repeatable=True), shared=False)
        def double(number):
            return number * 2

        @app.task(safeguards=Safeguards(repeatable=True), shared=False)
        def total(numbers):
            return sum(numbers)

        with start_worker(app, pool="solo", perform_ping_check=False), allow_join_result():
            results = [
                chord([double.s(1), double.s(2)], total.s()).apply_async(),
                double.map([1, 2, 3]).apply_async(),
                (double.s(1) | double.s()).apply_async(),
            ]
            got = [each.get(timeout=20) for each in results]

    assert got == [6, [2, 4, 6], 4]


def test_pytest_worker_runs_guarded_tasks_on_a_real_server(redis_url, namespace):
    """The same task on the stores that production has, with its failure's letter."""
    with Celery(namespace, broker="memory://", backend="cache+memory://") as app:
        app.conf.update(settings(namespace), safeguards_store_url=redis_url, safeguards_namespace=namespace)

        @app.task(base=SafeTask, bind=True, safeguards=Safeguards(idempotent=KEY, retry=None), shared=False)
        def pay(self, number):
            if number < 0:
                raise ValueError("negative")
            return self.request.id

        wiring = Wiring.of(app)
        wiring.admission.declare_new()
        with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False), allow_join_result():
            first, bad = pay.delay(7), pay.delay(-1)
            assert first.get(timeout=20) == first.id
            assert pay.delay(7).get(timeout=20) == first.id
            with pytest.raises(DeadLettered, match="negative") as raised:
                bad.get(timeout=20)

        assert wiring.letters.get(raised.value.letter_id).task_id == bad.id
