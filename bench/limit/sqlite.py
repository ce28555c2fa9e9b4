"""The floor on SQLite: the standard library's sqlite3, WAL, synchronous=FULL."""

import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.limit import writes

INSERT = "INSERT INTO floor_tasks (id, name, queue, priority, created_at, run_at, args) VALUES (?, ?, ?, ?, ?, ?, ?)"
SETTLE = "UPDATE floor_tasks SET status = 'COMPLETED', finished_at = ?, result = ?, fence = fence + 1 WHERE seq = ?"
READY = """
SELECT seq, id, args, fence FROM floor_tasks WHERE status = 'PENDING' AND queue = 'default' AND name = ?
 ORDER BY queue, name, priority, seq LIMIT ?"""
START = """
UPDATE floor_tasks SET status = 'RUNNING', worker_id = 'floor', started_at = ?, fence = fence + 1, attempt = attempt + 1
 WHERE seq = ?"""


class SQLiteWriter:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 4000"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(writes.TABLE.format(serial="INTEGER PRIMARY KEY AUTOINCREMENT", blob="BLOB"))
        for index in writes.INDEXES:
            self._connection.execute(index)

    def insert(self, rows: list[tuple[Any, ...]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT, rows)
        self._connection.execute("COMMIT")

    def turn(self, ended: list[int], limit: int) -> list[int]:
        now = time.time_ns() // 1000
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(SETTLE, [(now, b"3", seq) for seq in ended])
        claims = self._connection.execute(READY, (writes.NAME, limit)).fetchall()
        self._connection.executemany(START, [(now, seq) for seq, *_ in claims])
        self._connection.execute("COMMIT")
        return [seq for seq, *_ in claims]

    def close(self) -> None:
        self._connection.close()


def samples(scale: float) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="everbeat-bench-") as directory:
        writer = SQLiteWriter(Path(directory) / "floor.db")
        try:
            return writes.samples(writer, scale)
        finally:
            writer.close()
