"""
Edited copies in a real worker: what follows them, and what they must not complete.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from celery import chain, chord, group

from celery_safeguards.replay import opened_at, replay, send_edited
from celery_safeguards.wiring import Wiring
from tests.acceptance import editing_app
from tests.integration.replay.shop import held, queued
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.waiting import wait_until

SOON = 20


class Scene:
    """The app of a test, a worker of it, and its letters."""

    def __init__(self, app, worker, announcements, broken):
        self.app, self.worker, self.broken, self._announcements = app, worker, broken, announcements
        tasks = app.tasks
        self.first, self.step, self.held, self.gather = (
            tasks[f"editing.{name}"] for name in ("first", "step", "held", "gather")
        )

    def letters(self, count):
        """Wait for so many letters of first steps, and return them, by their number."""

        def found():
            page = Wiring.of(self.app).letters.list(task="editing.first", state="open")
            return page.letters if len(page.letters) >= count else None

        wait_until(found, SOON, f"there are {count} letters")
        return sorted(found(), key=lambda letter: str(opened_at(letter, 0).edit))

    def edit(self, letter, **changes):
        edit = replace(opened_at(letter, 0).edit, **changes)
        return send_edited(self.app, letter.id, "ann", edit, "a typing error").task_id

    def wait_for(self, name, count=1, **fields):
        return self.worker.wait_for(is_said(name, **fields), SOON, count=count)

    def heard(self, name, field):
        return [said[field] for said in self._announcements.heard(is_said(name))]

    def end(self):
        """Let the worker end all that was sent, and go."""
        # A body's end is told before its message is acknowledged: what a shutdown comes in between of is put back.
        wait_until(lambda: queued(self.app) == held(self.app) == 0, SOON, "nothing waits, nothing is held")
        # Longer than billiard waits for a parent that has not read a child's last result: 300 times 0.1 s.
        assert self.worker.stop(2 * SOON) == 0
        assert queued(self.app) == 0


@pytest.fixture
def scene(redis_url, namespace, announcements, start_worker, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    env = {apps.BROKER_URL: redis_url, apps.NAMESPACE: namespace, editing_app.BROKEN: str(broken)}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with editing_app.make_app() as app:
        Wiring.of(app).admission.declare_new()
        app.backend.result_consumer.consume_from = lambda task_id: None
        worker = start_worker("tests.acceptance.editing_app:app", env, concurrency=2).wait_ready()
        yield Scene(app, worker, announcements, broken)
        app.backend.client.close()


def test_copy_runs_with_typed_arguments_and_dies_into_a_letter_of_its_own(scene):
    at = datetime(2025, 3, 1, 12, tzinfo=UTC)
    scene.first.apply_async((-1,), {"at": at})
    (letter,) = scene.letters(1)

    died = scene.edit(letter, args=[-2])
    (own,) = [each for each in scene.letters(2) if each.id != letter.id]
    scene.edit(own, args=[7])
    scene.wait_for("first", number=7, when=repr(at))
    scene.end()

    assert (own.edited_from, own.id, opened_at(own, 0).edit.args) == (letter.id, died, [-2])


def test_copy_and_replay_of_one_chain_complete_a_chord_each(scene):
    """Under the ids of the original both count into one chord, and it completes with the parts of both, or never."""
    scene.broken.touch()
    chain(scene.first.s(1), group(scene.step.s(10), scene.step.s(20)), scene.gather.s()).apply_async()
    (letter,) = scene.letters(1)
    scene.broken.unlink()

    scene.edit(letter, args=[5])
    replay(scene.app, letter.id, "bob")
    scene.wait_for("gathered", count=2)
    scene.end()

    assert sorted(scene.heard("gathered", "values")) == [[11, 21], [15, 25]]
    assert sorted(scene.heard("step", "value")) == [1, 1, 5, 5]


def test_copy_of_a_chords_member_is_not_counted_in_the_chord(scene, announcements):
    """The chord has counted its dead member: a second part of it ends the chord before the others have."""
    announcements.hold("held")
    members = [chain(scene.first.s(-1), scene.step.s(10)), scene.held.s(2)]
    body = chord(members)(scene.gather.s())
    (letter,) = scene.letters(1)

    scene.edit(letter, args=[5])
    scene.worker.wait_for(is_said("task_postrun", task="editing.step", state="SUCCESS"), SOON)
    before_the_others = body.state
    announcements.open("held")
    scene.wait_for("held_ended")
    wait_until(lambda: body.state == "FAILURE", SOON, "the chord has failed")
    scene.end()

    assert (before_the_others, scene.heard("step", "value")) == ("PENDING", [5])
    assert scene.heard("gathered", "values") == []


def test_copy_of_a_member_leaves_its_group_and_sends_its_links(scene):
    member = scene.first.s(-1).set(link=scene.step.s(10))
    group(member, scene.first.s(2)).apply_async()
    (letter,) = scene.letters(1)

    scene.edit(letter, args=[3])
    scene.wait_for("step", value=3)
    scene.end()

    assert json.loads(letter.wire.body)[2]["callbacks"]
    assert scene.heard("step", "number") == [10]
