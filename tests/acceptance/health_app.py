"""
An app whose worker can be made to consume nothing while its process lives: the app that tests of health probe.

    block_loop    a command of remote control that waits at the gate `loop`, in the consumer's own loop
    lose_poll     one that makes the Redis transport forget to ask for messages, as after a reconnect that went wrong
"""

import json
import os

from celery import Celery
from celery.worker.control import control_command

from celery_safeguards import Safeguards, SafeTask
from tests.support.announce import announce, gate
from tests.support.apps import NAMESPACE, settings_from_environment

SETTINGS = "HEALTH_SETTINGS"


@control_command()
def block_loop(panel):
    gate("loop")


@control_command()
def lose_poll(panel):
    poller = panel.consumer.connection.transport.cycle
    poller._register_BRPOP = lambda channel: None


def build(namespace, celery_settings):
    """Return the app."""
    built = Celery("health", set_as_current=False)
    built.conf.update({"safeguards_namespace": namespace, **celery_settings})
    options = {"base": SafeTask, "safeguards": Safeguards(repeatable=True)}
    built.task(work, name="health.work", **options)
    built.task(stay, name="health.stay", **options)
    return built


def work(number):
    announce("worked", number=number)


def stay(name):
    gate(f"stay:{name}")


def _app_from_environment():
    changes = json.loads(os.environ[SETTINGS])
    return build(os.environ[NAMESPACE], settings_from_environment(**changes))


app = _app_from_environment() if SETTINGS in os.environ else None
