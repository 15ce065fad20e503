"""
A dry run: what would become of each letter, in one word, as it then becomes; and what the tasks' own functions say.
"""

from dataclasses import replace

import pytest

from celery_safeguards import CannotTell, DidNotHappen, Happened, Idempotent, RetryPolicy, Safeguards, SafeTask, Verify
from celery_safeguards import headers as h
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.errors import StoreUnavailable
from celery_safeguards.replay import discard
from celery_safeguards.replay.expecting import IN_WORDS, Expected
from celery_safeguards.replay.many.asking import Asker, Said
from celery_safeguards.replay.many.choosing import Choice, make_job, named
from celery_safeguards.replay.many.forecasting import forecast, foresee
from celery_safeguards.replay.many.running import run_job
from celery_safeguards.wiring import Wiring
from tests.integration.replay.clocks import WorkersClock
from tests.integration.replay.shop import copied, die, forget_record, run, take

pytestmark = pytest.mark.redis


def keyed_task(shop, name, *, find=None, ensure=None, after_seconds=0):
    """Register a task whose outcome is asked about, and that has a post-condition."""
    on_unknown = "rerun" if find is None else Verify(find, after_seconds=after_seconds)
    safeguards = Safeguards(
        idempotent=Idempotent(f"{name}:{{order_id}}", on_unknown=on_unknown),
        retry=RetryPolicy(attempts=1),
        ensure=ensure,
    )

    @shop.app.task(shared=False, base=SafeTask, name=f"shop.{name}", safeguards=safeguards)
    def body(order_id, password=None):
        shop.ran.append((name, order_id))
        if shop.error is not None:
            raise shop.error
        return order_id

    return body


def of(*letters):
    return named(letter.id for letter in letters)


def expected(shop, *letters, **options):
    """Return what is expected of letters, in their order."""
    return [each.expected for each in foresee(shop.app, of(*letters), **options)]


def answers(shop, *letters, most=100, seconds=60.0):
    """Ask about letters; return who said what of each, and who has asked."""
    asker = Asker(shop.app, most=most, seconds=seconds)
    found = foresee(shop.app, of(*letters), asker=asker)
    return [[(each.question, each.said) for each in letter.answers] for letter in found], asker


def answer(shop, letter):
    """Ask about one letter, and return its only answer."""
    (found,) = foresee(shop.app, of(letter), asker=Asker(shop.app, most=1, seconds=60.0))
    (only,) = found.answers
    return only


def done_meanwhile(shop, redis_client, namespace, task=None):
    """Return an open letter whose work was done under another message."""
    task = task or shop.note_once
    letter = die(shop, task, order_id=71)
    forget_record(redis_client, namespace, letter)
    task.delay(order_id=71)
    run(shop.app)
    shop.ran.clear()
    return letter


def in_conflict(shop):
    """Return the letter of a message whose key is in use with other arguments."""
    shop.charge.apply_async(kwargs={"order_id": 72})
    run(shop.app)
    sent = shop.charge.publish((), {"order_id": 72}, headers={h.KEY: "order:72", h.FINGERPRINT: "another"})
    run(shop.app)
    shop.ran.clear()
    return next(each for each in Wiring.of(shop.app).letters.list().letters if each.task_id == sent.id)


def of_unknown_task(shop):
    died = die(shop, shop.note, a=1)
    wire = replace(died.wire, headers={**died.wire.headers, "task": "shop.gone"})
    letter = replace(died, id="gone", task="shop.gone", wire=wire)
    Wiring.of(shop.app).letters.bury(letter)
    return letter


