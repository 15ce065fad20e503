"""
`dead export`: letters as a file for other programs.
"""

import csv
import io
import json
import stat
import tracemalloc

import pytest

from celery_safeguards.cli import exporting, text
from celery_safeguards.cli.exporting import export_letters
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.outcome import FailureKind
from celery_safeguards.wiring import Wiring
from tests.integration.cli.odd_text import NASTY

pytestmark = pytest.mark.redis


def rows(exported):
    return list(csv.DictReader(io.StringIO(exported, newline="")))


def objects(exported):
    return [json.loads(line) for line in exported.splitlines()]


def test_letters_are_exported_as_they_are_listed(cli, bury):
    """Whoever has narrowed the list must get the same letters, of all its pages."""
    names = [f"letter-{number}" for number in range(203)]
    for number, name in enumerate(names):
        bury(name, last_failed_seconds=1_750_000_000.0 + number)
    bury("mail", task="shop.mail", kind=FailureKind.DATA, key="order:7")
    group = bury("mail-2", task="shop.mail", kind=FailureKind.DATA).fingerprint
    cli("dead", "discard", "letter-7", "--by", "ann", "--reason", "a test order")

    everything = cli("dead", "export", "--state", "any")
    chosen = [
        {row["id"] for row in rows(cli("dead", "export", *words).stdout)}
        for words in (
            ["--task", "shop.mail"],
            ["--kind", "data"],
            ["--group", group],
            ["--find", "order:7"],
            ["--state", "discarded"],
        )
    ]

    assert (0, "205 letters\n") == (everything.exit_code, everything.stderr)
    assert [*reversed(names)] == [row["id"] for row in rows(everything.stdout) if row["task"] == "shop.note"]
    assert [{"mail", "mail-2"}] * 3 == chosen[:3]
    assert [{"mail"}, {"letter-7"}] == chosen[3:]
    assert 204 == len(rows(cli("dead", "export").stdout))


def test_formats_say_the_same(cli, bury):
    bury("one", key="order:1", attempts=4)

    (row,), (found,) = rows(cli("dead", "export").stdout), objects(cli("dead", "export", "--format", "json").stdout)

    assert list(row) == list(found)
    assert ("one", "order:1", "4", "false") == tuple(row[name] for name in ("id", "key", "attempts", "effect_possible"))
    assert ("one", "order:1", 4, False) == tuple(found[name] for name in ("id", "key", "attempts", "effect_possible"))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_payload_is_written_when_it_is_asked_for_and_masked_as_it_is_shown(cli, bury, app, form):
    """A file goes further than a screen."""
    body = json.dumps([[], {"order_id": 7, "password": "hunter2"}, {}]).encode()
    bury("one", body=body, error_message="refused with hunter2", headers={"x-token": "hunter2"})
    Wiring.of(app).letters.add_note("one", "tried", "bob", "with hunter2")

    plain = cli("dead", "export", "--format", form).stdout
    payload = cli("dead", "export", "--format", form, "--payload").stdout

    assert ["order_id" in each for each in (plain, payload)] == [False, True]
    assert ["refused with" in each for each in (plain, payload)] == [False, True]
    assert "[redacted]" in payload
    assert "hunter2" not in plain + payload


@pytest.mark.parametrize("form", ["csv", "json"])
def test_nothing_of_a_letter_reaches_the_terminal_raw(cli, bury, form):
    bury(NASTY, task=NASTY, key=NASTY, error_message=NASTY, reason=NASTY, traceback=NASTY, headers={"group": NASTY})

    output = cli("dead", "export", "--format", form, "--payload").output

    assert [each for each in output if not each.isprintable() and each not in "\r\n"] == []


def test_formula_in_a_task_id_is_none_in_the_file(cli, bury):
    """A foreign producer chooses its ids; whoever opens the file runs them."""
    bury("=cmd|' /C calc'!A0", task_id="@SUM(1)")

    (row,) = rows(cli("dead", "export").stdout)

    assert ("'=cmd|' /C calc'!A0", "'@SUM(1)") == (row["id"], row["task_id"])


