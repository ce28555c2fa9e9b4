"""Counting: every task once, whatever it waits for, and how long the oldest has waited."""

import time

from tests.words import SECOND, VirtualClock, a_task, claim_one, completed, enqueue, failed, register, settle

from everbeat.model.state import TaskStatus
from everbeat.report import metrics
from everbeat.store.interface import Store
from everbeat.store.moments import moment


def counted(store: Store) -> dict[tuple[str, str], int]:
    return {(count.queue, str(count.status)): count.count for count in store.counts()}


def test_each_task_is_counted_once_whatever_its_state(store: Store) -> None:
    register(store, "w1")
    store.enqueue([a_task(queue="a") for _ in range(4)])
    settle(store, claim_one(store), completed())
    settle(store, claim_one(store), failed())
    claim_one(store)
    enqueue(store, id="gone", queue="a")
    store.cancel("gone", actor="me")
    enqueue(store, queue="a", delay_us=60 * SECOND)
    enqueue(store, queue="b")

    assert counted(store) == {
        ("a", "PENDING"): 2,
        ("a", "RUNNING"): 1,
        ("a", "COMPLETED"): 1,
        ("a", "FAILED"): 1,
        ("a", "CANCELLED"): 1,
        ("b", "PENDING"): 1,
    }


def test_what_waits_for_its_time_is_counted_by_queue(store: Store) -> None:
    enqueue(store, queue="a")
    enqueue(store, queue="a", delay_us=60 * SECOND)
    enqueue(store, queue="b", delay_us=60 * SECOND)

    assert store.later(None) == 2
    assert store.later(["a", "c"]) == 1
    assert store.later([]) == 0


def test_the_oldest_is_the_one_that_could_run_for_the_longest_time(store: Store, clock: VirtualClock) -> None:
    enqueue(store, queue="a", delay_us=3600 * SECOND)
    clock.advance(10)
    since = clock.wall
    enqueue(store, queue="a", name="sub", priority=50)
    clock.advance(10)
    enqueue(store, queue="a", name="add", priority=1)

    (pending,) = store.counts()

    assert pending.status is TaskStatus.PENDING
    assert pending.count == 3
    assert pending.oldest_run_at == moment(since)


def test_a_queue_whose_tasks_are_not_due_has_no_oldest(store: Store) -> None:
    enqueue(store, delay_us=3600 * SECOND)

    (pending,) = store.counts()

    assert pending.oldest_run_at is None


def test_a_task_whose_time_has_come_waits_since_then_also_while_no_worker_has_made_it_ready(
    store: Store, clock: VirtualClock
) -> None:
    enqueue(store, delay_us=60 * SECOND)
    enqueue(store, queue="later", delay_us=3600 * SECOND)
    since = clock.wall + 60 * SECOND

    clock.advance(100)

    assert [pending.oldest_run_at for pending in store.counts()] == [moment(since), None]


def test_the_time_is_that_of_the_clock_that_writes_the_times_of_tasks(store: Store, clock: VirtualClock) -> None:
    clock.advance(120)
    task = store.get(enqueue(store))

    assert task is not None
    assert store.now() == store.measure().now == task.created_at == moment(clock.wall)


def test_how_long_the_oldest_has_waited_does_not_depend_on_the_clock_of_who_looks(
    store: Store, clock: VirtualClock
) -> None:
    clock.wall = time.time_ns() // 1000 - 120 * SECOND
    enqueue(store)
    clock.advance(7)

    found = metrics.plain(store.measure())["everbeat_queue_oldest_runnable_seconds"]

    assert [sample["value"] for sample in found] == [7.0]
