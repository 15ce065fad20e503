"""`manage.py safeguards ...`: the verbs of `celery -A proj safeguards ...`, with the same output and exit codes."""

import argparse
import contextlib
import sys
from typing import Any

import click
from celery.app.utils import find_app
from celery.bin.base import CLIContext
from django.core.management.base import BaseCommand, CommandError, CommandParser

from celery_safeguards._compat import made_app
from celery_safeguards.cli import safeguards
from celery_safeguards.cli.exits import Exit

_EPILOG = (
    "The app is the one that the project's __init__ imports; --app, before the verb, names another. Django's own "
    "options (--settings, --traceback, ...) stand before the verb as well. Exit codes: 0 done, 1 nothing found or "
    "refused, 2 usage, 3 the store or the broker did not answer."
)


class Command(BaseCommand):
    """Ask about guarded work, and repair it."""

    help = str(safeguards.help)
    # Who looks for a lost order must not be told first what the project could do better.
    requires_system_checks: tuple[str, ...] = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return Django's parser without its help: `--help` is answered with the verbs."""
        return super().create_parser(prog_name, subcommand, add_help=False, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        """Leave everything behind the first verb to the verbs."""
        parser.add_argument("-A", "--app", help="The Celery app, as `celery -A` takes it.")
        parser.add_argument("-h", "--help", action="store_true", dest="asks_for_help", help="Show this message.")
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Show the verbs, as `manage.py help safeguards` asks for."""
        with click.Context(safeguards, info_name=_name(prog_name, subcommand)) as context:
            self.stdout.write(f"{safeguards.get_help(context)}\n\n{_EPILOG}")

    def handle(self, *_: Any, **options: Any) -> None:
        """
        Run a verb.

        Raises:
            SystemExit: it ended with another exit code than 0.
            CommandError: there is no such app.

        """
        if options["asks_for_help"] or not options["words"]:
            self.print_help("manage.py", "safeguards")
            return
        context = CLIContext(app=_app(options["app"]), no_color=bool(options["no_color"]), workdir=None)
        try:
            # Whoever calls a command from code may want to read what it says.
            with contextlib.redirect_stdout(options.get("stdout") or sys.stdout):
                safeguards.main(args=options["words"], prog_name=_name("manage.py", "safeguards"), obj=context)
        except SystemExit as end:
            if end.code != Exit.DONE:
                raise


def _name(prog_name: str, subcommand: str) -> str:
    return f"{prog_name} {subcommand}"


def _app(name: str | None) -> Any:
    if name is None:
        app = made_app()
        if app is None:
            raise CommandError("no Celery app: import it in the project's __init__.py, or name one by --app")
        return app
    try:
        return find_app(name)
    except (ImportError, AttributeError) as error:
        raise CommandError(f"--app {name}: {error}") from error