def test_file_is_whole_and_its_owners_alone(cli, bury, tmp_path):
    bury("one", error_message="ünïcode")
    path = tmp_path / "letters.csv"
    path.write_text("of yesterday")

    done = cli("dead", "export", "--payload", "--output", str(path))

    assert (0, "", "1 letter\n") == (done.exit_code, done.stdout, done.stderr)
    assert ["ünïcode"] == [row["error_message"] for row in rows(path.read_bytes().decode())]
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert ["letters.csv"] == [each.name for each in tmp_path.iterdir()]


def test_export_that_is_cut_short_leaves_the_file_of_yesterday(cli, app, bury, tmp_path, monkeypatch):
    """Half of the letters under the name of all of them is what somebody decides by."""
    monkeypatch.setattr(exporting, "_LETTERS_A_PAGE", 2)
    for number in range(5):
        bury(f"letter-{number}")
    path = tmp_path / "letters.csv"
    path.write_text("of yesterday")
    letters = Wiring.of(app).letters
    pages = iter([letters.list(limit=2)])

    def one_page(**_options):
        for page in pages:
            return page
        raise StoreUnavailable("gone")

    monkeypatch.setattr(letters, "list", one_page)
    done = cli("dead", "export", "--output", str(path))

    assert (3, "of yesterday") == (done.exit_code, path.read_text())
    assert ["letters.csv"] == [each.name for each in tmp_path.iterdir()]


def test_file_that_cannot_be_written_is_a_usage_error(cli, bury, tmp_path):
    bury("one")

    done = cli("dead", "export", "--output", str(tmp_path / "none" / "letters.csv"))

    assert (2, True) == (done.exit_code, "No such file" in done.stderr)


def test_nothing_to_export_exits_with_1(cli):
    done = cli("dead", "export", "--task", "shop.none")

    assert (1, "no letters\n", 1) == (done.exit_code, done.stderr, len(done.stdout.splitlines()))


@pytest.mark.parametrize("words", [["--format", "xml"], ["--find", "a", "--argument", "b=c"], ["--find", " "]])
def test_words_that_make_no_sense_are_refused(cli, words):
    assert 2 == cli("dead", "export", *words).exit_code


def test_letter_that_cannot_be_read_has_a_line(cli, app, bury):
    bury("one")
    letters = Wiring.of(app).letters
    letters._client.command("HSET", letters._keys.letter("one"), "letter", "{")

    (row,) = rows(cli("dead", "export").stdout)

    assert ("one", True) == (row["id"], "cannot be read" in row["problem"])


def test_memory_is_that_of_a_page(cli, bury, tmp_path, monkeypatch):
    """A million letters must not need the memory of a million."""
    monkeypatch.setattr(exporting, "_LETTERS_A_PAGE", 5)

    def most_bytes(count):
        for number in range(count):
            bury(f"letter-{number}", traceback="x" * 100_000)
        tracemalloc.start()
        try:
            assert cli("dead", "export", "--payload", "--output", str(tmp_path / "letters.csv")).exit_code == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = most_bytes(10), most_bytes(100)

    assert (tmp_path / "letters.csv").stat().st_size > 10_000_000
    assert many < 1.5 * few


def test_how_far_it_is_is_told_to_a_terminal_alone(monkeypatch, capsys):
    with text.progress() as tell:
        tell(1_000)
    quiet = capsys.readouterr()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with text.progress() as tell:
        tell(1_000)
    loud = capsys.readouterr()

    assert ("", "", "") == (quiet.out, quiet.err, loud.out)
    assert "1,000 letters" in loud.err


def test_verb_is_named_in_the_help(cli):
    assert export_letters.name in cli("dead", "--help").stdout
