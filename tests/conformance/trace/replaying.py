"""
Steps of a person at the letters: a click, and what it publishes.
"""

from celery_safeguards.deadletter.refusals import LetterNotOpen
from celery_safeguards.policy import DidNotHappen, Happened
from celery_safeguards.replay.plan import Work, refusal, replay_message
from tests.conformance.trace.runs import AFTER_SECONDS
from tests.conformance.trace.sentences import sentence


def click(world):
    """A person looks at the letter, finds out what they must, and clicks."""
    letter = world.letter()
    world.require(letter is not None)
    verdict = None
    if refusal(letter, _work(world)) is not None:
        world.pass_time(AFTER_SECONDS + 1)
        verdict = Happened() if world.outside.effects else DidNotHappen()
        world.require(refusal(letter, _work(world), verdict) is None)
    try:
        task_id = f"t-{2 + world.invariants.replays}"
        world.letters.begin_replay(letter.id, task_id, "ana", world.clock.wall_seconds())
    except LetterNotOpen:
        return False
    world.invariants.replays += 1
    world.verdict = verdict
    return True


def publish_replay(world, noted=True):
    """Publish the replay that has begun, and note it in the letter."""
    letter = world.letter()
    world.require(letter is not None and letter.state == "replaying")
    now_seconds = world.clock.wall_seconds()
    message = replay_message(letter, letter.replay_task_id, world.verdict, at_seconds=now_seconds)
    world.broker.publish(int(message.task_id.removeprefix("t-")), dict(message.headers))
    if noted:
        world.letters.mark_replayed(letter.id, letter.replay_task_id, now_seconds)


def _work(world):
    return Work(store=world.store.view(), record=world.record(), policy=world.policy)


SENTENCES = (
    sentence(r"a person clicks replay", click),
    sentence(r"replay published", publish_replay),
    sentence(r"replay published, crash before it is noted", publish_replay, noted=False),
)
