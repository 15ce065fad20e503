"""
Every way to make a task, with one body: what a task is must not depend on how it was declared.

Celery has lost options for class-based tasks alone (celery/celery#4684), and pushed a second, empty request where
`__call__` was overridden (celery/celery#4993). A real worker of each kind runs in a thread of this process, on the
memory broker.
"""

import contextlib
import threading
from dataclasses import replace
from random import Random

import pytest
from celery import Celery, Task, _state, chord, shared_task
from celery.contrib.testing.worker import start_worker
from celery.result import allow_join_result

from celery_safeguards import Idempotent, RetryPolicy, Safeguards, SafeTask, Verify, current_safe
from celery_safeguards.errors import ConfigurationError, DeadLettered, SafeguardsError
from celery_safeguards.policy import Declared
from celery_safeguards.wiring import Wiring

KEY = Idempotent("op:{number}", on_unknown="rerun")
KEYED = Safeguards(idempotent=KEY)
AT_ONCE = RetryPolicy(attempts=4, base_seconds=0.001, factor=1, cap_seconds=0.001)


def settings(queue):
    """Return the settings of an app on the memory broker, whose worker looks for messages often."""
    return {
        "task_default_queue": queue,
        "safeguards_store_url": "memory://",
        "worker_hijack_root_logger": False,
        "broker_transport_options": {"polling_interval": 0.01},
    }


@pytest.fixture
def app(namespace):
    """An app of its own queue, with stores in memory; the current one, as a project's app is."""
    before = set(_state._on_app_finalizers)
    with Celery(namespace, broker="memory://", backend="cache+memory://") as app:
        app.conf.update(settings(namespace))
        app.set_current()
        yield app
    # What `shared_task` has left would be registered in every app of this process from now on.
    _state._on_app_finalizers.intersection_update(before)


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
        assert app.tasks["celery.chord_unlock"].is_celerys_own


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


# --- direct calls


@pytest.mark.parametrize("base", [Task, SafeTask])
def test_body_that_calls_its_own_task_directly_sees_the_request_that_a_plain_task_sees(app, base):
    """A second, empty request was pushed here once: the outer body lost its id (celery/celery#4993)."""
    seen = []

    @app.task(base=base, bind=True, safeguards=KEYED, shared=False)
    def count(self, number):
        seen.append((number, self.request.id))
        if number:
            count(number - 1)
            seen.append((number, self.request.id))

    count.apply((2,), task_id="outer").get()

    assert seen == [(number, "outer") for number in (2, 1, 0, 1, 2)]


def test_body_that_calls_its_own_task_directly_takes_no_second_claim(app):
    """Another number in a plain call is no other operation: it is part of the one that runs."""

    @app.task(base=SafeTask, bind=True, safeguards=KEYED, shared=False)
    def count(self, number):
        return [self.safe.idempotency_key] + (count(number - 1) if number else [])

    assert count.apply((1,)).get() == ["op:1", "op:1"]
    assert Wiring.of(app).admission.read(count.plan.record_key("op:0")) is None


def test_body_that_calls_another_task_directly_runs_it_under_its_own_view(app):
    """The called body belongs to the caller's operation: it has no key of its own."""

    @app.task(base=SafeTask, safeguards=KEYED, shared=False)
    def inner(number):
        return current_safe().idempotency_key

    @app.task(base=SafeTask, safeguards=KEYED, shared=False)
    def outer(number):
        return inner(number + 1)

    assert outer.apply((1,)).get() == "op:1"


def test_view_of_a_bound_task_is_the_current_one(app):
    """`self.safe` and `current_safe()` must not differ."""

    @app.task(base=SafeTask, bind=True, safeguards=KEYED, shared=False)
    def pay(self, number):
        return self.safe is current_safe()

    assert pay.apply((1,)).get() is True


# --- nothing of one call stays on the task


