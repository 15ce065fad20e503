"""`dead ingest`: what a broker keeps in its dead-letter queues becomes letters."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json
from celery_safeguards.cli.text import complain, print_json, say
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.ingest import BrokerUnavailable, Fate, Ingested, drain
from celery_safeguards.printable import clean


@click.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@click.option("--follow", is_flag=True, help="Go on when they are empty, until SIGTERM or Ctrl-C.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Messages at most.")
@click.option("--broker-url", "url", metavar="URL", help="Their broker, if it is not the app's.")
@as_json
@click.pass_context
def ingest(
    ctx: click.Context, *, queues: Sequence[str], follow: bool, limit: int | None, url: str | None, as_json: bool
) -> None:
    """
    Make letters of what is in dead-letter queues of RabbitMQ or SQS.

    A message is acknowledged once its letter is durable, and is one letter however often this is killed and run. Exits
    with 0 once the queues are empty, with 1 if a message was left or a queue refused, with 3 if the store or the broker
    did not answer; with --follow it waits for both.
    """
    counts: Counter[Fate] = Counter()
    try:
        with _ended_by_signal(follow=follow) as until:
            for ingested in drain(ctx.obj.app, tuple(dict.fromkeys(queues)), url=url, limit=limit, follow=until):
                counts[ingested.fate] += 1
                _show(ingested, as_json=as_json)
    except (BrokerUnavailable, StoreUnavailable):
        _sum_up(counts, as_json=as_json)
        raise
    _sum_up(counts, as_json=as_json)
    ctx.exit(Exit.REFUSED if counts[Fate.LEFT] else Exit.DONE)


@contextmanager
def _ended_by_signal(*, follow: bool) -> Iterator[threading.Event | None]:
    """Yield what a signal sets, so that a message is not left half-way; None: a signal ends the process as ever."""
    if not follow:
        yield None
        return
    until = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def end(_number: int, _frame: Any) -> None:
        until.set()

    for number in before:
        signal.signal(number, end)
    try:
        yield until
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sum_up(counts: Counter[Fate], *, as_json: bool) -> None:
    if as_json:
        print_json({fate.value: counts[fate] for fate in Fate})
    else:
        complain(f"{counts[Fate.INGESTED]} ingested, {counts[Fate.KNOWN]} known before, {counts[Fate.LEFT]} left")


def _show(ingested: Ingested, *, as_json: bool) -> None:
    about = f"{ingested.letter_id}  {ingested.fate}  {ingested.kind}  {ingested.task or '(no task)'}: {ingested.reason}"
    if ingested.fate is Fate.LEFT:
        complain(f"queue {ingested.queue}: a message is left there: {ingested.reason}")
    elif not as_json:
        say(clean(about))
