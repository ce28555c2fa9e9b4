"""SIGTERM, SIGINT and SIGHUP: what runs may end, what has not begun goes back, what does not listen is killed."""

import os
import signal
from collections.abc import Iterator

import pytest
from tests.crash.yard import Yard

from everbeat import TaskStatus
from everbeat.model.worker import WorkerStatus

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SIGNALS = pytest.mark.parametrize("number", STOPS, ids=[number.name for number in STOPS])


@pytest.fixture(autouse=True)
def with_a_terminal() -> Iterator[None]:
    """Also in a test run that was started with `nohup`: a process that is started inherits what is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@SIGNALS
def test_running_tasks_end_within_the_drain_timeout_and_nothing_new_begins(yard: Yard, number: signal.Signals) -> None:
    worker = yard.worker("--drain-timeout", "60")
    running = [yard.send("gated", "go"), yard.send("gated_again", "go"), yard.send("a_gated", "go")]
    for task_id in running:
        yard.until_started(task_id)

    worker.signal(number)
    waiting = [yard.send("quick"), yard.send("a_quick")]
    yard.open("go")

    assert worker.ended() == 0
    yard.audit(running)
    assert {yard.status(task_id) for task_id in running} == {TaskStatus.COMPLETED}
    assert {yard.status(task_id) for task_id in waiting} == {TaskStatus.PENDING}
    assert [row.status for row in yard.store.workers()] == [WorkerStatus.STOPPED]
    assert not yard.processes()
    assert not list(yard.store.state_directory.glob("worker-*"))


def test_a_worker_that_was_started_with_nohup_outlives_its_terminal(yard: Yard) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    worker = yard.worker()

    worker.signal(signal.SIGHUP)
    yard.until_ended([yard.send("quick")])

    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


def test_what_waits_behind_a_long_task_goes_back_as_soon_as_the_worker_is_told_to_stop(yard: Yard) -> None:
    worker = yard.worker("--drain-timeout", "60", processes=1)
    yard.until_ended(yard.send_many("maybe", [()] * 200))
    head, *waiting = yard.send_many("maybe", [("go",), *[()] * 20])
    yard.until_started(head)

    worker.signal(signal.SIGTERM)
    yard.until(lambda: {yard.status(task_id) for task_id in waiting} == {TaskStatus.PENDING}, "they are PENDING")
    assert yard.status(head) is TaskStatus.RUNNING
    yard.open("go")
    assert worker.ended() == 0
    yard.worker("--burst", processes=1).ended()

    yard.audit([head, *waiting])
    assert {yard.status(task_id) for task_id in [head, *waiting]} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in [head, *waiting]} == {1}


@SIGNALS
def test_after_the_drain_timeout_tasks_are_interrupted_and_decided_about_unbilled(
    yard: Yard, number: signal.Signals
) -> None:
    worker = yard.worker("--drain-timeout", "0.2")
    again, once = yard.send("heeds_again", "go"), yard.send("heeds", "go")
    a_again, a_once = yard.send("a_gated_again", "go"), yard.send("a_gated", "go")
    ids = [again, once, a_again, a_once]
    for task_id in ids:
        yard.until_started(task_id)

    worker.signal(number)

    assert worker.ended() == 0
    assert sorted(line.task_id for line in yard.ledger() if line.word == "interrupted") == sorted([again, once])
    assert [yard.status(task_id) for task_id in ids] == ["PENDING", "FAILED", "PENDING", "FAILED"]
    assert [yard.task(task_id).error_code for task_id in (once, a_once)] == ["WORKER_STOPPED", "WORKER_STOPPED"]
    assert {(yard.task(task_id).crash_count, yard.task(task_id).lost_count) for task_id in ids} == {(0, 0)}
    assert {yard.full(task_id).attempts[0].outcome for task_id in ids} == {"WORKER_STOPPED"}
    yard.open("go")
    yard.worker("--burst").ended()
    yard.audit(ids)
    assert not yard.processes()


def test_a_task_that_does_not_heed_the_interrupt_is_killed(yard: Yard) -> None:
    worker = yard.worker("--drain-timeout", "0.2", processes=2)
    task_id, gil = yard.send("heeds_not", "never"), yard.send("held_gil", 300)
    for started in (task_id, gil):
        yard.until_started(started)

    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    for stopped in (task_id, gil):
        task = yard.full(stopped)
        assert (task.status, task.error_code, task.crash_count) == (TaskStatus.FAILED, "WORKER_STOPPED", 0)
    assert [line.word for line in yard.ledger() if line.task_id == task_id] == ["start", "interrupted"]
    assert not yard.processes()


def test_a_second_signal_skips_the_waiting(yard: Yard) -> None:
    worker = yard.worker("--drain-timeout", "600")
    again, once = yard.send("heeds_again", "never"), yard.send("heeds_not", "never")
    for task_id in (again, once):
        yard.until_started(task_id)

    def interrupted() -> bool:
        return any(line.word == "interrupted" for line in yard.ledger())

    # Two signals that come too fast for the kernel are one, so it is told until it has understood.
    yard.until(lambda: interrupted() or worker.signal(signal.SIGTERM), "the waiting is over")

    assert worker.ended() == 0
    assert yard.status(again) is TaskStatus.PENDING
    assert (yard.status(once), yard.task(once).error_code) == (TaskStatus.FAILED, "WORKER_STOPPED")


def test_stop_signals_to_task_processes_and_fork_server_are_ignored(yard: Yard) -> None:
    worker = yard.worker()
    ids = [yard.send("gated", "go"), yard.send("gated", "go"), yard.send("a_gated", "go")]
    for task_id in ids:
        yard.until_started(task_id)

    for number in (signal.SIGTERM, signal.SIGINT):
        for pid in worker.tree[1:]:
            os.kill(pid, number)
    yard.open("go")
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert worker.stop() == 0


def test_a_worker_told_to_stop_before_it_is_ready_exits_cleanly(yard: Yard) -> None:
    worker = yard.worker(ready=False)
    yard.until(lambda: yard.path.joinpath("yard.db.d").exists() or worker.is_ready(), "it is about to begin")

    assert worker.stop() == 0
    assert not [row for row in yard.store.workers() if row.status is WorkerStatus.ALIVE]


def test_a_burst_ends_when_nothing_can_start_and_leaves_what_is_due_later(yard: Yard) -> None:
    ids = [yard.send(name) for name in ("a_dies_once", "quick", "quick_again", "a_quick", "fails_always")]
    later = yard.send("quick", delay=3600)
    elsewhere = yard.send("quick", queue="elsewhere")

    assert yard.worker("--burst", "--queues", "default").ended() == 0

    yard.audit(ids[:4])
    assert {yard.status(task_id) for task_id in ids[:4]} == {TaskStatus.COMPLETED}
    assert (yard.status(later), yard.status(elsewhere)) == (TaskStatus.PENDING, TaskStatus.PENDING)
    assert not yard.starts(later)
    (goodbye,) = yard.events("worker.stopped")
    will_be_retried = yard.status(ids[4]) is TaskStatus.PENDING
    assert goodbye.facts["later"] == 1 + will_be_retried


def test_a_worker_that_could_not_say_goodbye_is_found_gone_by_proof(yard: Yard) -> None:
    worker = yard.worker()
    stranger = yard.stranger()

    assert worker.stop() == 0
    stranger.kill()
    yard.worker("--burst").ended()

    assert [event.facts["cause"] for event in yard.events("worker.dead", worker_id=worker.id)] == ["proof"]
