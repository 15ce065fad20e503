"""
What the declared tasks share.
"""

from celery_safeguards import Idempotent, Safeguards

KEY = Idempotent("op:{number}", on_unknown="rerun")
KEYED = Safeguards(idempotent=KEY)


def settings(queue):
    """Return the settings of an app on the memory broker, whose worker looks for messages often."""
    return {
        "task_default_queue": queue,
        "safeguards_store_url": "memory://",
        "worker_hijack_root_logger": False,
        "broker_transport_options": {"polling_interval": 0.01},
    }


def state_of(task):
    """Return everything a task object and its classes hold, but for what Celery itself builds on first use."""
    built_by_celery = {"__trace__", "_exec_options", "backend", "_backend", "request_stack", "publish"}
    found = {}
    for holder in (task, *type(task).__mro__):
        found.update({(str(holder), name): repr(value) for name, value in vars(holder).items()})
    return {place: value for place, value in found.items() if place[1] not in built_by_celery}
