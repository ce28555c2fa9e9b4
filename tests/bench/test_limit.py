"""The floor does what it says: every row is written, claimed once and settled."""

import sqlite3
from pathlib import Path

from bench.limit import writes
from bench.limit.sqlite import SQLiteWriter


def test_a_drain_settles_every_row_once(tmp_path: Path) -> None:
    writer = SQLiteWriter(tmp_path / "floor.db")

    writes.single(writer, 5)
    writes.together(writer, 50, 16)
    rate = writes.drain(writer, 45, 7)

    writer.close()
    with sqlite3.connect(tmp_path / "floor.db") as connection:
        query = "SELECT status, attempt, fence, count(*) FROM floor_tasks GROUP BY status, attempt, fence"
        assert connection.execute(query).fetchall() == [("COMPLETED", 1, 2, 100)]
    assert rate > 0
