"""Cancel, with real processes: what runs is told and killed if it does not listen; nobody forgets that it was asked."""

import pytest
from tests.crash.yard import Yard, is_alive

from everbeat import TaskCancelled, TaskStatus
from everbeat.model.order import Order
from everbeat.store.messages import TaskFilter


def words_of(yard: Yard, task_id: str) -> list[str]:
    return [line.word for line in yard.ledger() if line.task_id == task_id]


def cancel(yard: Yard, task_id: str) -> None:
    assert yard.app.handle(task_id).cancel()


def end_of(yard: Yard, task_id: str) -> str:
    yard.until_ended([task_id])
    return yard.status(task_id).value


def test_a_task_that_listens_ends_and_its_process_goes_on(yard: Yard) -> None:
    yard.worker(processes=1)
    task, after = yard.send("heeds", "never"), yard.send("quick")
    yard.until_started(task)

    cancel(yard, task)

    with pytest.raises(TaskCancelled):
        yard.result(task)
    assert words_of(yard, task) == ["start", "interrupted"]
    yard.until_ended([after])
    assert yard.starts(after)[0].pid == yard.starts(task)[0].pid
    yard.audit([task, after])


@pytest.mark.parametrize("name", ["heeds_not", "counts"])
def test_a_task_that_does_not_listen_is_killed(yard: Yard, name: str) -> None:
    yard.worker(processes=1)
    task = yard.send(name, *(["never"] if name == "heeds_not" else []))
    process = yard.until_started(task).pid

    cancel(yard, task)

    assert end_of(yard, task) == "CANCELLED"
    assert not is_alive(process)
    assert yard.full(task).attempts[-1].outcome == "TASK_CANCELLED"


def test_a_task_that_may_be_repeated_is_not_after_a_cancel(yard: Yard) -> None:
    yard.worker(processes=1)
    task = yard.send("heeds_again", "never")
    yard.until_started(task)

    cancel(yard, task)

    assert end_of(yard, task) == "CANCELLED"
    assert len(yard.starts(task)) == 1


@pytest.mark.parametrize("name", ["asks", "asks_in_a_thread", "a_asks"])
def test_a_task_can_ask_whether_it_was_cancelled_and_what_it_returns_counts(yard: Yard, name: str) -> None:
    yard.worker(processes=1)
    task = yard.send(name)
    yard.until_started(task)

    cancel(yard, task)

    assert end_of(yard, task) == "COMPLETED"
    assert words_of(yard, task) == ["start", "asked", "end"]
    yard.audit([task])


def test_what_waits_in_a_process_is_cancelled_and_never_runs(yard: Yard) -> None:
    """Tasks of a quick name stand in one process's queue when the first of them turns out slow."""
    yard.worker(processes=1)
    yard.until_ended(yard.send_many("maybe", [()] * 200))
    tasks = yard.send_many("maybe", [("open",), *[("never",)] * 20])
    yard.until_started(tasks[0])

    for task in tasks[1:]:
        cancel(yard, task)
    yard.until_ended(tasks[1:])
    yard.open("open")

    assert end_of(yard, tasks[0]) == "COMPLETED"
    assert {yard.status(task) for task in tasks[1:]} == {TaskStatus.CANCELLED}
    assert not [line for task in tasks[1:] for line in yard.starts(task)]


def test_an_outcome_in_the_channel_wins_over_a_cancel_that_came_later(yard: Yard) -> None:
    """The supervisor is stopped: when it wakes up it finds both."""
    worker = yard.worker(processes=1)
    task = yard.send("gated", "open")
    yard.until_started(task)
    worker.freeze()
    cancel(yard, task)
    yard.open("open")
    yard.until(lambda: words_of(yard, task) == ["start", "end"], "the task has ended")

    worker.thaw()

    assert end_of(yard, task) == "COMPLETED"
    yard.audit([task])


def test_cancels_that_race_with_ends_leave_every_task_in_one_end(yard: Yard) -> None:
    yard.worker(processes=2)
    tasks = yard.send_many("work", [(0.002 * (n % 5),) for n in range(200)])
    asked = [task for task in tasks if yard.app.handle(task).cancel()]

    yard.until_ended(tasks)
    ends = {task: yard.status(task) for task in tasks}
    assert set(ends.values()) <= {TaskStatus.COMPLETED, TaskStatus.CANCELLED}
    assert all(ends[task] is TaskStatus.COMPLETED for task in tasks if task not in asked)
    yard.audit(tasks)


def test_the_cancelled_task_of_a_killed_worker_is_cancelled_and_not_run_again(yard: Yard) -> None:
    worker = yard.worker(processes=1)
    task = yard.send("gated_again", "never")
    yard.until_started(task)
    worker.kill_group()
    cancel(yard, task)

    yard.worker(processes=1)

    assert end_of(yard, task) == "CANCELLED"
    assert len(yard.starts(task)) == 1


def test_a_worker_killed_after_it_was_asked_leaves_the_request_to_the_next(yard: Yard) -> None:
    worker = yard.worker(processes=1)
    task = yard.send("gated_again", "never")
    yard.until_started(task)
    worker.freeze()
    cancel(yard, task)
    worker.kill_group()

    yard.worker("--burst", processes=1).ended()

    assert (yard.status(task), len(yard.starts(task))) == (TaskStatus.CANCELLED, 1)


def test_an_async_task_is_cancelled_and_its_neighbours_are_not(yard: Yard) -> None:
    yard.worker(processes=1)
    neighbour, task = yard.send("a_gated", "open"), yard.send("a_gated", "never")
    yard.until_started(neighbour)
    yard.until_started(task)

    cancel(yard, task)

    assert end_of(yard, task) == "CANCELLED"
    yard.open("open")
    assert end_of(yard, neighbour) == "COMPLETED"


@pytest.mark.parametrize("name", ["a_heeds_not", "a_blocks"])
def test_an_async_task_that_does_not_listen_is_killed(yard: Yard, name: str) -> None:
    yard.worker(processes=1)
    task = yard.send(name, *(["never"] if name == "a_heeds_not" else [600]))
    process = yard.until_started(task).pid

    cancel(yard, task)

    assert end_of(yard, task) == "CANCELLED"
    assert not is_alive(process)


def take_away(yard: Yard, task_id: str, order: Order) -> None:
    (done,) = yard.store.carry_out(order, TaskFilter(ids=[task_id]), actor="user/ann")
    assert done == [task_id]


@pytest.mark.parametrize("name", ["heeds", "heeds_not"])
def test_a_run_whose_task_was_given_to_the_next_ends_and_the_next_begins(yard: Yard, name: str) -> None:
    yard.worker(processes=2)
    task = yard.send(name, "open")
    first = yard.until_started(task).pid

    take_away(yard, task, Order.REQUEUE)

    second = yard.until_started(task, times=2).pid
    if name == "heeds":  # its process may be the one that has the next run
        yard.until(lambda: "interrupted" in words_of(yard, task), "the first run has ended")
    else:
        yard.until(lambda: not is_alive(first), "the first run is gone")
        assert second != first
    yard.open("open")
    assert end_of(yard, task) == "COMPLETED"


def test_a_run_whose_task_was_failed_by_a_person_is_killed(yard: Yard) -> None:
    yard.worker(processes=1)
    task = yard.send("heeds_not", "never")
    process = yard.until_started(task).pid

    take_away(yard, task, Order.FAIL)

    yard.until(lambda: not is_alive(process), "the run is gone")
    assert yard.status(task) is TaskStatus.FAILED
    yard.until_ended([yard.send("quick")])
