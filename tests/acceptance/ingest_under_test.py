"""
`dead ingest` in a process of its own, to be killed: `python -m tests.acceptance.ingest_under_test QUEUE ...`.

    ingested    a gate: the letter is durable, its message is not acknowledged
    summed_up   how it ended
"""

import sys

from celery.bin.base import CLIContext

from celery_safeguards.cli import safeguards
from celery_safeguards.signals import message_dead_lettered
from tests.acceptance.faults_app import app
from tests.support.announce import announce, gate


def _on_letter(letter, **_):
    gate("ingested", id=letter.id, task_id=letter.task_id)


if __name__ == "__main__":
    message_dead_lettered.connect(_on_letter, weak=False)
    words = ["dead", "ingest", *sys.argv[1:]]
    try:
        safeguards.main(args=words, obj=CLIContext(app=app, no_color=True, workdir=None))
    except SystemExit as end:
        announce("summed_up", code=end.code)
        raise
