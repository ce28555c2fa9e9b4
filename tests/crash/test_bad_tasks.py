"""Tasks that kill their process, leave it, fork it or block it: one bad task harms nobody else."""

import os
import signal

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Yard, all_pids, is_alive

from everbeat import TaskStatus


def test_a_task_that_always_kills_its_process_is_quarantined_and_its_neighbours_do_not_pay(yard: Yard) -> None:
    worker = yard.worker(processes=2)
    yard.until_ended(yard.send_many("quick", [()] * 50))
    neighbour = yard.send("gated", "go")
    yard.until_started(neighbour)
    culprit = yard.send("kills_itself", None)
    others = yard.send_many("quick", [()] * 30)
    yard.until_ended([culprit, *others])
    yard.open("go")
    yard.until_ended([neighbour])

    yard.audit([neighbour, *others])
    task = yard.full(culprit)
    assert (task.status, task.error_code, task.quarantined, task.crash_count) == ("FAILED", "WORKER_CRASHED", True, 3)
    assert task.error_message is not None
    assert task.error_message.startswith("max recovery attempts exceeded (3/3)")
    assert [attempt.pid for attempt in task.attempts] == [line.pid for line in yard.starts(culprit)]
    assert [attempt.will_retry for attempt in task.attempts] == [True, True, False]
    assert {attempt.hostname for attempt in task.attempts} == {worker.info.host.name}
    assert all("killed by SIGKILL" in (attempt.error_message or "") for attempt in task.attempts)
    assert len(yard.events("task.quarantined", task_id=culprit)) == 1
    for task_id in (neighbour, *others):
        innocent = yard.full(task_id)
        assert (innocent.status, innocent.crash_count, innocent.attempts) == (TaskStatus.COMPLETED, 0, [])
        assert len(yard.starts(task_id)) == 1


def test_async_neighbours_of_a_task_that_kills_its_process_run_alone_or_fail_as_neighbours(yard: Yard) -> None:
    yard.worker(processes=1)
    culprit = yard.send("a_kills_itself", "die")
    again = [yard.send("a_gated_again", "go") for _ in range(3)]
    once = yard.send("a_gated", "go")
    for task_id in (culprit, *again, once):
        yard.until_started(task_id)

    yard.open("die")
    yard.until_started(again[0], times=2)
    yard.open("go")
    yard.until_ended([culprit, *again, once])

    yard.audit([*again, once])
    assert {yard.status(task_id) for task_id in again} == {TaskStatus.COMPLETED}
    assert {yard.task(task_id).crash_count for task_id in (*again, once)} == {0}
    assert {yard.full(task_id).attempts[0].outcome for task_id in (*again, once)} == {"NEIGHBOUR_CRASHED"}
    assert (yard.status(once), yard.task(once).error_code) == (TaskStatus.FAILED, "NEIGHBOUR_CRASHED")
    task = yard.full(culprit)
    assert (task.status, task.quarantined, task.crash_count) == (TaskStatus.FAILED, True, 3)
    assert len(yard.starts(culprit)) == 4  # once beside the others, then three times alone
    alone = [yard.starts(task_id)[-1].pid for task_id in again] + [line.pid for line in yard.starts(culprit)[1:]]
    assert len(set(alone)) == len(alone)


def test_async_tasks_that_are_cancelled_by_a_neighbour_before_they_begin_run_all_the_same(yard: Yard) -> None:
    batches = [yard.send_many("a_cancels", [(True,), *[(False,)] * 19]) for _ in range(3)]
    yard.worker(processes=1)
    ids = [task_id for batch in batches for task_id in batch]
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}


@pytest.mark.parametrize(
    ("name", "args", "evidence"),
    [("exits", (3,), "exited with code 3"), ("exits", (0,), "exited with code 0"), ("faults", (), "killed by SIGSEGV")],
)
def test_a_task_that_ends_its_process_has_crashed(yard: Yard, name: str, args: tuple[int, ...], evidence: str) -> None:
    worker = yard.worker(processes=1)
    task_id = yard.send(name, *args)
    yard.until_ended([task_id])
    after = yard.send("quick")
    yard.until_ended([after])

    yard.audit([task_id, after])
    task = yard.full(task_id)
    assert (task.status, task.error_code, task.crash_count) == (TaskStatus.FAILED, "WORKER_CRASHED", 1)
    assert evidence in (task.attempts[0].error_message or "")
    assert yard.starts(after)[0].pid != yard.starts(task_id)[0].pid
    assert worker.stop() == 0


