"""The write-ahead log at start-up: counted, moved, and there again if somebody switched it off."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.words import a_task, enqueue

from everbeat.errors import StoreUnavailable
from everbeat.store.sqlite.store import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "x.db", patience=2.0)) as store:
        yield store


@pytest.mark.proves("FR-009", "FR-061", "AC-010")
def test_the_frames_of_the_log_are_counted_and_moved(store: SQLiteStore) -> None:
    store.checkpoint()
    enqueue(store)
    frames = store.log_bytes() // 4096

    moved = store.checkpoint()

    assert (moved.frames, moved.left, moved.is_complete) == (frames, 0, True)
    assert frames > 0
    assert store.log_bytes() == 0
    assert store.checkpoint().frames == 0


@pytest.mark.proves("FR-062", "FR-063")
def test_a_very_long_log_that_a_killed_process_left_is_moved(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    code = f"""
import os
from everbeat.store.sqlite import connection
from everbeat.store.sqlite.store import SQLiteStore
connection.CHECKPOINT_ROWS = connection.CHECKPOINT_COMMITS = connection.LONG_WAL = 1 << 40
store = SQLiteStore({str(path)!r})
from tests.words import a_task
store.enqueue([a_task(id=f"task-{{n}}", args=os.urandom(1 << 20)) for n in range(100)])
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    with closing(SQLiteStore(path)) as store:
        assert store.log_bytes() > 100_000_000

        moved = store.checkpoint()

        assert moved.frames * 4096 > 100_000_000
        assert store.log_bytes() == 0
        assert store.get("task-99") is not None
        assert store.check_integrity(budget=60).passed


@pytest.mark.proves("FR-064")
def test_a_reader_in_the_middle_of_a_look_keeps_frames_and_stops_nobody(store: SQLiteStore) -> None:
    store.checkpoint()
    enqueue(store, id="before")
    with closing(sqlite3.connect(store.database.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM everbeat_tasks").fetchone()
        enqueue(store, id="after")

        moved = store.checkpoint()

        assert moved.left > 0
        assert not moved.is_complete
        enqueue(store, id="later")
    assert store.checkpoint().is_complete
    assert all(store.get(task_id) for task_id in ("before", "after", "later"))


@pytest.mark.proves("FR-065", "FR-066")
def test_a_journal_mode_that_was_changed_behind_our_back_is_changed_back(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(SQLiteStore(path)) as store:
        enqueue(store, id="a")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)

    with closing(SQLiteStore(path)) as store:
        assert store.restore_log() == "delete"
        assert store.restore_log() is None
        enqueue(store, id="b")
        assert os.stat(f"{path}-wal").st_size > 0
        assert store.get("a") is not None


def test_a_journal_mode_that_can_not_be_changed_back_is_an_outage(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(path)):
            pass

    with (
        closing(SQLiteStore(path, patience=0.3)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM everbeat_tasks").fetchone()
        with pytest.raises(StoreUnavailable, match="blocked"):
            store.restore_log()


@pytest.mark.proves("FR-010")
def test_a_transaction_that_was_never_committed_is_gone(tmp_path: Path) -> None:
    """Killed in the middle of a write, with and without a write-ahead log."""
    path = tmp_path / "x.db"
    code = f"""
import os, sys
from everbeat.store.sqlite.store import SQLiteStore
from tests.words import a_task
store = SQLiteStore({str(path)!r})
store.enqueue([a_task(id="kept")])
with store.database.write() as tx:
    tx.run("UPDATE everbeat_tasks SET status = 'FAILED'")
    os._exit(9)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2])

    assert ended.returncode == 9
    with closing(SQLiteStore(path)) as store:
        found = store.get("kept")
        assert found is not None
        assert found.status == "PENDING"
        assert store.check_integrity(budget=60).passed


def test_a_log_that_was_deleted_takes_its_commits_with_it_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(SQLiteStore(path)) as store:
        enqueue(store, id="in the file")
        store.checkpoint()
    code = f"""
import os
from everbeat.store.sqlite.store import SQLiteStore
from tests.words import a_task
SQLiteStore({str(path)!r}).enqueue([a_task(id="in the log")])
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    os.unlink(f"{path}-wal")

    with closing(SQLiteStore(path)) as store:
        assert store.check_integrity(budget=60).passed
        assert (store.get("in the file") is not None, store.get("in the log")) == (True, None)
        store.enqueue([a_task(id="new")])
        assert store.get("new") is not None
