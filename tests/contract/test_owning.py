"""Ownership: one owner counts, every write carries the fence, nothing that finished is thrown away."""

from dataclasses import replace

import pytest
from tests.conftest import OpenStore
from tests.words import (
    SECOND,
    VirtualClock,
    a_policy,
    a_room,
    a_task,
    abandoned,
    an_error,
    carry_out,
    claim,
    claim_one,
    completed,
    enqueue,
    facts_of,
    failed,
    handed_back,
    ids,
    raised,
    recover,
    register,
    requeue,
    retried,
    settle,
    start,
    status_of,
    succeeded,
)

from everbeat.decide.room import OWN_PROCESS, Room
from everbeat.model.event import Event
from everbeat.model.order import Order
from everbeat.model.recovery import Adopted, Cause, Orphan, Settled, Superseded, Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim, TaskError
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush


def events_of(store: Store, task_id: str) -> list[str]:
    return [event.name for event in store.events(task_id=task_id)]


def claimed(store: Store, task_id: str = "a", worker: str = "w1") -> Claim:
    """A CLAIMED task: one that must run alone and waits for its process."""
    enqueue(store, id=task_id, name="later")
    if not any(known.id == worker for known in store.workers()):
        register(store, worker)
    shared = Room(frozenset(), frozenset({"later"}), None, async_free=1)
    (first,) = store.flush(Flush(worker_id=worker, room=shared)).claims
    recover(store, first, Verdict(change=Change.RECOVER, billed=False, solo=True))
    (again,) = claim(store, worker, 0, own=1)
    assert (again.slot, again.status) == (OWN_PROCESS, TaskStatus.CLAIMED)
    return again


# -- a run and its end ------------------------------------------------------------------------------------------------


def test_a_claim_has_the_rules_its_task_was_sent_with(store: Store) -> None:
    register(store, "w1")
    enqueue(store, id="timed", policy=a_policy(timeout=1.5))
    enqueue(store, id="plain", policy=a_policy(max_attempts=2))

    timed, plain = claim(store, places=2)

    assert (timed.id, timed.timeout, timed.alone) == ("timed", 1.5, True)
    assert (plain.id, plain.timeout, plain.alone) == ("plain", None, False)


def test_an_isolated_task_is_claimed_until_its_own_process_is_ready(store: Store) -> None:
    register(store, "w1")
    enqueue(store, id="a", policy=a_policy(isolated=True))
    enqueue(store, id="b")

    mine, other = claim(store, places=1, own=1)

    assert (mine.id, mine.slot, mine.status) == ("a", OWN_PROCESS, TaskStatus.CLAIMED)
    assert (other.id, other.slot, other.status) == ("b", 1, TaskStatus.RUNNING)


def test_results_that_are_settled_together_are_each_stored_as_they_are(store: Store) -> None:
    results = [b"1", b"", None, b"\x00\xff", b'"' + b"long" * 50 + b'"', b"null"]
    for number in range(len(results)):
        enqueue(store, id=f"t{number}")
    register(store, "w1")
    taken = claim(store, places=len(results))

    endings = [
        Ending(claim=one, verdict=Verdict(change=Change.COMPLETE, result=result))
        for one, result in zip(taken, results, strict=True)
    ]
    settled = store.flush(Flush(worker_id="w1", endings=endings)).settlements

    assert settled == [Settled(task_id=one.id) for one in taken]
    ends = [store.finished(one.id) for one in taken]
    assert [(end.status, end.result) for end in ends if end] == [(TaskStatus.COMPLETED, result) for result in results]


def test_of_results_that_are_settled_together_one_that_is_late_harms_none(store: Store) -> None:
    register(store, "w1")
    for number in range(5):
        enqueue(store, id=f"t{number}")
    taken = claim(store, places=5)
    requeue(store, taken[2], billed=False)
    rival = claim_one(store, "w2")

    endings = [Ending(claim=one, verdict=completed(), outcome=succeeded()) for one in taken]
    settled = store.flush(Flush(worker_id="w1", endings=endings)).settlements

    late = Superseded(task_id="t2", status=TaskStatus.RUNNING, by=rival.fence)
    assert settled == [late if one.id == "t2" else Settled(task_id=one.id) for one in taken]
    assert [status_of(store, one.id) for one in taken].count(TaskStatus.COMPLETED) == 4


