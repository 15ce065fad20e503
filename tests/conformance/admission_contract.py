"""
What every store of records must do: subclass it, and give a fixture `under_test` (see `stores.py`).

Each test stands for a sentence of the port's docstrings in `admission/store.py`.
"""

import threading

import pytest

from celery_safeguards.admission.store import Change, Continuing, RecordKey, Renewal
from celery_safeguards.clock import to_us
from celery_safeguards.errors import NotOurs
from celery_safeguards.ledger.record import Record, RecordTooNew, State
from tests.conformance.stores import LEASE_SECONDS

RACERS = 12
KEY = RecordKey("shop.charge", "payment:7")
HOUR_SECONDS = 3_600.0
LEASE_US = to_us(LEASE_SECONDS)
# A real server's clock moves on while a test looks at it.
SLACK_US = to_us(5)
FAILURE = {"kind": "worker_lost", "error": "killed"}
ODD_TEXTS = {
    "spaces and lines": "a b\n\r\tc",
    "NUL": "a\x00b",
    "quotes": "'\"\\",
    "braces": "{x}:{y}#z|w*?[a]",
    "not ASCII": "Zürich ☕ 😀",
    "Lua and JSON": "]] .. redis.call('FLUSHALL') -- null [] {}",
    "200 bytes": "k" * 200,
    "201 bytes": "k" * 201,
    "1 MB": "k" * 1_000_000,
}


def start(**changes):
    """The change that a first start writes."""
    fields = {
        "state": State.IN_PROGRESS,
        "asking": False,
        "attempt": 1,
        "lost_starts": 1,
        "task_id": "t-1",
        "series": ("t-1",),
        **changes,
    }
    return Change(fields=fields, after_seconds={"series_began_us": 0.0}, retention_seconds=HOUR_SECONDS)


def change(state, *, retention_seconds=HOUR_SECONDS, after_seconds=None, **fields):
    return Change(
        fields={"state": state, **fields}, after_seconds=after_seconds or {}, retention_seconds=retention_seconds
    )


DONE = change(State.DONE, result="42", lost_starts=0)
RETRY = change(State.RETRY_DUE, after_seconds={"not_before_us": 60.0}, lost_starts=0)
DYING = change(State.DYING, retention_seconds=None, final="dead", letter_id="l-1", letter="{}")


def admit(store, owner="A", key=KEY, *, unproven=True, epoch=None, **fields):
    return store.admit(key, owner, start(**fields), unproven=unproven, epoch=epoch)


def claimed(store, owner="A", key=KEY, **fields):
    """Claim a key that has no record, and return its record."""
    answer = admit(store, owner, key, **fields)
    assert answer.claimed
    return answer.record


def done(store, record):
    """Settle a claim as done."""
    change = Change(fields={"state": State.DONE}, retention_seconds=HOUR_SECONDS)
    return store.settle(KEY, record, State.IN_PROGRESS, change)


def taken(store, owner="B", key=KEY, **fields):
    """Take a record as it stands, and return it."""
    answer = store.take(key, store.read(key).rev, owner, start(**fields))
    assert answer.claimed
    return answer.record


def renewal(store, owner, key=KEY):
    return store.renew({owner: key})[1][owner].renewal


def mark_lost(store, owner, key=KEY):
    return store.mark_lost(key, owner, FAILURE)


def race(count, call):
    """Call from `count` threads at the same instant and return the results in the order of their numbers."""
    barrier, results = threading.Barrier(count), {}

    def run(number):
        barrier.wait()
        results[number] = call(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(count)]


