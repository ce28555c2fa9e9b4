"""Recovery by hand, against real workers: the blocking methods, and their twins for an event loop."""

import asyncio
import inspect
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Worker, Yard

from everbeat import TaskStatus
from everbeat.model.worker import WorkerStatus

ALONE = FAST | {"running_stale_threshold_ms": 60_000, "claimed_stale_threshold_ms": 60_000, "check_interval_ms": 60_000}
"""Nobody but the person judges."""

Ask = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[[Yard], Ask]:
    """Calls a method of the broker by name."""

    def of(yard: Yard) -> Ask:
        broker = yard.app.get_broker()

        def call(name: str, *args: Any, **kwargs: Any) -> Any:
            if request.param == "sync":
                return getattr(broker.sync, name)(*args, **kwargs)
            answer = getattr(broker, name)(*args, **kwargs)
            assert inspect.iscoroutine(answer)
            return asyncio.run(answer)

        return call

    return of


def test_a_person_finds_stale_tasks_of_a_stopped_worker_and_fails_them(
    make_yard: MakeYard, ask: Callable[[Yard], Ask]
) -> None:
    yard = make_yard(**ALONE)
    broker, worker = ask(yard), yard.worker()
    again, once = yard.send("gated_again", "go"), yard.send("gated", "go")
    for task_id in (again, once):
        yard.until_started(task_id)
    assert broker("get_stale_tasks", stale_threshold_minutes=1) == []

    worker.freeze()
    silent_for(yard, worker, seconds=2.5)
    stale = broker("get_stale_tasks", stale_threshold_minutes=2 / 60)
    failed = broker("mark_stale_tasks_as_failed", stale_threshold_ms=2_000)

    assert {found["id"] for found in stale} == {again, once}
    assert {(found["task_name"], found["worker_hostname"], found["worker_pid"]) for found in stale} == {
        ("gated", worker.info.host.name, worker.pid),
        ("gated_again", worker.info.host.name, worker.pid),
    }
    assert all(found["last_heartbeat"] >= found["started_at"] for found in stale)
    assert failed == 2
    assert [yard.status(task_id) for task_id in (again, once)] == [TaskStatus.FAILED, TaskStatus.FAILED]
    assert yard.task(again).error_code == "WORKER_CRASHED"
    assert {yard.full(task_id).history[-1].actor for task_id in (again, once)} == {"user/manual"}
    old_id = worker.id
    yard.open("go")
    worker.thaw()
    yard.until_event("worker.fenced", worker_id=old_id)
    assert {event.task_id for event in yard.events("outcome.refused")} <= {again, once}
    assert [yard.status(task_id) for task_id in (again, once)] == [TaskStatus.FAILED, TaskStatus.FAILED]


def test_a_person_sees_who_lives_and_declares_one_dead(make_yard: MakeYard, ask: Callable[[Yard], Ask]) -> None:
    yard = make_yard(**ALONE)
    broker, worker = ask(yard), yard.worker()
    again = yard.send("gated_again", "go")
    yard.until_started(again)
    old_id = worker.id

    (status,) = broker("get_worker_status")
    assert (status.worker_id, status.current_task_id, status.is_alive) == (old_id, again, True)
    assert broker("is_worker_alive", old_id)
    assert not broker("is_worker_alive", "nobody")
    assert broker("detect_stale_workers") == []
    assert broker("mark_worker_dead", old_id)
    assert not broker("mark_worker_dead", old_id)
    assert not broker("is_worker_alive", old_id)
    yard.until_event("worker.fenced", worker_id=old_id)
    yard.until_started(again, times=2)
    yard.open("go")
    yard.until_ended([again])

    yard.audit([again])
    assert {row.id: row.status for row in yard.store.workers()} == {
        old_id: WorkerStatus.DEAD,
        worker.id: WorkerStatus.ALIVE,
    }
    assert worker.id != old_id
    assert worker.stop() == 0


def test_a_worker_that_was_killed_is_seen_as_gone_before_anyone_recovers_its_tasks(
    make_yard: MakeYard, ask: Callable[[Yard], Ask]
) -> None:
    yard = make_yard(**ALONE)
    broker, worker = ask(yard), yard.worker()
    task_id = yard.send("gated", "go")
    yard.until_started(task_id)
    worker.kill()
    yard.until(lambda: not yard.processes(), "its children are gone, too")

    assert not broker("is_worker_alive", worker.id)
    (stale,) = broker("detect_stale_workers")
    assert (stale.worker_id, stale.task_ids) == (worker.id, [task_id])
    (status,) = broker("get_worker_status")
    assert (status.is_alive, status.current_task_id) == (False, task_id)
    assert yard.status(task_id) is TaskStatus.RUNNING


def test_a_claimed_task_of_a_silent_worker_is_requeued_by_hand(make_yard: MakeYard, ask: Callable[[Yard], Ask]) -> None:
    """A suspect is CLAIMED while its own process starts; with a stopped fork server it stays so."""
    yard = make_yard(**ALONE)
    broker, worker = ask(yard), yard.worker()
    task_id = yard.send("a_gated_again", "go")
    os.kill(yard.until_started(task_id).pid, signal.SIGKILL)
    alone, server = yard.until_started(task_id, times=2), worker.fork_server
    os.kill(server, signal.SIGSTOP)
    os.kill(alone.pid, signal.SIGKILL)
    yard.until(lambda: yard.status(task_id) is TaskStatus.CLAIMED, "it is CLAIMED")
    assert broker("requeue_stale_claimed", stale_threshold_ms=2_000) == 0

    worker.freeze()
    silent_for(yard, worker, seconds=4)

    assert broker("requeue_stale_claimed", stale_threshold_ms=2_000) == 1
    assert (yard.status(task_id), yard.task(task_id).worker_id) == (TaskStatus.PENDING, None)
    worker.thaw(worker.pid, server)
    yard.open("go")
    yard.until_ended([task_id])
    yard.audit([task_id])
    assert worker.info.status is WorkerStatus.ALIVE


def test_a_worker_of_ones_own_lives_by_the_beats_that_are_sent_for_it(
    make_yard: MakeYard, ask: Callable[[Yard], Ask]
) -> None:
    yard = make_yard(**FAST)
    broker = ask(yard)
    task_id = yard.send("quick", queue="elsewhere")

    broker("send_heartbeat", "mine")
    broker("send_heartbeat", "mine", task_id)

    assert broker("is_worker_alive", "mine")
    assert yard.query("SELECT task_id, sender_id, role FROM everbeat_heartbeats") == [(task_id, "mine", "claimer")]
    judge = yard.worker("--queues", "nothing")
    yard.until_event("worker.dead", worker_id="mine")
    assert not broker("is_worker_alive", "mine")
    assert judge.stop() == 0


def silent_for(yard: Yard, worker: Worker, seconds: float) -> None:
    yard.until(lambda: worker.info.silent_for_us > seconds * 1e6, f"it has been silent for {seconds}s")
