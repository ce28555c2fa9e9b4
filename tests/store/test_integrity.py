"""The integrity check of a file, its repair, and what is told when there is none."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.damage import damage_index, shuffle_table, wreck_index, wreck_schema, wreck_table
from tests.words import a_task, enqueue

from everbeat.errors import StoreDamaged, StoreUnavailable
from everbeat.model.report import RecoveryReport
from everbeat.store.moments import moment
from everbeat.store.sqlite import integrity, rescue
from everbeat.store.sqlite.store import SQLiteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with tasks task-0 to task-9, and nobody who has it open."""
    path = tmp_path / "x.db"
    with closing(SQLiteStore(path)) as store:
        store.enqueue([a_task(id=f"task-{number}") for number in range(10)])
    return path


@pytest.fixture
def opened(path: Path) -> Iterator[list[SQLiteStore]]:
    opened: list[SQLiteStore] = []
    yield opened
    for store in opened:
        store.close()


def reopen(path: Path, opened: list[SQLiteStore]) -> SQLiteStore:
    opened.append(SQLiteStore(path, patience=2.0))
    return opened[-1]


@pytest.mark.proves("FR-056", "AC-009")
def test_a_whole_file_passes(path: Path) -> None:
    result = integrity.check(path, budget=10)

    assert (result.passed, result.complete, result.errors, result.warnings) == (True, True, [], [])
    assert (result.repair_attempted, result.repair_succeeded) == (False, False)


def test_the_check_sees_what_is_only_in_the_log(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "y.db")) as store:
        enqueue(store)
        assert integrity.check(tmp_path / "y.db", budget=10).passed
        assert os.stat(tmp_path / "y.db-wal").st_size > 0


@pytest.mark.proves("FR-058", "FR-060", "FR-007")
def test_a_damaged_index_is_found_and_rebuilt(path: Path, opened: list[SQLiteStore]) -> None:
    damage_index(path)
    store = reopen(path, opened)
    assert store.get("task-7") is None

    found = store.check_integrity(budget=10)
    repaired = store.repair(found)

    assert (found.passed, found.repair_attempted) == (False, False)
    assert any("missing from index" in error for error in found.errors)
    assert (repaired.passed, repaired.repair_attempted, repaired.repair_succeeded) == (True, True, True)
    assert repaired.errors == found.errors
    assert store.get("task-7") is not None
    assert store.check_integrity(budget=10).passed


def test_a_damaged_table_is_found_and_its_repair_changes_nothing(path: Path, opened: list[SQLiteStore]) -> None:
    wreck_table(path)
    before = path.read_bytes()
    store = reopen(path, opened)

    repaired = store.repair(store.check_integrity(budget=10))
    store.rescue()
    store.close()

    assert (repaired.passed, repaired.repair_attempted, repaired.repair_succeeded) == (False, True, False)
    assert path.read_bytes() == before


def test_a_repair_that_fails_is_undone(path: Path, opened: list[SQLiteStore]) -> None:
    damage_index(path)
    shuffle_table(path)
    store = reopen(path, opened)

    repaired = store.repair(store.check_integrity(budget=10))

    assert (repaired.passed, repaired.repair_attempted, repaired.repair_succeeded) == (False, True, False)
    assert any("out of order" in error for error in repaired.errors)
    assert store.get("task-7") is None  # the index is as it was


def test_a_check_that_fails_itself_counts_as_failed(path: Path) -> None:
    wreck_schema(path)

    result = integrity.check(path, budget=10)

    assert (result.passed, result.errors) == (False, ["the check failed: database disk image is malformed"])


def test_a_check_that_is_cut_is_named_incomplete_and_what_it_found_counts(path: Path) -> None:
    cut = integrity.check(path, budget=0.000_001)

    assert (cut.passed, cut.complete) == (True, False)
    assert cut.warnings == ["the integrity check is incomplete: it was cut after 1e-06s"]