class AdmissionStoreContract:
    """See the module."""

    @pytest.fixture
    def store(self, under_test):
        return under_test.store

    # ----------------------------------------------------------------------------------------------------- admit

    def test_a_key_without_a_record_is_claimed(self, store):
        """Nothing would ever run."""
        answer = admit(store)

        assert (True, "A", State.IN_PROGRESS) == (answer.claimed, answer.record.owner, answer.record.state)

    def test_admit_answers_with_the_record_as_it_is_stored(self, store):
        """A decision on what only this process believes would be written onto something else."""
        answer = admit(store)

        assert answer.record == store.read(KEY)

    def test_a_key_with_a_record_is_not_claimed(self, store):
        """A second delivery would start the body again."""
        first = claimed(store)

        answer = admit(store, "B")

        assert (False, first) == (answer.claimed, answer.record)

    def test_of_many_callers_one_claims_by_admit(self, under_test):
        """Two deliveries of one message would both run the body."""
        stores = [under_test.connect() for _ in range(RACERS)]

        answers = race(RACERS, lambda number: admit(stores[number], f"owner-{number}"))

        assert 1 == sum(answer.claimed for answer in answers)
        assert {under_test.store.read(KEY).owner} == {answer.record.owner for answer in answers}

    def test_the_same_owner_asking_again_is_told_its_own_record(self, store):
        """An owner whose answer was lost would wait for itself until the lease ends."""
        first = claimed(store)

        again = admit(store).record

        assert (first.owner, first.fence, first.attempt) == (again.owner, again.fence, again.attempt)

    def test_an_owner_that_is_told_that_it_claimed_has_a_whole_lease(self, under_test):
        """It counts its lease from its own question, and would call the outside after others may take over."""
        claimed(under_test.store)
        under_test.advance(LEASE_SECONDS / 2)

        again = admit(under_test.store)

        left_us = under_test.store.read(KEY).lease_until_us - again.view.now_us
        assert not again.claimed or left_us >= LEASE_US - SLACK_US

    def test_a_message_that_proves_an_earlier_start_claims_nothing(self, store):
        """The store has forgotten that start, and its effect would be doubled."""
        answer = admit(store, unproven=False)

        assert (False, None) == (answer.claimed, answer.record)

    def test_a_message_of_another_epoch_claims_nothing(self, store):
        """It may have been started before the store lost its data."""
        assert admit(store, epoch="older").claimed is False

    def test_a_message_of_this_epoch_claims(self, store):
        """Every stamped message would be taken for one that may have been started."""
        assert admit(store, epoch=store.view().epoch).claimed is True

    def test_keys_of_different_scopes_do_not_meet(self, store):
        """Two tasks that use order numbers as keys would answer each other's duplicates."""
        claimed(store)

        assert admit(store, "B", RecordKey("shop.refund", KEY.key)).claimed is True

    def test_a_separator_in_a_name_does_not_make_two_keys_one(self, store):
        """One of two operations would be answered with the other's result, and never run."""
        claimed(store, key=RecordKey("a|b", "c"))

        assert admit(store, "B", RecordKey("a", "b|c")).claimed is True

    @pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
    def test_any_text_is_a_key(self, store, text):
        """Work would be refused, or two keys be one, because of a character or a length."""
        key, other = RecordKey("shop.charge", text), RecordKey("shop.charge", text + "x")

        record = claimed(store, key=key)

        assert record == store.read(key)
        assert None is store.read(other)

    @pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
    def test_any_text_is_kept_in_a_record(self, store, text):
        """A result or a failure would come back as another one."""
        record = claimed(store)

        store.settle(KEY, record, State.IN_PROGRESS, change(State.DONE, result=text, failure={"error": text}))

        stored = store.read(KEY)
        assert (text, {"error": text}) == (stored.result, stored.failure)

    # ------------------------------------------------------------------------------------------------------ take

    def test_a_record_as_it_was_seen_is_taken(self, under_test):
        """The work of an owner that vanished would never be done."""
        seen = claimed(under_test.store)
        under_test.advance(LEASE_SECONDS + 1)

        answer = under_test.store.take(KEY, seen.rev, "B", start(attempt=2))

        assert (True, "B", 2) == (answer.claimed, answer.record.owner, answer.record.attempt)
        assert answer.record == under_test.store.read(KEY)

    def test_a_record_that_has_moved_is_not_taken(self, store):
        """The owner renewed between the question and the answer: its running body would be doubled."""
        seen = claimed(store)
        store.renew({"A": KEY})

        answer = store.take(KEY, seen.rev, "B", start())

        assert (False, "A") == (answer.claimed, answer.record.owner)

    def test_no_record_is_taken_at_revision_0(self, store):
        """Work of which the store has lost the record could not be started by `verify`."""
        assert store.take(KEY, 0, "B", start()).claimed is True

    def test_a_record_that_is_gone_is_not_taken(self, under_test):
        """A decision on an old record would be written as a new one's."""
        seen = claimed(under_test.store)
        under_test.expire(KEY)

        assert under_test.store.take(KEY, seen.rev, "B", start()).claimed is False

    def test_of_many_callers_at_one_revision_one_takes(self, under_test):
        """Two deliveries that both found a lapsed claim would both run the body."""
        seen = claimed(under_test.store)
        stores = [under_test.connect() for _ in range(RACERS)]

        answers = race(RACERS, lambda number: stores[number].take(KEY, seen.rev, f"owner-{number}", start()))

        assert 1 == sum(answer.claimed for answer in answers)
        assert {under_test.store.read(KEY).owner} == {answer.record.owner for answer in answers}

    def test_of_many_callers_without_a_record_one_takes(self, under_test):
        """After a wipe all duplicates ask at once."""
        stores = [under_test.connect() for _ in range(RACERS)]

        answers = race(RACERS, lambda number: stores[number].take(KEY, 0, f"owner-{number}", start()))

        assert 1 == sum(answer.claimed for answer in answers)

    def test_taking_gives_a_higher_fence_and_a_whole_lease(self, under_test):
        """The old owner's writes would be accepted, or the new one's claim be over at once."""
        first = claimed(under_test.store)
        under_test.advance(LEASE_SECONDS + 1)

        second = taken(under_test.store)

        assert second.fence > first.fence
        assert second.lease_until_us >= under_test.store.view().now_us + LEASE_US - SLACK_US

    def test_taking_clears_the_mark_of_loss(self, store):
        """The new owner would count as dead from its first moment."""
        claimed(store)
        mark_lost(store, "A")

        assert 0 == taken(store).lost_us

    def test_taking_twice_tells_the_owner_that_it_holds_the_claim(self, store):
        """An owner whose answer was lost would be told that somebody else was faster."""
        seen = claimed(store)

        first = store.take(KEY, seen.rev, "B", start(attempt=2))
        again = store.take(KEY, seen.rev, "B", start(attempt=2))

        assert (True, first.record) == (again.claimed, again.record)

    def test_taking_to_ask_is_not_taking_to_start(self, store):
        """An owner that asked `verify` would be told that its start was counted already."""
        seen = claimed(store)
        store.take(KEY, seen.rev, "B", start(asking=True))

        assert store.take(KEY, seen.rev, "B", start(asking=False)).claimed is False

    # ----------------------------------------------------------------------------------------------------- fence

    def test_the_fence_is_at_least_the_servers_time(self, store):
        """A store that was wiped would hand out fences that old owners hold already."""
        assert claimed(store).fence >= store.view().now_us - SLACK_US

    def test_the_fence_never_goes_back_after_a_wipe(self, under_test):
        """An owner from before the wipe would be accepted after it."""
        before = claimed(under_test.store).fence
        under_test.wipe()
        under_test.advance(0.001)
        under_test.store.declare_new()

        assert claimed(under_test.store, "B").fence > before

    def test_the_fence_never_goes_back_with_the_servers_clock(self, under_test):
        """A failover to a machine whose clock is behind would let an old owner's write through."""
        under_test.advance(1)
        before = claimed(under_test.store).fence
        under_test.set_clock_back(HOUR_SECONDS)
        seen = under_test.store.read(KEY)

        assert taken(under_test.store).fence > seen.fence >= before

    # ---------------------------------------------------------------------------------------------------- settle

    def test_settling_writes_under_the_claim(self, store):
        """No work would ever be done."""
        record = claimed(store)

        settled = store.settle(KEY, record, State.IN_PROGRESS, DONE)

        stored = store.read(KEY)
        assert (State.DONE, "42", 0) == (stored.state, stored.result, stored.lost_starts)
        assert (State.DONE, "42", 0) == (settled.state, settled.result, settled.lost_starts)

    def test_settling_answers_with_times_of_the_store(self, store):
        """A retry would be published for a time at which the record says that it is not due."""
        settled = store.settle(KEY, claimed(store), State.IN_PROGRESS, RETRY)

        assert settled.not_before_us == store.read(KEY).not_before_us
        assert SLACK_US > abs(settled.not_before_us - store.view().now_us - to_us(60))

    def test_a_lapsed_claim_that_nobody_took_still_settles(self, under_test):
        """A result that is there would be thrown away because a clock says so."""
        record = claimed(under_test.store)
        under_test.advance(10 * LEASE_SECONDS)

        under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)

        assert under_test.store.read(KEY).state is State.DONE

    def test_a_live_claim_of_somebody_else_does_not_settle(self, under_test):
        """A frozen owner that wakes would write its outcome over the new owner's run."""
        stale = claimed(under_test.store)
        under_test.advance(LEASE_SECONDS + 1)
        current = taken(under_test.store)

        with pytest.raises(NotOurs, match=f"held by B at {current.fence}, in_progress, not A at {stale.fence}"):
            under_test.store.settle(KEY, stale, State.IN_PROGRESS, DONE)

        assert current == under_test.store.read(KEY)

    def test_the_same_owner_at_an_older_fence_does_not_settle(self, store):
        """A write that was on its way while its owner took the record anew would undo the newer start."""
        older = claimed(store)
        newer = taken(store, "A", attempt=2)

        with pytest.raises(NotOurs):
            store.settle(KEY, older, State.IN_PROGRESS, DONE)

        assert newer == store.read(KEY)

    def test_settling_twice_is_no_error(self, store):
        """The client's second try after a lost answer would throw the outcome away."""
        record = claimed(store)
        store.settle(KEY, record, State.IN_PROGRESS, RETRY)
        first = store.read(KEY)

        again = store.settle(KEY, record, State.IN_PROGRESS, RETRY)

        assert (State.RETRY_DUE, first) == (again.state, store.read(KEY))

    def test_settling_from_another_state_is_refused(self, store):
        """A late failure would bury what its own earlier write has recorded as done."""
        record = claimed(store)
        store.settle(KEY, record, State.IN_PROGRESS, DONE)

        with pytest.raises(NotOurs):
            store.settle(KEY, record, State.IN_PROGRESS, RETRY)

        assert store.read(KEY).state is State.DONE

    def test_a_slow_first_burier_does_not_write_over_a_replay(self, store):
        """It would write dead over a replay that has started since."""
        record = claimed(store)
        dying = store.settle(KEY, record, State.IN_PROGRESS, DYING)
        dead = change(State.DEAD, retention_seconds=None, letter="")
        store.settle(KEY, dying, State.DYING, dead)
        replay = taken(store, "B", task_id="t-2")

        with pytest.raises(NotOurs):
            store.settle(KEY, dying, State.DYING, dead)

        assert replay == store.read(KEY)

    def test_a_burial_is_finished_by_anybody_under_its_own_fence(self, store):
        """A burial whose process died would stay unfinished for ever."""
        record = claimed(store)
        store.settle(KEY, record, State.IN_PROGRESS, DYING)
        as_found = store.read(KEY)

        store.settle(KEY, as_found, State.DYING, change(State.DEAD, retention_seconds=None, letter=""))

        assert (State.DEAD, "") == (store.read(KEY).state, store.read(KEY).letter)

    def test_settling_a_record_that_is_gone_is_refused(self, under_test):
        """An outcome without its counts would be written as the first of its key."""
        record = claimed(under_test.store)
        under_test.expire(KEY)

        with pytest.raises(NotOurs, match="gone"):
            under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE)

        assert None is under_test.store.read(KEY)

    def test_settling_with_recreate_writes_the_record_back(self, under_test):
        """Work that is done would run again because the store was wiped a second before."""
        record = claimed(under_test.store, attempt=2)
        under_test.wipe()

        under_test.store.settle(KEY, record, State.IN_PROGRESS, DONE, recreate=True)

        stored = under_test.store.read(KEY)
        assert (State.DONE, "A", record.fence, 2, ("t-1",)) == (
            stored.state,
            stored.owner,
            stored.fence,
            stored.attempt,
            stored.series,
        )

    def test_recreate_changes_nothing_where_the_record_is_there(self, store):
        """
        The owner's copy is older than the record: renewals have moved its revision on.

        t0 A claims, revision 1   t1 B sees revision 1   t2 A is renewed, settles   t3 B takes revision 1 → refused
        """
        record = claimed(store)
        store.renew({"A": KEY})
        store.settle(KEY, record, State.IN_PROGRESS, RETRY, recreate=True)

        assert store.take(KEY, record.rev, "B", start(attempt=2)).claimed is False
        assert store.read(KEY).state is State.RETRY_DUE

    def test_every_write_moves_the_revision_on(self, store):
        """A decision that was taken before a write would be carried out after it."""
        seen = [claimed(store)]
        epoch = "older"
        for write in (
            lambda: store.renew({"A": KEY}),
            lambda: store.restore(KEY, seen[0], epoch),
            lambda: store.settle(KEY, seen[0], State.IN_PROGRESS, change(State.IN_PROGRESS), recreate=True),
            lambda: mark_lost(store, "A"),
            lambda: taken(store, "B"),
            lambda: store.settle(KEY, seen[-1], State.IN_PROGRESS, RETRY),
        ):
            write()
            seen.append(store.read(KEY))

        revisions = [record.rev for record in seen]
        assert sorted(set(revisions)) == revisions

    def test_a_record_that_is_written_back_has_a_new_revision(self, under_test):
        """
        A take-over that was decided before the wipe would hit the live claim that was written back after it.

        t0 B sees A's lapsed claim, revision 1   t1 the store is wiped   t2 A is back   t3 B takes revision 1 → refused
        """
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.restore(KEY, copy, epoch)

        assert under_test.store.take(KEY, copy.rev, "B", start()).claimed is False

    def test_recreate_does_not_write_over_another_owner(self, under_test):
        """An owner from before a wipe would undo what was admitted after it."""
        stale = claimed(under_test.store)
        under_test.wipe()
        under_test.store.declare_new()
        current = claimed(under_test.store, "B")

        with pytest.raises(NotOurs):
            under_test.store.settle(KEY, stale, State.IN_PROGRESS, DONE, recreate=True)

        assert current == under_test.store.read(KEY)

    def test_a_settled_owner_is_renewed_no_more(self, store):
        """The lease of a retry that waits would be renewed as if its body ran."""
        store.settle(KEY, claimed(store), State.IN_PROGRESS, RETRY)

        assert Renewal.ABSENT is renewal(store, "A")

    # ----------------------------------------------------------------------------------------------------- renew

    def test_renewal_of_a_claim_gives_a_whole_lease_and_tells_the_record(self, under_test):
        """A long body would be taken over while it runs."""
        claimed(under_test.store)
        under_test.advance(LEASE_SECONDS / 2)

        view, renewed = under_test.store.renew({"A": KEY})

        assert (Renewal.RENEWED, under_test.store.read(KEY)) == (renewed["A"].renewal, renewed["A"].record)
        assert renewed["A"].record.lease_until_us >= view.now_us + LEASE_US - SLACK_US

    def test_a_lapsed_claim_that_nobody_took_is_renewed(self, under_test):
        """An owner that was only slow would lose its work."""
        claimed(under_test.store)
        under_test.advance(2 * LEASE_SECONDS)

        assert Renewal.RENEWED is renewal(under_test.store, "A")

    def test_renewal_of_an_owner_without_a_claim_is_absent(self, store):
        """A parent would take its child for fenced out before the child has claimed anything."""
        assert Renewal.ABSENT is renewal(store, "nobody")

    def test_renewal_of_a_record_that_is_gone_is_absent(self, under_test):
        """A parent would not write back what a wiped store has lost."""
        claimed(under_test.store)
        under_test.expire(KEY)

        assert Renewal.ABSENT is renewal(under_test.store, "A")

    def test_renewal_of_a_claim_that_was_taken_is_taken(self, store):
        """A fenced owner would go on as if it held the claim."""
        claimed(store)
        current = taken(store)

        assert Renewal.TAKEN is renewal(store, "A")
        assert current == store.read(KEY)

    def test_renewal_of_a_claim_that_was_marked_lost_is_taken(self, store):
        """A mark of loss would be undone by a renewal that was on its way."""
        claimed(store)
        mark_lost(store, "A")
        marked = store.read(KEY)

        assert Renewal.TAKEN is renewal(store, "A")
        assert marked == store.read(KEY)

    def test_renewal_during_a_burial_is_absent(self, store):
        """An owner that is burying its own work would be reported as having lost it to another."""
        store.settle(KEY, claimed(store), State.IN_PROGRESS, DYING)

        assert Renewal.ABSENT is renewal(store, "A")

    def test_many_owners_are_renewed_in_one_call(self, store):
        """A worker with many children would need a round trip for each, every few seconds."""
        claims = {f"owner-{number}": RecordKey("shop.charge", str(number)) for number in range(200)}
        for owner, key in claims.items():
            claimed(store, owner, key)

        _, renewed = store.renew({**claims, "nobody": KEY})

        assert [*claims, "nobody"] == list(renewed)
        assert {Renewal.RENEWED} == {renewed[owner].renewal for owner in claims}
        assert list(claims) == [renewed[owner].record.owner for owner in claims]
        assert Renewal.ABSENT is renewed["nobody"].renewal

    def test_renewal_of_nobody_only_tells_the_time(self, store):
        """An idle worker could not show that it is alive."""
        view, renewed = store.renew({})

        assert ({}, store.view().epoch) == (renewed, view.epoch)

    # -------------------------------------------------------------------------------------------------- mark_lost

    def test_a_mark_of_loss_keeps_the_claim_as_evidence(self, store):
        """The start would be forgotten with its owner, and the next delivery would run as the first."""
        before = claimed(store)

        assert mark_lost(store, "A") is True

        after = store.read(KEY)
        assert (State.IN_PROGRESS, "A", before.fence, 1, 1) == (
            after.state,
            after.owner,
            after.fence,
            after.attempt,
            after.lost_starts,
        )
        assert after.lost_us > 0

    def test_a_second_mark_of_loss_keeps_the_first_time(self, under_test):
        """The quiet period would begin anew, and the client's second try would say that there was no claim."""
        claimed(under_test.store)
        mark_lost(under_test.store, "A")
        under_test.advance(5)
        first = under_test.store.read(KEY)

        assert mark_lost(under_test.store, "A") is True
        assert first == under_test.store.read(KEY)

    def test_who_has_seen_a_claim_before_its_loss_cannot_take_it(self, store):
        """A decision on the live claim would be carried out on the lost one."""
        seen = claimed(store)
        mark_lost(store, "A")

        assert store.take(KEY, seen.rev, "B", start()).claimed is False

    @pytest.mark.parametrize("settle", [DONE, RETRY], ids=["done", "retry"])
    def test_a_settled_record_is_not_marked_lost(self, store, settle):
        """A child that dies after it has settled would turn an outcome into a doubt."""
        store.settle(KEY, claimed(store), State.IN_PROGRESS, settle)

        assert mark_lost(store, "A") is False
        assert 0 == store.read(KEY).lost_us

    def test_a_claim_that_was_taken_is_not_marked_lost(self, store):
        """The late parent of the first owner would declare the second one dead."""
        claimed(store)
        current = taken(store)

        assert mark_lost(store, "A") is False
        assert current == store.read(KEY)

    def test_an_owner_without_a_claim_holds_none(self, store):
        """A child that died before it claimed would be an error."""
        assert mark_lost(store, "nobody") is False

    # ---------------------------------------------------------------------------------------------------- restore

    def test_a_claim_is_written_back_into_another_epoch(self, under_test):
        """The body that runs would be doubled once the store admits again."""
        copy, epoch = claimed(under_test.store, attempt=2), under_test.store.view().epoch
        under_test.wipe()

        assert under_test.store.restore(KEY, copy, epoch) is True

        stored = under_test.store.read(KEY)
        assert ("A", copy.fence, 2, ("t-1",)) == (stored.owner, stored.fence, stored.attempt, stored.series)
        assert stored.is_live(under_test.store.view().now_us)

    def test_a_claim_that_was_written_back_is_renewed(self, under_test):
        """It would lapse one lease later although its owner lives."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.restore(KEY, copy, epoch)

        assert Renewal.RENEWED is renewal(under_test.store, "A")

    def test_writing_back_twice_is_no_error(self, under_test):
        """The client's second try after a lost answer would say that the claim is gone."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.restore(KEY, copy, epoch)

        assert under_test.store.restore(KEY, copy, epoch) is True

    def test_nothing_is_written_back_into_the_same_epoch(self, under_test):
        """A record that a person discarded, or that has expired, would come to life again."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.expire(KEY)

        assert under_test.store.restore(KEY, copy, epoch) is False
        assert None is under_test.store.read(KEY)

    def test_nothing_is_written_back_over_another_owner(self, under_test):
        """An owner that was cut off since before the wipe would fence out the one that runs now."""
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.declare_new()
        current = claimed(under_test.store, "B")

        assert under_test.store.restore(KEY, copy, epoch) is False
        assert current == under_test.store.read(KEY)

    def test_nothing_is_written_back_over_the_owners_own_outcome(self, under_test):
        """
        Work that is done would become a claim again, and run a second time once that lapses.

        t0 the store is wiped   t1 A settles, its record is written anew: done   t2 A's parent renews, finds no claim
        """
        copy, epoch = claimed(under_test.store), under_test.store.view().epoch
        under_test.wipe()
        under_test.store.settle(KEY, copy, State.IN_PROGRESS, DONE, recreate=True)

        assert under_test.store.restore(KEY, copy, epoch) is False
        assert under_test.store.read(KEY).state is State.DONE

    # -------------------------------------------------------------------------------------------------- retention

    def test_a_lapsed_claim_leaves_its_record(self, under_test):
        """The lease as the key's time to live: a start that nobody finished would read as never begun."""
        claimed(under_test.store)
        under_test.advance(2 * LEASE_SECONDS)

        assert under_test.store.read(KEY).is_live(under_test.store.view().now_us) is False
        assert admit(under_test.store, "B").claimed is False

    def test_a_done_record_lives_as_long_as_its_retention(self, under_test):
        """A duplicate that comes within the retention would run again."""
        under_test.store.settle(KEY, claimed(under_test.store), State.IN_PROGRESS, DONE)

        under_test.advance(HOUR_SECONDS - 10)

        assert under_test.store.read(KEY).state is State.DONE

    def test_a_done_record_expires(self, under_test):
        """The store would grow for ever."""
        under_test.store.settle(KEY, claimed(under_test.store), State.IN_PROGRESS, DONE)

        under_test.advance(HOUR_SECONDS + 10)

        assert None is under_test.store.read(KEY)

    @pytest.mark.parametrize("final", [State.DYING, State.DEAD, State.QUARANTINED])
    def test_buried_work_never_expires(self, under_test, final):
        """A letter would outlive its record, and its replay run as if nothing had been started before."""
        store, record = under_test.store, claimed(under_test.store)
        dying = store.settle(KEY, record, State.IN_PROGRESS, DYING)
        if final is not State.DYING:
            store.settle(KEY, dying, State.DYING, change(final, retention_seconds=None, letter=""))

        under_test.advance(1_000 * HOUR_SECONDS)

        assert store.read(KEY).state is final

    # ----------------------------------------------------------------------------------------------------- pauses

    def test_a_new_store_admits_nobody_for_one_lease(self, under_test):
        """Owners whose records were lost would be doubled before they have written them back."""
        under_test.wipe()
        assert admit(under_test.store).claimed is False

        under_test.advance(LEASE_SECONDS - 5)
        assert admit(under_test.store).claimed is False

        under_test.advance(10)
        assert admit(under_test.store).claimed is True

    def test_looking_at_a_new_store_begins_its_epoch(self, under_test):
        """Each caller would see another epoch, and no message would ever match."""
        before = under_test.store.view().epoch
        under_test.wipe()
        views = [under_test.store.view(), under_test.store.renew({})[0], admit(under_test.store).view]

        assert 1 == len({view.epoch for view in views})
        assert before != views[0].epoch

    def test_the_epoch_stays(self, under_test):
        """Every message would be taken for one from before a wipe."""
        before = under_test.store.view().epoch
        under_test.advance(100 * LEASE_SECONDS)
        admit(under_test.store)

        assert before == under_test.store.view().epoch

    def test_a_store_that_was_declared_new_admits_at_once(self, under_test):
        """The first start of a system would wait half a minute for owners that cannot exist."""
        under_test.wipe()
        under_test.store.declare_new()

        assert admit(under_test.store).claimed is True

    def test_after_an_outage_the_view_tells_a_pause_of_one_lease(self, under_test):
        """All workers were cut off at once: whoever comes back first would take over what the others run."""
        claimed(under_test.store)
        under_test.advance(LEASE_SECONDS / 2 + 5)

        view, _ = under_test.store.renew({})

        assert SLACK_US > abs(view.takeover_from_us - view.now_us - LEASE_US)

    def test_the_pause_after_an_outage_is_the_same_for_all_who_come_back(self, under_test):
        """The second worker to reconnect would see no pause and take over."""
        under_test.advance(LEASE_SECONDS)
        first, _ = under_test.store.renew({})
        under_test.advance(5)

        second = admit(under_test.connect()).view

        left_us = [view.takeover_from_us - view.now_us for view in (first, second)]
        assert SLACK_US > abs(left_us[0] - left_us[1] - to_us(5))

    def test_while_others_are_heard_one_owners_silence_is_no_outage(self, under_test):
        """A partitioned worker's claims would never be taken over."""
        claimed(under_test.store)
        for _ in range(9):
            under_test.advance(LEASE_SECONDS / 3)
            view, _ = under_test.store.renew({"B": KEY})

        assert view.takeover_from_us <= view.now_us

    def test_looking_is_not_being_heard(self, under_test):
        """A web process that reads the epoch would hide that every worker was cut off."""
        for _ in range(9):
            under_test.advance(LEASE_SECONDS / 3)
            under_test.store.view()

        view, _ = under_test.store.renew({})

        assert view.takeover_from_us > view.now_us

    # ----------------------------------------------------------------------------------------------------- format

    def test_one_of_many_may_send_what_follows(self, under_test, store):
        """A duplicate that comes while the first one sends would send the rest of the chain, too."""
        done(store, claimed(store))

        answers = [store.begin_continuing(KEY, task_id, LEASE_SECONDS) for task_id in ("t-1", "t-1", "t-2")]

        assert [Continuing.GO, Continuing.BUSY, Continuing.BUSY] == answers

    def test_what_was_sent_for_an_id_is_not_sent_again_and_another_id_goes_next(self, store):
        """A chain would run twice, or the canvas of a second publication would wait for ever."""
        done(store, claimed(store))
        store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        store.end_continuing(KEY, "t-1")

        assert Continuing.SENT == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)
        assert Continuing.GO == store.begin_continuing(KEY, "t-2", LEASE_SECONDS)

    def test_marks_of_two_ids_stand_side_by_side(self, store):
        """The later mark would wipe out the earlier one, and its continuation be sent again."""
        done(store, claimed(store))

        for task_id in ("t-1", "t-2", "t-1"):
            store.end_continuing(KEY, task_id)

        assert ("t-1", "t-2") == store.read(KEY).continued_by

    def test_sender_that_died_leaves_its_lease(self, under_test, store):
        """The rest of a chain would be lost with the process that was about to send it."""
        done(store, claimed(store))
        store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        under_test.advance(LEASE_SECONDS + 1)

        assert Continuing.GO == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

    def test_owner_seen_to_die_after_its_outcome_gives_up_its_right_to_send_at_once(self, store):
        """Its successor would wait for a whole lease although everybody knows."""
        record = claimed(store)
        fields = {"state": State.DONE, "continuing": "t-1"}
        lease = {"lease_until_us": LEASE_SECONDS}
        change = Change(fields=fields, after_seconds=lease, retention_seconds=HOUR_SECONDS)
        store.settle(KEY, record, State.IN_PROGRESS, change)
        assert Continuing.BUSY == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        assert not store.mark_lost(KEY, record.owner, FAILURE)

        assert Continuing.GO == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)
        assert State.DONE is store.read(KEY).state

    def test_record_that_is_gone_lets_its_sender_go(self, store):
        """After its retention nobody knows whether it was sent; not to send would lose the chain."""
        assert Continuing.GO == store.begin_continuing(KEY, "t-1", LEASE_SECONDS)

        store.end_continuing(KEY, "t-1")

        assert store.read(KEY) is None

    def test_a_record_of_a_newer_format_is_refused_by_name(self, under_test):
        """An old worker would guess what a record means that it cannot know."""
        claimed(under_test.store)

        with pytest.raises(RecordTooNew, match="newer than"):  # noqa: PT012 - memory reads at the write already
            under_test.write_raw(KEY, format=2)
            under_test.store.read(KEY)

    def test_no_record_is_none(self, store):
        """Absence would look like a record."""
        assert None is store.read(KEY)
        assert not isinstance(store.read(KEY), Record)
