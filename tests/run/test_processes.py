"""Which process runs a task: one of its own, or one that has not served for too long."""

from collections import Counter

from tests.run.stage import SimulatedWorker, Stage
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


# -- a limited number of tasks ----------------------------------------------------------------------------------------


def run_the_last(worker: SimulatedWorker) -> None:
    """In the process that took the place of the first."""
    worker.crew.get_ready()
    worker.turn()
    worker.crew.run(1)
    worker.turn()


def test_a_process_is_replaced_after_its_last_task_and_not_before(stage: Stage) -> None:
    worker = stage.worker(processes=1, max_tasks=2)
    tasks = [enqueue(stage.store) for _ in range(3)]
    worker.get_up()
    first = worker.crew.children[1].pid

    worker.crew.run(1)
    worker.turn()
    assert worker.crew.children[1].pid == first
    worker.crew.run(1)
    worker.turn(2)
    assert worker.crew.children[1].pid != first

    run_the_last(worker)
    assert stage.status(*tasks) == ["COMPLETED"] * 3
    assert "child.died" not in stage.events()


def test_a_frame_holds_no_more_tasks_than_the_process_may_run(stage: Stage) -> None:
    worker = stage.worker(processes=2, max_tasks=3)
    worker.learn("add")
    tasks = [enqueue(stage.store) for _ in range(10)]
    worker.get_up()
    worker.turn()
    assert [len(worker.crew.children[slot].sent) for slot in (1, 2)] == [3, 3]

    served: Counter[int] = Counter()
    while stage.status(tasks[-1]) != ["COMPLETED"]:
        for child in list(worker.crew.children.values()):
            while child.sent:
                worker.crew.run(child.slot)
                served[child.pid] += 1
        worker.turn(2)
        worker.crew.get_ready()
        worker.turn()

    assert stage.status(*tasks) == ["COMPLETED"] * 10
    assert (max(served.values()), served.total()) == (3, 10)
    assert {stage.task(task).attempt for task in tasks} == {1}


def test_what_was_taken_back_does_not_count(stage: Stage) -> None:
    worker = stage.worker(processes=1, max_tasks=5)
    worker.learn("add")
    for _ in range(3):
        enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1)
    worker.wait_in_vain()

    assert worker.dispatcher.slots[1].sent == 1


def test_the_next_async_process_serves_while_the_last_one_ends_its_tasks(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=5, max_tasks=2)
    tasks = [enqueue(stage.store, name="later") for _ in range(4)]
    worker.get_up()
    assert stage.status(*tasks) == ["RUNNING", "RUNNING", "PENDING", "PENDING"]

    worker.turn()
    worker.crew.get_ready(3)
    worker.turn()
    assert stage.status(*tasks) == ["RUNNING"] * 4
    for slot in (0, 3):
        worker.crew.run(slot)
        worker.crew.run(slot)
    worker.turn(3)

    assert stage.status(*tasks) == ["COMPLETED"] * 4
    worker.crew.get_ready()
    worker.turn(2)
    assert worker.dispatcher.is_idle


def test_an_async_process_serves_on_while_the_one_before_it_has_not_ended(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=5, max_tasks=1)
    slow = enqueue(stage.store, name="later")
    worker.get_up()
    worker.crew.begin(0)
    tasks = [enqueue(stage.store, name="later") for _ in range(3)]
    worker.turn()
    worker.crew.get_ready(3)

    for _ in tasks:
        worker.look()
        while worker.crew.children[3].sent:
            worker.crew.run(3)
    worker.turn()

    assert stage.status(slow, *tasks) == ["RUNNING", "COMPLETED", "COMPLETED", "COMPLETED"]


# -- a limited size ---------------------------------------------------------------------------------------------------


def test_a_process_that_is_to_be_replaced_goes_when_what_it_had_left_was_taken_back(stage: Stage) -> None:
    worker = stage.worker(processes=1, max_tasks=3)
    worker.learn("add")
    tasks = [enqueue(stage.store) for _ in range(4)]
    worker.get_up()
    first = worker.crew.children[1].pid

    worker.crew.run(1)
    worker.turn()
    worker.wait_in_vain()
    worker.turn()
    worker.crew.get_ready()
    worker.turn()

    assert worker.crew.children[1].pid != first
    for _ in range(3):
        worker.crew.run(1)
        worker.turn()
        worker.crew.get_ready()
        worker.turn()
    assert stage.status(*tasks) == ["COMPLETED"] * 4


def test_a_process_that_a_task_left_too_large_is_replaced(stage: Stage) -> None:
    worker = stage.worker(processes=1, max_memory=1000)
    tasks = [enqueue(stage.store) for _ in range(3)]
    worker.get_up()
    first = worker.crew.children[1].pid
    worker.crew.sizes[first] = 1000
    worker.crew.run(1)
    worker.turn()
    assert worker.crew.children[1].pid == first

    worker.crew.begin(1)
    worker.crew.sizes[first] = 1001
    worker.turn()
    assert worker.crew.children[1].pid == first
    worker.crew.end(1)
    worker.turn(2)
    assert worker.crew.children[1].pid != first

    run_the_last(worker)
    assert stage.status(*tasks) == ["COMPLETED"] * 3


def test_what_waits_in_a_process_that_is_too_large_runs_elsewhere(stage: Stage) -> None:
    worker = stage.worker(processes=1, max_memory=1000)
    worker.learn("add")
    tasks = [enqueue(stage.store) for _ in range(3)]
    worker.get_up()
    worker.crew.sizes[worker.crew.children[1].pid] = 2000

    worker.crew.run(1)
    worker.turn(2)
    assert stage.status(*tasks) == ["COMPLETED", "PENDING", "PENDING"]

    worker.crew.get_ready()
    worker.turn()
    worker.crew.run(1)
    worker.crew.run(1)
    worker.turn()
    assert stage.status(*tasks) == ["COMPLETED"] * 3


def test_an_async_process_that_is_too_large_ends_its_tasks_and_another_takes_over(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=5, max_memory=1000)
    slow, quick = (enqueue(stage.store, name="later") for _ in range(2))
    worker.get_up()
    worker.crew.begin(0)
    worker.crew.begin(0)
    worker.crew.sizes[worker.crew.children[0].pid] = 2000
    worker.crew.children[0].taken.rotate(-1)
    worker.crew.end(0)
    worker.turn(2)
    late = enqueue(stage.store, name="later")
    worker.crew.get_ready(3)
    worker.look()
    worker.crew.run(3)
    worker.turn()
    assert stage.status(slow, quick, late) == ["RUNNING", "COMPLETED", "COMPLETED"]

    worker.crew.end(0)
    worker.turn(2)

    assert stage.status(slow) == ["COMPLETED"]
    assert sorted(worker.crew.children) == [1, 3]
