"""
A publish that is refused, for its key or by the broker: aloud in user code, and as a letter where Celery dispatches.

The parents are of every kind, since the refusal comes from the task that is published and not from the one that ran.
"""

import contextlib
import json

import pytest
from celery import chain, chord, group
from celery.signals import task_success
from kombu.transport import memory

from celery_safeguards import Idempotent, Outcome, Safeguards, SafeTask
from celery_safeguards.errors import DeadLettered, KeyRefused
from celery_safeguards.outcome import FailureKind
from celery_safeguards.replay import ReplayRefused, replay
from tests.support.bench import Bench

KINDS = ("keyed", "unkeyed", "plain")


@pytest.fixture
def bench(namespace):
    """A bench of its own queue."""
    with contextlib.closing(Bench(namespace)) as bench:
        # Celery gives the members of a group that it has read from a message to the current app.
        bench.app.set_current()
        yield bench


@pytest.fixture
def seen():
    """What ran, in order."""
    return []


@pytest.fixture
def picky(bench, seen):
    """A keyed task whose key is made of its first argument."""
    return bench.keyed(lambda self, number, *rest: seen.append(("picky", number)))


@pytest.fixture
def last(bench, seen):
    """A task without a key, which takes anything."""
    return bench.task(lambda self, value=None: seen.append(("last", value)), Safeguards(repeatable=True))


@pytest.fixture(params=KINDS)
def parent(request, bench):
    """Register a parent of one kind, by its body."""

    def register(body):
        if request.param == "plain":
            body.__name__ = "body"
            task = bench.app.task(body, name=f"{bench.app.main}.plain", bind=True, shared=False, acks_late=True)
            return bench.app.tasks[task.name]
        return bench.keyed(body) if request.param == "keyed" else bench.task(body, Safeguards(repeatable=True))

    register.kind = request.param
    return register


def returning(value):
    """Return a body that returns a value."""
    return lambda self, number: value


def embedded(letter):
    """Return the arguments and the embedded canvas of a letter's message."""
    return json.loads(letter.wire.body)


# --- a continuation


def test_link_whose_key_is_refused_becomes_its_own_letter(bench, parent, picky):
    """The parent's success would become a failure, because the one that follows cannot be named."""
    task = parent(returning(None))
    task.apply_async((1,), link=picky.s())

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    assert ("acknowledged", "SUCCESS", None) == (only.fate, only.state, only.result)
    assert (picky.name, FailureKind.DATA, False) == (letter.task, letter.kind, letter.effect_possible)
    assert f"refused-{letter.task_id}" == letter.id
    assert only.task_id != letter.task_id
    assert [None] == embedded(letter)[0]


def test_other_links_of_the_same_parent_run(bench, parent, picky, last, seen):
    """One link that cannot be named would take all others with it."""
    signature = parent(returning(None)).s(1)
    for link in (last.s(), picky.s(), last.si("second")):
        signature.link(link)
    signature.apply_async()

    bench.drain()

    assert [("last", None), ("last", "second")] == seen
    assert 1 == len(bench.all_letters())


def test_next_task_of_a_chain_whose_key_is_refused_takes_the_rest_into_its_letter(bench, parent, picky, last, seen):
    """The rest of the chain would be gone: neither run, nor kept with what it waits for."""
    chain(parent(returning(None)).s(1), picky.s(), last.s()).apply_async()

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    assert ("SUCCESS", []) == (only.state, seen)
    assert [last.name] == [signature["task"] for signature in embedded(letter)[2]["chain"]]


class Receipt:
    """A result that pickle carries, and that names no operation."""


def test_next_task_that_is_refused_what_only_pickle_carries_becomes_its_own_letter(bench, parent, picky):
    """A letter that could not be encoded would make the parent's success a failure."""
    bench.app.conf.update(task_serializer="pickle", result_serializer="pickle", accept_content=["json", "pickle"])
    first = parent(returning(Receipt()))
    first.ignore_result = True
    for task in (first, picky):
        task.serializer = "pickle"
    chain(first.s(1), picky.s()).apply_async()

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    assert "acknowledged" == only.fate
    assert Outcome.DEAD_LETTERED not in bench.outcomes
    assert (picky.name, FailureKind.DATA) == (letter.task, letter.kind)
    assert "application/x-python-serialize" == letter.wire.content_type


