"""Recovery, check and checkpoint by command: on a store whose worker was killed, and on files that are damaged."""

import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, HandWorker, send
from tests.cli.test_db import damage, read, write

from everbeat.model.state import TaskStatus
from everbeat.store.interface import Store

SLOW = """
import signal
from everbeat import Everbeat, RetryPolicy

app = Everbeat("sqlite:///slow.db")

@app.task(name="slow.repeatable", retry=RetryPolicy(max_attempts=3))
def repeatable() -> None:
    signal.pause()

@app.task(name="slow.once")
def once() -> None:
    signal.pause()
"""


@pytest.fixture
def killed(process: Command, started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> str:
    """A store whose only worker was killed while it ran a task that may be repeated and one that may not."""
    (tmp_path / "slow.py").write_text(SLOW)
    url = f"sqlite:///{tmp_path}/slow.db"
    for name in ("slow.repeatable", "slow.once"):
        process("task", "enqueue", name, "--app", "slow:app")
    worker = started("worker", "start", "slow:app", "--processes", "2")
    while [t["status"] for t in process("task", "list", "--json", "--db", url).json] != ["RUNNING", "RUNNING"]:
        assert worker.poll() is None
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    return url


def states(process: Command, url: str) -> dict[str, str]:
    return {task["name"]: task["status"] for task in process("task", "list", "--json", "--db", url).json}


def tear(path: Path, index: str, old: bytes, new: bytes) -> None:
    """Let an index say something else than its table."""
    (root,) = read(path, f"SELECT rootpage FROM sqlite_master WHERE name = '{index}'")[0]
    (size,) = read(path, "PRAGMA page_size")[0]
    with path.open("r+b") as file:
        start = (int(str(root)) - 1) * int(str(size))
        file.seek(start)
        page = file.read(int(str(size)))
        assert old in page
        file.seek(start)
        file.write(page.replace(old, new))


def test_what_a_killed_worker_left_is_recovered_by_hand(process: Command, killed: str) -> None:
    looked = process("queue", "recover", "--dry-run", "--json", "--db", killed)
    before = states(process, killed)
    done = process("queue", "recover", "--db", killed)
    again = process("queue", "recover", "--json", "--db", killed)

    assert (looked.json["dry_run"], looked.json["orphaned_tasks_found"]) == (True, 2)
    assert before == {"slow.repeatable": "RUNNING", "slow.once": "RUNNING"}
    assert done.code == 0
    assert "Orphaned Tasks Found: 2" in done.out
    assert states(process, killed) == {"slow.repeatable": "PENDING", "slow.once": "FAILED"}
    assert again.json["orphaned_tasks_found"] == 0


@pytest.mark.parametrize(("action", "ends"), [("fail", "FAILED"), ("pending", "PENDING")])
def test_an_action_is_forced_on_every_orphan(process: Command, killed: str, action: str, ends: str) -> None:
    ended = process("queue", "recover", "--action", action, "--json", "--db", killed)

    assert ended.code == 0
    assert set(states(process, killed).values()) == {ends}


def test_a_live_worker_is_not_disturbed(process: Command, store: Store, hand: HandWorker, url: str) -> None:
    task_id = send(store)
    hand.claim()

    ended = process("queue", "recover", "--json", "--db", url)

    assert (ended.code, ended.json["orphaned_tasks_found"]) == (0, 0)
    task = store.get(task_id)
    assert task is not None
    assert task.status is TaskStatus.RUNNING


def test_a_damaged_index_is_found_and_repaired(process: Command, store: Store, tmp_path: Path, url: str) -> None:
    for _ in range(5):
        send(store, queue="wholesome")
    store.close()
    tear(tmp_path / "jobs.db", "everbeat_tasks_ready", b"wholesome", b"WHOLESOME")

    found = process("db", "check", "--db", url)
    recovered = process("queue", "recover", "--db", url)
    mended = process("db", "check", "--json", "--db", url)

    assert found.code == 1
    assert "error: " in found.out
    assert "everbeat queue recover" in found.out
    assert recovered.code == 0, recovered.err
    assert (mended.code, mended.json["passed"]) == (0, True)


def test_a_damaged_table_is_left_as_it_is_with_what_to_do(
    process: Command, store: Store, tmp_path: Path, url: str
) -> None:
    send(store)
    store.close()
    damage(tmp_path / "jobs.db", "everbeat_history")
    before = (tmp_path / "jobs.db").read_bytes()

    checked = process("db", "check", "--json", "--db", url)
    recovered = process("queue", "recover", "--db", url)

    assert (checked.code, checked.json["passed"]) == (1, False)
    assert recovered.code == 1
    assert "everbeat db backup" in recovered.err
    assert "Traceback" not in recovered.err
    assert (tmp_path / "jobs.db").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("status = 'CONFUSED'", "is in no known state (CONFUSED)"),
        ("status = 'COMPLETED'", "is COMPLETED, but it has no end"),
        ("status = 'RUNNING', started_at = 1, worker_id = 'nobody'", "but there is no such worker"),
    ],
)
def test_a_row_that_can_not_be_is_an_error_and_no_damage(
    process: Command, store: Store, tmp_path: Path, url: str, change: str, said: str
) -> None:
    send(store)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as by_hand, by_hand:
        by_hand.execute("PRAGMA ignore_check_constraints=ON")
        by_hand.execute(f"UPDATE everbeat_tasks SET {change}")

    told, shown = process("db", "check", "--json", "--db", url), process("db", "check", "--db", url)

    assert (told.code, told.json["passed"], len(told.json["errors"])) == (1, False, 1)
    assert said in told.json["errors"][0]
    assert (shown.code, "error: " in shown.out, "Stop its workers" in shown.out) == (1, True, False)
    assert "Everbeat writes no such rows" in shown.out


def test_a_warning_is_not_an_error(process: Command, store: Store, url: str) -> None:
    send(store, delay_us=50 * 366 * 86_400 * 1_000_000)

    told, shown = process("db", "check", "--json", "--db", url), process("db", "check", "--db", url)

    assert (told.code, told.json["passed"], told.json["errors"]) == (0, True, [])
    assert "far future" in told.json["warnings"][0]
    assert (shown.code, "warning: " in shown.out) == (0, True)


def test_the_log_is_moved_into_the_database(process: Command, store: Store, tmp_path: Path, url: str) -> None:
    send(store)

    moved = process("db", "checkpoint", "--json", "--db", url)
    again = process("db", "checkpoint", "--db", url)

    assert (moved.json["complete"], moved.json["frames"] > 0) == (True, True)
    assert again.out == "0 frames moved\n"


def test_what_somebody_reads_stays_in_the_log(process: Command, store: Store, tmp_path: Path, url: str) -> None:
    send(store)
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM everbeat_tasks").fetchone()
        send(store)

        ended = process("db", "checkpoint", "--db", url)

    assert ended.code == 0
    assert "stay: somebody reads the database" in ended.out


def test_a_recovery_of_a_newer_store_touches_nothing(process: Command, store: Store, tmp_path: Path, url: str) -> None:
    write(tmp_path / "jobs.db", "UPDATE everbeat_meta SET value = '99' WHERE key LIKE 'schema%'")

    assert process("queue", "recover", "--db", url).code == 3
    assert process("db", "check", "--db", url).code == 3
