"""
Two apps that share a broker's database and no queue: one whose body takes its time, and a newcomer.

The newcomer may have another visibility timeout, or a host whose clock is ahead.
"""

import os
import time

import kombu.transport.redis
from celery import Celery

from celery_safeguards import Safeguards, SafeTask
from celery_safeguards.clock import SystemClock
from tests.support.announce import gate
from tests.support.apps import NAMESPACE, settings_from_environment

IS_NEWCOMER = "FLEET_IS_NEWCOMER"
VISIBILITY = "FLEET_VISIBILITY_SECONDS"
AHEAD = "FLEET_CLOCK_AHEAD_SECONDS"
STRICT = "FLEET_STRICT"


def work(number):
    gate(f"work_{number}", number=number)
    return number


def visit(number):
    return number


def set_clock_ahead(seconds):
    """Let what Celery's transport and the safeguards take for this host's time be ahead."""

    def ahead():
        return time.time() + seconds

    kombu.transport.redis.time = ahead
    SystemClock.wall_seconds = staticmethod(ahead)


def make_app():
    settings = settings_from_environment(
        safeguards_namespace=os.environ[NAMESPACE],
        safeguards_lease_seconds=3.0,
        safeguards_store_timeout_seconds=0.9,
        safeguards_strict=bool(os.environ.get(STRICT)),
    )
    settings["broker_transport_options"] |= {
        "visibility_timeout": float(os.environ[VISIBILITY]),
        "socket_timeout": 30,
        "socket_keepalive": True,
    }
    app = Celery("fleet", set_as_current=False)
    app.conf.update(settings)
    is_newcomer = bool(os.environ.get(IS_NEWCOMER))
    # Bounded below every timeout of these tests: nothing but the fleet is to be found.
    body, limit = (visit, 1) if is_newcomer else (work, 50)
    name = f"fleet.{body.__name__}"
    app.task(
        body,
        name=name,
        base=SafeTask,
        safeguards=Safeguards(repeatable=True, retry=None, max_lease_seconds=limit),
        shared=False,
    )
    if os.environ.get(AHEAD):
        set_clock_ahead(float(os.environ[AHEAD]))
    return app


app = make_app() if NAMESPACE in os.environ else None