def test_links_of_a_refused_task_are_in_its_letter(bench, parent, picky, last):
    """A replay of the letter would end where it should go on."""
    linked, errback = picky.s().on_error(last.s()), last.s()
    linked.link(errback)
    parent(returning(None)).apply_async((1,), link=linked)

    bench.drain()

    (letter,) = bench.all_letters()
    embed = embedded(letter)[2]
    assert [last.name] == [signature["task"] for signature in embed["callbacks"]]
    assert [last.name] == [signature["task"] for signature in embed["errbacks"]]


def test_member_of_a_group_whose_key_is_refused_leaves_the_others(bench, parent, picky, last, seen):
    """One member would keep the whole group from running."""
    chain(parent(returning(None)).s(1), group(picky.s(), last.s())).apply_async()

    first, *_others = bench.drain()

    assert ("SUCCESS", [("last", None)]) == (first.state, seen)
    assert [picky.name] == [letter.task for letter in bench.all_letters()]


@pytest.mark.parametrize("size", [1, 3])
def test_body_of_a_chord_whose_key_is_refused_becomes_its_own_letter(bench, parent, picky, size):
    """All members are done; what would be lost without a trace is what they were done for."""
    task = parent(returning("done"))
    chord([task.s(number) for number in range(size)], picky.si(None)).apply_async()

    members = bench.drain()

    (letter,) = bench.all_letters()
    assert ["SUCCESS"] * size == [member.state for member in members]
    assert (picky.name, f"refused-{letter.task_id}") == (letter.task, letter.id)


def test_errback_whose_key_is_refused_becomes_its_own_letter(bench, parent, picky, last, seen):
    """The compensation of a failed task would be lost, and the failure reported as another one."""

    def body(self, number):
        raise ValueError("no address")

    task = parent(body)
    signature = task.s(1)
    # An errback is sent the failed task's id in front of its own arguments; an immutable one is not.
    for errback in (picky.si(None), last.si("errback")):
        signature.link_error(errback)
    signature.apply_async()

    first, *_errbacks = bench.drain()

    assert ("FAILURE", [("last", "errback")]) == (first.state, seen)
    assert (DeadLettered if parent.kind == "keyed" else ValueError) is type(first.result)
    assert [picky.name] == [letter.task for letter in bench.all_letters() if letter.id.startswith("refused-")]


def test_arguments_that_do_not_fit_the_next_task_become_a_letter_too(bench, parent, seen):
    """A link with a parameter too many is as dead as one without a key."""
    narrow = bench.keyed(lambda self, number: seen.append(number))
    task = parent(returning(7))
    task.apply_async((1,), link=narrow.s("one too many"))

    (only,) = bench.drain()

    assert ("SUCCESS", []) == (only.state, seen)
    assert [narrow.name] == [letter.task for letter in bench.all_letters()]


def test_second_delivery_of_the_parent_writes_no_second_letter(bench, picky):
    """Each redelivery would add a letter of the same refusal, and a person would replay both."""
    task = bench.keyed(returning(None))
    sent = task.apply_async((1,), link=picky.s())
    task.apply_async((1,), link=picky.s(), task_id=sent.id)

    bench.drain()

    assert 1 == len(bench.all_letters())


def test_letter_of_a_refused_task_names_its_family(bench, parent, picky):
    """Whoever finds the letter could not tell what it follows, or which canvas waits for it."""
    chain(parent(returning(None)).s(1), picky.s()).apply_async()

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    headers = letter.wire.headers
    assert (only.task_id, only.task_id) == (headers["parent_id"], headers["root_id"])