@pytest.mark.parametrize("row_by_row", [False, True])
def test_a_store_that_knows_less_than_its_worker_is_not_written(store: Store, row_by_row: bool) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)

    endings = [Ending(claim=taken, verdict=completed())]
    flushed = store.flush(Flush(worker_id="w1", endings=endings, room=a_room(1), seen_beat=7, row_by_row=row_by_row))

    assert (flushed.alive, flushed.is_older) == (False, True)
    assert status_of(store, "a") is TaskStatus.RUNNING


def test_running_is_committed_with_the_claim_when_a_process_waits(store: Store) -> None:
    enqueue(store, id="a")

    taken = claim_one(store)

    assert (taken.status, taken.fence, taken.attempt, taken.worker_id) == (TaskStatus.RUNNING, 1, 1, "w1")
    assert facts_of(store, "a", "status", "fence", "attempt", "worker_id") == (TaskStatus.RUNNING, 1, 1, "w1")


def test_a_result_is_stored_under_the_fence(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    assert store.finished("a") is None

    assert settle(store, taken, completed(b"42"), outcome=succeeded(b"42")) == Settled(task_id="a")

    end = store.finished("a")
    assert end is not None
    assert (end.status, end.result, end.attempt, end.error) == (TaskStatus.COMPLETED, b"42", 1, None)


def test_a_failure_is_stored_with_its_attempt_history_and_event(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)

    settle(store, taken, failed(), outcome=raised())

    info, end = store.get("a"), store.finished("a")
    assert info is not None
    assert end is not None
    assert end.error == TaskError(code="UNHANDLED_EXCEPTION", message="it broke", exception_type="builtins.ValueError")
    (attempt,) = info.attempts
    assert (attempt.attempt, attempt.error_code, attempt.will_retry) == (1, "UNHANDLED_EXCEPTION", False)
    assert (attempt.worker_id, attempt.hostname, attempt.pid) == ("w1", "host-1", 99)
    (entry,) = info.history
    assert (entry.actor, entry.change, entry.old_status, entry.new_status) == ("worker/w1", "fail", "RUNNING", "FAILED")
    assert events_of(store, "a") == ["task.failed"]


def test_a_retry_goes_back_and_its_attempt_is_kept(store: Store) -> None:
    enqueue(store, id="a")
    settle(store, claim_one(store), retried(), outcome=raised())

    (again,) = claim(store)

    assert (again.attempt, again.free_attempts, again.fence) == (2, 0, 3)
    assert [one.will_retry for one in facts_of(store, "a", "attempts")[0]] == [True]


def test_many_endings_are_settled_in_order_each_for_itself(store: Store) -> None:
    register(store, "w1")
    store.enqueue([a_task(id=name) for name in "abcd"])
    a, b, c, d = claim(store, places=4)
    requeue(store, c)
    verdicts = [(a, completed()), (b, failed()), (c, failed()), (d, completed())]

    flushed = store.flush(
        Flush(worker_id="w1", endings=[Ending(claim=one, verdict=verdict) for one, verdict in verdicts])
    )

    assert flushed.settlements == [
        Settled(task_id="a"),
        Settled(task_id="b"),
        Superseded(task_id="c", status="PENDING", by=2),
        Settled(task_id="d"),
    ]
    assert [status_of(store, name) for name in "abcd"] == [
        TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.PENDING, TaskStatus.COMPLETED
    ]  # fmt: skip


def test_an_outcome_that_no_database_can_store_as_it_is_does_not_stop_the_flush(store: Store) -> None:
    enqueue(store, id="a")
    error = TaskError(
        code="UNHANDLED_EXCEPTION", message="half a character: \udcff" + "x" * 200_000, traceback="\udcff"
    )

    assert settle(store, claim_one(store), Verdict(change=Change.FAIL, error=error, reason="\udcff")) == Settled(
        task_id="a"
    )

    (message,) = facts_of(store, "a", "error_message")
    assert message.startswith("half a character: \\udcff")
    assert len(message) < 70_000


def test_events_of_a_flush_are_stored_with_it(store: Store) -> None:
    register(store, "w1")

    store.flush(Flush(worker_id="w1", events=[Event(name="child.died", worker_id="w1", facts={"pid": 7})]))

    assert [(event.name, event.facts) for event in store.events(after=1)] == [("child.died", {"pid": 7})]


# -- the fence --------------------------------------------------------------------------------------------------------


def test_a_finish_that_arrives_after_recovery_changes_nothing(store: Store) -> None:
    enqueue(store, id="a")
    slow = claim_one(store, worker="slow")
    requeue(store, slow, reason="worker slow silent for 41s")
    rival = claim_one(store, worker="fast")

    late = settle(store, slow, completed(b'"late"'), outcome=succeeded(b'"late"'))

    assert late == Superseded(task_id="a", status="RUNNING", by=rival.fence)
    assert store.finished("a") is None
    assert events_of(store, "a") == ["task.recovered", "outcome.refused"]


def test_the_same_worker_is_no_exception(store: Store) -> None:
    enqueue(store, id="a")
    first = claim_one(store)
    requeue(store, first)
    second = claim_one(store)

    assert settle(store, first, completed(b"1")) == Superseded(task_id="a", status="RUNNING", by=second.fence)
    assert settle(store, second, completed(b"2")) == Settled(task_id="a")
    assert store.finished("a").result == b"2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "verdict", [failed(), retried(), handed_back(), abandoned()], ids=lambda verdict: verdict.change
)
def test_no_verdict_of_a_superseded_owner_is_written(store: Store, verdict: Verdict) -> None:
    enqueue(store, id="a")
    slow = claim_one(store, worker="slow")
    requeue(store, slow)
    rival = claim_one(store, worker="fast")
    before = store.get("a")

    assert settle(store, slow, verdict) == Superseded(task_id="a", status="RUNNING", by=rival.fence)

    assert store.get("a") == before


