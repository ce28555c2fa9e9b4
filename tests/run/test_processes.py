"""Which process runs a task: one of its own, or one that has not served for too long."""

from tests.run.stage import Stage
from tests.words import a_policy, enqueue

ISOLATED = a_policy(isolated=True)


def test_an_isolated_sync_task_has_a_fresh_process_which_ends_with_it(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store, policy=ISOLATED)
    worker.get_up()
    assert stage.status(task) == ["CLAIMED"]

    worker.crew.get_ready(2)
    worker.turn()
    worker.crew.run(2)
    worker.turn(2)

    assert stage.status(task) == ["COMPLETED"]
    assert sorted(worker.crew.children) == [1]


def test_isolated_tasks_do_not_hold_up_others_and_wait_for_one_another(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    first, second = (enqueue(stage.store, policy=ISOLATED) for _ in range(2))
    other = enqueue(stage.store, name="sub")
    worker.get_up()

    assert stage.status(first, second, other) == ["CLAIMED", "PENDING", "RUNNING"]

    worker.crew.get_ready(2)
    worker.turn()
    worker.crew.run(1)
    worker.crew.run(2)
    worker.turn(3)
    assert stage.status(first, second, other) == ["COMPLETED", "CLAIMED", "COMPLETED"]


def test_a_burst_waits_for_isolated_tasks(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    tasks = [enqueue(stage.store, policy=ISOLATED) for _ in range(3)]
    worker.get_up()

    for _ in tasks:
        assert not worker.dispatcher.is_idle
        worker.crew.get_ready(2)
        worker.turn()
        worker.crew.run(2)
        worker.turn(3)

    assert stage.status(*tasks) == ["COMPLETED"] * 3
    assert worker.dispatcher.is_idle
