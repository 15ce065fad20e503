"""
A declaration that guards nothing: it is told, or refused, before the first message.
"""

import pytest
from celery import Celery

from celery_safeguards import EntityLock, Idempotent, RetryPolicy, Safeguards, SafeTask
from celery_safeguards.diagnose.examining import examine
from celery_safeguards.errors import ConfigurationError

KEYED = Idempotent("op:{number}", on_unknown="rerun")


@pytest.fixture
def app():
    with Celery("unguarded", broker="memory://", set_as_current=False) as app:
        app.conf.safeguards_store_url = "memory://"
        yield app


def body(number):
    return number


def test_task_with_safeguards_and_without_the_base_class_is_told(app):
    """Two publications would run twice, and nothing say so before the customer does."""
    app.task(body, name="pay", shared=False, safeguards=Safeguards(idempotent=KEYED))
    app.task(body, name="guarded", shared=False, base=SafeTask, safeguards=Safeguards(idempotent=KEYED))
    app.task(body, name="plain", shared=False)

    assert ["SG103 not guarded: pay has safeguards= and no base=SafeTask, so nothing of it holds"] == [
        str(each) for each in examine(app)
    ]


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({"idempotent": KEYED}, "safeguards=Safeguards(idempotent=Idempotent(...))"),
        ({"lock": EntityLock("op:{number}")}, "safeguards=Safeguards(lock=EntityLock(...))"),
        ({"backoff": RetryPolicy()}, "safeguards=Safeguards(retry=RetryPolicy(...))"),
    ],
)
def test_policy_as_an_option_of_the_task_is_refused(app, options, right):
    """Celery makes an attribute of it, which nobody reads."""
    pay = app.task(body, name="pay", shared=False, base=SafeTask, **options)

    with pytest.raises(ConfigurationError) as refused:
        pay.delay(7)

    assert right in str(refused.value)
