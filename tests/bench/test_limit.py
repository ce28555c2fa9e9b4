"""The floor does what it says: Everbeat's own tables, every row written, started once and settled, in given batches."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from bench.environments import ROOT
from bench.limit import draining, pgbench, sending
from bench.limit.__main__ import KEYS
from bench.limit.sqlite import SQLiteWriter
from bench.limit.writes import ids

from everbeat import Everbeat
from everbeat.bench.place import ground_of
from everbeat.store import filling

COLUMNS = "SELECT * FROM everbeat_tasks WHERE name = ?"
NOT_THE_SAME = {"seq", "id", "worker_id", "created_at", "run_at", "started_at", "finished_at"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Everbeat(f"sqlite:///{tmp_path}/floor.db") as app:
        assert app.store is not None
    return tmp_path / "floor.db"


@pytest.fixture
def writer(path: Path) -> Iterator[SQLiteWriter]:
    with closing(SQLiteWriter(path)) as made:
        yield made


def grouped(path: Path, columns: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns}, count(*) FROM everbeat_tasks GROUP BY {columns}").fetchall()


def test_a_drain_settles_every_row_once(path: Path, writer: SQLiteWriter) -> None:
    sending.single(writer, 5)
    sending.at_once(writer, 95)

    draining.drain([writer], 7.5)

    assert grouped(path, "status, attempt, fence, result") == [("COMPLETED", 1, 1, b"3", 100)]


def test_a_drain_has_the_batches_it_was_given(path: Path, writer: SQLiteWriter) -> None:
    sending.at_once(writer, 100)

    draining.drain([writer], 2.5)

    starts = [count for _, count in grouped(path, "started_at")]
    assert len(starts) == 40
    assert set(starts) == {2, 3}
    assert list(islice(draining.sizes(2.0), 3)) == [2, 2, 2]


def test_threads_wait_for_their_commit_and_share_it(path: Path, writer: SQLiteWriter) -> None:
    rate, batch = sending.grouped(writer, 8, 160)

    assert rate > 0
    assert 1 <= batch <= 8
    assert grouped(path, "status") == [("PENDING", 160)]


def test_unique_keys_are_stored(path: Path, writer: SQLiteWriter) -> None:
    writer.insert(ids(3), ["a", "b", "c"])

    assert grouped(path, "unique_key") == [("a", 1), ("b", 1), ("c", 1)]


def test_what_it_leaves_behind_is_what_everbeat_leaves_behind() -> None:
    """Every column but for ids and times: if Everbeat begins to write another one, the floor must, too."""
    with ground_of(None, processes=1).place() as place:
        place.works.noop.enqueue_many([(1, 2)] * 20)
        place.burst()
        file = place.directory / "bench.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.row_factory = sqlite3.Row
            ours = [dict(row) for row in connection.execute(COLUMNS, ("bench.noop",))]
            connection.execute("DELETE FROM everbeat_tasks")
            connection.commit()
            with closing(SQLiteWriter(file)) as writer:
                writer.insert(ids(20))
                draining.drain([writer], 5)
            theirs = [dict(row) for row in connection.execute(COLUMNS, ("bench.noop",))]

    assert len(ours) == len(theirs) == 20
    assert {name: value for name, value in ours[0].items() if name not in NOT_THE_SAME} == {
        name: value for name, value in theirs[0].items() if name not in NOT_THE_SAME
    }
    assert {name for name, value in ours[0].items() if value is None} == {
        name for name, value in theirs[0].items() if value is None
    }


def test_the_batches_of_a_worker_are_counted_in_its_store() -> None:
    with ground_of(None, processes=1).place() as place:
        place.works.noop.enqueue_many([(1, 2)] * 30)
        place.burst("--frame-depth", "1")
        tasks, transactions = filling.started(place.store, since_us=1)

    assert tasks == 30
    assert 15 <= transactions <= 30


def test_a_floor_is_taken_in_a_process_of_its_own() -> None:
    asked = {"url": "", "scale": 0.005, "keys": [*KEYS], "batches": {"drain.async": 12.5}}
    said = subprocess.run(
        [sys.executable, "-m", "bench.limit", json.dumps(asked)], cwd=ROOT, capture_output=True, text=True, check=True
    )

    found = json.loads(said.stdout)

    assert set(found) == {key for key in KEYS if not key.startswith("drain.")} | {"drain.async"}
    assert all(min(taken["samples"]) > 0 for taken in found.values())
    assert found["drain.async"]["batch"] == 12.5


@pytest.mark.parametrize(
    ("version", "made"), [("PostgreSQL 18.4", "uuidv7()"), ("PostgreSQL 16.14", "gen_random_uuid()")]
)
def test_pgbench_makes_ids_that_sort_where_the_server_can(version: str, made: str) -> None:
    assert pgbench._id(version) == made
