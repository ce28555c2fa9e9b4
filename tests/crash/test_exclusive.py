"""Tasks with one exclusive key never run at the same time, whatever is killed, frozen or away (P12, PROTOCOL 24)."""

import random
import signal
from collections.abc import Iterable

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import Line, Worker, Yard, is_alive

from everbeat import TaskStatus

LEASE = {"exclusive_lease_ms": 5_000}
"""The shortest there is: its tasks are stopped after three seconds."""


def overlaps(lines: Iterable[Line]) -> list[tuple[Line, Line]]:
    """Signs of life of a run after the start of the next one, with that start."""
    found: list[tuple[Line, Line]] = []
    start: Line | None = None
    for line in sorted(lines, key=lambda line: line.at_ns):
        if line.word == "start":
            start = line
        elif start is not None and (line.task_id, line.fence) != (start.task_id, start.fence):
            found.append((line, start))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("store_url", "seed"), [("sqlite", 1), ("sqlite", 2), ("postgres", 3)], indirect=["store_url"])
def test_two_hundred_tasks_of_one_key_never_overlap_though_their_workers_are_killed(
    make_yard: MakeYard, seed: int
) -> None:
    yard, chance = make_yard(**LEASE), random.Random(seed)
    workers = [yard.worker(ready=False) for _ in range(3)] + [yard.worker()]
    ids = [yard.send("marks_again", None, 0.01, exclusive_key="ledger") for _ in range(200)]

    def ended() -> int:
        return sum(task.status.is_terminal for task in yard.tasks())

    for goal in range(20, 200, 20):
        yard.until(lambda goal=goal: ended() >= goal, f"{goal} tasks have ended")  # type: ignore[misc]
        victim = workers.pop(chance.randrange(len(workers)))
        yard.until_ready(victim)
        strike(victim, chance)
        workers.append(yard.worker(ready=False))
    yard.until_ended(ids)

    assert overlaps(yard.ledger()) == []
    yard.audit(ids)
    assert all(yard.status(one) is TaskStatus.COMPLETED for one in ids)


def strike(worker: Worker, chance: random.Random) -> None:
    match chance.choice(["supervisor", "group", "tree", "children first"]):
        case "supervisor":
            worker.kill()
        case "group":
            worker.kill_group()
        case "tree":
            worker.kill_tree()
        case _:
            worker.kill_tree(children_first=True)


@pytest.mark.parametrize("name", ["marks_again", "a_marks_again"])
def test_a_task_whose_supervisor_is_frozen_is_stopped_before_another_may_start_it(
    make_yard: MakeYard, name: str
) -> None:
    yard = make_yard(**LEASE)
    frozen = yard.worker()
    task, plain = yard.send(name, "gate", exclusive_key="k"), yard.send("gated", "gate")
    first = yard.until_started(task)
    yard.until_started(plain)
    other = yard.worker()

    frozen.freeze()
    second = yard.until_started(task, times=2)

    assert overlaps(line for line in yard.ledger() if line.task_id == task) == []
    assert not is_alive(first.pid)
    assert yard.starts(plain) == [yard.starts(plain)[0]]
    frozen.thaw()
    yard.open("gate")
    yard.until_ended([task, plain])
    assert yard.result(task) == second.fence
    assert yard.task(task).worker_id == other.id
    assert yard.task(plain).worker_id == frozen.id
    (attempt,) = yard.full(task).attempts
    assert (attempt.error_code, attempt.will_retry) == ("LEASE_LOST", True)
    assert (yard.task(task).crash_count, yard.task(task).lost_count) == (0, 1)


def test_while_the_store_can_not_be_written_exclusive_tasks_stop_and_others_finish(make_yard: MakeYard) -> None:
    yard = make_yard(**LEASE)
    yard.worker()
    task, plain = yard.send("marks_again", "gate", exclusive_key="k"), yard.send("gated", "plain")
    first = yard.until_started(task)
    yard.until_started(plain)

    stranger = yard.stranger()
    yard.until(lambda: not is_alive(first.pid), "the exclusive task is stopped")
    yard.open("plain")
    yard.until(lambda: yard.ends(plain), "the other one ends")
    stranger.kill()
    yard.open("gate")
    yard.until_ended([task, plain])

    assert len(yard.starts(plain)) == 1
    assert [yard.status(one) for one in (task, plain)] == ["COMPLETED", "COMPLETED"]
    assert [attempt.error_code for attempt in yard.full(task).attempts] == ["LEASE_LOST"]
    assert yard.task(task).crash_count == 0
    assert yard.ends(task)[0].fence != first.fence


def test_a_task_that_may_run_once_and_loses_its_lease_has_failed_with_the_reason(make_yard: MakeYard) -> None:
    yard = make_yard(**LEASE)
    yard.worker()
    task, follower = (yard.send("marks", "gate", exclusive_key="k") for _ in range(2))
    first = yard.until_started(task)

    stranger = yard.stranger()
    yard.until(lambda: not is_alive(first.pid), "it is stopped")
    stranger.kill()
    yard.until_started(follower)

    info = yard.full(task)
    assert (info.status, info.error_code) == (TaskStatus.FAILED, "LEASE_LOST")
    assert "no answer from the store" in (info.error_message or "")
    yard.open("gate")
    yard.until_ended([follower])


def test_a_lease_is_kept_for_as_long_as_the_store_answers(make_yard: MakeYard) -> None:
    """Three leases long, with an ordinary task of the same process kind after it."""
    yard = make_yard(**LEASE)
    yard.worker(processes=1)
    task = yard.send("marks", None, 15.0, exclusive_key="k")
    yard.until_ended([task])

    assert (yard.status(task), len(yard.starts(task))) == (TaskStatus.COMPLETED, 1)


def test_a_frozen_owner_of_a_key_does_not_hold_up_a_stopped_worker(yard: Yard) -> None:
    """A worker that stops hands its exclusive task back, and the next one has it at once: no lease is waited for."""
    first = yard.worker("--drain-timeout", "0")
    task = yard.send("marks_again", "gate", exclusive_key="k")
    yard.until_started(task)

    first.signal(signal.SIGTERM)
    second = yard.worker()
    yard.until_started(task, times=2)
    yard.open("gate")
    yard.until_ended([task])

    assert yard.task(task).worker_id == second.id
    assert overlaps(yard.ledger()) == []
