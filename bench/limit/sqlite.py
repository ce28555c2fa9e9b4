"""The floor on SQLite: the standard library's sqlite3, WAL, synchronous=FULL.

Where a statement changes many rows, what differs from row to row travels as one JSON object: up to twice as fast as
binding the values of each row.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from bench.limit import writes

FEW = 4
"""Up to so many rows are quicker one by one."""
AT_ONCE = 1000
COLUMNS = ", ".join(writes.NEW)
SHARED = ", ".join("?" * (len(writes.NEW) - 2))
INSERT = f"INSERT INTO everbeat_tasks ({COLUMNS}) VALUES (?, ?, {SHARED})"
INSERT_MANY = f"INSERT INTO everbeat_tasks ({COLUMNS}) SELECT key, CAST(value AS BLOB), {SHARED} FROM json_each(?)"
INSERT_UNIQUE = f"""
INSERT INTO everbeat_tasks (unique_key, {COLUMNS})
SELECT json_extract(value, '$[1]'), key, CAST(json_extract(value, '$[0]') AS BLOB), {SHARED} FROM json_each(?)"""
SETTLE = f"UPDATE everbeat_tasks SET {writes.SETTLE} = ?, result = ? WHERE seq = ?"
SETTLE_MANY = f"""
UPDATE everbeat_tasks SET {writes.SETTLE} = ?, result = CAST(u.value AS BLOB)
  FROM json_each(?) AS u WHERE seq = CAST(u.key AS INTEGER)"""
START = f"UPDATE everbeat_tasks SET {writes.START} = ? WHERE seq IN ({writes.READY} ?) RETURNING seq, id, args, fence"


class SQLiteWriter:
    """`takes_turns`: with other processes, by a lock. SQLite's own way of waiting keeps some of them out for ever."""

    def __init__(self, path: Path, *, takes_turns: bool = False) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        for pragma in ("synchronous = FULL", "wal_autocheckpoint = 4000", "cache_size = -16000"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._turns = os.open(f"{path}.turns", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) if takes_turns else None

    def insert(self, ids: Sequence[str], keys: Sequence[str] = ()) -> None:
        now = writes.now_us()
        shared = (writes.NAME, writes.QUEUE, writes.PRIORITY, writes.MAX_ATTEMPTS, now, now)
        self._begin()
        if keys:
            rows = {one: [writes.ARGS, key] for one, key in zip(ids, keys, strict=True)}
            self._connection.execute(INSERT_UNIQUE, (*shared, json.dumps(rows)))
        elif len(ids) <= FEW:
            args = writes.ARGS.encode()
            self._connection.executemany(INSERT, [(one, args, *shared) for one in ids])
        else:
            for at in range(0, len(ids), AT_ONCE):
                texts = json.dumps(dict.fromkeys(ids[at : at + AT_ONCE], writes.ARGS))
                self._connection.execute(INSERT_MANY, (*shared, texts))
        self._commit()

    def turn(self, ended: Sequence[int], limit: int) -> list[int]:
        now = writes.now_us()
        self._begin()
        if len(ended) <= FEW:
            result = writes.RESULT.encode()
            self._connection.executemany(SETTLE, [(now, result, seq) for seq in ended])
        else:
            self._connection.execute(SETTLE_MANY, (now, json.dumps(dict.fromkeys(ended, writes.RESULT))))
        started = self._connection.execute(START, (now, limit)).fetchall()
        self._commit()
        return [seq for seq, *_ in started]

    def close(self) -> None:
        self._connection.close()
        if self._turns is not None:
            os.close(self._turns)

    def _begin(self) -> None:
        if self._turns is not None:
            fcntl.flock(self._turns, fcntl.LOCK_EX)
        self._connection.execute("BEGIN IMMEDIATE")

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        if self._turns is not None:
            fcntl.flock(self._turns, fcntl.LOCK_UN)
