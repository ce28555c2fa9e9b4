"""`worker start`, as a real process: its first lines, its end, what it ran."""

import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.cli.by_hand import Command

from everbeat import __version__


def test_a_burst_runs_what_is_there_and_exits_0(process: Command, everbeat: Command, shop: Path) -> None:
    everbeat("task", "enqueue", "shop.add", "--args", "[1, 2]", "--app", "shop:app")

    ended = process("worker", "start", "shop:app", "--burst", "--processes", "1", "--name", "web", "--queues", "sums")

    assert ended.code == 0, ended.err
    assert [task["status"] for task in everbeat("task", "list", "--json", "--app", "shop:app").json] == ["COMPLETED"]
    assert [worker["status"] for worker in everbeat("worker", "list", "--json", "--app", "shop:app").json] == [
        "stopped"
    ]


def test_the_first_lines_say_who_where_and_what(
    started: Callable[..., subprocess.Popen[str]], shop: Path, tmp_path: Path
) -> None:
    worker = started(
        "worker", "start", "shop:app", "--processes", "2", "--name", "web", "--db", f"sqlite:///{tmp_path}/o.db"
    )
    assert worker.stdout is not None
    lines: dict[str, str] = {}
    for line in worker.stdout:
        name, _, value = line.rstrip("\n").partition(":")
        lines[name] = value.strip()
        if name == "ready":
            break
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0
    assert lines["everbeat"] == __version__
    assert lines["worker"].startswith("web-")
    assert lines["worker"].endswith(f"(pid {worker.pid})")
    assert lines["app"] == "shop:app, 1 task"
    assert lines["store"] == f"sqlite:///{tmp_path}/o.db"
    assert lines["engine"].startswith("SQLite 3.")
    assert lines["slots"] == "2 processes, 0 async"
    assert lines["queues"] == "all"
    assert lines["recovery"] == "nothing to recover; integrity passed"
    assert list(lines)[-1] == "ready"


def test_a_worker_leaves_a_picture_of_itself_and_its_processes(
    started: Callable[..., subprocess.Popen[str]], shop: Path
) -> None:
    worker = started("worker", "start", "shop:app", "--processes", "2")
    assert worker.stdout is not None
    assert any(line == "ready\n" for line in worker.stdout)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)

    with closing(sqlite3.connect(shop)) as connection:
        (state,) = connection.execute(
            "SELECT pid, processes, tasks_running, tasks_claimed, memory_usage_mb > 10 FROM everbeat_worker_states"
        ).fetchall()
    assert state == (worker.pid, 2, 0, 0, 1)


def test_a_killed_worker_is_lost_until_another_one_recovers_it(
    started: Callable[..., subprocess.Popen[str]], process: Command, everbeat: Command, shop: Path
) -> None:
    worker = started("worker", "start", "shop:app", "--processes", "1", "--name", "first")
    assert worker.stdout is not None
    assert any(line == "ready\n" for line in worker.stdout)
    worker.kill()
    worker.wait()

    (lost,) = everbeat("worker", "list", "--json", "--app", "shop:app").json
    table = everbeat("worker", "list", "--app", "shop:app").out
    process("worker", "start", "shop:app", "--burst", "--processes", "1", "--name", "second")
    (dead,) = everbeat("worker", "list", "--status", "dead", "--json", "--app", "shop:app").json

    assert (lost["status"], lost["is_alive"]) == ("alive", False)
    assert "lost" in table
    assert dead["id"] == lost["id"]
    assert "its lock is free" in dead["end_reason"]
