"""One message has one deadline: thousands that follow each other must not share it, and parts of one publish do."""

import contextlib

import pytest
from celery import group
from celery.signals import before_task_publish

from celery_safeguards import Safeguards
from celery_safeguards._publishing import current_publish
from tests.support.bench import Bench

TIMEOUT_SECONDS = 10.0
LASTS_SECONDS = 7.0


@pytest.fixture
def bench(namespace):
    """A bench on which each publish takes most of its time."""
    with contextlib.closing(Bench(namespace, safeguards_publish_timeout_seconds=TIMEOUT_SECONDS)) as bench:
        bench.app.set_current()
        yield bench


@pytest.fixture
def left(bench):
    """What each publish had left when it began, seconds."""
    left = []

    def note(sender, **_):
        publishing = current_publish()
        left.append(None if publishing is None else round(publishing.left_seconds(), 3))
        bench.clock.sleep(LASTS_SECONDS)

    before_task_publish.connect(note)
    yield left
    before_task_publish.disconnect(note)


def test_each_member_of_a_group_that_follows_has_a_deadline_of_its_own(bench, left):
    """A fan-out that takes longer than one message may would be dropped and sent again without end."""
    member = bench.task(lambda self, value: value, Safeguards(repeatable=True))
    parent = bench.keyed(lambda self, number: number)
    parent.apply_async((1,), link=group(member.s() for _ in range(3)))
    del left[:]

    bench.deliver()

    assert [TIMEOUT_SECONDS] * 3 == left


@pytest.mark.parametrize("kind", ["safe", "plain"])
def test_single_message_that_follows_has_a_deadline(bench, left, kind):
    """A child that waits for the broker without end takes no other work; a plain task's message is no exception."""
    if kind == "safe":
        last = bench.task(lambda self, value: value, Safeguards(repeatable=True))
    else:

        @bench.app.task(name="plain.last", shared=False)
        def last(value):
            return value

    parent = bench.keyed(lambda self, number: number)
    parent.apply_async((1,), link=bench.app.tasks[last.name].s())
    del left[:]

    bench.deliver()

    assert [TIMEOUT_SECONDS] == left


def test_publish_inside_another_one_ends_with_it(bench, left):
    """A receiver that publishes must not give the outer publish more time."""
    inner = bench.task(lambda self, value: value, Safeguards(repeatable=True))
    outer = bench.task(lambda self, value: value, Safeguards(repeatable=True))

    def publish_more(sender, **_):
        if sender == outer.name:
            inner.delay(1)

    before_task_publish.connect(publish_more)
    try:
        outer.delay(1)
    finally:
        before_task_publish.disconnect(publish_more)

    assert [TIMEOUT_SECONDS, TIMEOUT_SECONDS - LASTS_SECONDS] == left


def test_publish_without_safeguards_has_none(bench, left):
    """Its author has asked for nothing."""

    @bench.app.task(name="plain.alone", shared=False)
    def alone(value):
        return value

    bench.app.tasks[alone.name].delay(1)

    assert [None] == left


def test_body_that_runs_inside_an_eager_publish_has_none(bench, left):
    """It takes as long as it takes."""
    seen = []
    task = bench.task(lambda self, value: seen.append(current_publish()), Safeguards(repeatable=True))
    bench.app.conf.task_always_eager = True

    task.delay(1)

    assert [None] == seen
