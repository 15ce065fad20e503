"""
A message that is larger than is allowed: warned of, or denied before it reaches the broker.

The reports: oversized payloads are refused by the broker, lost in silence, or fill its memory (celery/celery#8851,
celery/celery#318, celery/celery#5000, celery/celery#7911).
"""

import contextlib

import pytest
from kombu.utils.json import dumps

from celery_safeguards import Safeguards
from celery_safeguards.conf import Settings
from celery_safeguards.errors import ConfigurationError, MessageTooLarge
from celery_safeguards.outcome import FailureKind
from tests.support.bench import Bench

LIMIT_BYTES = 2_000


@pytest.fixture
def bench(namespace):
    """A bench that denies what is too large."""
    with contextlib.closing(
        Bench(namespace, safeguards_max_message_bytes=LIMIT_BYTES, safeguards_large_messages="deny")
    ) as bench:
        bench.app.set_current()
        yield bench


def encoded_bytes(*args):
    """Return how many bytes a message of these arguments has, encoded."""
    embed = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    return len(dumps((list(args), {}, embed)).encode())


def text_of(total_bytes):
    """Return a text that makes a message of exactly so many bytes."""
    return "x" * (total_bytes - encoded_bytes(""))


def test_message_of_the_limit_is_sent_and_one_byte_more_is_denied(bench):
    """What was let through fills the broker; what was refused too early is lost work."""
    echo = bench.task(lambda self, text: text, Safeguards(repeatable=True))

    echo.delay(text_of(LIMIT_BYTES))
    with pytest.raises(
        MessageTooLarge, match=f"{LIMIT_BYTES + 1} bytes, safeguards_max_message_bytes is {LIMIT_BYTES}"
    ):
        echo.delay(text_of(LIMIT_BYTES + 1))

    assert 1 == len(bench.drain())


def test_characters_are_counted_as_the_bytes_they_become(bench):
    """A body in another alphabet is larger than its number of characters."""
    echo = bench.task(lambda self, text: text, Safeguards(repeatable=True))
    size_bytes = encoded_bytes("ж" * 600)

    with pytest.raises(MessageTooLarge, match=f"{size_bytes} bytes"):
        echo.delay("ж" * 600)


def test_compressed_message_counts_as_it_is_sent(bench):
    """Compression is how a team keeps large messages small."""
    echo = bench.task(lambda self, text: text, Safeguards(repeatable=True))

    echo.apply_async((text_of(LIMIT_BYTES * 5),), compression="zlib")

    assert 1 == len(bench.drain())


def test_plain_task_is_not_measured(bench):
    """The control: without safeguards it is sent, whatever its size."""

    @bench.app.task(name="plain.echo", shared=False)
    def echo(text):
        return text

    bench.app.tasks[echo.name].delay(text_of(LIMIT_BYTES * 5))

    assert 1 == bench.waiting()


def test_large_message_of_a_continuation_becomes_a_letter_and_its_parent_stays_succeeded(bench):
    """An error in a dispatch would make a failure of the parent, whose work is done."""
    ran = []
    last = bench.task(lambda self, text: ran.append(len(text)), Safeguards(repeatable=True))
    parent = bench.keyed(lambda self, number: text_of(LIMIT_BYTES + 1))

    result = parent.apply_async((1,), link=last.s())
    bench.drain()

    assert "SUCCESS" == result.state
    (letter,) = bench.all_letters()
    assert (last.name, FailureKind.DATA) == (letter.task, letter.kind)
    assert not letter.effect_possible
    assert "safeguards_max_message_bytes" in letter.reason
    assert [] == ran


def test_retry_of_a_message_that_has_grown_is_sent(bench):
    """A copy that was refused would be work that is lost, or held for ever."""
    ran = []

    def body(self, text):
        ran.append(len(text))
        if len(ran) == 1:
            self.retry(args=(text_of(LIMIT_BYTES * 2),), countdown=0)

    task = bench.task(body, Safeguards(repeatable=True))

    task.delay("small")
    bench.drain()

    assert 2 == len(ran)
    assert not bench.all_letters()


def test_large_message_is_warned_of_by_default(namespace, caplog):
    """A limit that a release brings must not stop a shop that sends more."""
    with contextlib.closing(Bench(namespace, safeguards_max_message_bytes=LIMIT_BYTES)) as bench:
        echo = bench.task(lambda self, text: text, Safeguards(repeatable=True))

        echo.delay(text_of(LIMIT_BYTES + 1))

        assert 1 == len(bench.drain())
        assert f"{LIMIT_BYTES + 1} bytes" in caplog.text


def test_policy_for_large_messages_is_one_of_two():
    """A misspelt word would let everything through."""
    with pytest.raises(ConfigurationError, match="did you mean 'deny'"):
        Settings(large_messages="denny")
