"""Exit codes: the one place where an error of this package becomes a number and a sentence on stderr."""

from enum import IntEnum
from typing import Any

import click

from celery_safeguards.cli.text import complain
from celery_safeguards.errors import ConfigurationError, SafeguardsError, StoreUnavailable
from celery_safeguards.ingest import BrokerUnavailable
from celery_safeguards.printable import clean
from celery_safeguards.replay import CopyNotPublished, NotPublished


class Exit(IntEnum):
    """How a command ended; stable, and documented in the package's docstring."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNAVAILABLE = 3


class ExitCodes(click.Group):
    """A group whose commands end with a documented code whatever this package raises."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            # Without a context: the help of this group, which click would point to, says nothing of a verb's options.
            raise click.UsageError(clean(str(error))) from error
        except SafeguardsError as error:
            complain(str(error))
            is_away = isinstance(error, StoreUnavailable | NotPublished | CopyNotPublished | BrokerUnavailable)
            raise click.exceptions.Exit(Exit.UNAVAILABLE if is_away else Exit.REFUSED) from error
