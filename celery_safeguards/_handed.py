"""
What a worker's pool was handed and goes on with, whatever becomes of the connection.

A prefork pool knows a job of three kinds (celery 5.5 to 5.7, `concurrency/asynpool.py`, `worker/consumer/consumer.py`):

    outbound ── written to a child's pipe ──▶ in the pipe ── the child says that it took it ──▶ accepted ──▶ done

On a cut, and in a shutdown, Celery forgets all but the accepted; 5.5 forgets those, too. What is in a pipe is run by
the child all the same:

    t0 job written    t1 cut: the job is forgotten, its message put back    t2 child runs it, nobody listens
    t3 the message is delivered again: the body runs twice

So what is in a pipe, if only in part, counts as running here. Other pools run all that they were handed. Beneath the
documented surface, as in `_compat`; `tests/integration/test_handed.py`, `tests/acceptance/test_delivery.py` and
`test_stopping.py` notice when a new version changes it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery.concurrency.base import BasePool
from celery.worker.request import Request
from celery.worker.state import active_requests, reserved_requests


def running_tags(pool: Any) -> set[str]:
    """
    Return the delivery tags whose bodies run, or will without being asked again, in this worker.

    Pools other than prefork have only the `flush` that all pools inherit, which does nothing (celery 5.5 to 5.7,
    `concurrency/base.py`).
    """
    flush = getattr(pool, "flush", None)
    forgets = flush is not None and getattr(flush, "__func__", None) is not BasePool.flush
    in_pipes = {id(job) for job in _jobs_in_pipes(pool)} if forgets else set()
    handed = [
        each
        for each in tuple(reserved_requests)
        if each._apply_result is not None and (not forgets or id(_job_of(each)) in in_pipes)  # noqa: SLF001
    ]
    return {each.message.delivery_tag for each in (*tuple(active_requests), *handed) if not each.acknowledged}


def keep_what_is_in_pipes(pool: Any) -> None:
    """Have a prefork pool forget no job that a child is going to run; a second call changes nothing."""
    flush = getattr(pool, "flush", None)
    if flush is None or not hasattr(getattr(pool, "_pool", None), "_active_writers"):
        return
    if not isinstance(flush, _FlushButKeep):
        pool.flush = _FlushButKeep(pool, flush)


def has_jobs_on_their_way(pool: Any) -> bool:
    """
    Return whether a child is being written a job to, or has not said yet that it took it; False without children.

    Anything else written meanwhile would be read as the rest of the job.
    """
    return bool(getattr(getattr(pool, "_pool", None), "_active_writers", ())) or bool(_jobs_in_pipes(pool))


class _FlushButKeep:
    def __init__(self, pool: Any, flush: Callable[[], None]) -> None:
        self._pool, self._flush = pool, flush

    def __call__(self) -> None:
        processes = self._pool._pool  # noqa: SLF001
        in_pipes = [(job, job._write_to) for job in _jobs_in_pipes(self._pool)]  # noqa: SLF001
        kept = [job for job, _ in in_pipes]
        run_on = {number: job for number, job in processes._cache.items() if job._accepted or job in kept}  # noqa: SLF001
        # What is accepted stays, and its child is given nothing else. No child is listened to meanwhile. One in part
        # written is written to its end either way; accepted, celery 5.7 would wait for a child that is stuck for ever.
        for job, child in in_pipes:
            job._accepted = not (_is_being_written(self._pool, job) and child._is_alive())  # noqa: SLF001
        try:
            self._flush()
        finally:
            # Their children were found dead in the flush, and their pipes closed: another child has to have them.
            orphans = [job for job, child in in_pipes if child.dead and not job.ready()]
            self._know_again({number: job for number, job in run_on.items() if not job.ready()}, orphans)
            for job, _ in in_pipes:
                job._accepted = False  # noqa: SLF001

    def _know_again(self, jobs: Mapping[Any, Any], orphans: Sequence[Any]) -> None:
        """Have the pool know what runs, which celery 5.5 forgets, and who runs it, which 5.6 forgets as well."""
        processes = self._pool._pool  # noqa: SLF001
        processes._cache.update(jobs)  # noqa: SLF001
        processes.outbound_buffer.extend(orphans)
        # By the number of its pipe, Celery may take a new child for the dead one of an orphan: it is not busy.
        running = [job._write_to for job in jobs.values() if job not in orphans]  # noqa: SLF001
        processes._busy_workers.update(each.inqW_fd for each in running if each and each._is_alive())  # noqa: SLF001


def _jobs_in_pipes(pool: Any) -> list[Any]:
    """
    Return the jobs that were written, if only in part, and not accepted: a flush writes the rest.

    One that waits to be written again, since its child died, still names that child, or a new one with the same pipe.
    """
    processes: Any = getattr(pool, "_pool", None)
    if not hasattr(processes, "_active_writers"):
        return []
    waiting = set(map(id, processes.outbound_buffer))
    written = (job for job in tuple(processes._cache.values()) if getattr(job, "_write_to", None) is not None)  # noqa: SLF001
    return [job for job in written if not job._accepted and id(job) not in waiting]  # noqa: SLF001


def _is_being_written(pool: Any, job: Any) -> bool:
    writer = getattr(job, "_writer", None)
    return writer is not None and writer() in pool._pool._active_writers  # noqa: SLF001


def _job_of(request: Request) -> Any:
    """Return what the pool made of a request; None: it is done and gone."""
    return request._apply_result()  # noqa: SLF001 - a weak reference
