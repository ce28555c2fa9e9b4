"""Retention: what is cut, and what never is (PROTOCOL 32)."""

from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.words import (
    SECOND,
    VirtualClock,
    abandoned,
    claim_one,
    completed,
    enqueue,
    failed,
    recover,
    register,
    requeue,
    settle,
    succeeded,
)

from everbeat.model.event import RETENTION_COMPLETED
from everbeat.model.retention import Cut, Kept
from everbeat.model.worker import WorkerState
from everbeat.store.interface import Store
from everbeat.store.messages import Held
from everbeat.store.verbs import retaining

HOUR = 3_600 * SECOND
LEASE = 60 * SECOND


def cut(store: Store, kept: Kept, hours: float = 1, worker: str = "w1") -> int:
    """All of a kind that is older than that; how many were deleted."""
    deleted, after = 0, 0
    while True:
        wanted = Cut(kept=kept, older_than_us=round(hours * HOUR), after=after)
        bite = store.retain(wanted, worker_id=worker, lease_us=LEASE)
        assert bite is not None
        deleted += bite.deleted
        if bite.after is None:
            return deleted
        after = bite.after


def rows(store: Any, table: str) -> int:
    with store.database.read() as tx:
        return int(tx.one(f"SELECT count(*) FROM everbeat_{table}")[0])


def held(task_id: str, fence: int) -> Held:
    return Held(task_id=task_id, fence=fence, role="runner", pid=7)


def a_state() -> WorkerState:
    return WorkerState(
        tasks_running=1, tasks_claimed=0, tasks_completed=5, tasks_failed=0, store_errors=0, memory_usage_mb=40.5,
        memory_percent=0.2, cpu_percent=12.0,
    )  # fmt: skip


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_ended_tasks_are_deleted_by_the_age_of_their_end(store: Store, clock: VirtualClock) -> None:
    for task_id in ("old", "young", "running", "waiting"):
        enqueue(store, id=task_id)
    settle(store, claim_one(store), completed())
    clock.advance(7200)
    settle(store, claim_one(store), failed())
    claim_one(store)

    assert cut(store, Kept.TASKS) == 1
    assert [store.get(task_id) is not None for task_id in ("old", "young", "running", "waiting")] == [
        False, True, True, True,
    ]  # fmt: skip


def test_attempts_beats_and_late_outcomes_go_with_their_task_and_its_history_stays(
    store: Store, clock: VirtualClock
) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    store.beat("w1", [held("a", taken.fence)])
    recover(store, taken, abandoned())
    settle(store, taken, completed(), outcome=succeeded())
    assert [rows(store, table) for table in ("attempts", "heartbeats", "late_outcomes", "history")] == [1, 1, 1, 1]
    clock.advance(7200)

    assert cut(store, Kept.TASKS) == 1

    assert [rows(store, table) for table in ("attempts", "heartbeats", "late_outcomes", "history")] == [0, 0, 0, 1]
    assert cut(store, Kept.HISTORY, hours=1) == 1


def test_the_quarantine_is_kept_until_a_person_decides(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="bad")
    recover(store, claim_one(store), abandoned(quarantined=True))
    clock.advance(7200)

    assert cut(store, Kept.TASKS) == 0
    assert store.get("bad") is not None


