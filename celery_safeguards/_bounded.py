"""
Connections of a publisher that know by when a publish must be over.

The broker's connections are kombu's own, of a pool of their own: each asks the publish that is under way
(`_publishing`) how much time is left, before every operation on its socket. Without one they behave as kombu's do. An
operation that runs out of time fails as a lost connection does: redis-py and py-amqp close the socket, so that no later
publish reads an answer that was meant for this one.

| step | stock | here |
|---|---|---|
| wait for a producer | for ever, or `broker_pool_acquire_timeout` (celery 5.7) | what is left |
| connect, handshake, each command of Redis | `socket_timeout` of the options: none by default | what is left |
| connect, each frame of AMQP | 4 s for the connect, none after | what is left |
| repetitions and their pauses | by the retry policy, each time anew | none that would begin too late |

Not covered: the name lookup of the broker's host, which the operating system bounds; one AMQP frame or one answer that
arrives byte by byte; other transports, whose sockets are not reached: there the wait and the repetitions are bounded.

What is subclassed is private in part, and read in kombu 5.5.2 to 5.7.0 (`connection.py`, `pools.py`, `messaging.py`,
`transport/redis.py`, `transport/pyamqp.py`), redis-py 4.6 to 8.1 (`connection.py`) and amqp 5.3 to 5.4; there is a test
of each fact in `tests/integration/test_publish_facts.py`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import kombu.connection
import kombu.messaging
import kombu.pools
from kombu.exceptions import LimitExceeded

from celery_safeguards._pools import pass_on_transport
from celery_safeguards._publishing import Publishing, bounded, current_publish
from celery_safeguards.errors import PublishTimedOut

# Typed in part only, and not as they are subclassed here.
_connection: Any = kombu.connection
_messaging: Any = kombu.messaging
_pools: Any = kombu.pools


def timed_out(publishing: Publishing, broker: str, why: object) -> PublishTimedOut:
    """Return the error of a publish whose time is up."""
    return PublishTimedOut(
        f"{publishing.name}: not published to {broker} within {publishing.seconds:g} s "
        f"(safeguards_publish_timeout_seconds): {why}"
    )


class BoundedConnection(_connection.Connection):  # type: ignore[misc]
    """A connection whose repetitions end with the publish, and whose sockets do."""

    @property
    def connect_timeout(self) -> float | None:
        """How long a connect may take, seconds."""
        return bounded(self.__dict__["connect_timeout"])

    @connect_timeout.setter
    def connect_timeout(self, seconds: float | None) -> None:
        self.__dict__["connect_timeout"] = seconds

    def ensure(self, obj: Any, fun: Any, errback: Any = None, *args: Any, **options: Any) -> Any:
        """Repeat as kombu does, until it is too late."""
        return super().ensure(obj, fun, self._until_too_late(errback), *args, **options)

    def _ensure_connection(self, errback: Any = None, *args: Any, **options: Any) -> Any:
        return super()._ensure_connection(self._until_too_late(errback), *args, **options)

    def _until_too_late(self, errback: Any) -> Any:
        publishing = current_publish()
        if publishing is None:
            return errback

        def give_up_or_go_on(error: BaseException, pause_seconds: float) -> None:
            if publishing.is_over or pause_seconds >= publishing.left_seconds():
                raise timed_out(publishing, self.as_uri(), repr(error)) from error
            if errback is not None:
                errback(error, pause_seconds)

        return give_up_or_go_on

    def create_transport(self) -> Any:
        """Create kombu's transport, with channels or connections that are bounded."""
        transport = super().create_transport()
        channel = getattr(transport, "Channel", None)
        if hasattr(channel, "_connparams"):
            transport.Channel = _bounded_channel(channel)
        elif transport.driver_type == "amqp" and hasattr(transport, "Connection"):
            transport.Connection = _bounded_amqp(transport.Connection)
        return transport


@cache
def _bounded_connection(connection: Any) -> Any:
    return type(f"Bounded{connection.__name__}", (BoundedConnection, connection), {})


@cache
def _bounded_channel(channel: Any) -> Any:
    class BoundedChannel(channel):  # type: ignore[misc]
        """A channel of Redis whose sockets are bounded."""

        def _connparams(self, *args: Any, **options: Any) -> Any:
            given = super()._connparams(*args, **options)
            # Not cached: kombu makes a class for each channel, too.
            given["connection_class"] = bounded_socket(given["connection_class"])
            return given

    return BoundedChannel


