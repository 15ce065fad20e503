"""
What a worker does for the messages it holds: renew them from receipt to their end, and carry them over a cut.

    cut ──▶ the channel closes: what no body runs of goes back at once ──▶ reconnected: the new channel adopts the rest,
            bodies run on; a connection of its own renews their messages   and acknowledges them when they end
"""

import logging
from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_safeguards._handed import keep_what_is_in_pipes, running_tags
from celery_safeguards.conf import HARDENED
from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.lease import lease_of
from celery_safeguards.delivery.qos import name_what_runs
from celery_safeguards.wiring import Wiring
from celery_safeguards.worker.aside import Aside
from celery_safeguards.worker.putting_back import put_back_for
from celery_safeguards.worker.renewing import Renewing, appoint, renewing_of

logger = logging.getLogger(__name__)


class DeliveryStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Renew messages through reconnects and a warm shutdown."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._channel: Any = None

    def start(self, parent: Any) -> None:
        """Follow the channel that was just opened."""
        before, self._channel = self._channel, parent.connection.default_channel
        put_back_for(parent)
        keep_what_is_in_pipes(parent.pool)
        wiring = Wiring.of(parent.app)
        if isinstance(self._channel, HardenedChannel):
            name_what_runs(lambda: self._tags_that_run_on(parent))
            if isinstance(before, HardenedChannel):
                self._channel.take_over(before)
        elif wiring.settings.transport == HARDENED:
            logger.warning(
                "safeguards_transport=%r has no form for this broker: on it a connection that is cut redelivers what "
                "runs, and what is killed while it takes a message may lose it",
                HARDENED,
            )
        lease = lease_of(self._channel, wiring.clock)
        if lease is None:
            return
        renewing = renewing_of(parent.app)
        if renewing is None or renewing.is_over:
            turned, move = partial(_turned_at, parent), Aside(parent.app).move
            renewing = Renewing(wiring.clock, turned, move, is_in_loop=_runs_in_loop(parent.pool))
            appoint(parent.app, renewing)
        renewing.follow(lease)

    def stop(self, parent: Any) -> None:
        """Go on renewing: a reconnect restarts this step, and in a warm shutdown bodies run until the pool is empty."""

    def shutdown(self, parent: Any) -> None:
        """Stop: the pool has drained."""
        renewing = renewing_of(parent.app)
        if renewing is not None:
            renewing.stop()

    def _tags_that_run_on(self, parent: Any) -> set[str]:
        """Return the messages whose bodies outlive a connection; when the worker stops, none does."""
        if _is_stopping():
            return set()
        renewing = renewing_of(parent.app)
        # Celery's list ends before the acknowledgement is out, which another thread may be about to send. After a first
        # cut it has forgotten what threads were handed and have not begun.
        begun = renewing.begun if renewing is not None else set()
        return running_tags(parent.pool) | begun | set(self._channel.qos.adopted)


def _is_stopping() -> bool:
    return state.should_stop is not None or state.should_terminate is not None


def _turned_at(parent: Any) -> float | None:
    """Return when the loop last turned; a worker that stops has left it, and its bodies run until the pool is empty."""
    if _is_stopping():
        return None
    connection = parent.connection
    transport = getattr(connection, "_transport", None)
    turned = getattr(getattr(transport, "cycle", None), "turned_at", None)
    return turned or None


def _runs_in_loop(pool: Any) -> bool:
    """Whether bodies hold up the loop: solo runs them in it, and pools of greenlets make it wait for a free one."""
    return type(pool).__module__.rpartition(".")[2] in ("solo", "gevent", "eventlet")