def test_each_letter_has_a_word_for_what_would_become_of_it(shop, redis_client, namespace):
    """ "Would be sent" of ten thousand letters does not tell the five that conflict from those that run."""
    asks_later = keyed_task(shop, "later", find=DidNotHappen, after_seconds=600)
    given_up = die(shop, shop.note, a=2)
    discard(shop.app, given_up.id, "bob", "a test order")
    letters = {
        Expected.WOULD_RUN: die(shop, shop.note_once, order_id=1),
        Expected.VERIFIED_FIRST: die(shop, shop.pay, error=TimeoutError(), order_id=2),
        Expected.ALREADY_DONE: done_meanwhile(shop, redis_client, namespace),
        Expected.WOULD_WAIT: die(shop, asks_later, error=TimeoutError(), order_id=3),
        Expected.UNKNOWN_TASK: of_unknown_task(shop),
        Expected.CONFLICT: in_conflict(shop),
        Expected.NEEDS_VERDICT: die(shop, shop.charge, error=TimeoutError(), order_id=4),
        Expected.NEEDS_CONSENT: die(shop, shop.mail, error=TimeoutError(), a=1),
        Expected.CANNOT_BE_SENT: copied(shop, truncated=True),
        Expected.NOT_OPEN: given_up,
    }
    before = Wiring.of(shop.app).letters.list().letters

    found = expected(shop, *letters.values())
    counted = forecast(shop.app, of(*letters.values())).expected

    assert found == list(letters)
    assert counted == dict.fromkeys(letters, 1)
    assert Wiring.of(shop.app).letters.list().letters == before
    assert take(shop.app) is None
    assert IN_WORDS.keys() == set(Expected)


def test_what_was_expected_is_what_becomes_of_them(shop, redis_client, namespace):
    """A dry run that decides by rules of its own would be believed, and wrong."""
    letters = [die(shop, shop.note_once, order_id=1), done_meanwhile(shop, redis_client, namespace)]
    conflict = in_conflict(shop)
    clock = WorkersClock(shop.app, wall=Wiring.of(shop.app).clock.wall_seconds())
    replace(Wiring.of(shop.app), clock=clock).use_for(shop.app)

    said = expected(shop, *letters, conflict)
    done = run_job(shop.app, make_job(shop.app, of(*letters, conflict), "ann").id)

    assert said == [Expected.WOULD_RUN, Expected.ALREADY_DONE, Expected.CONFLICT]
    assert [arguments["order_id"] for _, arguments in shop.ran] == [1]
    assert (done.tally.succeeded, done.tally.refused) == (2, 1)


def test_consent_makes_a_letter_run(shop):
    letter = die(shop, shop.mail, error=TimeoutError(), a=1)

    assert expected(shop, letter, may_run_twice=True) == [Expected.WOULD_RUN]


def test_records_that_cannot_be_read_are_not_taken_for_none(shop, monkeypatch):
    letter = die(shop, shop.note_once, order_id=1)

    def away(keys):
        raise StoreUnavailable("away")

    monkeypatch.setattr(Wiring.of(shop.app).admission, "read_many", away)

    (found,) = foresee(shop.app, of(letter))
    assert (found.expected, found.is_sent) == (Expected.NOT_KNOWN, False)


# --- the tasks' own functions


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Happened({"receipt": 1}), Said.HAPPENED),
        (DidNotHappen(), Said.DID_NOT_HAPPEN),
        (CannotTell("the bank is away"), Said.CANNOT_TELL),
        ("yes", Said.CANNOT_TELL),
    ],
)
def test_verify_is_asked_and_nothing_is_changed_by_its_answer(shop, verdict, said):
    """A dry run that closes what "has happened" is no dry run."""
    letter = die(shop, shop.pay, error=TimeoutError(), order_id=1)
    admission = Wiring.of(shop.app).admission
    before = admission.read(RecordKey(letter.scope, letter.key)), Wiring.of(shop.app).letters.get(letter.id)
    shop.verdict = verdict

    found = answer(shop, letter)

    after = admission.read(RecordKey(letter.scope, letter.key)), Wiring.of(shop.app).letters.get(letter.id)
    assert (found.question, found.said, shop.asked) == ("verify", said, [1])
    assert before == after
    assert (take(shop.app), shop.ran) == (None, [])


def test_nobody_is_asked_unless_it_is_asked_for(shop):
    """It calls the bank, two thousand times."""
    letter = die(shop, shop.pay, error=TimeoutError(), order_id=1)

    list(foresee(shop.app, of(letter)))

    assert shop.asked == []


def test_verify_is_asked_only_where_a_worker_would_ask_it(shop, redis_client, namespace):
    letter = done_meanwhile(shop, redis_client, namespace, shop.pay)

    assert expected(shop, letter) == [Expected.ALREADY_DONE]
    assert (answers(shop, letter)[0], shop.asked) == ([[]], [])


