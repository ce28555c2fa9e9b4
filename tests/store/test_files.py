"""The file and its neighbours: made once, with the right modes, and nothing of anybody else's is touched."""

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.words import enqueue, status_of

from everbeat.errors import SchemaMismatch, StoreUnavailable
from everbeat.model.state import TRANSITIONS, TaskStatus
from everbeat.store import schema
from everbeat.store.sqlite.store import SQLiteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path)
    yield store
    store.close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def look(path: Path, sql: str) -> list[tuple[object, ...]]:
    """As a person would, with another program."""
    code = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall())"
    done = subprocess.run([sys.executable, "-c", code, str(path), sql], capture_output=True, text=True, check=True)
    return list(eval(done.stdout))


def test_a_store_is_a_wal_database_with_a_version_and_an_identity(store: SQLiteStore, path: Path) -> None:
    assert look(path, "PRAGMA journal_mode") == [("wal",)]
    meta = {key: str(value) for key, value in look(path, "SELECT key, value FROM everbeat_meta")}
    assert meta["schema_version"] == str(schema.newest())
    assert len(meta["store_id"]) == 36


def test_opening_again_changes_nothing(store: SQLiteStore, path: Path) -> None:
    before = look(path, "SELECT * FROM everbeat_meta")
    enqueue(store, id="a")

    again = SQLiteStore(path)

    assert status_of(again, "a") is TaskStatus.PENDING
    assert look(path, "SELECT * FROM everbeat_meta") == before
    again.close()