def test_concurrent_runs_keep_nothing_on_the_task_and_get_their_own_delay(app):
    """Celery keeps back-off state on the task object: threads use each other's countdown (celery/celery#10456)."""
    policy = RetryPolicy(attempts=60, base_seconds=100, factor=1.05, cap_seconds=9000)
    every = threading.Barrier(8)
    retried = {}

    @app.task(base=SafeTask, bind=True, safeguards=Safeguards(repeatable=True, retry=policy), shared=False)
    def fail(self, number):
        with contextlib.suppress(threading.BrokenBarrierError):
            every.wait(timeout=0.5)
        raise ConnectionRefusedError("gateway is down")

    class Highest(Random):
        def uniform(self, a, b):
            return b

    replace(Wiring.of(app), chance=Highest()).use_for(app)
    task = app.tasks[fail.name]
    on_retry_seen = threading.Semaphore(0)

    def publish(self, args, kwargs, **options):
        retried[options["retries"]] = options["countdown"]
        on_retry_seen.release()

    type(task).publish = publish
    before = _state_of(task)

    with start_worker(app, pool="threads", concurrency=8, perform_ping_check=False):
        for number in range(48):
            task.apply_async((number,), retries=number)
        for _ in range(48):
            assert on_retry_seen.acquire(timeout=20)

    assert _state_of(task) == before
    assert retried == {number + 1: pytest.approx(min(9000, 100 * 1.05**number)) for number in range(48)}


def _state_of(task):
    """Return everything a task object and its classes hold, but for what Celery itself builds on first use."""
    built_by_celery = {"__trace__", "_exec_options", "backend", "_backend", "request_stack", "publish"}
    found = {}
    for holder in (task, *type(task).__mro__):
        found.update({(str(holder), name): repr(value) for name, value in vars(holder).items()})
    return {place: value for place, value in found.items() if place[1] not in built_by_celery}


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


# --- what is refused


def declare(app, **options):
    """Register a task with options, as an import does, and return it."""

    @app.task(base=SafeTask, bind=True, shared=False, **{"name": "refused.task", **options})
    def body(self, order_id, amount=0):
        return None

    return app.tasks["refused.task"]


REFUSED = [
    ({"autoretry_for": (ValueError,)}, "RetryPolicy"),
    ({"max_retries": 5}, r"attempts = max_retries \+ 1"),
    ({"max_retries": 0}, r"attempts = max_retries \+ 1"),
    ({"max_retries": None}, r"attempts = max_retries \+ 1"),
    ({"retry_backoff": True}, "base_seconds"),
    ({"retry_kwargs": {"max_retries": 5}}, "RetryPolicy"),
    ({"default_retry_delay": 10}, "base_seconds"),
    ({"reject_on_worker_lost": True}, "max_lost_starts"),
    ({"acks_late": False}, "at_most_once=True"),
    ({"acks_on_failure_or_timeout": False}, "at_most_once=True"),
]


@pytest.mark.parametrize(("options", "fix"), REFUSED, ids=str)
def test_option_that_undoes_a_safeguard_is_refused_with_its_name_and_the_fix(app, options, fix):
    """An option that is silently ignored, or that silently wins, is found out in production."""
    (option,) = options

    with pytest.raises(ConfigurationError, match=rf"refused\.task: {option}=.*{fix}"):
        declare(app, **options)


@pytest.mark.parametrize(("options", "fix"), REFUSED, ids=str)
def test_option_is_refused_on_a_class_as_well(app, options, fix):
    """Class-based tasks are where Celery's own options have gone missing (celery/celery#6117)."""
    refused = type("Refused", (SafeTask,), {"name": "refused.cls", "run": lambda self, number: None, **options})

    with pytest.raises(ConfigurationError, match=f"{next(iter(options))}=.*{fix}"):
        app.register_task(refused())


def test_option_from_task_annotations_is_refused(app):
    """Annotations come from a settings file, far from the task."""
    app.conf.task_annotations = {"*": {"max_retries": 5}}

    with pytest.raises(ConfigurationError, match="max_retries=5"):
        declare(app)


