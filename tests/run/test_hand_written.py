"""Rows that somebody has written by hand: nothing in them stops a worker, and nobody has to search for the reason."""

import itertools
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from tests.run.stage import Stage
from tests.run.test_reaper import AGAIN, QUICK, live, running
from tests.words import carry_out, enqueue

from everbeat.model.order import Order
from everbeat.store.messages import TaskFilter

NUMBERS = ["priority", "fence", "attempt", "free_attempts", "crash_count", "lost_count", "dispatch_count", "solo"]
OTHERS = ["good_until", "args", "id", "exclusive_key", "workflow_id", "node", "refs"]
ELSEWHERE = [
    "name", "queue", "policy", "due_at", "waiting_for", "run_at", "created_at", "cancel_requested_at", "worker_id",
    "max_attempts", "quarantined", "started_at", "finished_at", "counted", "unique_key", "progress", "error_code",
    "error_message", "error", "held", "result",
]  # fmt: skip
VALUES = ["abc", b"\xff", 1.5, -1, (1 << 63) - 1]


def write(stage: Stage, table: str, column: str, value: Any, where: str, key: str) -> None:
    with closing(sqlite3.connect(stage.path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE everbeat_{table} SET {column} = ? WHERE {where} = ?", (value, key))


@pytest.mark.parametrize(("column", "value"), list(itertools.product([*NUMBERS, *OTHERS, *ELSEWHERE], VALUES)))
def test_a_row_written_by_hand_stops_nobody(stage: Stage, column: str, value: Any) -> None:
    worker = stage.worker(processes=2)
    worker.get_up()
    bad, good = enqueue(stage.store), enqueue(stage.store)
    node = enqueue(stage.store)
    write(stage, "tasks", "workflow_id", "of another kind than the bad one's", "id", node)
    write(stage, "tasks", column, value, "id", bad)

    for _ in range(4):
        worker.look()
        for slot, child in worker.crew.children.items():
            if child.sent:
                worker.crew.run(slot)
    worker.turn()
    worker.reaper.tick()

    assert stage.status(good) == ["COMPLETED"]
    assert worker.holds() == []


@pytest.mark.parametrize(
    ("column", "value"), [*((column, "abc") for column in NUMBERS), ("fence", -1), ("id", b"\xff")]
)
def test_a_row_that_makes_no_sense_is_set_aside_with_the_reason_and_runs_when_it_is_released(
    stage: Stage, column: str, value: Any
) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    bad = enqueue(stage.store)
    write(stage, "tasks", column, value, "id", bad)

    worker.look()

    (seen,) = stage.store.tasks(TaskFilter(quarantined=True))
    assert (seen.status, seen.error_code) == ("FAILED", "ROW_UNREADABLE")
    assert f"its {column} can not be" in (seen.error_message or "")
    assert stage.events()[-1] == "task.quarantined"
    assert carry_out(stage.store, Order.RELEASE, seen.id) == [seen.id]
    worker.look()
    worker.crew.run(1)
    worker.turn()
    assert stage.status(seen.id) == ["COMPLETED"]


def test_many_such_rows_are_set_aside_bite_by_bite_and_what_is_behind_them_runs(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    for _ in range(450):
        enqueue(stage.store)
    write(stage, "tasks", "fence", "abc", "name", "add")
    good = enqueue(stage.store)

    for _ in range(4):
        worker.look()

    assert worker.holds() == [good]


def test_a_limit_that_is_no_number_limits_nothing(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    stage.store.set_paused("default", is_paused=True, actor="test")
    stage.store.set_paused("default", is_paused=False, actor="test")
    write(stage, "queues", "max_concurrency", "many", "name", "default")
    task = enqueue(stage.store)

    worker.look()

    assert worker.holds() == [task]


def test_a_worker_whose_own_row_can_not_be_read_waits_for_a_person(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    write(stage, "workers", "beat_seq", "abc", "id", worker.id)
    task = enqueue(stage.store)

    worker.look()

    assert worker.dispatcher.mandate.is_displaced
    assert stage.status(task) == ["PENDING"]


@pytest.mark.parametrize(
    ("column", "value"),
    list(itertools.product(["beat_mono", "beat_at", "beat_interval_ms", "clock_id", "exclusive_lease_ms"], VALUES)),
)
def test_a_worker_row_written_by_hand_keeps_nobody_from_judging_the_others(
    stage: Stage, column: str, value: Any
) -> None:
    odd, frozen, judge = (stage.worker(name, processes=1, **QUICK) for name in ("a", "frozen", "judge"))
    task = running(stage, frozen)
    write(stage, "workers", column, value, "id", odd.id)

    live(stage, 40, judge)

    assert stage.status(task) == ["PENDING"]


def test_keys_of_two_kinds_are_handed_over_together(stage: Stage) -> None:
    gone, judge = stage.worker("gone", processes=2, **QUICK), stage.worker("judge", **QUICK)
    tasks = [enqueue(stage.store, exclusive_key=key, policy=AGAIN) for key in ("k", "odd")]
    gone.get_up()
    write(stage, "tasks", "exclusive_key", b"\xff", "id", tasks[1])

    live(stage, 60, judge)

    assert stage.status(*tasks) == ["PENDING", "PENDING"]
    judge.get_up()
    judge.look()
    assert stage.status(*tasks) == ["RUNNING", "FAILED"]
