"""
How the connections of kombu's pools come to the transport that their app has chosen.
"""

from typing import Any


def pass_on_transport(connection: Any, made: Any) -> None:
    """
    Have a connection that a pool has made choose its transport as the pool's own connection does.

    kombu 5.7 makes the connections of a pool of a class of its own, kombu before it of the pool's connection's
    (`connection.py`, `ConnectionPool.new`).
    """
    chosen, usual = getattr(connection, "chosen_transport", None), made.get_transport_cls
    if chosen is not None:
        made.get_transport_cls = lambda: chosen(usual())
