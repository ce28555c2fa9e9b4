"""Times, keys and limits through real workers."""

import json
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, PATIENCE, Line, Yard

from everbeat import TaskExpired, TaskFailed, TaskStatus


def test_what_was_not_started_in_its_time_expires_while_every_worker_is_busy_and_never_runs(
    make_yard: MakeYard,
) -> None:
    yard = make_yard(**FAST)
    yard.worker(processes=1)
    busy = yard.send("gated", "gate")
    yard.until_started(busy)
    late = yard.send("quick", good_until=datetime.now(UTC) + timedelta(seconds=0.3))
    patient = yard.send("quick", good_until=datetime.now(UTC) + timedelta(hours=1))

    with pytest.raises(TaskExpired):
        yard.app.handle(late).result(timeout=PATIENCE)
    yard.open("gate")
    yard.until_ended([busy, patient])

    assert [yard.status(one) for one in (busy, late, patient)] == ["COMPLETED", "EXPIRED", "COMPLETED"]
    assert not yard.starts(late)
    assert yard.status(late) is TaskStatus.EXPIRED


def most_at_once(lines: Iterable[Line]) -> int:
    """How many runs the ledger shows at the same time, at the most."""
    running = most = 0
    for line in sorted(lines, key=lambda line: line.at_ns):
        running += {"start": 1, "end": -1}.get(line.word, 0)
        most = max(most, running)
    return most


@pytest.mark.timeout(300)
def test_four_workers_of_four_slots_run_five_tasks_of_a_queue_at_once_and_never_more(yard: Yard) -> None:
    limited = {"YARD_QUEUES": json.dumps({"few": {"max_concurrency": 5}})}
    for _ in range(4):
        yard.worker(processes=4, environment=limited, ready=False)
    yard.until(lambda: len(yard.store.workers(alive_only=True)) == 4, "four workers are there")
    few = [yard.send("work", 0.05, queue="few") for _ in range(100)]
    others = yard.send_many("work", [(0.01,)] * 100)
    yard.until_ended([*few, *others])

    ledger = yard.ledger()
    assert most_at_once(line for line in ledger if line.task_id in set(few)) == 5
    assert len({yard.task(one).worker_id for one in few}) > 1
    yard.audit([*few, *others])


def test_an_idle_worker_takes_the_place_that_another_one_leaves(yard: Yard) -> None:
    limited = {"YARD_QUEUES": json.dumps({"few": {"max_concurrency": 1}})}
    narrow = yard.worker("--queues", "few,other", processes=1, environment=limited)
    first = yard.send("gated", "first", queue="few")
    yard.until_started(first)
    behind = yard.send("gated", "behind", queue="other", priority=1)
    second = yard.send("quick", queue="few")
    idle = yard.worker("--queues", "few", processes=1, environment=limited)
    yard.until(lambda: yard.task(second).waiting_for == "its queue few, which has as many tasks as it may", "it waits")

    yard.open("first")
    yard.until_ended([second])

    assert yard.task(second).worker_id == idle.id
    assert yard.until_started(behind).pid in narrow.slots
    yard.open("behind")
    yard.until_ended([behind])


# -- names that nobody knows ------------------------------------------------------------------------------------------


def test_during_a_rolling_deploy_the_new_task_waits_for_the_new_worker(yard: Yard) -> None:
    old = yard.worker(environment={"YARD_WITHOUT": "quick"})
    new_task, known = yard.send("quick"), yard.send("work")
    yard.until_ended([known])
    assert yard.task(new_task).waiting_for == "a worker that knows quick; of 1 running none does"

    new = yard.worker()
    yard.until_ended([new_task])

    assert yard.task(new_task).worker_id == new.id
    assert yard.task(known).worker_id == old.id


def test_a_task_that_no_worker_learns_to_know_fails_with_the_reason(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    settings = {"YARD_WITHOUT": "quick", "YARD_CONFIG": json.dumps({"unknown_task_timeout_ms": 1_000})}
    yard.worker(environment=settings)
    task = yard.send("quick")

    with pytest.raises(TaskFailed, match="knows the task quick") as caught:
        yard.app.handle(task).result(timeout=PATIENCE)

    assert caught.value.error_code == "UNKNOWN_TASK"


# -- a steady backlog -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_a_steady_backlog_holds_up_neither_what_is_urgent_nor_a_retry_nor_a_late_commit(yard: Yard) -> None:
    """Of 100,000 tasks that wait, few begin between the moment such a task could begin and its beginning."""
    retry = yard.send("fails_twice")
    backlog = yard.send_many("quick", [()] * 100_000)
    for _ in range(2):
        yard.worker(ready=False)
    yard.until(lambda: len(yard.starts(retry)) >= 1 and len(yard.ledger()) > 200, "the workers are at it")
    connection = sqlite3.connect(yard.path / "yard.db", isolation_level=None, timeout=PATIENCE)
    connection.execute("BEGIN IMMEDIATE")
    late = yard.send("quick", priority=50, connection=connection)
    connection.execute("COMMIT")
    connection.close()
    urgent = yard.send("quick", priority=1)
    yard.until_ended([retry, late, urgent], timeout=PATIENCE)

    assert any(not yard.task(one).status.is_terminal for one in backlog[-100:])
    for one in (retry, late, urgent):
        task = yard.task(one)
        assert task.started_at is not None
        assert between(yard, set(backlog), task.run_at, task.started_at) < 2_000


def between(yard: Yard, ids: set[str], since: datetime, until: datetime) -> int:
    """How many of these tasks have begun in that time."""
    marks = (since.timestamp() * 1e6, until.timestamp() * 1e6)
    begun = yard.query("SELECT id FROM everbeat_tasks WHERE started_at BETWEEN ? AND ?", *marks)
    return sum(one in ids for (one,) in begun)
