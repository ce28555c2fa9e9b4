"""A worker is started on a store that something went wrong with: it heals it, or says what is wrong and leaves it."""

import os
import re
import resource
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests import damage
from tests.crash.conftest import MakeYard
from tests.crash.yard import APPS, FAST, Worker, Yard

from everbeat import TaskStatus
from everbeat.model.report import RecoveryReport

NOBODY = 65534


def file_of(yard: Yard) -> Path:
    return yard.path / "yard.db"


def with_tasks(yard: Yard, count: int = 10) -> list[str]:
    """Tasks task-0, task-1, ... in a file that nobody has open."""
    ids = [yard.send("quick_again", id=f"task-{number}") for number in range(count)]
    yard.app.close()
    return ids


def halted(worker: Worker, code: int = 1) -> str:
    """What a worker said that was not started."""
    assert worker.ended() == code, worker.said()
    assert "Traceback" not in worker.said()
    return worker.said()


def last_report(yard: Yard) -> RecoveryReport:
    return yard.store.reports(limit=1)[0]


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_a_database_is_left_alone(yard: Yard) -> None:
    file_of(yard).write_text("notes of a meeting\n" * 1000)

    said = halted(yard.worker(ready=False), code=3)

    assert "file is not a database. Nothing was changed by this step." in said
    assert file_of(yard).read_text() == "notes of a meeting\n" * 1000


@pytest.mark.parametrize("wreck", [damage.truncate, damage.wreck_table, damage.wreck_index])
def test_a_store_beyond_repair_is_not_started_and_is_byte_for_byte_as_it_was(
    yard: Yard, wreck: Callable[[Path], None]
) -> None:
    with_tasks(yard)
    wreck(file_of(yard))
    before = file_of(yard).read_bytes()

    said = halted(yard.worker(ready=False))

    assert f"everbeat: sqlite:///{file_of(yard)} is damaged and " in said
    assert "recovery point: " in said
    assert f"everbeat db backup {file_of(yard)}.backup --db sqlite:///{file_of(yard)}" in said
    assert file_of(yard).read_bytes() == before
    assert not yard.processes()


@pytest.mark.parametrize("index", ["sqlite_autoindex_everbeat_tasks_1", "everbeat_tasks_ready", "everbeat_tasks_line"])
def test_an_index_that_was_overwritten_is_healed_by_the_command_that_is_named(yard: Yard, index: str) -> None:
    """REINDEX can not throw its pages away, so a copy is made of the tables. Nothing is lost."""
    ids = with_tasks(yard)
    damage.scramble(file_of(yard), index)

    said = halted(yard.worker(ready=False))
    named = re.search(r"a copy without the damage was made; put it in its place: everbeat (db restore .*)", said)
    assert named is not None, said
    restored = yard.command(*shlex.split(named[1]), "--yes")

    assert restored.ended() == 0, restored.said()
    assert yard.worker("--burst").ended() == 0
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    yard.audit(ids)


def test_who_meets_the_damage_is_told_what_to_do(yard: Yard) -> None:
    with_tasks(yard)
    damage.scramble(file_of(yard), "everbeat_tasks_ready")

    looked = yard.command("queue", "status", "--db", f"sqlite:///{file_of(yard)}")
    named = f"everbeat queue recover --db sqlite:///{file_of(yard)}"

    assert looked.ended() == 3
    assert f"{file_of(yard)} is damaged: " in looked.said()
    assert f"run: {named}. It repairs what can be repaired, and says what to do otherwise" in looked.said()
    recovered = yard.command(*shlex.split(named)[1:])
    assert recovered.ended() == 1
    assert "a copy without the damage was made; put it in its place: everbeat db restore " in recovered.said()


def test_a_header_that_was_overwritten_is_damage_because_the_file_was_a_store(yard: Yard) -> None:
    with_tasks(yard)
    file_of(yard).write_bytes(b"\0" * 100 + file_of(yard).read_bytes()[100:])
    before = file_of(yard).read_bytes()

    said = halted(yard.worker(ready=False))

    assert "is damaged and can not be read" in said
    assert file_of(yard).read_bytes() == before