def test_options_that_change_nothing_are_not_refused(app):
    """A shared base that switches an option off explicitly must not have to be rewritten."""
    task = declare(app, autoretry_for=(), retry_backoff=False, reject_on_worker_lost=False, acks_late=True)

    assert task.policy.declared is Declared.NOTHING


def test_refused_task_stays_refused(app):
    """Celery keeps a task whose registration failed: the second request of a web process would run it unguarded."""

    @app.task(base=SafeTask, name="refused.twice", max_retries=5, shared=False)
    def body(number):
        return None

    for _ in range(2):
        with pytest.raises(ConfigurationError, match="max_retries=5"):
            body.delay(1)


def test_early_acknowledgement_needs_a_declaration(app):
    """Who may lose work has to say so; then the option follows by itself."""
    task = declare(app, safeguards=Safeguards(at_most_once=True))

    assert task.acks_late is False


@pytest.mark.parametrize(
    ("idempotent", "message"),
    [
        (Idempotent("payment:{order}", on_unknown="rerun"), "'order' is no parameter of the task; did you mean"),
        (Idempotent("payment:{task_id}", on_unknown="rerun"), "names the business operation, not the delivery"),
        (Idempotent("p:{order_id}", on_unknown="rerun", fingerprint=("amuont",)), "did you mean 'amount'"),
    ],
)
def test_name_that_is_no_parameter_is_refused_when_the_task_is_registered(app, idempotent, message):
    """At publish time the first customer finds the typing error."""
    with pytest.raises(ConfigurationError, match=f"refused.task: .*{message}"):
        declare(app, safeguards=Safeguards(idempotent=idempotent))


def test_safeguards_that_are_none_are_refused(app):
    """A dict, or the policy itself in place of `Safeguards(...)`, must not count as no safeguards."""
    with pytest.raises(ConfigurationError, match=r"safeguards=.*give Safeguards\(\.\.\.\)"):
        declare(app, safeguards=KEY)


# --- values along the inheritance


def test_decorator_and_classes_add_up_and_the_latest_wins(app):
    """A team's base class sets the policy once; a task changes what it needs and keeps the rest."""

    class Payments(SafeTask):
        safeguards = Safeguards(repeatable=True, max_lost_starts=5, on_store_down="run_unprotected")

    class Refunds(Payments):
        safeguards = Safeguards(max_lost_starts=2)

    @app.task(base=Refunds, safeguards=Safeguards(idempotent=KEY), shared=False)
    def refund(number):
        return None

    policy = refund.policy
    assert (policy.declared, policy.max_lost_starts, policy.on_store_down) == (
        Declared.IDEMPOTENT,
        2,
        "run_unprotected",
    )


def test_subclass_of_a_keyed_task_that_is_repeatable_has_no_key(app):
    """A plan that is inherited with the class would answer the child's calls from the parent's records."""

    class Pay(SafeTask):
        name = "family.pay"
        safeguards = KEYED

        def run(self, number):
            return number

    class Look(Pay):
        name = "family.look"
        safeguards = Safeguards(repeatable=True)

    app.register_task(Pay())
    look = app.register_task(Look())

    assert (look.plan, look.policy.declared) == (None, Declared.REPEATABLE)


def test_one_value_serves_many_tasks(app):
    """Values are shared by a whole project: registering one task must not change another's."""
    shared = Safeguards(idempotent=Idempotent("op:{number}", on_unknown=Verify(print)))

    @app.task(base=SafeTask, safeguards=shared, shared=False)
    def one(number):
        return None

    @app.task(base=SafeTask, safeguards=shared, shared=False)
    def two(number):
        return None

    assert one.plan.record_key("op:1") != two.plan.record_key("op:1")
    assert one.plan.idempotent is two.plan.idempotent is shared.idempotent


def test_registering_twice_changes_nothing(app):
    """Celery binds every task again when the app is finalised."""
    key = Idempotent("payment:{order_id}", on_unknown="rerun")
    task = declare(app, safeguards=Safeguards(idempotent=key))
    before = _state_of(task)

    task.bind(app)

    assert _state_of(task) == before
