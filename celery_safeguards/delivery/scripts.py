"""
The transport's scripts, and how a client of kombu's runs them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import NoScriptError

from celery_safeguards._redis import LEFT_BEHIND, Script

_EXECUTE: Any = redis.Redis.execute_command

TAKE = Script.of("delivery/take.lua")
NOTE = Script.of("delivery/note.lua")
PUT = Script.of("delivery/wake.lua", "delivery/put.lua")
RESTORE = Script.of("delivery/wake.lua", "delivery/restore.lua")
SET_ASIDE = Script.of("delivery/set_aside.lua")
SWEEP = Script.of("delivery/sweep.lua")
RENEW = Script.of("delivery/renew.lua")
OVERDUE = Script.of("delivery/overdue.lua")
UNPARK_ONE = Script.of("delivery/wake.lua", "delivery/unpark.lua", "delivery/unpark_one.lua")
PARK = Script.of("delivery/park.lua")
RETURN_DUE = Script.of("delivery/wake.lua", "delivery/unpark.lua", "delivery/return_due.lua")
CALL_NEXT = Script.of("delivery/wake.lua", "delivery/unpark.lua", "delivery/call_next.lua")


@contextmanager
def led_anew(client: Any) -> Iterator[None]:
    """
    Give up a client's idle connections if they lead to a server that was demoted.

    It would refuse for ever, and its address may lead to another one by now; kombu and redis-py keep them.
    """
    try:
        yield
    except LEFT_BEHIND:
        client.connection_pool.disconnect(inuse_connections=False)
        raise


def execute(client: Any, *words: Any) -> Any:
    """Run a command with full names of keys: kombu's client would put its prefix before some of them once more."""
    with led_anew(client):
        return _EXECUTE(client, *words)


def run_script(client: Any, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
    """Run a script with full names of keys; one round trip once the server knows it."""
    words = (len(keys), *keys, *arguments)
    try:
        return execute(client, "EVALSHA", script.sha, *words)
    except NoScriptError:
        return execute(client, "EVAL", script.source, *words)