def test_an_error_of_theirs_is_told_and_what_it_quotes_is_masked(shop):
    def find(order_id, password):
        raise ConnectionError(f"the bank refuses {password} for {order_id}")

    task = keyed_task(shop, "paid", find=find)
    letter = die(shop, task, error=TimeoutError(), order_id=1, password="hunter2-hunter2")

    found = answer(shop, letter)

    assert found.said is Said.CANNOT_TELL
    assert "the bank refuses" in found.why
    assert "hunter2" not in found.why


def test_verify_is_not_asked_while_the_lost_request_may_land(shop):
    """ "It did not happen" would be said of a payment that is on its way."""
    asked = []
    task = keyed_task(shop, "later", find=asked.append, after_seconds=600)
    letter = die(shop, task, error=TimeoutError(), order_id=1)

    found = answer(shop, letter)

    assert (found.said, asked) == (Said.NOT_ASKED, [])
    assert found.why.startswith("its request may still land for ")


def holds(result, order_id):
    """A post-condition that looks at the world, and at the result where there is one."""
    assert order_id != 2, "the order is not paid"
    return order_id != 3


@pytest.mark.parametrize(("order_id", "said"), [(1, Said.HOLDS), (2, Said.DOES_NOT_HOLD), (3, Said.DOES_NOT_HOLD)])
def test_a_post_condition_says_whether_the_effect_is_there(shop, order_id, said):
    letter = die(shop, keyed_task(shop, "order", ensure=holds), order_id=order_id)

    found = answer(shop, letter)

    assert (found.question, found.said) == ("ensure", said)
    assert "without a result" in found.why


def test_a_post_condition_that_needs_a_result_cannot_tell(shop):
    """It would be said not to hold, of an order that is paid."""
    letter = die(shop, keyed_task(shop, "order", ensure=lambda result: result["paid"]), order_id=1)

    assert answer(shop, letter).said is Said.CANNOT_TELL


def test_a_post_condition_of_work_that_is_done_gets_its_result(shop, redis_client, namespace):
    results = []
    task = keyed_task(shop, "order", ensure=results.append)
    letter = die(shop, task, order_id=5)
    forget_record(redis_client, namespace, letter)
    task.delay(order_id=5)
    run(shop.app)
    results.clear()

    found = answer(shop, letter)

    assert (results, found.said, found.why) == ([5], Said.HOLDS, "asked with the stored result")


def test_of_a_task_that_is_not_known_here_it_is_said_that_nobody_was_asked(shop):
    found = answer(shop, of_unknown_task(shop))

    assert (found.said, found.why) == (Said.NOT_ASKED, "the code of task shop.gone is not known to this process")


def test_arguments_that_cannot_be_read_are_not_guessed(shop):
    letter = die(shop, keyed_task(shop, "order", ensure=holds), order_id=1)
    wire = replace(letter.wire, content_type="application/x-python-serialize")
    Wiring.of(shop.app).letters._apply(letter.id, lambda kept: replace(kept, wire=wire))

    found = answer(shop, letter)

    assert found.said is Said.NOT_ASKED
    assert "only JSON is opened here" in found.why


def test_it_asks_within_bounds_and_says_how_many_it_left_out(shop):
    """A filter that was left out would call the bank a hundred thousand times."""
    letters = [die(shop, shop.pay, error=TimeoutError(), order_id=number) for number in range(3)]

    found, asker = answers(shop, *letters, most=2)
    _, late = answers(shop, *letters, seconds=0.0)

    assert [len(each) for each in found] == [1, 1, 0]
    assert (shop.asked, asker.asked, asker.left_out) == ([0, 1], 2, 1)
    assert (late.asked, late.left_out) == (0, 3)


def test_answers_are_counted(shop):
    for number in range(3):
        die(shop, shop.pay, error=TimeoutError(), order_id=number)
    asker = Asker(shop.app, most=2, seconds=60)
    counted = forecast(shop.app, Choice(), asker=asker)

    assert counted.answers == {("verify", "did_not_happen"): 2}
