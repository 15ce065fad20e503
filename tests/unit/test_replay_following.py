"""
What follows an edited copy: work of its own, which no chord and no group counts.
"""

import json

import pytest
from celery import Celery, chain, chord, group
from celery.signals import before_task_publish
from kombu.utils.json import dumps

from celery_safeguards.replay.copies.following import following

OF_ONE_RUN = {"task_id", "reply_to", "group_id", "group_index", "chord", "root_id", "parent_id"}


@pytest.fixture
def published():
    """Publish a canvas to nowhere, and return what its messages hold beside the arguments."""
    bodies = []

    def note(body=None, **_):
        bodies.append(json.loads(str(dumps(body)))[2])

    before_task_publish.connect(note)
    with Celery("canvas", broker="memory://", backend="cache+memory://", set_as_current=False) as app:

        @app.task(name="step", shared=False)
        def step(*_values):
            return None

        def publish(make):
            make(step).apply_async()
            return bodies

        yield publish
    before_task_publish.disconnect(note)


def options_in(value):
    """Return the names of all options, however deep."""
    if isinstance(value, list):
        return {name for each in value for name in options_in(each)}
    if not isinstance(value, dict):
        return set()
    own = set(value["options"]) if isinstance(value.get("options"), dict) else set()
    return own.union(*(options_in(each) for each in value.values()))


CANVASES = {
    "chain": lambda step: chain(step.si(1), step.si(2), step.si(3)),
    "chain of a group": lambda step: chain(step.si(1), group(step.si(2), step.si(3)), step.si(4)),
    "chain in a chord": lambda step: chord([chain(step.si(1), step.si(2)), step.si(3)], step.si(4)),
    "chord in a chord": lambda step: chord([chain(step.si(1), group(step.si(2), step.si(3)), step.si(4))], step.si(5)),
    "links": lambda step: step.si(1).set(link=[chain(step.si(2), step.si(3))], link_error=[step.si(4)]),
}


@pytest.mark.parametrize("shape", CANVASES)
def test_nothing_that_follows_belongs_to_the_run_of_the_original(published, shape):
    """One id that stays is enough: a chord counts by it, and completes with the parts of two runs."""
    embed = published(CANVASES[shape])[0]
    before = options_in([embed[name] or [] for name in ("callbacks", "errbacks", "chain")])

    found = following(embed)

    assert (shape == "links") or before & OF_ONE_RUN
    assert options_in(list(found.options.values())) & OF_ONE_RUN == set()
    assert found.options


@pytest.mark.parametrize("shape", CANVASES)
def test_place_in_a_chord_is_told(published, shape):
    """Of a chain in a chord the headers of its first member tell nothing."""
    assert following(published(CANVASES[shape])[0]).leaves_chord == ("in a chord" in shape)


def test_member_of_a_chord_leaves_it(published):
    member = next(embed for embed in published(CANVASES["chain in a chord"]) if embed["chord"])

    found = following(member)

    assert (found.options, found.leaves_chord) == ({}, True)


def test_what_follows_is_told_in_its_order(published):
    assert following(published(CANVASES["chain of a group"])[0]).words == (
        "then, in its chain: chord of (group of (step, step), step)",
    )


def test_arguments_that_look_like_a_signature_stay_as_they_are():
    """A task may be given a signature as data, or a mapping that resembles one."""
    data = {"task": "x", "options": {"task_id": "mine"}}
    link = {"task": "step", "args": [data], "kwargs": {"body": data}, "options": {}, "subtask_type": None}

    assert following({"callbacks": [link]}).options == {"link": [link]}


@pytest.mark.parametrize("odd", [{}, {"chain": None}, {"callbacks": []}])
def test_nothing_follows_what_has_no_canvas(odd):
    assert (following(odd).options, following(odd).leaves_chord) == ({}, False)


@pytest.mark.parametrize("odd", [{"chain": "x"}, {"callbacks": [1]}, {"errbacks": {"task": 1, "options": None}}])
def test_canvas_of_a_strange_shape_raises_nothing(odd):
    assert following(odd).words
