"""`overdue`: messages that should have come back to their queue long ago, and sending them again."""

from dataclasses import asdict
from typing import Any

import click
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json
from celery_safeguards.cli.text import complain, print_json, print_table
from celery_safeguards.delivery.connections import hardened_connection
from celery_safeguards.delivery.overdue import find_overdue, send_again
from celery_safeguards.delivery.visibility import configured_visibility

_GRACE_SECONDS = 10.0
"""Beyond the latest sweep: who asks is not to race it."""


@click.command()
@click.option("--resend", is_flag=True, help="Put them back into their queues, under their own task ids.")
@as_json
@click.pass_context
def overdue(ctx: click.Context, resend: bool, as_json: bool) -> None:
    """
    List messages in Redis that nobody has renewed for a visibility timeout, or that are parked and due.

    A worker brings both back by itself, within seconds: what is listed tells that none does.
    """
    connection = hardened_connection(ctx.obj.app)
    if connection is None:
        raise click.UsageError(
            "only a broker on Redis keeps such messages: what holds others back, their broker knows", ctx
        )
    try:
        with connection:
            channel = connection.default_channel
            for queue in ctx.obj.app.amqp.queues.values():
                # Kombu keeps an exchange's type in memory alone, and takes one that it does not know for direct.
                queue.exchange(channel).declare()
            patience_seconds = configured_visibility(ctx.obj.app).sweep_seconds + _GRACE_SECONDS
            found = find_overdue(channel, float(channel.visibility_timeout) + patience_seconds, _GRACE_SECONDS)
            sent = {each.tag for each in found if resend and send_again(channel, each)}
    except (*connection.connection_errors, OperationalError, RedisError) as error:
        complain(f"the broker did not answer: {error}")
        ctx.exit(Exit.UNAVAILABLE)
    _show(found, sent, as_json=as_json)
    if resend:
        complain(f"{len(sent)} of {len(found)} sent again")
    ctx.exit(Exit.DONE if found else Exit.REFUSED)


def _show(found: Any, sent: set[str], *, as_json: bool) -> None:
    if as_json:
        print_json([{**asdict(each), "is_sent_again": each.tag in sent} for each in found])
    elif found:
        rows = [
            (each.place, f"{each.over_seconds:.0f} s", each.task_id, each.task or "(not readable)") for each in found
        ]
        print_table(("PLACE", "OVER", "TASK ID", "TASK"), rows)
    else:
        complain("nothing is overdue")