def bounded_socket(connection: Any) -> Any:
    """Return redis-py's class of a connection, bounded."""

    class BoundedSocket(connection):  # type: ignore[misc]
        """A connection of redis-py that gives its socket what is left of a publish."""

        _sg_is_bounded = False

        socket_timeout = _bounded_attribute(connection, "socket_timeout")
        socket_connect_timeout = _bounded_attribute(connection, "socket_connect_timeout")

        def send_packed_command(self, *args: Any, **options: Any) -> Any:
            self._bound()
            return super().send_packed_command(*args, **options)

        def read_response(self, *args: Any, **options: Any) -> Any:
            self._bound()
            return super().read_response(*args, **options)

        def _bound(self) -> None:
            is_under_way = current_publish() is not None
            if self._sock is not None and (is_under_way or self._sg_is_bounded):
                self._sock.settimeout(self.socket_timeout)
                self._sg_is_bounded = is_under_way

    return BoundedSocket


def _bounded_attribute(kind: Any, name: str) -> property:
    """Return an attribute of seconds, bounded when it is read; redis-py 8 has properties where older ones have none."""
    own = getattr(kind, name, None)
    if isinstance(own, property):
        read: Any = own.fget
        return property(lambda connection: bounded(read(connection)), own.fset)

    def keep(connection: Any, seconds: float | None) -> None:
        connection.__dict__[name] = seconds

    return property(lambda connection: bounded(connection.__dict__.get(name)), keep)


@cache
def _bounded_amqp(connection: Any) -> Any:
    class BoundedAMQP(connection):  # type: ignore[misc]
        """A connection of py-amqp that waits for a frame no longer than what is left of a publish."""

        def blocking_read(self, timeout: float | None = None) -> Any:
            return super().blocking_read(bounded(timeout))

    return BoundedAMQP


class BoundedProducer(_messaging.Producer):  # type: ignore[misc]
    """A producer that weighs what it has encoded."""

    def publish(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Publish as kombu does; py-amqp takes the timeout of one write from here."""
        return super().publish(*args, timeout=bounded(timeout), **options)

    def _prepare(self, *args: Any, **options: Any) -> Any:
        prepared = super()._prepare(*args, **options)
        publishing = current_publish()
        if publishing is not None:
            publishing.measure(prepared[0])
        return prepared


def bound_connection(made: Any) -> Any:
    """Bound a connection that was not used yet: which class it is, and how it is made, kombu's version says."""
    kind: Any = type(made)
    made.__class__ = _bounded_connection(kind)
    return made


class BoundedConnectionPool(_connection.ConnectionPool):  # type: ignore[misc]
    """A pool of bounded connections."""

    def new(self) -> Any:
        """Make kombu's own connection, bounded, and of the transport that the app has chosen."""
        made = bound_connection(super().new())
        pass_on_transport(self.connection, made)
        return made


class BoundedProducerPool(_pools.ProducerPool):  # type: ignore[misc]
    """A pool of producers in which nobody waits for longer than what is left of a publish."""

    Producer = BoundedProducer

    def acquire(self, block: bool = False, timeout: float | None = None) -> Any:
        """Acquire as kombu does; raises `PublishTimedOut` when the publish is over before it was this one's turn."""
        return self._in_time(lambda: super(BoundedProducerPool, self).acquire(block, bounded(timeout)))

    def _acquire_connection(self) -> Any:
        return self._in_time(lambda: self.connections.acquire(block=True, timeout=bounded(None)))

    def _in_time(self, acquire: Callable[[], Any]) -> Any:
        try:
            return acquire()
        except LimitExceeded as error:
            publishing = current_publish()
            if publishing is None or not publishing.is_over:
                raise
            broker = self.connections.connection.as_uri()
            raise timed_out(publishing, broker, f"all {self.limit} producers are in use") from error


class _Connections(_pools.Connections):  # type: ignore[misc]
    def create(self, connection: Any, limit: Any) -> Any:
        return BoundedConnectionPool(connection, limit=limit)


class _Producers(_pools.Producers):  # type: ignore[misc]
    def create(self, connection: Any, limit: Any) -> Any:
        return BoundedProducerPool(_CONNECTIONS[connection], limit=limit)


# As kombu's own groups: emptied after a fork, and of one size with them.
_CONNECTIONS: Any = _pools.register_group(_Connections(limit=_pools.use_global_limit))
_PRODUCERS: Any = _pools.register_group(_Producers(limit=_pools.use_global_limit))


def bound_producers(app: Any) -> None:
    """
    Give an app bounded producers in place of those it would make.

    Called before each publish: Celery drops its pool after a fork (celery 5.5 to 5.7, `Celery._after_fork`).
    """
    amqp = app.amqp
    if not isinstance(amqp._producer_pool, BoundedProducerPool):  # noqa: SLF001
        pool = _PRODUCERS[app.connection_for_write()]
        if pool.limit != app.pool.limit:
            # Not otherwise: each setting adds as many producers as it allows (kombu, `Resource.resize`).
            pool.limit = app.pool.limit
        amqp._producer_pool = pool  # noqa: SLF001
