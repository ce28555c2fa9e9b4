"""kill -9 of a task process, of the supervisor, of the fork server, of everything."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.conftest import both_stores
from tests.crash.yard import APPS, SOURCES, Worker, Yard, is_alive, is_stopped

from everbeat import TaskStatus
from everbeat.model.worker import WorkerStatus


@both_stores
def test_a_killed_task_process_is_replaced_and_its_task_restarted_by_the_same_worker(yard: Yard) -> None:
    again, once = yard.send("gated_again", "go"), yard.send("gated", "go")
    worker = yard.worker()
    first, other = yard.until_started(again), yard.until_started(once)

    os.kill(first.pid, signal.SIGKILL)
    second = yard.until_started(again, times=2)
    yard.open("go")
    yard.until_ended([again, once])

    yard.audit([again, once])
    assert second.pid not in (first.pid, other.pid)
    assert yard.task(again).crash_count == 1
    assert (yard.status(once), len(yard.starts(once)), yard.task(once).crash_count) == (TaskStatus.COMPLETED, 1, 0)
    assert yard.full(again).attempts[0].pid == first.pid
    assert (
        yard.full(again).attempts[0].error_message
        == f"process {first.pid} killed by SIGKILL on {worker.info.host.name}"
    )
    assert yard.events("child.died")[0].facts["status"] == -signal.SIGKILL
    assert not yard.events("worker.dead")


def test_a_one_attempt_task_whose_process_is_killed_has_failed_and_is_not_run_again(yard: Yard) -> None:
    task_id = yard.send("gated", "never")
    yard.worker()
    os.kill(yard.until_started(task_id).pid, signal.SIGKILL)
    yard.until_ended([task_id])

    yard.audit([task_id])
    task = yard.full(task_id)
    assert (task.status, task.error_code, task.crash_count) == (TaskStatus.FAILED, "WORKER_CRASHED", 1)
    assert not task.quarantined
    assert [entry.actor for entry in task.history] == ["system/recovery"]


KILLS: dict[str, Callable[[Worker], None]] = {
    "supervisor alone": lambda worker: worker.kill(),
    "process group": lambda worker: worker.kill_group(),
    "whole tree": lambda worker: worker.kill_tree(),
    "children first": lambda worker: worker.kill_tree(children_first=True),
}


@both_stores
@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
def test_an_idle_worker_restarts_the_tasks_of_a_killed_one_and_nothing_of_it_is_left(
    yard: Yard, kill: Callable[[Worker], None]
) -> None:
    victim = yard.worker()
    again, once, program = yard.send("gated_again", "go"), yard.send("gated", "go"), yard.send("starts_program")
    a_again, a_once = yard.send("a_gated_again", "go"), yard.send("a_gated", "go")
    for task_id in (again, once, a_again, a_once):
        yard.until_started(task_id)
    left = yard.processes()
    heir = yard.worker(processes=3)

    kill(victim)
    for task_id in (again, a_again):
        yard.until_started(task_id, times=2)
    yard.open("go")
    ids = [again, once, a_again, a_once, program]
    yard.until_ended(ids)

    yard.audit(ids)
    assert [yard.status(task_id) for task_id in ids] == ["COMPLETED", "FAILED", "COMPLETED", "FAILED", "COMPLETED"]
    assert (yard.task(once).error_code, yard.task(a_once).error_code) == ("WORKER_CRASHED", "WORKER_CRASHED")
    assert [yard.task(task_id).crash_count for task_id in ids] == [0, 0, 0, 0, 0]
    assert [yard.task(task_id).lost_count for task_id in (again, once, a_again, a_once)] == [1, 1, 1, 1]
    yard.until(lambda: not any(is_alive(pid) for pid in left), "nothing of the dead worker is left")
    assert heir.stop() == 0


def test_a_program_that_a_task_started_does_not_outlive_the_supervisor(yard: Yard) -> None:
    program, gil = yard.send("starts_program"), yard.send("held_gil", 300)
    worker = yard.worker()
    yard.until_ended([program])
    yard.until_started(gil)
    left = yard.left_behind(program)
    assert is_alive(left)

    worker.kill()

    yard.until(lambda: not yard.processes(), "children and grandchildren are gone, the GIL held or not")
    assert not is_alive(left)


@both_stores
def test_a_killed_fork_server_takes_its_children_along_and_the_worker_goes_on(yard: Yard) -> None:
    again, once = yard.send("gated_again", "go"), yard.send("gated", "go")
    worker = yard.worker()
    first = [yard.until_started(task_id).pid for task_id in (again, once)]
    before = worker.id

    os.kill(worker.fork_server, signal.SIGKILL)
    yard.until_started(again, times=2)
    yard.open("go")
    yard.until_ended([again, once])
    after = yard.send("quick")
    yard.until_ended([after])

    yard.audit([again, once, after])
    assert not any(is_alive(pid) for pid in first)
    assert (yard.task(again).crash_count, yard.task(again).lost_count) == (0, 1)
    assert (yard.task(once).error_code, yard.task(once).crash_count) == ("WORKER_CRASHED", 0)
    assert worker.id == before
    assert worker.stop() == 0


def test_a_worker_without_a_fork_server_can_be_stopped(yard: Yard) -> None:
    worker = yard.worker()
    for _ in range(3):
        server = yard.until(lambda: [pid for pid in worker.children if is_alive(pid)], "it has a fork server")[0]
        os.kill(server, signal.SIGKILL)
        yard.until(lambda server=server: server not in worker.children, "the fork server is gone")

    assert worker.stop() == 0
    assert worker.info.status is WorkerStatus.STOPPED


def test_an_application_that_broke_while_its_worker_runs_is_waited_for(yard: Yard, tmp_path: Path) -> None:
    module = tmp_path / "shop.py"
    module.write_text("from ground import app\n")
    worker = yard.worker(target="shop:app", directory=tmp_path, environment={"PYTHONPATH": f"{SOURCES}:{APPS}"})
    yard.may_complain = True

    module.write_text("raise RuntimeError('half a deployment')\n")
    os.kill(worker.fork_server, signal.SIGKILL)
    yard.until(lambda: [e for e in yard.events("app.failed") if e.facts["kind"] == "raised"], "the failure is told")
    task_id = yard.send("quick")
    module.write_text("from ground import app\n")
    yard.until_ended([task_id])

    assert yard.status(task_id) is TaskStatus.COMPLETED
    assert worker.stop() == 0


def test_a_worker_whose_application_has_learned_a_task_says_so_in_this_life_and_in_the_next(
    yard: Yard, tmp_path: Path
) -> None:
    module = tmp_path / "shop.py"
    module.write_text("from ground import app\n")
    worker = yard.worker(target="shop:app", directory=tmp_path, environment={"PYTHONPATH": f"{SOURCES}:{APPS}"})
    old_id = worker.id

    module.write_text("from ground import app\n\n@app.task(name='learned')\ndef learned() -> None: ...\n")
    os.kill(worker.fork_server, signal.SIGKILL)
    yard.until(lambda: "learned" in names_of(yard, old_id), "its row says so")
    assert yard.app.get_broker().sync.mark_worker_dead(old_id)
    yard.until(lambda: worker.info.status is WorkerStatus.ALIVE, "it has a new id")

    assert "learned" in names_of(yard, worker.id)
    assert worker.id != old_id
    assert worker.stop() == 0


def names_of(yard: Yard, worker_id: str) -> list[str]:
    return json.loads(yard.query("SELECT task_names FROM everbeat_workers WHERE id = ?", worker_id)[0][0])


def test_what_waits_behind_a_long_task_when_everything_is_killed_is_run_later_and_never_failed(yard: Yard) -> None:
    worker = yard.worker(processes=1)
    yard.until_ended(yard.send_many("maybe", [()] * 200))
    head, *waiting = yard.send_many("maybe", [("never", True), *[()] * 20])
    yard.until_started(head)
    yard.until(lambda: is_stopped(worker.pid), "the supervisor can not read back what waits")
    marked_running = [task_id for task_id in waiting if yard.status(task_id) is TaskStatus.RUNNING]

    worker.kill_tree()
    yard.worker(processes=1)
    yard.until_ended([head, *waiting])

    yard.audit([head, *waiting])
    assert marked_running
    assert (yard.status(head), yard.task(head).error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
    assert {yard.status(task_id) for task_id in waiting} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in waiting} == {1}
    assert {yard.task(task_id).lost_count for task_id in waiting} == {0}


def test_ten_kills_of_the_worker_do_not_end_a_long_task_that_may_be_repeated(yard: Yard) -> None:
    task_id = yard.send("gated_then_patient", "go")
    for kills in range(10):
        worker = yard.worker(processes=1)
        yard.until_started(task_id, times=kills + 1)
        worker.kill()

    yard.worker(processes=1)
    yard.until_started(task_id, times=11)
    yard.open("go")
    yard.until_ended([task_id])

    yard.audit([task_id])
    task = yard.full(task_id)
    assert (task.status, task.crash_count, task.lost_count) == (TaskStatus.COMPLETED, 0, 10)
    assert len(task.attempts) == 10
    assert not task.quarantined


@both_stores
def test_a_task_is_recovered_once_however_many_workers_saw_its_worker_die(yard: Yard) -> None:
    ids = [
        yard.send("gated_again", "go"),
        yard.send("gated", "go"),
        *[yard.send("a_gated_again", "go") for _ in range(5)],
    ]
    victim = yard.worker()
    for task_id in ids:
        yard.until_started(task_id)
    heirs = [yard.worker(ready=False) for _ in range(3)]
    for heir in heirs:
        yard.until_ready(heir)

    victim.kill()
    yard.open("go")
    yard.until_ended(ids)

    yard.audit(ids)
    assert {len(yard.events("task.recovered", task_id=task_id)) for task_id in ids} == {1}
    assert {len(yard.full(task_id).history) for task_id in ids} == {1}
    assert {yard.task(task_id).lost_count for task_id in ids} == {1}
    assert len(yard.events("worker.dead")) == 1
    reports = yard.until(lambda: yard.store.reports(limit=100), "the recovery is reported")
    assert sorted(task.task_id for report in reports for task in report.recovered_tasks) == sorted(ids)
    assert sum(len(report.dead_workers) for report in reports) == 1
    assert sum(worker.status is WorkerStatus.ALIVE for worker in yard.store.workers()) == 3
