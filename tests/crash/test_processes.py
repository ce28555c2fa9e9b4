"""Which process runs a task: one of its own, or one that has not served for too long. With real ones."""

import os
import signal
from collections import Counter

from tests.crash.conftest import MakeYard, both_stores
from tests.crash.yard import FAST, Yard

from everbeat import TaskStatus


def test_isolated_tasks_have_a_fresh_process_each(yard: Yard) -> None:
    worker = yard.worker(processes=2)
    tasks = yard.send_many("isolated", [()] * 4) + yard.send_many("a_isolated", [()] * 4)
    yard.until_ended(tasks)

    assert {yard.status(task) for task in tasks} == {TaskStatus.COMPLETED}
    processes = {yard.starts(task)[0].pid for task in tasks}
    assert len(processes) == len(tasks)
    assert processes.isdisjoint(worker.slots)
    yard.audit(tasks)


def test_processes_are_replaced_after_so_many_tasks_and_nothing_is_lost(yard: Yard) -> None:
    yard.worker(processes=2, environment={"EVERBEAT_MAX_TASKS_PER_CHILD": "7"})
    tasks = yard.send_many("quick", [()] * 100) + yard.send_many("a_quick", [()] * 60)
    yard.until_ended(tasks)

    served = Counter(line.pid for line in yard.ledger() if line.word == "start")
    assert {yard.status(task) for task in tasks} == {TaskStatus.COMPLETED}
    assert served.total() == len(tasks)
    assert max(served[yard.starts(task)[0].pid] for task in tasks[:100]) == 7
    assert not yard.events("child.died")
    yard.audit(tasks)


def test_a_process_that_a_task_left_too_large_is_replaced_and_never_in_the_middle(yard: Yard) -> None:
    yard.worker(processes=1, environment={"EVERBEAT_MAX_MEMORY_PER_CHILD_MB": "200"})
    before, large, after, last = yard.send("quick"), yard.send("grows", 250), yard.send("quick"), yard.send("quick")
    yard.until_ended([before, large, after, last])

    processes = [yard.starts(task)[0].pid for task in (before, large, after, last)]
    assert processes[0] == processes[1]
    assert processes[1] != processes[2]
    assert processes[2] == processes[3]
    assert not yard.events("child.died")
    yard.audit([before, large, after, last])


def test_a_worker_of_many_processes_has_room_for_what_they_open(yard: Yard) -> None:
    worker = yard.worker(processes=8, through="few_files.py")
    tasks = yard.send_many("work", [()] * 100) + yard.send_many("isolated", [()] * 20)
    yard.until_ended(tasks)

    assert {yard.status(task) for task in tasks} == {TaskStatus.COMPLETED}
    assert worker.stop() == 0


@both_stores
def test_a_worker_whose_files_somebody_removed_says_so_and_has_processes_all_the_same(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    worker = yard.worker(processes=1)
    files = [yard.store.state_directory / f"worker-{worker.id}.{kind}" for kind in ("lock", "journal")]
    for path in files:
        path.unlink()
    for pid in worker.slots:
        os.kill(pid, signal.SIGKILL)
    tasks = [yard.send(name) for name in ("quick", "a_quick", "isolated")]
    yard.until_ended(tasks)

    assert {yard.status(task) for task in tasks} == {TaskStatus.COMPLETED}
    told = yard.until_event("files.lost", worker_id=worker.id)
    assert told.facts["files"] == [str(path) for path in files]
    assert worker.stop() == 0
