"""
Which transport an app's connections have: the hardened one, where `safeguards_transport` asks for it and can have it.

Every connection of an app is made by `app.amqp.Connection` (celery 5.5 to 5.7, `app/base.py`) or by its pool, and names
its transport by `get_transport_cls` (kombu 5.5 to 5.7, `connection.py`), also after a failover to another address.
"""

from functools import cache
from typing import Any

from kombu.connection import ConnectionPool
from kombu.transport import redis as stock
from kombu.utils.collections import HashedSeq

from celery_safeguards._pools import pass_on_transport
from celery_safeguards.conf import HARDENED, Settings
from celery_safeguards.delivery.transport import HardenedSentinelTransport, HardenedTransport

_HARDENED = {stock.Transport: HardenedTransport, stock.SentinelTransport: HardenedSentinelTransport}


def choose_transport(app: Any) -> None:
    """
    Have an app's connections use the transport that its settings ask for when they are made.

    Safe when: called again; called before the app's settings are complete.
    """
    given = app.amqp.Connection
    if getattr(given, "sg_app", None) is app:
        return

    @cache
    def is_wanted() -> bool:
        # Asked at every publish, and first when a connection is made: by then the settings are complete.
        return Settings.of(app).transport == HARDENED

    class Connection(given):  # type: ignore[misc, valid-type]
        sg_app = app

        @staticmethod
        def chosen_transport(found: Any) -> Any:
            return _HARDENED.get(found, found) if is_wanted() else found

        def get_transport_cls(self) -> Any:
            return self.chosen_transport(super().get_transport_cls())

        def Pool(self, limit: int | None = None, **kwargs: Any) -> Any:  # noqa: N802 - kombu's name
            return _Pool(self, limit, **kwargs)

        def __eqhash__(self) -> Any:
            # kombu shares pools between apps whose connections are equal: these are not, by another transport.
            return HashedSeq(self.get_transport_cls(), *super().__eqhash__())

    app.amqp.Connection = Connection


class _Pool(ConnectionPool):
    """A pool whose connections choose their transport, too."""

    def new(self) -> Any:
        """Return a new connection, not connected yet."""
        made = super().new()
        pass_on_transport(self.connection, made)
        return made


def hardened_connection(app: Any) -> Any | None:
    """Return a connection by the hardened transport, whatever an app's workers have; None: its broker is not Redis."""
    connection = app.connection_for_read()
    found = connection.get_transport_cls()
    kind = _HARDENED.get(found, found)
    if kind not in _HARDENED.values():
        return None
    connection.get_transport_cls = lambda: kind
    return connection


def is_hardened(channel: Any) -> bool:
    """Whether a channel takes its messages by the hardened transport."""
    return isinstance(channel, HardenedTransport.Channel)
