"""Pausing queues, the health of workers, and what recovery has done and will do, as operators ask for it."""

import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, HandWorker, send

from everbeat.model.report import DeadWorker, RecoveredTask, RecoveryReport
from everbeat.store.interface import Store


def a_report(started_at: datetime, *task_ids: str) -> RecoveryReport:
    return RecoveryReport(
        started_at=started_at,
        completed_at=started_at + timedelta(seconds=1.2),
        recovered_tasks=[
            RecoveredTask(
                task_id=task_id, action="retry", attempt_count=2, max_attempts=3, success=True, error=None,
                previous_worker_id="hand", reason="worker hand is gone",
            )
            for task_id in task_ids
        ],
        dead_workers=[DeadWorker(worker_id="hand", last_heartbeat=started_at, orphaned_tasks=list(task_ids))],
    )  # fmt: skip


def save_old_report(store: Store, minutes: float, *task_ids: str) -> None:
    """As if it had been saved so long ago."""
    with pytest.MonkeyPatch.context() as patch:
        right = time.time_ns
        patch.setattr(time, "time_ns", lambda: right() - round(minutes * 60e9))
        store.save_report(a_report(store.now(), *task_ids), actor="test")


# -- queues -----------------------------------------------------------------------------------------------------------


def test_a_paused_queue_is_shown_and_resumed(everbeat: Command, store: Store, url: str) -> None:
    task_id = send(store, queue="mail")

    paused = everbeat("queue", "pause", "mail", "--db", url)
    again = everbeat("queue", "pause", "mail", "--json", "--db", url)
    shown = everbeat("queue", "status", "--db", url)
    waiting = everbeat("task", "show", task_id, "--json", "--db", url).json["waiting_for"]
    resumed = everbeat("queue", "resume", "mail", "--db", url)

    assert (paused.code, paused.out) == (0, "queue mail is paused: 1 task waits, 0 running\n")
    assert (again.json["paused"], again.json["changed"]) == (True, False)
    assert shown.out.splitlines()[1].split() == ["mail", "1", "0", "0", "0", "0", "0", "0", "-", "paused"]
    assert waiting == "its queue mail, which is paused"
    assert resumed.out.startswith("queue mail is resumed")
    assert everbeat("queue", "status", "--json", "--db", url).json["queues"][0]["paused"] is False


def test_a_paused_queue_without_tasks_is_listed(everbeat: Command, store: Store, url: str) -> None:
    everbeat("queue", "pause", "mail", "--db", url)

    assert [q["queue"] for q in everbeat("queue", "status", "--json", "--db", url).json["queues"]] == ["mail"]


def test_a_worker_leaves_a_paused_queue_alone_until_it_is_resumed(
    process: Command, started: Callable[..., subprocess.Popen[str]], shop: Path
) -> None:
    url = f"sqlite:///{shop}"
    process("db", "migrate", "--db", url)
    process("queue", "pause", "sums", "--db", url)
    process("task", "enqueue", "shop.add", "--args", "[1]", "--app", "shop:app")

    burst = process("worker", "start", "shop:app", "--burst", "--processes", "1")
    waiting = process("task", "list", "--json", "--db", url).json
    process("queue", "resume", "sums", "--db", url)
    process("worker", "start", "shop:app", "--burst", "--processes", "1")
    done = process("task", "list", "--json", "--db", url).json

    assert burst.code == 0
    assert [task["status"] for task in waiting] == ["PENDING"]
    assert [task["status"] for task in done] == ["COMPLETED"]


# -- workers ----------------------------------------------------------------------------------------------------------


def test_without_a_worker_nothing_is_healthy(process: Command, store: Store, url: str) -> None:
    ended = process("worker", "health", "--db", url)

    assert (ended.code, ended.out) == (1, "unhealthy: no worker is alive\n")


def test_a_living_worker_is_healthy_by_its_name_and_by_its_id(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    said = everbeat("worker", "health", "hand", "--json", "--db", url)

    assert (said.code, said.json["healthy"], said.json["problems"]) == (0, True, [])
    assert [worker["id"] for worker in said.json["workers"]] == ["hand"]
    assert everbeat("worker", "health", "--db", url).out.endswith("healthy\n")
    assert everbeat("worker", "health", "other", "--db", url).code == 1


def test_a_worker_that_ended_is_unhealthy_with_the_reason(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    store.declare_dead("hand", reason="worker hand is gone: its lock is free", cause="proof")

    ended = everbeat("worker", "health", "hand", "--db", url)

    assert (ended.code, ended.out) == (1, "unhealthy: worker hand died: worker hand is gone: its lock is free\n")


def test_health_follows_the_life_of_a_real_worker(
    process: Command, started: Callable[..., subprocess.Popen[str]], shop: Path
) -> None:
    url = f"sqlite:///{shop}"
    worker = started("worker", "start", "shop:app", "--processes", "1", "--name", "web")
    assert worker.stdout is not None
    while "ready" not in worker.stdout.readline():
        assert worker.poll() is None

    alive = process("worker", "health", "web", "--db", url)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    killed = process("worker", "health", "web", "--db", url)

    assert alive.code == 0
    assert (killed.code, "is lost: gone or silent" in killed.out) == (1, True)


# -- recovery ---------------------------------------------------------------------------------------------------------


def test_the_status_of_recovery_shows_who_is_lost_and_what_waits(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    send(store)
    hand.claim()
    store.declare_dead("hand", reason="gone", cause="proof")
    store.save_report(a_report(datetime.now(UTC), "a", "b"), actor="test")

    said = everbeat("queue", "recovery-status", "--json", "--db", url).json
    shown = everbeat("queue", "recovery-status", "--db", url).out

    assert (said["enabled"], said["orphaned_tasks"], said["reaper"]) == (True, 1, None)
    assert said["last_recovery"]["orphaned_tasks_found"] == 2
    assert said["settings"]["action"] == "retry"
    assert "2 of 2 orphaned tasks recovered" in shown


def test_the_last_report_is_printed_in_the_layout_of_recovery(everbeat: Command, store: Store, url: str) -> None:
    save_old_report(store, 180, "old")
    store.save_report(a_report(datetime.now(UTC), "new"), actor="test")

    shown = everbeat("queue", "recovery-report", "--db", url).out
    said = everbeat("queue", "recovery-report", "--json", "--db", url).json
    both = everbeat("queue", "recovery-report", "--last", "5", "--json", "--db", url).json
    recent = everbeat("queue", "recovery-report", "--since", "1h", "--json", "--db", url).json

    assert shown.startswith("=== Queue Recovery Report ===\nStarted: ")
    assert "  - new: retry (attempt 2/3)" in shown
    assert "old" not in shown
    assert [task["task_id"] for task in said["recovered_tasks"]] == ["new"]
    assert [task["task_id"] for earlier in both["earlier"] for task in earlier["recovered_tasks"]] == ["old"]
    assert recent["earlier"] == []


def test_without_a_recovery_there_is_no_report(everbeat: Command, store: Store, url: str) -> None:
    assert everbeat("queue", "recovery-report", "--json", "--db", url).json == {}
    assert everbeat("queue", "recovery-report", "--db", url).out == "No recovery was needed.\n"
    assert everbeat("queue", "recovery-status", "--json", "--db", url).json["last_recovery"] is None
