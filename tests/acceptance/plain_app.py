"""
An app without safeguards: what Celery does by itself.
"""

from celery import Celery

from tests.support.announce import announce, gate
from tests.support.apps import settings_from_environment

app = Celery("plain", set_as_current=False)
app.conf.update(settings_from_environment())


@app.task(name="plain.add")
def add(x, y):
    return x + y


@app.task(name="plain.effect")
def effect(order_id):
    gate("before_effect", order_id=order_id)
    announce("effect", order_id=order_id)
    gate("after_effect", order_id=order_id)
    return order_id