def test_refusal_in_a_dispatch_is_a_letter_where_a_team_overrides_apply_async(bench, parent, seen):
    """A base class of the team's own, between Celery and this package, would hide that Celery dispatches."""

    class TeamTask(SafeTask):
        abstract = True

        def apply_async(self, args=None, kwargs=None, **options):
            return super().apply_async(args, kwargs, **options)

    safeguards = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))
    picky = bench.app.task(base=TeamTask, safeguards=safeguards, name=f"{bench.app.main}.team", shared=False)(
        lambda_with_name(seen)
    )
    parent(returning(None)).apply_async((1,), link=picky.s())

    (only,) = bench.drain()

    assert "SUCCESS" == only.state
    assert [picky.name] == [letter.task for letter in bench.all_letters()]


def lambda_with_name(seen):
    """Return a body that Celery can register without a bench."""

    def body(number):
        seen.append(number)

    return body


# --- a chord's body that the broker refuses


@pytest.fixture
def total(bench, seen):
    """A keyed task that takes what the members of a chord return."""
    safeguards = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"))
    return bench.task(lambda self, values, number: seen.append((values, number)), safeguards)


@pytest.fixture
def broker_away(bench, monkeypatch):
    """Have the broker cut off whoever publishes; `is_taken`: with the message in its hands."""
    bench.app.conf.task_publish_retry = False
    put = memory.Channel._put

    @contextlib.contextmanager
    def broker_away(*, is_taken=False):
        def cut_off(*args, **kwargs):
            if is_taken:
                put(*args, **kwargs)
            raise ConnectionResetError("cut off")

        with monkeypatch.context() as broken:
            broken.setattr(memory.Channel, "_put", cut_off)
            yield

    return broker_away


@pytest.fixture
def refused(bench, broker_away):
    """Run the members of a chord whose body the broker then refuses; returns the body's result."""

    def run(members, body, **how):
        sent = chord(members, body).apply_async()
        with broker_away(**how):
            delivered = [bench.deliver() for _ in members]
        assert ["SUCCESS"] * len(members) == [each.state for each in delivered]
        return sent

    return run


def test_body_that_the_broker_refuses_becomes_its_own_letter(bench, parent, total, last, refused):
    """All members are done, and what they were done for would be gone: the back end forgets what it cannot send."""
    task, body = parent(returning(7)), total.s(number=5).set(priority=7)
    body.link(last.s())

    sent = refused([task.s(1), task.s(2)], body)

    (letter,) = bench.all_letters()
    assert (total.name, sent.id, f"refused-{sent.id}") == (letter.task, letter.task_id, letter.id)
    assert ("op:5", total.name, False) == (letter.key, letter.scope, letter.effect_possible)
    args, kwargs, embed = embedded(letter)
    assert ([[7, 7]], {"number": 5}) == (args, kwargs)
    assert [last.name] == [signature["task"] for signature in embed["callbacks"]]
    assert (7, "op:5") == (letter.wire.properties["priority"], letter.wire.headers["sg_key"])


def test_state_of_a_body_that_the_broker_refuses_names_its_letter(bench, parent, total, refused):
    """Whoever waits for the chord would wait for ever, or not find what to replay."""
    task = parent(returning(7))

    sent = refused([task.s(1), task.s(2)], total.s(number=5))

    (letter,) = bench.all_letters()
    assert "FAILURE" == sent.state
    assert letter.id in str(sent.result)


@pytest.mark.parametrize("is_taken", [False, True], ids=["refused", "taken"])
def test_replay_of_a_refused_body_runs_it_once(bench, parent, total, seen, refused, is_taken):
    """The end of the chord would be missing; or be done twice, where only the broker's answer was lost."""
    task = parent(returning(7))
    refused([task.s(1), task.s(2)], total.s(number=5), is_taken=is_taken)
    (letter,) = bench.all_letters()

    replay(bench.app, letter.id, "somebody")
    bench.drain()

    assert [([7, 7], 5)] == seen


def test_refused_body_without_a_key_is_not_replayed_unasked(bench, parent, seen, refused):
    """The broker may have taken it: a click would run it a second time, and nothing would tell the two apart."""
    task, body = parent(returning(7)), bench.task(lambda self, values: seen.append(values))
    refused([task.s(1), task.s(2)], body.s(), is_taken=True)
    (letter,) = bench.all_letters()

    with pytest.raises(ReplayRefused):
        replay(bench.app, letter.id, "somebody")

    assert letter.effect_possible


