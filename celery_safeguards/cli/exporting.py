"""
`dead export`: letters as a file for other programs, page by page, however many there are.

    a page of the list, by its place ──▶ each letter as it may be seen ──▶ its line ──▶ the next page

A file has its name only once it is whole: a command that was killed leaves none that could be taken for all letters.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from celery_safeguards.cli.exits import Exit
from celery_safeguards.cli.narrowing import Narrowed, narrowing
from celery_safeguards.cli.text import complain, progress
from celery_safeguards.deadletter.shown.export import FORMATS, Format, head, line, row_of, unreadable_row
from celery_safeguards.pipeline.indexing import shown
from celery_safeguards.printable import counted
from celery_safeguards.wiring import Wiring

_LETTERS_A_PAGE = 100
_Write = Callable[[str], None]


@click.command(name="export")
@narrowing
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="csv",
    show_default=True,
    help="json: an object on each line.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="A file.  [default: standard output]")
@click.option("--payload", "with_payload", is_flag=True, help="With arguments, headers, errors and histories.")
@click.pass_context
def export_letters(
    ctx: click.Context, /, *, form: Format, output: Path | None, with_payload: bool, **given: str | None
) -> None:
    """
    Write letters to a file, the newest failure first: all, or what is searched for.

    What is masked elsewhere is masked here. Without --payload nothing is written of what work was given and what it
    said. A letter that dies again meanwhile may be written twice, or not.
    """
    wiring = Wiring.of(ctx.obj.app)
    options = Narrowed(**given).options(wiring.search)
    written = 0
    with _written_to(output) as write, progress() as tell:
        write(head(form, with_payload=with_payload))
        for lines in _pages(wiring, ctx.obj.app.tasks, options, form, with_payload=with_payload):
            write("".join(lines))
            written += len(lines)
            tell(written)
    complain(counted(written, "letter") if written else "no letters")
    ctx.exit(Exit.DONE if written else Exit.REFUSED)


def _pages(
    wiring: Wiring, tasks: Any, options: dict[str, Any], form: Format, *, with_payload: bool
) -> Iterator[list[str]]:
    retention, cursor = wiring.settings.letter_retention_seconds, None
    while True:
        page = wiring.letters.list(limit=_LETTERS_A_PAGE, before=cursor, **options)
        rows = [
            *(row_of(shown(wiring, each, tasks), retention, with_payload=with_payload) for each in page.letters),
            *map(unreadable_row, page.unreadable),
        ]
        yield [line(form, row, with_payload=with_payload) for row in rows]
        cursor = page.next_cursor
        if cursor is None:
            return


@contextlib.contextmanager
def _written_to(path: Path | None) -> Iterator[_Write]:
    if path is None:
        yield _to_stdout
        return
    if path.exists() and not path.is_file():
        # A pipe, or a device: nothing can be put in its place.
        with path.open("w", encoding="utf-8", newline="") as file:
            yield _to(file)
        return
    try:
        # Beside it, so that it can take its name; and readable by its owner alone.
        part = tempfile.NamedTemporaryFile(  # noqa: SIM115 - it is closed before it is given its name
            "w", encoding="utf-8", newline="", dir=path.parent, prefix=f".{path.name}.", delete=False
        )
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--output") from error
    try:
        with part:
            yield _to(part)
        Path(part.name).replace(path)
    except BaseException:
        Path(part.name).unlink(missing_ok=True)
        raise


def _to(file: Any) -> _Write:
    def write(text: str) -> None:
        file.write(text)

    return write


def _to_stdout(text: str) -> None:
    # Always UTF-8, whatever the terminal's language; who calls a command from code may have given a text stream.
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        sys.stdout.write(text)
    else:
        binary.write(text.encode())
        binary.flush()
