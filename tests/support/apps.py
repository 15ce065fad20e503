"""
What every test app reads from its environment, so that one test's workers share nothing with another's.
"""

import json
import os
import time

from kombu.transport import redis as transport

BROKER_URL = "SAFEGUARDS_TEST_BROKER_URL"
STORE_URL = "SAFEGUARDS_TEST_STORE_URL"
NAMESPACE = "SAFEGUARDS_TEST_NAMESPACE"
GATEWAY_URL = "SAFEGUARDS_TEST_GATEWAY_URL"
TRANSPORT = "SAFEGUARDS_TEST_TRANSPORT"
"""Which transport a test's workers and producers have."""
VISIBILITY = "SAFEGUARDS_TEST_VISIBILITY_SECONDS"
BROKER_OPTIONS = "SAFEGUARDS_TEST_BROKER_OPTIONS"
"""More of `broker_transport_options`, as JSON."""


CLOCK_AHEAD = "SAFEGUARDS_TEST_CLOCK_AHEAD_SECONDS"
"""By how much a worker's clock is wrong, as its transport sees it."""


def queue_settings(namespace):
    """Return the Celery settings that say where a test's messages lie: producer and worker must agree on them."""
    return {
        "task_default_queue": namespace,
        "broker_transport_options": {"global_keyprefix": f"{namespace}."},
    }


def settings_from_environment(**changes):
    """
    Return Celery settings for a test app: broker, results, queue and key prefix of this test.

    The visibility timeout is short and the sweep for lapsed messages runs every second, so that a redelivery comes
    within the patience of a test; kombu before 5.7 ignores the latter two options and sweeps every 10 s.

    Args:
        changes: settings to add or to put in place of these.

    """
    namespace = os.environ[NAMESPACE]
    ahead_seconds = float(os.environ.get(CLOCK_AHEAD, "0"))
    if ahead_seconds:
        transport.time = lambda: time.time() + ahead_seconds
    broker_url = os.environ[BROKER_URL]
    where = queue_settings(namespace)
    return {
        **where,
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        "safeguards_transport": os.environ.get(TRANSPORT, "stock"),
        "broker_transport_options": {
            **where["broker_transport_options"],
            "visibility_timeout": float(os.environ.get(VISIBILITY, "6")),
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            # A worker killed while it sweeps leaves its lock behind; kombu keeps it for 300 s.
            "unacked_mutex_expire": 3,
            **json.loads(os.environ.get(BROKER_OPTIONS, "{}")),
        },
        "result_backend": os.environ.get(STORE_URL, broker_url),
        "result_backend_transport_options": where["broker_transport_options"],
        "result_expires": 600,
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        **changes,
    }
