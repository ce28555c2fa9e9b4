"""A task that no living worker knows says so, and fails when nobody has known it for too long."""

import pytest
from tests.words import SECOND, VirtualClock, a_task, enqueue, facts_of, register, status_of

from everbeat.model.state import TaskStatus
from everbeat.store.interface import Store
from everbeat.store.verbs.unknown import BITE

HOUR = 3600 * SECOND
GAP = 300 * SECOND


def refuse(store: Store) -> list[str]:
    return store.refuse_unknown(after_us=HOUR, gap_us=GAP)


def watch(store: Store, clock: VirtualClock, seconds: int) -> list[str]:
    """Look every minute for that long."""
    failed = refuse(store)
    for _ in range(seconds // 60):
        clock.advance(60)
        failed += refuse(store)
    return failed


def waiting_for(store: Store, task_id: str) -> str:
    return str(facts_of(store, task_id, "waiting_for")[0])


def test_a_task_says_which_worker_it_waits_for(store: Store) -> None:
    enqueue(store, id="a", name="new", queue="mail")
    assert waiting_for(store, "a") == "a worker; none is running"

    register(store, "old")
    assert waiting_for(store, "a") == "a worker that knows new; of 1 running none does"

    register(store, "other", task_names=("new",), queues=("reports",))
    assert waiting_for(store, "a") == "a worker for its queue mail; of 2 running none takes new from it"

    register(store, "new", task_names=("new",))
    assert waiting_for(store, "a") == "a free slot"


def test_a_task_that_nobody_has_known_for_an_hour_fails(store: Store, clock: VirtualClock) -> None:
    register(store, "old")
    enqueue(store, id="a", name="new")
    assert watch(store, clock, 3540) == []

    assert watch(store, clock, 60) == ["a"]

    status, code, message, history = facts_of(store, "a", "status", "error_code", "error_message", "history")
    assert (status, code) == (TaskStatus.FAILED, "UNKNOWN_TASK")
    assert message == "no worker that was running in the last 60 minutes knows the task new"
    assert (history[-1].actor, history[-1].change) == ("system/unknown", "give_up")
    assert [told.name for told in store.events(task_id="a")] == ["task.failed"]


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)], ids=["largest", "smallest"])
def test_numbers_that_nobody_writes_keep_no_other_task_from_failing(
    store: Store, clock: VirtualClock, number: int
) -> None:
    register(store, "old")
    enqueue(store, id="odd", name="new")
    enqueue(store, id="a", name="new")
    refuse(store)
    with store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run(f"UPDATE everbeat_tasks SET fence = {number} WHERE id = 'odd'")
        tx.run(f"UPDATE everbeat_unknown SET seen_mono = {number}")

    assert watch(store, clock, 3660) == ["a"]


def test_a_worker_that_knows_it_ends_the_watch(store: Store, clock: VirtualClock) -> None:
    register(store, "old")
    enqueue(store, id="a", name="new")
    watch(store, clock, 3540)
    register(store, "new", task_names=("new",))
    assert watch(store, clock, 120) == []

    store.retire("new")

    assert watch(store, clock, 3540) == []
    assert watch(store, clock, 120) == ["a"]


def test_time_without_any_worker_does_not_count(store: Store, clock: VirtualClock) -> None:
    register(store, "old")
    enqueue(store, id="a", name="new")
    watch(store, clock, 1800)

    clock.advance(2 * 86_400)

    assert watch(store, clock, 1800) == []
    assert status_of(store, "a") is TaskStatus.PENDING


def test_a_task_that_was_sent_later_has_its_own_hour(store: Store, clock: VirtualClock) -> None:
    register(store, "old")
    enqueue(store, id="a", name="new")
    watch(store, clock, 1800)
    enqueue(store, id="b", name="new")

    assert watch(store, clock, 1800) == ["a"]
    assert watch(store, clock, 1740) == []
    assert watch(store, clock, 60) == ["b"]


def test_a_queue_that_nobody_serves_fails_nothing(store: Store, clock: VirtualClock) -> None:
    register(store, "old", queues=("default",))
    enqueue(store, id="a", queue="mail")

    assert watch(store, clock, 7200) == []


def test_a_task_of_a_paused_queue_waits_for_that_and_does_not_fail(store: Store, clock: VirtualClock) -> None:
    register(store, "old")
    store.set_paused("default", is_paused=True, actor="me")
    enqueue(store, id="a", name="new")

    assert watch(store, clock, 7200) == []


@pytest.mark.parametrize("keyed", [False, True])
def test_many_fail_in_bites_and_hand_their_keys_on(store: Store, clock: VirtualClock, keyed: bool) -> None:
    register(store, "old")
    store.enqueue([a_task(name="new", exclusive_key=f"key {n}" if keyed else None) for n in range(BITE + 10)])
    store.enqueue([a_task(id="next", exclusive_key="key 3")])
    watch(store, clock, 3540)
    clock.advance(60)

    assert [len(refuse(store)) for _ in range(3)] == [BITE, 10, 0]
    assert waiting_for(store, "next") == "a free slot"


def test_a_store_without_unknown_names_is_not_written(store: Store, clock: VirtualClock) -> None:
    register(store, "old")
    enqueue(store)
    other = store.data_version()

    assert refuse(store) == []
    assert store.data_version() == other
