"""The write-ahead log of a SQLite file at start-up: that there is one, and that what it holds gets into the database.

Frames are counted by RESTART, because TRUNCATE, which follows, always says zero. Both hold the write lock. A reader in
the middle of a look keeps frames in the log: it is waited for as shortly as any other lock, and what is left is told.
"""

import os
from pathlib import Path

from everbeat.crashpoint import crash_point
from everbeat.errors import StoreUnavailable
from everbeat.model.integrity import Checkpoint
from everbeat.store.sqlite.connection import SQLiteDatabase

WAIT_MS = 100
"""For a reader. All other writers wait meanwhile."""


def restore_mode(database: SQLiteDatabase) -> str | None:
    """See to it that there is a write-ahead log; the mode that was found instead, if any."""
    with database.read() as tx:
        tx.one("SELECT 1 FROM sqlite_master LIMIT 1")  # a connection knows the mode of its last look
        (found,) = tx.one("PRAGMA journal_mode") or ("unknown",)
    if found == "wal":
        return None
    with database.alone() as connection:
        (now,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if now != "wal":
        raise StoreUnavailable(
            f"{database.path}: its journal mode is {now}, and SQLite can not change it to a write-ahead log here. "
            f"Nothing was changed. Put the file on a local disk."
        )
    return str(found)


def checkpoint(database: SQLiteDatabase) -> Checkpoint:
    with database.alone() as connection:
        connection.execute(f"PRAGMA busy_timeout={WAIT_MS}")
        crash_point("checkpoint.before")
        _, frames, moved = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        crash_point("checkpoint.moved")
        if moved == frames:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        crash_point("checkpoint.after")
    return Checkpoint(frames=max(0, moved), left=max(0, frames - moved))


def bytes_in(path: Path) -> int:
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0