def test_the_log_of_a_killed_worker_is_not_moved_into_a_store_beyond_repair(yard: Yard) -> None:
    """The usual case: something died, and the file is damaged. The log is all there is of the last commits."""
    worker = yard.worker()
    yard.until_ended([yard.send("quick")])
    yard.app.close()
    worker.kill_tree()
    log = file_of(yard).with_name("yard.db-wal")
    assert log.stat().st_size > 0
    with closing(sqlite3.connect(f"file:{file_of(yard)}?mode=ro", uri=True)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'everbeat_meta'").fetchone()
    kept = log.read_bytes()
    content = bytearray(file_of(yard).read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    file_of(yard).write_bytes(content)
    log.write_bytes(without(kept, page))
    before = file_of(yard).read_bytes(), log.read_bytes()

    said = halted(yard.worker(ready=False))

    assert "is damaged" in said
    assert (file_of(yard).read_bytes(), log.read_bytes()) == before


def without(log: bytes, page: int) -> bytes:
    """The log up to the first frame of that page: its frames have checksums that build on each other."""
    frame = 32
    while frame + 24 <= len(log) and int.from_bytes(log[frame : frame + 4], "big") != page:
        frame += 24 + 4096
    return log[:frame]


def test_a_damaged_index_is_repaired_and_the_worker_works(yard: Yard) -> None:
    ids = with_tasks(yard)
    damage.damage_index(file_of(yard))

    worker = yard.worker()
    yard.until_ended(ids)

    yard.audit(ids)
    report = next(report for report in reversed(yard.store.reports(limit=10)) if report.integrity_note)
    assert (report.integrity_check_passed, report.integrity_note) == (True, "repaired by REINDEX")
    assert yard.events("store.repaired")
    assert worker.stop() == 0


def test_a_damaged_index_is_not_repaired_under_a_living_worker(yard: Yard) -> None:
    """Somebody damages the file of a worker that runs. Who starts now must not rebuild what the other one uses."""
    with_tasks(yard)
    busy = yard.worker("--queues", "elsewhere")
    damage.settle(file_of(yard))
    damage_in_place(file_of(yard))

    said = halted(yard.worker(ready=False))

    assert f"was not repaired, because workers use it (pid {busy.pid}): stop them and start again" in said
    busy.kill_tree()
    assert yard.worker("--burst").ended() == 0


def damage_in_place(path: Path) -> None:
    """The same file: another one under its name would be another store."""
    offset, size = damage.root_of(path, "sqlite_autoindex_everbeat_tasks_1")
    with path.open("r+b") as file:
        file.seek(offset)
        page = file.read(size)
        file.seek(offset + page.index(b"task-7"))
        file.write(b"task-\x7f")


# -- the log ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("NFR-005")
def test_a_log_that_was_left_by_kill_is_moved_and_nothing_is_lost(yard: Yard) -> None:
    worker = yard.worker()
    ids = [yard.send("quick_again") for _ in range(50)]
    yard.until_ended(ids[:10])
    yard.app.close()
    worker.kill_tree()

    heir = yard.worker()
    report = last_report(yard)
    yard.until_ended(ids)

    yard.audit(ids)
    assert report.wal_frames_checkpointed > 0
    assert report.integrity_check_passed is True
    assert heir.stop() == 0


def test_a_log_that_was_deleted_is_told_as_lost_commits(yard: Yard) -> None:
    """The worker is killed in the middle of a task whose start is in the log only, and somebody removes the log."""
    worker = yard.worker()
    yard.until_ended([yard.send("quick")])
    yard.store.checkpoint()
    task = yard.send("gated_again", "never")
    yard.until_started(task)
    yard.app.close()
    worker.kill_tree()
    file_of(yard).with_name("yard.db-wal").unlink()
    file_of(yard).with_name("yard.db-shm").unlink()

    heir = yard.worker()

    warnings = [warning for report in yard.store.reports(limit=10) for warning in report.warnings]
    assert any(warning.startswith("commits were lost: ") for warning in warnings)
    assert yard.query("SELECT count(*) FROM everbeat_tasks WHERE id = ?", task) == [(0,)]
    fresh = yard.send("quick")
    yard.until_ended([fresh])
    assert heir.stop() == 0


def test_a_log_of_a_gigabyte_is_moved_before_the_worker_is_ready(yard: Yard) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(APPS)!r})
from everbeat.store.sqlite import connection
connection.CHECKPOINT_ROWS = connection.CHECKPOINT_COMMITS = connection.LONG_WAL = 1 << 40
import ground
for number in range(100):
    with ground.app.store.database.write() as tx:
        tx.run("DELETE FROM everbeat_recovery_reports")
        tx.run("INSERT INTO everbeat_recovery_reports (at, actor, report) VALUES (1, 'me', ?)", ("x" * 11_000_000,))
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | yard.environment)
    assert file_of(yard).with_name("yard.db-wal").stat().st_size > 1_000_000_000

    worker = yard.worker()

    report = last_report(yard)
    assert report.wal_frames_checkpointed * 4096 > 1_000_000_000
    assert any("MB long" in warning for warning in report.warnings)
    assert file_of(yard).with_name("yard.db-wal").stat().st_size < 10_000_000
    assert worker.stop() == 0


