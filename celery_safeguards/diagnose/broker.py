"""
What a Redis broker says of itself: whether it evicts messages, and whether it keeps them over a restart.

Asked through the channel's own client, by `INFO` and, for the saves of snapshots alone, by `CONFIG GET`, which managed
servers refuse. What is not answered is unknown.
"""

import logging
from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError

from celery_safeguards._compat import broker_client
from celery_safeguards.findings import Finding

logger = logging.getLogger(__name__)
_KEEPS_ALL = "noeviction"


def broker_findings(channel: Any, *, has_records: bool = False) -> list[Finding]:
    """
    Return what a Redis server may lose; blocks for its answers.

    Args:
        channel: open, to that server.
        has_records: whether the safeguards' records are in it, too.

    """
    try:
        with broker_client(channel) as (client, _prefix):
            return [*_eviction(client, has_records=has_records), *_persistence(client)]
    except (RedisError, OSError) as error:
        logger.info("the broker could not be asked for what it keeps", exc_info=True)
        return [Finding("SG148", f"whether it evicts messages and keeps them over a restart: {error}")]


def _eviction(client: Any, *, has_records: bool) -> Iterator[Finding]:
    memory = client.info("memory")
    policy, limit = memory.get("maxmemory_policy"), int(memory.get("maxmemory", 0))
    if policy is None:
        yield Finding("SG144", "it does not tell its maxmemory-policy; noeviction is right", is_unknown=True)
        return
    # Messages and what leads to them have no TTL (kombu 5.7, `transport/redis.py`).
    spares_messages = policy.startswith("volatile-")
    if policy == _KEEPS_ALL or (spares_messages and not has_records):
        return
    when = f"at maxmemory of {limit} bytes" if limit else "as soon as it has a maxmemory, now unlimited"
    lost = (
        "keys with a TTL, such as the records of the safeguards, and work whose record is gone runs again"
        if spares_messages
        else "keys, and with them queues, bindings and unacknowledged messages, without a word"
    )
    yield Finding("SG144", f"maxmemory-policy is {policy}: {when} it deletes {lost}; set maxmemory-policy noeviction")


def _persistence(client: Any) -> Iterator[Finding]:
    if int(client.info("persistence").get("aof_enabled", 0)):
        return
    try:
        saves = client.config_get("save").get("save")
    except RedisError:
        yield Finding(
            "SG145",
            "appendonly is off, and CONFIG is refused, so whether it saves snapshots is not known",
            is_unknown=True,
        )
        return
    if saves is None:
        yield Finding("SG145", "appendonly is off, and it does not tell whether it saves snapshots", is_unknown=True)
    elif saves:
        yield Finding(
            "SG146",
            f"appendonly is off, and snapshots are saved by 'save {saves}': what was sent since the last one is gone "
            "after a crash; set appendonly yes",
        )
    else:
        yield Finding(
            "SG145", "appendonly is off and no snapshots are saved: a restart forgets every message; set appendonly yes"
        )
