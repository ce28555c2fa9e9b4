"""Many rows in one statement: the same as one statement for each."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from everbeat.clock import SystemClock
from everbeat.store import filling
from everbeat.store.sqlite import together
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.verbs import claiming, settling

WORKER, NOW = "w", 7


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = SQLiteStore(tmp_path / "q.db", clock=SystemClock())
    filling.fill_ready(made, 12, name="add")
    with made.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET fence = 4 WHERE seq > 8")
    yield made
    made.close()


def launched(store: SQLiteStore) -> list[tuple[int, int]]:
    """Seq and fence of all, which are running now."""
    with store.database.write() as tx:
        found = tx.all("SELECT seq, fence FROM everbeat_tasks ORDER BY seq")
        assert tx.many(claiming.LAUNCH, [(WORKER, 0, NOW, seq, fence) for seq, fence in found]) == len(found)
    return [(seq, fence + 1) for seq, fence in found]


def results(store: SQLiteStore) -> list[Any]:
    with store.database.read() as tx:
        return [result for (result,) in tx.all("SELECT result FROM everbeat_tasks ORDER BY seq")]


@pytest.mark.parametrize(
    "given",
    [
        [b"null"] * 12,
        [b"x" * length for length in range(12)],
        [None if number % 2 else b"%d" % number for number in range(12)],
        ["\u00e9\0".encode() * number for number in range(12)],
    ],
    ids=["all alike", "of all lengths", "some have none", "not ASCII"],
)
def test_each_row_gets_its_own_result(store: SQLiteStore, given: list[bytes | None]) -> None:
    rows = [(result, NOW, seq, fence, WORKER) for result, (seq, fence) in zip(given, launched(store), strict=True)]

    with store.database.write() as tx:
        assert tx.many(settling.COMPLETE, rows) == len(rows)

    assert results(store) == given


def test_a_row_whose_fence_has_moved_is_left_alone_and_not_counted(store: SQLiteStore) -> None:
    rows = [(b"1", NOW, seq, fence + (seq == 3), WORKER) for seq, fence in launched(store)]

    with store.database.write() as tx:
        assert tx.many(settling.COMPLETE, rows) == len(rows) - 1

    assert [seq for seq, result in enumerate(results(store), 1) if result is None] == [3]


def test_rows_that_differ_in_their_fence_only_are_a_statement_for_each_fence() -> None:
    rows = [(WORKER, 0, NOW, seq, 0 if seq < 9 else 4) for seq in range(12)]

    said = together.in_few(claiming.LAUNCH, rows)

    assert said is not None
    assert [values[0] for _, values in said] == ["[0,1,2,3,4,5,6,7,8]", "[9,10,11]"]


def test_rows_that_have_little_in_common_are_changed_one_by_one() -> None:
    assert together.in_few(claiming.LAUNCH, [(WORKER, 0, NOW, seq, seq) for seq in range(12)]) is None


def test_a_text_that_is_not_utf_8_keeps_nobody_from_reading_the_rows_around_it(store: SQLiteStore) -> None:
    with store.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET id = CAST(x'ff41' AS TEXT) WHERE seq = 5")
        found = list(tx.ahead(claiming.READY, ("default", "add"), 3))

    assert [row[1] for row in found] == list(range(1, 13))
    assert found[4][2] == "\ufffdA"


def test_reading_ahead_leaves_the_connection_as_it_was(store: SQLiteStore) -> None:
    with store.database.write() as tx:
        connection: sqlite3.Connection = tx._connection
        before = connection.text_factory
        next(tx.ahead(claiming.READY, ("default", "add"), 3))
        assert connection.text_factory is before
