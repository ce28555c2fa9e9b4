"""The store as a whole, by the real command: its schema, its backups, and putting one back."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, HandWorker, send

from everbeat.config import AppConfig, SQLiteConfig
from everbeat.model.state import TaskStatus
from everbeat.store import schema
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter
from everbeat.store.open import open_store
from everbeat.store.sqlite import backup as copies

STEP_2 = "CREATE TABLE everbeat_later (id INTEGER PRIMARY KEY);\n"


def read(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def write(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def ids_in(path: Path) -> set[str]:
    return {str(row[0]) for row in read(path, "SELECT id FROM everbeat_tasks")}


def store_id(path: Path) -> object:
    return read(path, "SELECT value FROM everbeat_meta WHERE key = 'store_id'")[0][0]


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table or index. The store is closed: the test must not hold its locks."""
    (root,) = read(path, f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'")[0]
    (size,) = read(path, "PRAGMA page_size")[0]
    with path.open("r+b") as file:
        file.seek((int(str(root)) - 1) * int(str(size)))
        file.write(b"\xa5" * int(str(size)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


# -- backup -----------------------------------------------------------------------------------------------------------


def test_a_backup_is_made_while_the_store_is_written_and_holds_all_that_was_there(
    process: Command, store: Store, tmp_path: Path, url: str
) -> None:
    before = {send(store) for _ in range(500)}
    enough = threading.Event()

    def keep_sending() -> None:
        with closing(open_store(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))) as other:
            while not enough.is_set():
                send(other)

    sender = threading.Thread(target=keep_sending)
    sender.start()
    ended = process("db", "backup", "copy.db", "--json", "--db", url)
    enough.set()
    sender.join()

    assert ended.code == 0
    assert ended.json["path"] == str(tmp_path / "copy.db")
    assert before <= ids_in(tmp_path / "copy.db")
    assert read(tmp_path / "copy.db", "PRAGMA integrity_check") == [("ok",)]
    assert not [name for name in files_in(tmp_path) if name.startswith(".")]


def test_a_backup_never_overwrites(process: Command, store: Store, tmp_path: Path, url: str) -> None:
    (tmp_path / "copy.db").write_text("dear to somebody")

    ended = process("db", "backup", "copy.db", "--db", url)

    assert ended.code == 1
    assert "exists already" in ended.err
    assert (tmp_path / "copy.db").read_text() == "dear to somebody"


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_backup_has_the_mode_of_its_database(
    everbeat: Command, store: Store, path: Path, tmp_path: Path, url: str, mode: int
) -> None:
    path.chmod(mode)

    everbeat("db", "backup", "copy.db", "--db", url)

    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == mode


def test_a_backup_into_a_directory_that_is_not_there_says_so(everbeat: Command, store: Store, url: str) -> None:
    ended = everbeat("db", "backup", "nowhere/copy.db", "--db", url)

    assert (ended.code, ended.out) == (1, "")
    assert "can not write to" in ended.err


def test_the_copy_of_a_damaged_store_is_kept_under_another_name_and_exit_1(
    process: Command, store: Store, path: Path, tmp_path: Path, url: str
) -> None:
    send(store)
    store.close()
    damage(path, "everbeat_history")

    ended = process("db", "backup", "copy.db", "--db", url)

    assert ended.code == 1
    assert "the store is damaged, and so is its copy" in ended.err
    assert "Traceback" not in ended.err
    assert (tmp_path / "copy.db.damaged").exists()
    assert not (tmp_path / "copy.db").exists()


def test_a_full_disk_is_told_of_the_place_of_the_copy_and_leaves_nothing(
    everbeat: Command, store: Store, path: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full by SQLite's own limit on the new file: a small file system needs root."""
    connect = copies.connect

    def into_little_room(file: Path, **how: object) -> sqlite3.Connection:
        connection = connect(file, **how)  # type: ignore[arg-type]
        if file.name.endswith(".part"):
            connection.execute("PRAGMA max_page_count=10")
        return connection

    monkeypatch.setattr(copies, "connect", into_little_room)
    (tmp_path / "full").mkdir()
    ended = everbeat("db", "backup", "full/copy.db", "--db", url)

    assert (ended.code, ended.out) == (1, "")
    assert f"can not write to {tmp_path}/full: database or disk is full" in ended.err
    assert list((tmp_path / "full").iterdir()) == []


# -- restore ----------------------------------------------------------------------------------------------------------


def test_a_restored_store_has_the_tasks_of_the_backup_and_an_id_of_its_own(
    process: Command, store: Store, path: Path, tmp_path: Path, url: str
) -> None:
    kept = send(store)
    process("db", "backup", "copy.db", "--db", url)
    later = send(store)

    ended = process("db", "restore", "copy.db", "--yes", "--json", "--db", url)

    assert ended.code == 0
    assert [task.id for task in store.tasks(TaskFilter())] == [kept]  # also for who had it open all the time
    assert store_id(path) == ended.json["store_id"] != store_id(tmp_path / "copy.db")
    assert ids_in(Path(ended.json["kept"])) == {kept, later}
    assert store.events()[-1].name == "store.restored"
    assert read(path, "PRAGMA integrity_check") == [("ok",)]


def test_what_was_owned_in_the_backup_is_an_orphan_in_the_restored_store(
    process: Command, store: Store, hand: HandWorker, url: str
) -> None:
    send(store)
    hand.claim()
    process("db", "backup", "copy.db", "--db", url)
    store.retire(hand.id)

    ended = process("db", "restore", "copy.db", "--yes", "--json", "--db", url)

    assert ended.json["orphans"] == 1
    (worker,) = store.workers()
    assert (worker.status, worker.same_clock, worker.lock.path) == ("dead", False, "")
    assert [orphan.status for orphan in store.orphans(limit=10)] == [TaskStatus.RUNNING]


def test_a_restore_is_refused_while_a_live_worker_uses_the_store(
    process: Command, store: Store, hand: HandWorker, path: Path, url: str
) -> None:
    process("db", "backup", "copy.db", "--db", url)
    before = store_id(path)

    ended = process("db", "restore", "copy.db", "--yes", "--db", url)

    assert ended.code == 1
    assert "is used by worker hand; stop them first" in ended.err
    assert store_id(path) == before


def test_a_worker_of_a_store_that_can_not_be_read_is_known_by_its_lock(
    process: Command, started: Callable[..., subprocess.Popen[str]], shop: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{shop}"
    process("db", "migrate", "--db", url)
    process("db", "backup", "copy.db", "--db", url)
    worker = started("worker", "start", "shop:app", "--processes", "1")
    assert worker.stdout is not None
    while "ready" not in worker.stdout.readline():
        assert worker.poll() is None
    worker.send_signal(signal.SIGSTOP)  # it must not write its own pages back
    shop.write_bytes(b"this was a database once" * 400)

    refused = process("db", "restore", "copy.db", "--yes", "--db", url)
    worker.kill()
    worker.wait()
    done = process("db", "restore", "copy.db", "--yes", "--json", "--db", url)

    assert refused.code == 1
    assert f"a worker (pid {worker.pid})" in refused.err
    assert done.code == 0, done.err
    assert Path(done.json["kept"]).read_bytes().startswith(b"this was a database once")
    assert process("queue", "status", "--db", url).code == 0


def test_a_damaged_store_that_somebody_has_open_is_not_replaced(
    process: Command, store: Store, path: Path, url: str
) -> None:
    process("db", "backup", "copy.db", "--db", url)
    store.close()
    path.write_bytes(b"this was a database once" * 400)
    reader = subprocess.Popen(
        [sys.executable, "-c", f"f = open({str(path)!r}); print('open', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stdout.readline() == "open\n"

    ended = process("db", "restore", "copy.db", "--yes", "--db", url)
    reader.communicate("\n")

    assert ended.code == 1
    assert f"open in process {reader.pid}" in ended.err
    assert path.read_bytes().startswith(b"this was a database once")


def test_a_store_that_is_not_there_is_made_from_the_backup(
    process: Command, store: Store, path: Path, tmp_path: Path, url: str
) -> None:
    task_id = send(store)
    process("db", "backup", "copy.db", "--db", url)

    ended = process("db", "restore", "copy.db", "--yes", "--json", "--db", "sqlite:///elsewhere.db")

    assert (ended.code, ended.json["kept"]) == (0, None)
    assert ids_in(tmp_path / "elsewhere.db") == {task_id}
    assert (tmp_path / "elsewhere.db").stat().st_mode & 0o777 == 0o600


def test_a_restore_needs_a_yes_when_nobody_can_be_asked(process: Command, store: Store, path: Path, url: str) -> None:
    process("db", "backup", "copy.db", "--db", url)
    before = store_id(path)

    refused = process("db", "restore", "copy.db", "--db", url)
    looked = process("db", "restore", "copy.db", "--dry-run", "--db", url)

    assert (refused.code, refused.out) == (2, "")
    assert looked.code == 0
    assert store_id(path) == before


def test_only_a_sound_backup_of_a_store_is_restored(
    everbeat: Command, process: Command, store: Store, path: Path, tmp_path: Path, url: str
) -> None:
    (tmp_path / "notes.txt").write_text("not a database" * 100)
    write(tmp_path / "other.db", "CREATE TABLE theirs (id)")
    process("db", "backup", "bad.db", "--db", url)
    damage(tmp_path / "bad.db", "everbeat_history")
    before = store_id(path)

    def said(name: str) -> str:
        ended = everbeat("db", "restore", name, "--yes", "--db", url)
        assert ended.code == 1
        return ended.err

    assert "there is no backup at" in said("nowhere.db")
    assert "can not be read" in said("notes.txt")
    assert "is not a backup of an Everbeat store" in said("other.db")
    assert "is damaged" in said("bad.db")
    assert "is the store itself" in said("jobs.db")
    assert store_id(path) == before
    assert files_in(tmp_path) == ["bad.db", "jobs.db", "jobs.db-shm", "jobs.db-wal", "notes.txt", "other.db"]


def test_a_store_with_pages_of_another_size_is_not_written_over(
    process: Command, store: Store, tmp_path: Path, url: str
) -> None:
    process("db", "backup", "copy.db", "--db", url)
    with closing(sqlite3.connect(tmp_path / "wide.db")) as wide:
        wide.execute("PRAGMA page_size=8192")
        wide.execute("PRAGMA journal_mode=WAL")
    process("db", "migrate", "--db", "sqlite:///wide.db")

    ended = process("db", "restore", "copy.db", "--yes", "--db", "sqlite:///wide.db")

    assert ended.code == 1
    assert "has pages of 8192 bytes, the backup of 4096" in ended.err
    assert not [name for name in files_in(tmp_path) if "replaced" in name]


def test_a_truncated_store_is_replaced_and_kept(process: Command, store: Store, path: Path, url: str) -> None:
    task_id = send(store)
    process("db", "backup", "copy.db", "--db", url)
    store.close()
    whole = path.stat().st_size
    os.truncate(path, whole // 2)

    ended = process("db", "restore", "copy.db", "--yes", "--json", "--db", url)

    assert ended.code == 0, ended.err
    assert ids_in(path) == {task_id}
    assert Path(ended.json["kept"]).stat().st_size == whole // 2


def test_somebody_else_s_database_is_not_replaced(process: Command, store: Store, tmp_path: Path, url: str) -> None:
    process("db", "backup", "copy.db", "--db", url)
    write(tmp_path / "other.db", "CREATE TABLE theirs (id)")

    ended = process("db", "restore", "copy.db", "--yes", "--db", "sqlite:///other.db")

    assert ended.code == 1
    assert "is a database of something else" in ended.err
    assert read(tmp_path / "other.db", "SELECT name FROM sqlite_master") == [("theirs",)]


def test_a_task_sent_while_the_old_store_is_being_kept_is_kept_too(
    everbeat: Command, store: Store, path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everbeat("db", "backup", "copy.db", "--db", url)
    keep, late = copies._keep, []

    def keep_and_send(*args: object, **more: object) -> Path:
        kept = keep(*args, **more)  # type: ignore[arg-type]
        if not late:
            late.append(send(store))
        return kept

    monkeypatch.setattr(copies, "_keep", keep_and_send)
    ended = everbeat("db", "restore", "copy.db", "--yes", "--json", "--db", url)

    assert ids_in(Path(ended.json["kept"])) == set(late)
    assert len([name for name in files_in(path.parent) if "replaced" in name]) == 1


# -- schema -----------------------------------------------------------------------------------------------------------


def test_migrate_makes_a_store_and_finds_it_current(process: Command, path: Path, url: str) -> None:
    made = process("db", "migrate", "--json", "--db", url)
    again = process("db", "migrate", "--json", "--db", url)
    checked = process("db", "migrate", "--check", "--db", url)

    assert (made.code, made.json["before"], made.json["changed"]) == (0, None, True)
    assert (again.code, again.json["changed"]) == (0, False)
    assert checked.code == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("option", ["--check", "--sql"])
def test_a_look_at_the_schema_never_makes_a_store(process: Command, tmp_path: Path, url: str, option: str) -> None:
    assert process("db", "migrate", option, "--db", url).code == 3
    assert list(tmp_path.iterdir()) == []


def test_an_older_schema_is_named_shown_and_upgraded(
    everbeat: Command, store: Store, path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = send(store)
    known = schema.steps()
    monkeypatch.setattr(schema, "steps", lambda: [*known, schema.Step(known[-1].version + 1, STEP_2)])

    refused = everbeat("task", "list", "--db", url)
    checked = everbeat("db", "migrate", "--check", "--db", url)
    shown = everbeat("db", "migrate", "--sql", "--db", url)
    done = everbeat("db", "migrate", "--db", url)

    assert (refused.code, "everbeat db migrate" in refused.err) == (3, True)
    assert checked.code == 1
    assert (shown.code, "CREATE TABLE everbeat_later" in shown.out) == (0, True)
    assert done.code == 0
    assert everbeat("db", "migrate", "--check", "--db", url).code == 0
    assert [task["id"] for task in everbeat("task", "list", "--json", "--db", url).json] == [task_id]


def test_an_upgrade_that_fails_leaves_the_store_as_it_was(
    everbeat: Command, store: Store, path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = schema.steps()
    broken = STEP_2 + "CREATE TABLE everbeat_tasks (id);\n"
    monkeypatch.setattr(schema, "steps", lambda: [*known, schema.Step(known[-1].version + 1, broken)])

    ended = everbeat("db", "migrate", "--db", url)

    assert ended.code == 3
    assert "Traceback" not in ended.err
    assert read(path, "SELECT name FROM sqlite_master WHERE name = 'everbeat_later'") == []


@pytest.mark.parametrize(
    "words",
    [
        ["task", "list"],
        ["db", "migrate"],
        ["db", "migrate", "--check"],
        ["db", "restore", "copy.db", "--yes"],
    ],
    ids=" ".join,
)
def test_a_newer_schema_is_a_clear_error(
    process: Command, store: Store, path: Path, tmp_path: Path, url: str, words: list[str]
) -> None:
    write(path, "UPDATE everbeat_meta SET value = '99' WHERE key LIKE 'schema%'")
    assert process("db", "backup", "copy.db", "--db", url).code == 0  # copies know nothing of versions

    ended = process(*words, "--db", url)

    assert ended.code == 3
    assert "has schema 99, this Everbeat knows up to" in ended.err
    assert "Upgrade Everbeat" in ended.err


def test_the_schema_that_is_shown_makes_a_store(process: Command, tmp_path: Path, url: str) -> None:
    write(tmp_path / "theirs.db", "CREATE TABLE theirs (id)")
    shown = process("db", "migrate", "--sql", "--db", "sqlite:///theirs.db")

    with closing(sqlite3.connect(tmp_path / "made.db")) as connection:
        connection.executescript(shown.out)

    assert process("db", "migrate", "--check", "--db", "sqlite:///made.db").code == 0
    assert process("task", "enqueue", "shop.add", "--db", "sqlite:///made.db").code == 0
    assert read(tmp_path / "theirs.db", "SELECT name FROM sqlite_master") == [("theirs",)]
