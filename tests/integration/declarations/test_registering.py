"""
What registering a task refuses, with the name of the option and its fix, and how values add up along the classes.
"""

import celery
import pytest
from celery.worker.request import Request

from celery_safeguards import Idempotent, Safeguards, SafeTask, Verify
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.policy import Declared
from tests.integration.declarations.declared import KEY, KEYED, state_of

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


async def awaited(order_id): ...
async def awaited_for_each(order_id):
    yield order_id


def generated(order_id):
    yield order_id


@pytest.mark.parametrize("body", [awaited, awaited_for_each, generated])
def test_body_that_celery_would_call_and_not_run_is_refused(app, body):
    """It returns at once: the key of a payment that was never begun would be recorded as done."""
    safeguards = Safeguards(idempotent=Idempotent("op:{order_id}", on_unknown="rerun"))

    with pytest.raises(ConfigurationError, match=r"refused\.task: its body is .*asyncio\.run"):
        app.task(body, name="refused.task", lazy=False, shared=False, base=SafeTask, safeguards=safeguards)


def test_option_of_a_mixin_behind_the_base_is_refused(app):
    """Celery finds it there: errors that the policy buries would be retried all the same."""
    mixin = type("Retries", (), {"autoretry_for": (ValueError,)})
    refused = type("Refused", (SafeTask, mixin), {"name": "refused.cls", "run": lambda self, number: None})

    with pytest.raises(ConfigurationError, match=r"autoretry_for=.*RetryPolicy"):
        app.register_task(refused())


def test_defaults_of_celery_are_nobodys_options_where_a_project_replaces_its_task_class(app, monkeypatch):
    monkeypatch.setattr(celery, "Task", type("Replaced", (SafeTask,), {"abstract": True}))

    assert declare(app).max_retries == 3


def test_option_from_task_annotations_is_refused(app):
    """Annotations come from a settings file, far from the task."""
    app.conf.task_annotations = {"*": {"max_retries": 5}}

    with pytest.raises(ConfigurationError, match="max_retries=5"):
        declare(app)


def test_options_that_change_nothing_are_not_refused(app):
    """A shared base that switches an option off explicitly must not have to be rewritten."""
    task = declare(app, autoretry_for=(), retry_backoff=False, reject_on_worker_lost=False, acks_late=True)

    assert task.policy.declared is Declared.NOTHING


@pytest.mark.parametrize("throws", [KeyError, (KeyError,), [KeyError]], ids=["class", "tuple", "list"])
def test_errors_that_a_task_may_raise_are_expected_however_they_are_given(app, throws):
    """Celery asks `isinstance`, which takes a class alone: such a task could not be registered."""
    task = declare(app, throws=throws)

    assert task.throws[0] is KeyError


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
    before = state_of(task)

    task.bind(app)

    assert state_of(task) == before


class MinimalRequest(Request):
    """A request of a project's own, as Celery's documentation shows them."""


@pytest.mark.parametrize("given", [MinimalRequest, f"{__name__}:MinimalRequest"], ids=["class", "name"])
def test_request_that_knows_no_safeguards_keeps_a_worker_from_starting(app, given):
    """Nothing would renew its claims, and a delivery without a right to acknowledge would be acknowledged."""
    task = declare(app, Request=given)

    with pytest.raises(ConfigurationError, match="derive it from celery_safeguards") as refused:
        task.start_strategy(app, None)

    assert SafeTask.Request in str(refused.value)