def test_a_recovery_that_lost_the_race_changes_nothing(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    settle(store, taken, completed(b"1"))

    assert requeue(store, taken) == Superseded(task_id="a", status="COMPLETED", by=1)
    assert store.finished("a").result == b"1"  # type: ignore[union-attr]


def test_a_claim_of_another_worker_under_the_same_fence_is_refused(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    taken.worker_id = "somebody"

    assert settle(store, taken, completed()) == Superseded(task_id="a", status="RUNNING", by=1)
    assert status_of(store, "a") is TaskStatus.RUNNING


def test_a_worker_declared_dead_may_settle_what_nobody_has_taken_from_it(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    store.declare_dead("w1", reason="silent", cause="silence")

    flushed = store.flush(Flush(worker_id="w1-again", endings=[Ending(claim=taken, verdict=completed(b"1"))]))

    assert (flushed.alive, flushed.settlements) == (False, [Settled(task_id="a")])
    assert status_of(store, "a") is TaskStatus.COMPLETED


# -- too late ---------------------------------------------------------------------------------------------------------


def test_a_late_result_is_adopted_if_nobody_has_claimed_the_task_since(store: Store) -> None:
    enqueue(store, id="a")
    slow = claim_one(store, worker="slow")
    recover(store, slow, Verdict(change=Change.RECOVER, reason="silent", delay_us=60 * SECOND))

    assert settle(store, slow, completed(b"1"), outcome=succeeded(b"1")) == Adopted(task_id="a")

    assert store.finished("a").result == b"1"  # type: ignore[union-attr]
    assert claim(store, "slow") == []
    assert facts_of(store, "a", "history")[0][-1].change == "adopt"
    assert events_of(store, "a") == ["task.recovered", "outcome.adopted"]


def test_a_late_result_of_an_earlier_owner_is_not_adopted(store: Store) -> None:
    enqueue(store, id="a")
    first = claim_one(store)
    requeue(store, first)
    requeue(store, claim_one(store))

    assert settle(store, first, completed(), outcome=succeeded()) == Superseded(task_id="a", status="PENDING", by=4)
    assert status_of(store, "a") is TaskStatus.PENDING


def test_an_adoption_that_is_sent_again_is_no_refusal(store: Store) -> None:
    """Its commit got no answer (PROTOCOL 7)."""
    register(store, "w1")
    enqueue(store, id="a")
    slow = claim_one(store)
    requeue(store, slow)

    settle(store, slow, completed(b"1"), outcome=succeeded(b"1"))
    again = settle(store, slow, completed(b"1"), outcome=succeeded(b"1"))

    assert isinstance(again, Adopted)
    assert status_of(store, "a") is TaskStatus.COMPLETED
    assert store.late_outcomes("a") == []
    assert events_of(store, "a").count("outcome.adopted") == 1


def test_a_late_outcome_that_is_sent_again_is_kept_once(store: Store) -> None:
    register(store, "w1"), register(store, "w2")
    enqueue(store, id="a")
    slow = claim_one(store)
    requeue(store, slow)
    claim_one(store, "w2")

    first, again = (settle(store, slow, completed(b"1"), outcome=succeeded(b"1")) for _ in range(2))

    assert isinstance(first, Superseded)
    assert again == first
    assert len(store.late_outcomes("a")) == 1
    assert events_of(store, "a").count("outcome.refused") == 1


def test_a_late_failure_is_kept_but_does_not_end_the_task(store: Store) -> None:
    enqueue(store, id="a")
    slow = claim_one(store)
    requeue(store, slow)

    assert settle(store, slow, failed(), outcome=raised()) == Superseded(task_id="a", status="PENDING", by=2)
    assert status_of(store, "a") is TaskStatus.PENDING
    assert events_of(store, "a")[-1] == "outcome.refused"


def test_a_result_after_the_task_was_given_up_is_refused_and_told(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    recover(store, taken, abandoned())

    assert settle(store, taken, completed(), outcome=succeeded()) == Superseded(task_id="a", status="FAILED", by=2)
    assert events_of(store, "a")[-1] == "outcome.refused"


def test_a_flush_that_is_sent_twice_counts_once(store: Store) -> None:
    register(store, "w1")
    store.enqueue([a_task(id="a"), a_task(id="b")])
    a, b = claim(store, places=2)
    flush = Flush(worker_id="w1", endings=[Ending(claim=a, verdict=completed()), Ending(claim=b, verdict=failed())])

    assert (
        store.flush(flush).settlements == store.flush(flush).settlements == [Settled(task_id="a"), Settled(task_id="b")]
    )
    assert len(facts_of(store, "b", "attempts")[0]) == 1


# -- claimed, then started --------------------------------------------------------------------------------------------


def test_a_recovery_that_became_a_cancel_is_told_as_one_and_counts_once_when_it_is_sent_twice(store: Store) -> None:
    enqueue(store, id="a")
    register(store, "w1")
    taken = claim_one(store)
    carry_out(store, Order.CANCEL, "a")
    lost = Verdict(change=Change.RECOVER, reason="its process died", error=an_error("WORKER_CRASHED"), crashes=1)
    flush = Flush(worker_id="w1", endings=[Ending(claim=taken, verdict=lost, outcome=raised())])

    first, second = store.flush(flush).settlements, store.flush(flush).settlements

    assert first == [Settled(task_id="a", change=Change.CANCEL)]
    assert second == [Settled(task_id="a")]
    info = store.get("a")
    assert info is not None
    assert info.status is TaskStatus.CANCELLED
    assert [entry.actor for entry in info.history if entry.change == "cancel"] == ["system/recovery"]
    assert events_of(store, "a").count("task.recovered") == 1
    assert not store.late_outcomes("a")


def test_a_task_that_waits_for_its_own_process_is_claimed_and_not_yet_a_run(store: Store) -> None:
    taken = claimed(store)

    assert facts_of(store, "a", "status", "attempt") == (TaskStatus.CLAIMED, 1)  # the one before
    assert start(store, taken).started == [taken]
    assert (taken.status, taken.attempt) == (TaskStatus.RUNNING, 2)
    assert facts_of(store, "a", "status", "attempt", "fence") == (TaskStatus.RUNNING, 2, taken.fence)


def test_a_start_that_is_sent_twice_is_one_run(store: Store) -> None:
    taken = claimed(store)
    start(store, taken)

    assert start(store, taken).started == [taken]
    assert facts_of(store, "a", "attempt") == (2,)


def test_a_start_after_the_claim_was_revoked_is_refused(store: Store) -> None:
    taken = claimed(store)
    requeue(store, taken, billed=False)

    assert start(store, taken).started == []
    assert taken.status is TaskStatus.CLAIMED
    assert status_of(store, "a") is TaskStatus.PENDING


def test_a_worker_declared_dead_neither_starts_nor_claims(store: Store) -> None:
    taken = claimed(store)
    enqueue(store, id="b")
    store.declare_dead("w1", reason="gone", cause="proof")

    flushed = store.flush(Flush(worker_id="w1", starts=[taken], room=a_room(3)))

    assert (flushed.alive, flushed.started, flushed.claims) == (False, [], [])
    assert [status_of(store, "a"), status_of(store, "b")] == [TaskStatus.CLAIMED, TaskStatus.PENDING]


def test_a_worker_that_never_registered_claims_nothing(store: Store) -> None:
    enqueue(store)

    assert store.flush(Flush(worker_id="nobody", room=a_room())).alive is False


# -- what is billed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("billed", "free"), [(True, 0), (False, 1)])
def test_an_unbilled_run_is_counted_as_free(store: Store, billed: bool, free: int) -> None:
    enqueue(store, id="a")
    requeue(store, claim_one(store), billed=billed)

    (again,) = claim(store)

    assert (again.attempt, again.free_attempts) == (2, free)


def test_a_start_that_no_process_has_seen_was_no_run(store: Store) -> None:
    enqueue(store, id="a")
    settle(store, claim_one(store), handed_back())

    (again,) = claim(store)

    assert (again.attempt, again.free_attempts, again.fence) == (1, 0, 3)


def test_a_claim_that_never_became_a_run_has_nothing_to_be_free_of(store: Store) -> None:
    taken = claimed(store)
    before = (taken.attempt, taken.free_attempts)

    settle(store, taken, handed_back())

    (again,) = claim(store, "w1", 0, own=1)
    assert (again.attempt, again.free_attempts) == before == (1, 1)


def test_counters_grow_by_what_the_verdict_says(store: Store) -> None:
    enqueue(store, id="a")
    for verdict in (
        Verdict(change=Change.RECOVER, crashes=1),
        Verdict(change=Change.RECOVER, losses=1),
        Verdict(change=Change.RECOVER, losses=1, billed=False),
        Verdict(change=Change.RECOVER, dispatches=1, billed=False, solo=True),
    ):
        recover(store, claim_one(store), verdict)

    (again,) = claim(store)
    assert (again.attempt, again.free_attempts) == (5, 2)
    assert (again.crash_count, again.lost_count, again.dispatch_count, again.solo) == (1, 2, 1, True)


def test_a_suspect_stays_alone_through_whatever_comes_next(store: Store) -> None:
    enqueue(store, id="a")
    recover(store, claim_one(store), Verdict(change=Change.RECOVER, solo=True))
    for verdict in (handed_back(), retried(), Verdict(change=Change.RECOVER, billed=False)):
        settle(store, claim_one(store), verdict)

    assert claim_one(store).solo


def test_what_was_said_of_the_last_failure_stays_while_the_task_waits(store: Store) -> None:
    enqueue(store, id="a")
    settle(store, claim_one(store), retried())
    settle(store, claim_one(store), handed_back())

    assert facts_of(store, "a", "status", "error_code") == (TaskStatus.PENDING, "UNHANDLED_EXCEPTION")
    settle(store, claim_one(store), completed())
    assert facts_of(store, "a", "error_code") == (None,)


def test_a_long_row_of_suspects_does_not_hide_what_could_run(store: Store) -> None:
    register(store, "w1")
    store.enqueue([a_task(name="later") for _ in range(50)])
    shared = Room(frozenset(), frozenset({"later"}), None, async_free=50)
    for taken in store.flush(Flush(worker_id="w1", room=shared)).claims:
        recover(store, taken, Verdict(change=Change.RECOVER, billed=False, solo=True))
    enqueue(store, id="innocent", name="later")

    room = Room(frozenset(), frozenset({"later"}), None, async_free=1)

    assert ids(store.flush(Flush(worker_id="w1", room=room)).claims) == ["innocent"]


def test_two_recoveries_of_one_orphan_are_one(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    enqueue(here, id="a")
    orphan = Orphan(claim=claim_one(here), cause=Cause.LOST, evidence="gone")
    verdict = Verdict(change=Change.RECOVER, losses=1, reason="gone", error=an_error("WORKER_CRASHED"))

    assert here.recover([(orphan, verdict)]) == [Settled(task_id="a")]
    assert there.recover([(orphan, verdict)]) == [Superseded(task_id="a", status="PENDING", by=2)]
    assert facts_of(there, "a", "lost_count") == (1,)


@pytest.mark.parametrize(("message", "stored"), [("a\0b", "a\\x00b"), ("a\udcffb", "a\\udcffb"), ("", "")])
def test_an_error_may_say_what_no_database_stores(store: Store, message: str, stored: str) -> None:
    task_id = enqueue(store)
    taken = claim_one(store)
    error = replace(an_error(), message=message)

    settle(store, taken, Verdict(change=Change.FAIL, error=error, reason=message), outcome=raised(error))

    assert facts_of(store, task_id, "status", "error_message") == (TaskStatus.FAILED, stored)