def test_two_processes_that_create_a_store_at_once_get_the_same_one(path: Path) -> None:
    code = """
import sys
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.model.task import NewTask, TaskKind
sys.stdin.readline()
store = SQLiteStore(sys.argv[1])
store.enqueue([NewTask(sys.argv[2], b"[]", TaskKind("add"))])
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path), f"task-{number}"], stdin=subprocess.PIPE)
        for number in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()

    assert [process.wait(60) for process in processes] == [0] * 6
    assert look(path, "SELECT count(*) FROM everbeat_tasks") == [(6,)]
    assert look(path, "SELECT count(*) FROM everbeat_meta WHERE key = 'store_id'") == [(1,)]


@pytest.mark.parametrize(
    ("mode", "directory", "side"), [(0o600, 0o700, 0o600), (0o660, 0o770, 0o660), (0o640, 0o750, 0o640)]
)
def test_modes_are_as_asked_whatever_the_umask(path: Path, mode: int, directory: int, side: int) -> None:
    before = os.umask(0o077)
    try:
        store = SQLiteStore(path, file_mode=mode)
        enqueue(store)
    finally:
        os.umask(before)

    assert mode_of(path) == mode_of(Path(f"{path}-wal")) == mode_of(Path(f"{path}-shm")) == mode
    assert mode_of(store.state_directory) == directory
    assert mode_of(store.state_directory / "turnstile") == side
    store.close()


def test_a_look_never_makes_a_store(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no store at"):
        SQLiteStore(path, create=False)

    assert list(path.parent.iterdir()) == []


def test_a_look_makes_nothing_beside_a_store(path: Path) -> None:
    SQLiteStore(path).close()
    before = sorted(entry.name for entry in path.parent.iterdir())

    store = SQLiteStore(path, create=False)
    assert store.counts() == []
    store.close()

    assert sorted(entry.name for entry in path.parent.iterdir()) == before


def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"my thesis, only copy\n" * 500)

    with pytest.raises(StoreUnavailable, match=r"jobs.db: file is not a database. Nothing was changed"):
        SQLiteStore(path)

    assert path.read_bytes() == b"my thesis, only copy\n" * 500
    assert [entry.name for entry in path.parent.iterdir()] == ["jobs.db"]


def test_a_database_of_somebody_else_gets_our_tables_beside_theirs(path: Path) -> None:
    theirs = sqlite3.connect(path)
    theirs.executescript("CREATE TABLE customers (name); INSERT INTO customers VALUES ('ann');")
    theirs.close()

    store = SQLiteStore(path)
    enqueue(store, id="a")

    assert look(path, "SELECT name FROM customers") == [("ann",)]
    assert status_of(store, "a") is TaskStatus.PENDING
    store.close()


def test_a_database_of_somebody_else_is_not_a_store_to_look_at(path: Path) -> None:
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE customers (name)")
    theirs.close()

    with pytest.raises(StoreUnavailable, match="is not an Everbeat store"):
        SQLiteStore(path, create=False)

    assert [entry.name for entry in path.parent.iterdir()] == ["jobs.db"]


@pytest.mark.parametrize(
    ("version", "advice"), [("999", "Upgrade Everbeat"), ("0", "everbeat db migrate")], ids=["newer", "older"]
)
def test_a_store_of_another_version_is_refused_untouched(path: Path, version: str, advice: str) -> None:
    SQLiteStore(path).close()
    other = sqlite3.connect(path)
    other.execute("UPDATE everbeat_meta SET value = ? WHERE key LIKE 'schema%'", (version,))
    other.commit()
    other.close()

    with pytest.raises(SchemaMismatch, match=advice):
        SQLiteStore(path)


def test_a_store_without_a_version_is_called_damaged(path: Path) -> None:
    SQLiteStore(path).close()
    other = sqlite3.connect(path)
    other.execute("DELETE FROM everbeat_meta")
    other.commit()
    other.close()

    with pytest.raises(StoreUnavailable, match="schema version is missing"):
        SQLiteStore(path)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("missing/jobs.db", "No such file or directory"),
        ("file/jobs.db", "Not a directory"),
        (".", "is a directory"),
        ("loop", "is a link to loop, where there is nothing"),
        ("link", "is a link to later.db, where there is nothing. A store is not created through a link"),
    ],
)
def test_a_path_that_can_not_be_says_so(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("later.db")

    with pytest.raises(StoreUnavailable, match=why):
        SQLiteStore(tmp_path / place)

    assert {one.name for one in tmp_path.iterdir()} == {"file", "loop", "link"}


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        (
            "jobs.db",
            "StoreUnavailable {}: unable to open database file, this user may not read and write it. "
            "Nothing was changed by this step.",
        ),
        (".", "StoreUnavailable can not look for {}: Permission denied. Nothing was changed."),
    ],
)
def test_a_file_that_this_user_may_not_open_says_so(closed: str, said: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # what pytest makes is below a directory of root's alone
        path = Path(place, "jobs.db")
        SQLiteStore(path).close()
        path.parent.chmod(0o755)
        (path.parent / closed).chmod(0)

        heard = as_nobody(lambda: SQLiteStore(path))

        path.parent.chmod(0o700)
    assert heard == said.format(path)


def as_nobody(do: Callable[[], object]) -> str:
    """What it raised, in a process that is not root's: for root no file is closed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            do()
        except (StoreUnavailable, OSError) as error:
            os.write(write, f"{type(error).__name__} {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as said:
        return said.read()


def test_a_side_directory_of_somebody_else_s_making_is_refused(store: SQLiteStore, path: Path) -> None:
    store.close()
    side = store.state_directory
    for entry in side.iterdir():
        entry.unlink()
    side.rmdir()
    side.symlink_to("/tmp")

    with pytest.raises(StoreUnavailable, match="is not a directory of this user"):
        enqueue(SQLiteStore(path))


def test_a_store_that_was_removed_is_not_made_again_by_the_next_write(store: SQLiteStore, path: Path) -> None:
    store.database.before_fork()  # puts the connections away
    store.database.after_fork_in_parent()
    for entry in path.parent.glob("jobs.db*"):
        if entry.is_file():
            entry.unlink()

    with pytest.raises(StoreUnavailable, match="unable to open"), store.database.write():
        pass
    with pytest.raises(StoreUnavailable, match="moved away or removed"):
        store.enqueue([])

    assert not path.exists()


def test_nobody_sends_to_a_file_that_has_lost_its_name(store: SQLiteStore, path: Path) -> None:
    enqueue(store, id="before")
    path.rename(path.with_name("away.db"))

    with pytest.raises(StoreUnavailable, match=r"was moved away or removed, .* Nothing was changed"):
        enqueue(store, id="meanwhile")
    path.with_name("away.db").rename(path)
    enqueue(store, id="after")

    assert [store.get(task_id) is not None for task_id in ("before", "meanwhile", "after")] == [True, False, True]


def test_the_schema_allows_the_states_of_the_table_and_no_other(store: SQLiteStore) -> None:
    enqueue(store, id="a")
    with store.database.write() as tx:
        for status in {*TRANSITIONS.values(), *TaskStatus}:
            tx.run("UPDATE everbeat_tasks SET status = ?", (status.value,))
    with pytest.raises(sqlite3.IntegrityError), store.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET status = 'LIMBO'")


def test_the_views_for_people_can_be_read(store: SQLiteStore, path: Path) -> None:
    enqueue(store, id="a")
    views = [name for (name,) in look(path, "SELECT name FROM sqlite_master WHERE type = 'view'")]

    assert all(str(name).startswith("everbeat_") and str(name).endswith("_readable") for name in views)
    with_moments = ["tasks", "attempts", "history", "late_outcomes", "heartbeats", "workers", "worker_states",
                    "workflows", "workflow_tasks", "recovery_reports", "events"]  # fmt: skip
    assert {f"everbeat_{table}_readable" for table in with_moments} <= set(views)
    for name in views:
        look(path, f"SELECT * FROM {name}")
    (row,) = look(path, "SELECT id, status, created_at FROM everbeat_tasks_readable")
    assert row[:2] == ("a", "PENDING")
    assert str(row[2]).startswith("20")