@pytest.mark.parametrize("parent", ["keyed", "unkeyed"], indirect=True)
def test_refused_body_of_plain_celery_becomes_a_letter_where_the_last_member_is_guarded(bench, parent, seen, refused):
    """A guarded chord would be lost because of the one task in it that is not."""

    @bench.app.task(name=f"{bench.app.main}.total", shared=False)
    def plain_total(values):
        seen.append(values)

    task = parent(returning(7))
    refused([task.s(1), task.s(2)], plain_total.s())
    (letter,) = bench.all_letters()

    replay(bench.app, letter.id, "somebody", may_run_twice=True)
    bench.drain()

    assert [[7, 7]] == seen


def test_refusal_of_the_broker_raises_where_a_body_publishes(bench, parent, total, broker_away):
    """A body could not handle what it has asked for, and its work would run from a letter that nobody expects."""
    caught = []

    def body(self, number):
        try:
            total.delay([7], 5)
        except ConnectionResetError as error:
            caught.append(error)

    parent(body).delay(1)
    with broker_away():
        only = bench.deliver()

    assert ("SUCCESS", 1) == (only.state, len(caught))
    assert not bench.all_letters()


# --- user code


@pytest.mark.parametrize(
    "publish",
    [
        lambda picky, last: picky.delay(None),
        lambda picky, last: picky.apply_async((None,), link=last.s()),
        lambda picky, last: picky.s(None).delay(),
        lambda picky, last: chain(picky.s(None), last.s()).apply_async(),
        lambda picky, last: group(picky.s(None), last.s()).apply_async(),
        lambda picky, last: chord([picky.s(None)], last.s()).apply_async(),
    ],
    ids=["delay", "apply_async", "signature", "chain", "group", "chord"],
)
def test_refusal_raises_where_user_code_publishes(bench, picky, last, publish):
    """The mistake would be seen in a list of letters, long after the request that made it was answered."""
    with pytest.raises(KeyRefused):
        publish(picky, last)

    assert not bench.all_letters()


def test_refusal_raises_in_a_body_that_publishes(bench, parent, picky, last):
    """A body could not handle what it has asked for."""
    caught = []

    def body(self, number):
        for publish in (picky.delay, lambda none: chain(picky.s(none), last.s()).apply_async()):
            try:
                publish(None)
            except KeyRefused as error:
                caught.append(error)

    parent(body).delay(1)

    (only,) = bench.drain()

    assert ("SUCCESS", 2) == (only.state, len(caught))
    assert not bench.all_letters()


def test_refusal_that_a_body_does_not_handle_is_its_own_failure(bench, picky):
    """The body has not done what it should: shown as done, nobody would mend it."""
    task = bench.keyed(lambda self, number: picky.delay(None))
    task.delay(1)

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (task.name, FailureKind.DATA) == (letter.task, letter.kind)
    assert ("FAILURE", letter.id) == (only.state, only.result.letter_id)


def test_refusal_raises_in_a_body_that_replaces_itself(bench, picky):
    """A body that hands its work on to nobody would be taken for done."""
    task = bench.keyed(lambda self, number: self.replace(picky.s(None)))
    task.delay(1)

    (only,) = bench.drain()

    (letter,) = bench.all_letters()
    assert (task.name, letter.id) == (letter.task, only.result.letter_id)


def test_refusal_raises_in_a_signal_handler(bench, picky):
    """A handler is user code, although Celery calls it."""
    caught = []

    def publish(sender=None, **_):
        try:
            picky.delay(None)
        except KeyRefused as error:
            caught.append(error)

    task = bench.keyed(returning(1))
    task.delay(1)
    task_success.connect(publish, weak=False)
    try:
        bench.drain()
    finally:
        task_success.disconnect(publish)

    assert 1 == len(caught)
    assert not bench.all_letters()