@pytest.mark.parametrize(("name", "exception"), [("leaves", "SystemExit"), ("interrupts_itself", "KeyboardInterrupt")])
def test_a_task_that_tries_to_exit_has_failed_and_its_process_goes_on(yard: Yard, name: str, exception: str) -> None:
    yard.worker(processes=1)
    task_id = yard.send(name)
    yard.until_ended([task_id])
    after = yard.send("quick")
    yard.until_ended([after])

    task = yard.full(task_id)
    assert (task.status, task.error_code, task.crash_count) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION", 0)
    end = yard.store.finished(task_id)
    assert end is not None
    assert end.error is not None
    assert end.error.exception_type == f"builtins.{exception}"
    assert yard.starts(after)[0].pid == yard.starts(task_id)[0].pid


def test_a_process_that_a_task_forked_leaves_when_the_task_returns(yard: Yard) -> None:
    worker = yard.worker(processes=1)
    ids = [yard.send("forks") for _ in range(5)]
    yard.until_ended(ids)
    after = yard.send("quick")
    yard.until_ended([after])

    assert {yard.status(task_id) for task_id in [*ids, after]} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in ids} == {1}
    assert len({line.pid for task_id in [*ids, after] for line in yard.starts(task_id)}) == 1
    assert not yard.events("outcome.refused")
    assert worker.stop() == 0


def test_a_forked_process_that_stays_does_not_hide_the_death_of_its_parent(yard: Yard) -> None:
    yard.worker(processes=1)
    task_id = yard.send("forks_and_stays", "never")
    pid = yard.until_started(task_id).pid
    yard.until(lambda: len(yard.ledger()) == 2, "it has left a process behind")
    left = yard.left_behind(task_id)
    assert is_alive(left)

    os.kill(pid, signal.SIGKILL)
    yard.until_ended([task_id])
    after = yard.send("quick")
    yard.until_ended([after])

    assert (yard.status(task_id), yard.task(task_id).error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
    yard.until(lambda: not is_alive(left), "what it left is gone with it")


def test_a_task_can_stop_the_processes_that_it_forked(yard: Yard) -> None:
    worker = yard.worker(processes=1)
    task_id = yard.send("stops_forked")

    yard.until_ended([task_id])

    assert yard.status(task_id) is TaskStatus.COMPLETED
    assert worker.stop() == 0


def test_a_program_left_behind_does_not_hold_up_its_task_and_ends_with_the_worker(yard: Yard) -> None:
    worker = yard.worker(processes=1)
    task_id = yard.send("starts_program")
    yard.until_ended([task_id])
    left = yard.left_behind(task_id)

    assert yard.status(task_id) is TaskStatus.COMPLETED
    assert is_alive(left)
    assert worker.stop() == 0
    assert not is_alive(left)


def test_what_tasks_leave_behind_does_not_pile_up_in_a_container_whose_first_process_is_a_worker(yard: Yard) -> None:
    worker = yard.worker(processes=1, through="first.py")
    tasks = [yard.send("starts_program") for _ in range(3)]
    yard.until_ended(tasks)
    left = [yard.left_behind(task) for task in tasks]
    os.kill(yard.starts(tasks[-1])[0].pid, signal.SIGKILL)

    yard.until(lambda: not set(left) & set(all_pids()), "nothing is left of them, not even a zombie")
    assert worker.stop() == 0


def test_a_c_call_that_holds_the_gil_past_the_threshold_is_no_crash(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    worker, other = yard.worker(ready=False), yard.worker()
    yard.until_ready(worker)
    ids = [yard.send("held_gil", 6), yard.send("quick")]
    yard.until_ended(ids)

    yard.audit(ids)
    assert [len(yard.starts(task_id)) for task_id in ids] == [1, 1]
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert not yard.events("worker.dead")
    assert not yard.events("child.died")
    assert (worker.stop(), other.stop()) == (0, 0)