def test_many_tasks_are_deleted_in_bites(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    for number in range(3):
        enqueue(store, id=f"big-{number}", args=b"x" * (5 << 20))
        settle(store, claim_one(store), completed())
    clock.advance(7200)
    wanted = Cut(kept=Kept.TASKS, older_than_us=HOUR)

    bites = [store.retain(wanted, worker_id="w1", lease_us=LEASE) for _ in range(3)]

    assert [bite and bite.deleted for bite in bites] == [2, 1, 0]
    assert [bite and bite.after for bite in bites] == [0, 0, None]


def test_the_history_of_a_task_that_goes_on_is_kept(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a")
    requeue(store, claim_one(store))
    clock.advance(7200)

    assert cut(store, Kept.HISTORY) == 0
    settle(store, claim_one(store), completed())
    assert cut(store, Kept.HISTORY) == 1


def test_attempts_of_a_task_that_still_exists_are_kept(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a")
    settle(store, claim_one(store), failed())
    clock.advance(7200)

    assert cut(store, Kept.ATTEMPTS) == 0


# -- beats and workers ------------------------------------------------------------------------------------------------


def test_the_newest_beat_of_an_owned_task_is_kept_however_old(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    for _ in range(3):
        store.beat("w1", [held("a", taken.fence), held("gone", 1)])
        clock.advance(3600)
    clock.advance(7200)

    assert cut(store, Kept.HEARTBEATS) == 5
    assert rows(store, "heartbeats") == 1
    settle(store, taken, completed())
    assert cut(store, Kept.HEARTBEATS) == 1


def test_young_beats_are_kept(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    store.beat("w1", [held("a", 1)])
    clock.advance(7200)
    store.beat("w1", [held("a", 1)])

    assert cut(store, Kept.HEARTBEATS) == 1


def test_more_rows_than_a_bite_holds_are_all_deleted(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retaining, "WINDOW", 3)
    register(store, "w1")
    store.beat("w1", [held(f"t{number}", 1) for number in range(10)])
    clock.advance(7200)

    assert cut(store, Kept.HEARTBEATS) == 10


def test_ended_workers_are_deleted_but_not_those_that_a_task_names_as_its_owner(
    store: Store, clock: VirtualClock
) -> None:
    enqueue(store, id="a")
    claim_one(store, "owner")
    for worker in ("stopped", "alive"):
        register(store, worker)
    store.declare_dead("owner", reason="gone", cause="proof")
    store.retire("stopped")
    clock.advance(7200)

    assert cut(store, Kept.WORKERS) == 1
    assert {worker.id for worker in store.workers()} == {"owner", "alive"}


def test_pictures_of_workers_are_written_with_a_beat_and_cut_by_their_own_age(
    store: Store, clock: VirtualClock
) -> None:
    register(store, "w1")
    store.beat("w1", [], a_state())
    store.beat("w1", [])
    clock.advance(7200)
    store.beat("w1", [], a_state())
    assert rows(store, "worker_states") == 2

    assert cut(store, Kept.WORKER_STATES) == 1


# -- events and reports -----------------------------------------------------------------------------------------------


def test_events_that_nobody_waits_for_are_deleted(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    clock.advance(7200)

    assert cut(store, Kept.EVENTS) == 1
    assert store.events() == []


def test_ids_of_events_are_never_given_again(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    (first,) = store.events()
    clock.advance(7200)
    cut(store, Kept.EVENTS)
    register(store, "w2")

    (second,) = store.events()

    assert second.id > first.id


# -- whose turn it is -------------------------------------------------------------------------------------------------


def test_one_worker_at_a_time_does_it(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    register(store, "w2")
    wanted = Cut(kept=Kept.HEARTBEATS, older_than_us=HOUR)

    assert store.retain(wanted, worker_id="w1", lease_us=LEASE) is not None
    assert store.retain(wanted, worker_id="w2", lease_us=LEASE) is None
    clock.advance(61)
    assert store.retain(wanted, worker_id="w2", lease_us=LEASE) is not None


def test_a_pass_is_due_an_hour_after_the_last_one_whoever_did_it(open_store: OpenStore, clock: VirtualClock) -> None:
    one, other = open_store(), open_store()
    assert one.retention_is_due(every_us=HOUR)
    one.retention_done({})

    assert not other.retention_is_due(every_us=HOUR)
    clock.advance(3601)
    assert other.retention_is_due(every_us=HOUR)


def test_a_pass_that_seems_to_lie_in_the_future_does_not_hold_up_the_next(store: Store, clock: VirtualClock) -> None:
    store.retention_done({})
    clock.wall -= 86_400 * SECOND

    assert store.retention_is_due(every_us=HOUR)


def test_a_pass_that_deleted_something_is_announced(store: Store) -> None:
    store.retention_done({Kept.TASKS: 0, Kept.HEARTBEATS: 12})
    store.retention_done({})

    assert [(event.name, event.facts) for event in store.events()] == [(RETENTION_COMPLETED, {"heartbeats": 12})]
