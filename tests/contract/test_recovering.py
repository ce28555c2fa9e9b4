"""Orphans: who has no owner any more, and what is written about it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.contract.test_owning import claimed
from tests.words import (
    SECOND,
    VirtualClock,
    a_policy,
    a_task,
    abandoned,
    claim,
    claim_one,
    enqueue,
    facts_of,
    ids,
    recover,
    register,
    requeue,
    start,
    status_of,
)

from everbeat.decide.recover import recovery_for
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy, Settled, Superseded, Unsettled, Verdict
from everbeat.model.report import DeadWorker, RecoveredTask, RecoveryReport, Undecided
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Held


def orphaned(store: Store, *task_ids: str, worker: str = "gone") -> list[Claim]:
    register(store, worker)
    store.enqueue([a_task(id=task_id) for task_id in task_ids])
    taken = claim(store, worker, places=len(task_ids))
    store.declare_dead(worker, reason="lost its lock", cause="proof")
    return taken


def test_the_tasks_of_the_living_are_no_orphans(store: Store) -> None:
    enqueue(store)
    claim_one(store)

    assert store.orphans(limit=10) == []


@pytest.mark.parametrize("end", ["dead", "stopped"])
def test_what_a_gone_worker_owned_is_found_claimed_or_running(store: Store, end: str) -> None:
    claimed(store, "a")
    enqueue(store, id="b")
    claim_one(store)

    if end == "dead":
        store.declare_dead("w1", reason="lost its lock", cause="proof")
    else:
        store.retire("w1")

    assert {(orphan.id, orphan.status) for orphan in store.orphans(limit=10)} == {
        ("a", TaskStatus.CLAIMED),
        ("b", TaskStatus.RUNNING),
    }
    assert {orphan.id for orphan in store.owned_by("w1")} == {"a", "b"}


def test_an_orphan_carries_every_fact_the_decision_needs(store: Store) -> None:
    policy = a_policy(on_crash="retry")
    enqueue(store, id="a", policy=policy, queue="mail")
    recover(store, claim_one(store), Verdict(change=Change.RECOVER, crashes=1, solo=True, billed=False))
    taken = claim_one(store)
    store.declare_dead("w1", reason="gone", cause="proof")

    (orphan,) = store.orphans(limit=10)

    assert (orphan.id, orphan.name, orphan.queue, orphan.worker_id) == ("a", "add", "mail", "w1")
    assert (orphan.fence, orphan.attempt, orphan.free_attempts) == (taken.fence, 2, 1)
    assert (orphan.crash_count, orphan.lost_count, orphan.solo, orphan.policy) == (1, 0, True, policy)


def test_orphans_come_page_by_page_so_that_what_is_left_alone_hides_nothing(store: Store) -> None:
    orphaned(store, "a1", "a2", "a3", worker="gone-a")
    orphaned(store, "b1", worker="gone-b")
    orphaned(store, "c1", "c2", worker="gone-c")

    first = store.orphans(limit=2)
    second = store.orphans(limit=2, after=first[-1])
    third = store.orphans(limit=2, after=second[-1])

    assert [ids(page) for page in (first, second, third)] == [["a1", "a2"], ["a3", "b1"], ["c1", "c2"]]
    assert store.orphans(limit=2, after=third[-1]) == []


@pytest.mark.proves("FR-019", "FR-021", "FR-022")
def test_a_recovery_is_written_with_actor_reason_attempt_and_event(store: Store) -> None:
    (taken,) = orphaned(store, "a")
    orphan = Orphan(claim=taken, cause=Cause.LOST, evidence="worker gone lost its lock")

    assert store.recover([(orphan, recovery_for(orphan, RecoveryPolicy(), jitter=0.5))]) == [Settled(task_id="a")]

    info = store.get("a")
    assert info is not None
    assert (info.status, info.error_code, info.lost_count) == (TaskStatus.FAILED, "WORKER_CRASHED", 1)
    (entry,) = info.history
    assert (entry.actor, entry.change, entry.old_status, entry.new_status) == (
        "system/recovery", "abandon", "RUNNING", "FAILED"
    )  # fmt: skip
    assert entry.reason == "worker gone lost its lock; no attempts left (1/1)"
    assert [(attempt.attempt, attempt.error_code) for attempt in info.attempts] == [(1, "WORKER_CRASHED")]
    (event,) = store.events(task_id="a")
    assert (event.name, event.worker_id, event.facts["action"]) == ("task.recovered", "gone", "failed")


def test_a_quarantined_task_is_marked_listed_and_told(store: Store) -> None:
    (taken,) = orphaned(store, "a")

    recover(store, taken, abandoned(crashes=1, quarantined=True))

    assert facts_of(store, "a", "quarantined", "crash_count") == (True, 1)
    assert [event.name for event in store.events(task_id="a")] == ["task.quarantined"]


def test_one_orphan_that_can_not_be_written_does_not_stop_the_rest(store: Store) -> None:
    a, b, c = orphaned(store, "a", "b", "c")
    good = Verdict(change=Change.RECOVER, reason="gone")
    impossible = Verdict(change=Change.RECOVER, reason="gone", delay_us=1 << 70)
    verdicts = [(Orphan(claim=one, cause=Cause.LOST, evidence="gone"), good) for one in (a, b, c)]
    verdicts[1] = (verdicts[1][0], impossible)

    first, second, third = store.recover(verdicts)

    assert (first, third) == (Settled(task_id="a"), Settled(task_id="c"))
    assert isinstance(second, Unsettled)
    assert "OverflowError" in second.error or "out of range" in second.error
    assert ids(store.orphans(limit=10)) == ["b"]
    assert facts_of(store, "b", "history") == ([],)


def test_of_orphans_that_are_written_together_one_that_has_moved_is_left_alone(store: Store) -> None:
    a, b, c = orphaned(store, "a", "b", "c")
    requeue(store, b)
    register(store, "next")
    claim(store, "next")
    again = Verdict(change=Change.RECOVER, reason="gone")

    settlements = store.recover([(Orphan(claim=one, cause=Cause.LOST, evidence="gone"), again) for one in (a, b, c)])

    assert settlements == [Settled(task_id="a"), Superseded(task_id="b", status="RUNNING", by=3), Settled(task_id="c")]
    assert facts_of(store, "b", "status", "worker_id") == (TaskStatus.RUNNING, "next")


def test_an_orphan_that_was_deleted_meanwhile_is_superseded(store: Store) -> None:
    (taken,) = orphaned(store, "a")
    taken.seq = 999

    assert requeue(store, taken) == Superseded(task_id="a", status="DELETED", by=-1)


def test_a_recovered_task_may_be_claimed_at_once(store: Store) -> None:
    (taken,) = orphaned(store, "a")

    requeue(store, taken)

    assert claim_one(store, "w2").attempt == 2


# -- silence, without a death -----------------------------------------------------------------------------------------


def test_claims_of_a_silent_worker_go_back_and_its_runs_stay(store: Store, clock: VirtualClock) -> None:
    claimed(store, "a")
    enqueue(store, id="b")
    claim_one(store)
    clock.advance(121)

    assert store.requeue_silent_claims(120 * SECOND, reason="silent") == 1

    assert [status_of(store, "a"), status_of(store, "b")] == [TaskStatus.PENDING, TaskStatus.RUNNING]
    assert facts_of(store, "a", "history")[0][-1].reason == "silent"


def test_a_claim_that_was_taken_back_can_not_be_started(store: Store, clock: VirtualClock) -> None:
    taken = claimed(store, "a")
    clock.advance(121)
    store.requeue_silent_claims(120 * SECOND, reason="silent")

    assert start(store, taken).started == []


def test_a_worker_is_not_silent_before_three_and_a_half_beats(store: Store, clock: VirtualClock) -> None:
    claimed(store, "a")
    clock.advance(104)

    assert store.requeue_silent_claims(SECOND, reason="silent") == 0
    clock.advance(2)
    assert store.requeue_silent_claims(SECOND, reason="silent") == 1


def test_a_task_taken_back_from_a_silent_worker_stays_alone_if_it_must(store: Store, clock: VirtualClock) -> None:
    claimed(store, "a")
    clock.advance(121)
    store.requeue_silent_claims(120 * SECOND, reason="silent")
    register(store, "w2")

    (again,) = claim(store, "w2", 0, own=1)

    assert again.solo


def test_stale_tasks_are_those_of_silent_or_gone_owners(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="silent")
    silent = claim_one(store, "w1")
    clock.advance(60)
    store.beat("w1", [Held(task_id="silent", fence=silent.fence, role="runner", pid=5)])
    clock.advance(300)
    enqueue(store, id="busy")
    claim_one(store, "w2")
    orphaned(store, "orphan")
    clock.advance(1)

    stale = store.stale_tasks(TaskStatus.RUNNING, 300 * SECOND)

    assert {task.id for task in stale} == {"silent", "orphan"}
    (found,) = [task for task in stale if task.id == "silent"]
    assert (found.task_name, found.worker_id, found.worker_hostname, found.worker_pid) == ("add", "w1", "host-1", 4711)
    assert found.started_at is not None
    assert found.last_heartbeat == found.started_at + timedelta(seconds=60)
    assert store.stale_tasks(TaskStatus.CLAIMED, 300 * SECOND) == []


@pytest.mark.parametrize("column", ["beat_mono", "beat_at", "beat_interval_ms", "exclusive_lease_ms"])
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)], ids=["largest", "smallest"])
def test_a_number_that_no_worker_writes_keeps_nobody_from_judging_the_others(
    store: Store, clock: VirtualClock, column: str, value: int
) -> None:
    enqueue(store, id="a", exclusive_key="k")
    claim_one(store, "silent")
    enqueue(store, id="odd", exclusive_key="o")
    claim_one(store, "odd")
    with store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run(f"UPDATE everbeat_workers SET {column} = {value} WHERE id = 'odd'")
    clock.advance(3_601)

    stale = store.stale_tasks(TaskStatus.RUNNING, 300 * SECOND)

    assert {task.id for task in stale} == {"a", "odd"}
    assert store.measure().heartbeat_age is not None
    assert store.requeue_silent_claims(300 * SECOND, reason="silent") == 0
    for worker in ("silent", "odd"):
        assert store.declare_dead(worker, reason="silent", cause="silence", silent_for_us=300 * SECOND)
    free = [Orphan(claim=claim, cause=Cause.LOST, evidence="silent") for claim in store.orphans(limit=10)]
    done = store.recover([(orphan, recovery_for(orphan, RecoveryPolicy(), jitter=0)) for orphan in free])
    assert [type(settlement) for settlement in done] == [Settled, Settled]


def test_the_heartbeats_of_an_earlier_owner_are_not_those_of_a_task(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", max_attempts=2)
    earlier = claim_one(store, "w1")
    requeue(store, earlier)
    claim_one(store, "w2")
    clock.advance(60)
    store.beat("w1", [Held(task_id="a", fence=earlier.fence, role="runner", pid=5)])
    clock.advance(300)

    (found,) = store.stale_tasks(TaskStatus.RUNNING, 300 * SECOND)

    assert (found.worker_id, found.last_heartbeat) == ("w2", found.started_at)


# -- reports ----------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)
REPORT = RecoveryReport(
    started_at=NOW,
    completed_at=NOW + timedelta(seconds=1.5),
    integrity_check_passed=True,
    wal_frames_checkpointed=7,
    recovered_tasks=[
        RecoveredTask(
            task_id="a", action="retry", attempt_count=2, max_attempts=3, success=True, error=None,
            previous_worker_id="gone", reason="lost its lock",
        ),
        RecoveredTask(
            task_id="b", action="none", attempt_count=1, max_attempts=1, success=False, error="damaged",
            previous_worker_id=None, reason=None,
        ),
    ],
    dead_workers=[DeadWorker(worker_id="gone", last_heartbeat=NOW - timedelta(minutes=5), orphaned_tasks=["a"])],
)  # fmt: skip


def test_reports_come_back_as_they_were_saved_newest_first(store: Store) -> None:
    empty = store.save_report(RecoveryReport(started_at=NOW, completed_at=NOW), actor="startup")
    full = store.save_report(REPORT, actor="system/reaper")

    assert store.reports(limit=10) == [full, empty]
    assert store.reports(limit=1) == [full]
    assert full.recovered_tasks == REPORT.recovered_tasks
    assert full.dead_workers == REPORT.dead_workers


def test_a_report_ends_when_it_is_saved_by_the_clock_of_the_store(store: Store) -> None:
    later = NOW + timedelta(seconds=30)
    left = Undecided(worker_id="silent", tasks=1, until=later, reason="another host")

    saved = store.save_report(replace(REPORT, undecided=[left]), actor="startup")

    assert abs(saved.completed_at - store.now()) < timedelta(seconds=10)
    assert saved.completed_at - saved.started_at == REPORT.duration
    assert saved.undecided[0].until - saved.completed_at == later - REPORT.completed_at


@pytest.mark.proves("NFR-010")
def test_a_report_reads_as_in_the_seed() -> None:
    assert REPORT.to_report() == (
        "=== Queue Recovery Report ===\n"
        "Started: 2026-11-16T12:00:00Z\n"
        "Duration: 1.5s\n"
        "\n"
        "Integrity Check: PASSED\n"
        "WAL Checkpointed: 7 frames\n"
        "\n"
        "Orphaned Tasks Found: 2\n"
        "  - a: retry (attempt 2/3)\n"
        "  - b: FAILED (damaged)\n"
        "\n"
        "Dead Workers: 1\n"
        "  - gone (last heartbeat: 5m ago)\n"
        "\n"
        "Degraded: 1 task could not be recovered and will be tried again\n"
        "\n"
        "Recovery Complete: 2026-11-16T12:00:01Z\n"
    )


def test_a_report_as_json_says_its_sums() -> None:
    said = json.loads(REPORT.to_json())

    assert (said["orphaned_tasks_found"], said["successful_recoveries"], said["failed_recoveries"]) == (2, 1, 1)
    assert said["duration"] == 1.5
