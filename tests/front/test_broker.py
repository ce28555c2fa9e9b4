"""Recovery by hand: coroutines with blocking twins, which decide by the same rules as the reaper."""

import asyncio
import inspect
from typing import Any

import pytest

from everbeat import Everbeat, TaskNotFound, TaskStatus
from everbeat.broker import Broker, SyncBroker


@pytest.fixture
def task(app: Everbeat) -> Any:
    return app.task(name="nothing")(lambda: None)


def public(cls: type) -> set[str]:
    """Its methods."""
    return {name for name, value in vars(cls).items() if not name.startswith("_") and not isinstance(value, property)}


def test_every_blocking_method_has_a_coroutine_with_the_same_signature() -> None:
    assert public(Broker) == public(SyncBroker)
    for name in public(SyncBroker):
        twin, blocking = getattr(Broker, name), getattr(SyncBroker, name)
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(blocking)
        assert twin.__doc__ == blocking.__doc__


def test_a_broker_is_usable_from_any_loop(app: Everbeat) -> None:
    broker = app.get_broker()

    assert asyncio.run(broker.get_stale_tasks(stale_threshold_minutes=5)) == []
    assert asyncio.run(broker.recover_stuck_workflows()) == 0
    assert broker.sync.get_stale_tasks() == []


def test_nothing_is_stale_while_its_worker_beats(app: Everbeat, task: Any, worker: Any) -> None:
    task.enqueue()
    worker.claim()
    broker = app.get_broker().sync

    assert broker.get_stale_tasks(stale_threshold_minutes=5) == []
    assert broker.mark_stale_tasks_as_failed(stale_threshold_ms=300_000) == 0
    assert broker.requeue_stale_claimed(stale_threshold_ms=120_000) == 0
    assert broker.detect_stale_workers() == []


def test_a_running_task_whose_worker_is_gone_is_listed_with_it(app: Everbeat, task: Any, worker: Any) -> None:
    handle = task.enqueue()
    worker.claim()
    broker = app.get_broker().sync
    broker.mark_worker_dead(worker.id)

    (stale,) = broker.get_stale_tasks(stale_threshold_minutes=5)

    assert (stale["id"], stale["task_name"]) == (handle.id, "nothing")
    assert {"worker_hostname", "worker_pid", "last_heartbeat", "started_at"} <= stale.keys()


def test_the_tasks_of_a_worker_declared_dead_can_be_failed(app: Everbeat, task: Any, worker: Any) -> None:
    handle = task.enqueue()
    worker.claim()
    broker = app.get_broker().sync

    assert broker.mark_worker_dead(worker.id) is True
    assert broker.mark_worker_dead(worker.id) is False
    assert broker.mark_stale_tasks_as_failed(stale_threshold_ms=300_000) == 1
    assert handle.status() is TaskStatus.FAILED
    assert handle.info().error_code == "WORKER_CRASHED"


@pytest.mark.proves("FR-055")
def test_a_heartbeat_registers_an_unknown_worker(app: Everbeat) -> None:
    broker = app.get_broker().sync
    assert broker.is_worker_alive("mine") is False

    broker.send_heartbeat("mine")

    assert broker.is_worker_alive("mine") is True
    (status,) = broker.get_worker_status()
    assert (status.worker_id, status.is_alive, status.current_task_id) == ("mine", True, None)


@pytest.mark.proves("FR-036")
def test_the_status_of_a_worker_of_ones_own_names_the_task_of_its_last_beat(app: Everbeat, task: Any) -> None:
    broker = app.get_broker().sync
    first, second = task.enqueue_many([(), ()])

    assert broker.send_heartbeat("mine", first.id)
    assert broker.send_heartbeat("mine", task_id=second.id)

    (status,) = broker.get_worker_status()
    assert status.current_task_id == second.id
    broker.send_heartbeat("mine")
    (status,) = broker.get_worker_status()
    assert status.current_task_id is None


def test_a_beat_for_a_task_that_is_not_there_is_told_so_and_writes_nothing(app: Everbeat) -> None:
    broker = app.get_broker().sync

    with pytest.raises(TaskNotFound, match="mistyped"):
        broker.send_heartbeat("mine", "mistyped")

    assert broker.get_worker_status() == []


def test_a_worker_that_was_declared_dead_is_told_when_it_beats(app: Everbeat) -> None:
    broker = app.get_broker().sync
    assert broker.send_heartbeat("mine") is True
    broker.mark_worker_dead("mine")

    assert broker.send_heartbeat("mine") is False

    assert broker.is_worker_alive("mine") is False
    assert broker.send_heartbeat("mine-2") is True


@pytest.mark.parametrize("threshold", [-1, float("nan"), "5", True])
def test_a_threshold_that_can_not_be_is_a_value_error(app: Everbeat, threshold: Any) -> None:
    broker = app.get_broker().sync

    for ask in (broker.get_stale_tasks, broker.mark_stale_tasks_as_failed, broker.requeue_stale_claimed):
        with pytest.raises(ValueError, match="stale_threshold"):
            ask(threshold)


def test_a_worker_name_that_can_not_be_is_a_value_error(app: Everbeat) -> None:
    with pytest.raises(ValueError, match="worker"):
        app.get_broker().sync.send_heartbeat("two words")


# -- the whole recovery -----------------------------------------------------------------------------------------------


def test_a_recovery_by_hand_is_that_of_a_starting_worker(app: Everbeat, task: Any, worker: Any) -> None:
    handle = task.enqueue()
    worker.claim()
    broker = app.get_broker()
    broker.sync.mark_worker_dead(worker.id)

    would = asyncio.run(broker.recover(dry_run=True))
    assert handle.status() is TaskStatus.RUNNING
    report = asyncio.run(broker.recover())

    assert (would.dry_run, report.dry_run) == (True, False)
    assert [(one.task_id, one.action) for one in would.recovered_tasks] == [(handle.id, "failed")]
    assert [(one.task_id, one.action) for one in report.recovered_tasks] == [(handle.id, "failed")]
    assert handle.status() is TaskStatus.FAILED
    assert report.integrity_check_passed is True
    assert broker.last_report == report == broker.sync.last_report


def test_the_last_report_is_that_of_the_store_until_somebody_recovers_here(app: Everbeat, task: Any) -> None:
    task.enqueue()
    assert app.get_broker().last_report is None

    report = app.get_broker().sync.recover()

    assert app.get_broker().last_report == report


def test_integrity_and_log_can_be_asked_for_by_hand(app: Everbeat, task: Any) -> None:
    task.enqueue()
    broker = app.get_broker()

    integrity = asyncio.run(broker.check_integrity())

    assert (integrity.passed, integrity.errors, integrity.warnings) == (True, [], [])
    assert (integrity.repair_attempted, integrity.repair_succeeded) == (False, False)
    assert integrity.duration.total_seconds() > 0
    assert asyncio.run(broker.checkpoint_wal()) > 0
    assert broker.sync.checkpoint_wal() == 0


def test_how_far_a_recovery_is_can_be_watched(app: Everbeat, task: Any) -> None:
    task.enqueue()
    stages: list[str] = []

    app.get_broker().sync.recover(on_progress=lambda progress: stages.append(progress.stage))

    assert stages == ["integrity", "checkpoint", "spools", "workers"]