def test_a_journal_mode_changed_behind_our_back_is_changed_back(yard: Yard) -> None:
    ids = with_tasks(yard)
    with closing(sqlite3.connect(file_of(yard))) as connection:
        assert connection.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)

    worker = yard.worker()
    yard.until_ended(ids)

    assert "the journal mode was delete; it is a write-ahead log again" in last_report(yard).warnings
    assert yard.query("PRAGMA journal_mode") == [("wal",)]
    assert worker.stop() == 0


def test_a_reader_that_holds_up_the_checkpoint_holds_up_nobody(yard: Yard) -> None:
    ids = with_tasks(yard)
    with closing(sqlite3.connect(file_of(yard), isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM everbeat_tasks").fetchone()
        ids.append(yard.send("quick_again"))

        worker = yard.worker()
        yard.until_ended(ids)

        assert any("frames stay in the write-ahead log" in warning for warning in last_report(yard).warnings)
    assert worker.stop() == 0


# -- the disk ---------------------------------------------------------------------------------------------------------


@contextmanager
def a_full_disk(directory: Path) -> Iterator[Path]:
    """A small file system of its own, where that is allowed; else a limit for the files of one process."""
    small = directory / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", small], check=False).returncode:
        yield directory
        return
    try:
        yield small
    finally:
        subprocess.run(["umount", small], check=True)


def fill(path: Path) -> None:
    """Take all the room there is."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(fd, b"\0" * 4096):
            continue
    os.close(fd)


def limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))


def test_a_full_disk_is_named_and_the_tasks_are_recovered_when_there_is_room(tmp_path: Path, yard: Yard) -> None:
    with a_full_disk(tmp_path) as place:
        store = place / "full.db"
        shutil.copy(fresh_store(tmp_path), store)
        if place != tmp_path:
            fill(place / "ballast")

        full = a_burst(yard, store, preexec_fn=limit_files if place == tmp_path else None)

        assert full.returncode == 3, full.stderr
        assert "Traceback" not in full.stderr
        assert "Nothing was changed" in full.stderr or "No space left" in full.stderr
        (place / "ballast").unlink(missing_ok=True)
        free = a_burst(yard, store)
        assert free.returncode == 0, free.stderr
        with closing(sqlite3.connect(store)) as connection:
            ends = connection.execute("SELECT DISTINCT status, error_message FROM everbeat_tasks").fetchall()
        assert ends == [("COMPLETED", None)]


def a_burst(yard: Yard, store: Path, **how: Any) -> "subprocess.CompletedProcess[str]":
    """A worker of the ground on another store, until nothing is left to do."""
    words = ["worker", "start", "ground:app", "--db", f"sqlite:///{store}", "--burst"]
    return subprocess.run(
        [sys.executable, "-m", "everbeat", *words], cwd=APPS, env=os.environ | yard.environment, capture_output=True,
        text=True, check=False, timeout=100, **how,
    )  # fmt: skip


def fresh_store(directory: Path) -> Path:
    """A store with tasks, half of which belong to a worker that is gone."""
    from tests.words import a_policy, a_task, claim, register

    from everbeat.store.sqlite.store import SQLiteStore

    path = directory / "fresh.db"
    with closing(SQLiteStore(path)) as store:
        register(store, "gone", task_names=("quick_again",))
        policy = a_policy(max_attempts=3, has_retry=True)
        store.enqueue([a_task(id=f"task-{n}", name="quick_again", args=b"{}", policy=policy) for n in range(20)])
        claim(store, "gone", places=0)
        with store.database.write() as tx:
            tx.run(
                "UPDATE everbeat_tasks SET status = 'RUNNING', worker_id = 'gone', fence = 1, attempt = 1 WHERE seq % 2"
            )
            tx.run("UPDATE everbeat_workers SET status = 'dead'")
    damage.settle(path)
    return path


@contextmanager
def unwritable(path: Path) -> Iterator[dict[str, Any]]:
    """A file or directory that may not be written; and how to start a process for which that is so. Root may write
    whatever the mode is: for it the place is mounted read-only, or else the process belongs to nobody."""
    os.chmod(path, path.stat().st_mode & ~0o222)
    if os.geteuid() != 0:
        yield {}
    elif subprocess.run(["mount", "--bind", path, path], check=False).returncode == 0:
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        try:
            yield {}
        finally:
            subprocess.run(["umount", "-l", path], check=True)
    else:
        for directory in path.parents:
            if directory.stat().st_uid == 0:
                os.chmod(directory, directory.stat().st_mode | 0o055)
        yield {"user": NOBODY, "group": NOBODY, "extra_groups": ()}


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_store_that_may_not_be_written_is_named_and_left(yard: Yard, tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    store = place / "only.db"
    shutil.copy(fresh_store(tmp_path), store)
    before = store.read_bytes()

    with unwritable(store if what == "file" else place) as how:
        ended = a_burst(yard, store, **how)

    assert ended.returncode == 3, ended.stderr
    assert "Traceback" not in ended.stderr
    assert str(place) in ended.stderr
    assert store.read_bytes() == before


def test_a_schema_of_a_later_version_is_named_and_left(yard: Yard) -> None:
    with_tasks(yard)
    with closing(sqlite3.connect(file_of(yard))) as connection, connection:
        connection.execute("UPDATE everbeat_meta SET value = '9999' WHERE key LIKE 'schema%'")
    damage.settle(file_of(yard))
    before = file_of(yard).read_bytes()

    said = halted(yard.worker(ready=False), code=3)

    assert "has schema 9999" in said
    assert "Upgrade Everbeat" in said
    assert file_of(yard).read_bytes() == before


# -- again and again --------------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-001", "AC-001")
def test_workers_that_start_at_once_recover_each_orphan_once(yard: Yard) -> None:
    dead = yard.worker(processes=4)
    ids = [yard.send("gated_again", "go") for _ in range(4)]
    for task_id in ids:
        yard.until_started(task_id)
    dead_id = dead.id
    dead.kill_tree()

    workers = [yard.worker(ready=False) for _ in range(4)]
    for worker in workers:
        yard.until_ready(worker)
    yard.open("go")
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.task(task_id).lost_count for task_id in ids} == {1}
    assert len(yard.events("worker.dead", worker_id=dead_id)) == 1
    recovered = sum(report.successful_recoveries for report in yard.store.reports(limit=100))
    assert recovered == 4
    assert [worker.stop() for worker in workers] == [0] * 4


@pytest.mark.parametrize("crash_at", ["declare_dead.after_commit", "recover.before_commit", "recover.after_commit"])
def test_a_recovery_that_is_killed_in_the_middle_is_finished_by_the_next(yard: Yard, crash_at: str) -> None:
    for name in ("first", "second"):
        dead = yard.worker("--name", name)
        yard.until_started(yard.send("gated_again", name))
        dead.kill_tree()
    doomed = yard.worker(crash_at=crash_at, ready=False)
    assert doomed.ended() == -9, doomed.said()

    heir = yard.worker()
    ids = [task.id for task in yard.tasks()]
    for name in ("first", "second"):
        yard.open(name)
    yard.until_ended(ids)

    yard.audit(ids)
    assert {task.lost_count for task in yard.tasks()} <= {1, 2}
    assert heir.stop() == 0


def test_ten_crashes_in_a_row_lose_nothing_and_quarantine_nobody(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    task = yard.send("gated_again", "go")
    for cycle in range(1, 10):
        worker = yard.worker(processes=1)
        yard.until_started(task, times=cycle)
        worker.kill_tree(children_first=cycle % 2 == 0)
    last = yard.worker(processes=1)
    yard.until_started(task, times=10)
    yard.open("go")
    yard.until_ended([task])

    info = yard.full(task)
    assert (info.status, info.lost_count, info.crash_count) == (TaskStatus.COMPLETED, 9, 0)
    assert len(info.attempts) == 9
    assert last_report(yard).integrity_check_passed is True
    assert last.stop() == 0


def test_a_worker_that_is_told_to_stop_in_a_long_recovery_stops_and_the_next_one_finishes_it(yard: Yard) -> None:
    """Many orphans of a worker that is gone. None of them is run: nobody here knows their name."""
    many = 200_000
    with yard.store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run(
            f"WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {many}) "
            "INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, fence, worker_id,"
            " attempt) "
            "SELECT 'many-' || n, 'nobody.knows', 'default', 100, x'7b7d', 'CLAIMED', 1, 1, 1, 'gone', 0 FROM n"
        )
    first = yard.worker(ready=False)
    yard.until(
        lambda: yard.query("SELECT 1 FROM everbeat_tasks WHERE status = 'PENDING' LIMIT 1"), "some are recovered"
    )

    assert first.stop() == 0
    assert not first.is_ready()
    left = yard.query("SELECT count(*) FROM everbeat_tasks WHERE status = 'CLAIMED'")[0][0]
    assert left > 0
    second = yard.worker()
    assert yard.query("SELECT status, count(*) FROM everbeat_tasks GROUP BY status") == [("PENDING", many)]
    assert second.stop() == 0