@pytest.mark.proves("NFR-002")
def test_a_check_ends_when_its_time_is_up(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A probe that never ends stands for a file that is too large."""
    endless = tmp_path / "endless.py"
    endless.write_text('import time\nprint(\'{"finding": "row 1 missing"}\', flush=True)\ntime.sleep(3600)\n')
    monkeypatch.setattr(integrity, "PROBE", endless)
    began = time.monotonic()

    result = integrity.check(path, budget=1.0)

    assert time.monotonic() - began < 30
    assert (result.passed, result.complete, result.errors) == (False, False, ["row 1 missing"])


def test_a_check_that_kills_its_process_counts_as_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    suicidal = tmp_path / "suicidal.py"
    suicidal.write_text("import os\nos.kill(os.getpid(), 7)\n")
    monkeypatch.setattr(integrity, "PROBE", suicidal)

    result = integrity.check(path, budget=10)

    assert (result.passed, result.errors) == (False, ["the check was ended by signal 7"])


def test_a_check_that_can_not_be_run_says_nothing_about_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity.sys, "executable", "/nowhere/python")

    result = integrity.check(path, budget=10)

    assert (result.passed, result.complete, result.errors) == (True, False, [])
    assert result.warnings[0].startswith("the integrity check could not be run: ")


def test_the_check_leaves_no_trace_in_the_file_and_its_log(path: Path) -> None:
    store = SQLiteStore(path)
    enqueue(store)
    before = path.read_bytes(), Path(f"{path}-wal").read_bytes()

    integrity.check(path, budget=10)

    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before
    store.close()


# -- rows by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-070")
def test_rows_that_break_a_rule_are_warnings_and_hide_no_damage(path: Path, opened: list[SQLiteStore]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=1")
        connection.execute(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 200) "
            "INSERT INTO everbeat_tasks (id, name, queue, priority, status, created_at, run_at, args) "
            "SELECT 'odd-' || n, 'add', 'default', 100, 'DANCING', 1, 1, x'5b5d' FROM n"
        )
    store = reopen(path, opened)

    result = store.check_integrity(budget=10)

    assert result.passed
    assert result.warnings == ["CHECK constraint failed in everbeat_tasks (200 rows)"]
    assert store.contradictions()[0] == "task odd-1 is in no known state (DANCING); it is left alone"
    store.close()
    opened.clear()
    damage_index(path, b"odd-77")
    assert not reopen(path, opened).check_integrity(budget=10).passed


# -- beyond repair ----------------------------------------------------------------------------------------------------


def test_a_file_that_can_not_be_read_is_a_damaged_store(path: Path) -> None:
    wreck_table(path, "everbeat_meta")

    with pytest.raises(StoreDamaged, match="malformed"):
        SQLiteStore(path)


def test_a_file_that_never_was_a_store_is_not_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"these are notes, whatever the name of the file says" * 100)

    with pytest.raises(StoreUnavailable, match="not a database") as caught:
        SQLiteStore(tmp_path / "notes.txt")

    assert not isinstance(caught.value, StoreDamaged)
    assert not Path(tmp_path / "notes.txt.d").exists()


@pytest.mark.parametrize("damage", [wreck_table, wreck_index])
def test_the_log_of_a_damaged_file_is_not_moved_into_it(path: Path, damage: Callable[[Path], None]) -> None:
    """In a process of its own, which ends: as a worker does that is not started. The log holds a commit."""
    damage(path)
    before = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint=0")
        other.execute("CREATE TABLE mine (x)")
        log = Path(f"{path}-wal").read_bytes()
    Path(f"{path}-wal").write_bytes(log)  # closing has moved it into the file
    path.write_bytes(before)

    code = f"""
from pathlib import Path
from everbeat.store.sqlite.site import SQLiteSite
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.errors import StoreUnavailable
path = Path({str(path)!r})
try:
    store = SQLiteStore(path)
    store.repair(store.check_integrity(budget=10))
    store.close()
except StoreUnavailable:
    pass
SQLiteSite(path).rescue()
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert path.read_bytes() == before
    assert Path(f"{path}-wal").read_bytes() == log


@pytest.mark.proves("FR-067", "FR-068")
def test_the_rescue_names_the_recovery_point_and_a_backup_command_that_works(
    path: Path, opened: list[SQLiteStore]
) -> None:
    noon = moment(1_800_000_000_000_000)
    with closing(SQLiteStore(path)) as store:
        store.save_report(RecoveryReport(started_at=noon, completed_at=noon, integrity_check_passed=True), actor="x")
        store.save_report(RecoveryReport(started_at=noon, completed_at=noon), actor="x")
        at = store.database.clock.wall_us()
    wreck_table(path)
    before = path.read_bytes()

    told = reopen(path, opened).rescue()

    assert told.recovery_point.endswith("when an integrity check last passed")
    assert told.recovery_point[:10] == moment(at).isoformat()[:10]
    assert told.backup_command == f"everbeat db backup {path}.backup --db sqlite:///{path}"
    assert told.backup_command in told.steps[1]
    copying = told.steps[0].partition(": ")[2]
    subprocess.run(copying, shell=True, check=True)
    assert (path.with_name("x.db.damaged") / "x.db").read_bytes() == before


def test_a_file_without_any_report_says_when_it_was_last_changed(path: Path, opened: list[SQLiteStore]) -> None:
    assert rescue.recovery_point(reopen(path, opened).database).startswith("unknown: no integrity check that passed")


@pytest.mark.proves("FR-059")
def test_an_index_that_can_not_be_rebuilt_is_healed_in_a_copy(path: Path, opened: list[SQLiteStore]) -> None:
    wreck_index(path)
    before = path.read_bytes()
    store = reopen(path, opened)
    assert not store.repair(store.check_integrity(budget=10)).passed

    told = store.rescue()

    assert "a copy without the damage was made; put it in its place: everbeat db restore " in told.steps[-1]
    (copy,) = Path(f"{path}.d").glob("salvaged-*.db")
    assert os.stat(copy).st_mode & 0o777 == 0o600
    assert integrity.check(copy, budget=10).passed
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM everbeat_tasks").fetchone() == (10,)
    assert path.read_bytes() == before
    assert reopen(path, opened).rescue() == told
    assert list(Path(f"{path}.d").glob("salvaged-*")) == [copy]


def test_a_table_that_can_not_be_read_has_no_healed_copy(path: Path, opened: list[SQLiteStore]) -> None:
    wreck_table(path)

    told = reopen(path, opened).rescue()

    assert "put an earlier backup in its place: everbeat db restore PATH" in told.steps[-1]
    assert list(Path(f"{path}.d").glob("salvaged-*")) == []
