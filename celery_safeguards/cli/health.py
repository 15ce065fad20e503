"""`health`: whether the workers of this host live, for people and for probes; neither broker nor store is asked."""

from dataclasses import asdict

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.options import as_json
from celery_safeguards.cli.text import complain, print_json
from celery_safeguards.clock import SystemClock
from celery_safeguards.health import HealthFiles, judge
from celery_safeguards.printable import clean
from celery_safeguards.wiring import Wiring


@click.command()
@click.option("--node", help="Ask for one worker by its name (`celery worker -n`); it must be there.")
@click.option(
    "--max-age-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="How old a sign of life may be; more than five of safeguards_health_interval_seconds.",
)
@as_json
@click.pass_context
def health(ctx: click.Context, node: str | None, max_age_seconds: float, as_json: bool) -> None:
    """
    Tell whether the workers of this host and namespace live.

    A worker is healthy while its consumer's loop turns, its broker answers, and answers its poll for messages. Exit
    code 0: all are healthy, busy with a body in pool solo, or told to end; 1: one is not, or there is none.

    As a probe of Kubernetes it runs in the worker's own container, as its user.
    """
    settings = Wiring.of(ctx.obj.app).settings
    files = HealthFiles(settings.health_directory)
    now = SystemClock.monotonic_seconds()
    found = [judge(signs, now, max_age_seconds) for signs in files.read(settings.namespace, node)]
    is_good = bool(found) and all(each.health.is_good for each in found)
    if as_json:
        print_json(
            {
                "namespace": settings.namespace,
                "healthy": is_good,
                "max_age_seconds": max_age_seconds,
                "workers": [
                    {
                        **{name: asdict(each.signs)[name] for name in ("node", "pid", "pool")},
                        "health": each.health.value,
                        "reason": each.reason,
                        "age_seconds": round(each.age_seconds, 3),
                    }
                    for each in found
                ],
            }
        )
    else:
        for each in found:
            click.echo(f"{clean(each.signs.node)}: {each.health}: {clean(each.reason)}")
    if not found:
        asked = f"no worker {clean(node)} of" if node else "no worker of"
        complain(f"{asked} namespace {settings.namespace!r} has given a sign of life in {files.directory}")
    if not is_good:
        raise click.exceptions.Exit(Exit.REFUSED)
