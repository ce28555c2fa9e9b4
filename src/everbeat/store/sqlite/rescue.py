"""What to tell a person whose SQLite file is damaged beyond repair: what is known to be good, and what to do.

Nothing here changes the file. A copy without its indexes (VACUUM INTO) is tried, because a damaged index whose pages
can not even be thrown away is healed by it; it is put beside the file and named, never in its place (PROTOCOL 37).
"""

import os
import re
import shlex
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from everbeat.clock import SystemClock
from everbeat.errors import StoreUnavailable
from everbeat.model.integrity import Rescue
from everbeat.store.moments import moment
from everbeat.store.sqlite import integrity, side
from everbeat.store.sqlite.connection import SQLiteDatabase

# The newest report whose integrity check went well.
LAST_GOOD = """
SELECT at FROM everbeat_recovery_reports
 WHERE json_valid(report) AND json_extract(report, '$.integrity_check_passed') ORDER BY id DESC LIMIT 1"""

# Tables first: nothing is copied into an index that is there already.
SCHEMA = """
SELECT type, name, sql FROM main.sqlite_master
 WHERE sql IS NOT NULL AND substr(name, 1, 7) <> 'sqlite_'
 ORDER BY CASE type WHEN 'table' THEN 1 WHEN 'index' THEN 2 ELSE 3 END, rowid"""
CREATE = re.compile(r"CREATE\s+(UNIQUE\s+)?(TABLE|INDEX|VIEW|TRIGGER)\b", re.IGNORECASE)
SEQUENCES = """
UPDATE salvaged.sqlite_sequence
   SET seq = (SELECT max(o.seq) FROM main.sqlite_sequence o WHERE o.name = salvaged.sqlite_sequence.name)
 WHERE name IN (SELECT name FROM main.sqlite_sequence)"""

PATIENCE = 5.0
SALVAGE_SECONDS = 60.0


def rescue(path: Path) -> Rescue:
    """From here on no connection of this process to the file is closed, so that its log stays where it is."""
    database = SQLiteDatabase(path, durability="full", clock=SystemClock(), patience=PATIENCE)
    database.condemn()
    url = shlex.quote(f"sqlite:///{path}")
    backup = f"everbeat db backup {shlex.quote(f'{path}.backup')} --db {url}"
    files = " ".join(shlex.quote(str(file)) for file in _files(path))
    kept = shlex.quote(f"{path}.damaged")
    steps = [
        f"stop what uses it, and keep the files as they are: mkdir {kept} && cp -p {files} {kept}",
        f"back up what can be read: {backup}",
    ]
    salvaged = salvage(database)
    if salvaged is not None:
        restore = f"everbeat db restore {shlex.quote(str(salvaged))} --db {url}"
        steps.append(f"a copy without the damage was made; put it in its place: {restore}")
    else:
        steps.append(f"put an earlier backup in its place: everbeat db restore PATH --db {url}")
    return Rescue(recovery_point=recovery_point(database), backup_command=backup, steps=tuple(steps))


def recovery_point(database: SQLiteDatabase) -> str:
    """The last moment that is known to be good."""
    try:
        with database.read() as tx:
            row = tx.one(LAST_GOOD)
    except (StoreUnavailable, sqlite3.Error):
        row = None
    if row is not None and isinstance(row[0], int):
        return f"{_stamp(moment(row[0]))}, when an integrity check last passed"
    changed = max((os.stat(file).st_mtime for file in _files(database.path)), default=0.0)
    at = datetime.fromtimestamp(changed, UTC)
    return f"unknown: no integrity check that passed is recorded. The files were last changed at {_stamp(at)}"


def salvage(database: SQLiteDatabase) -> Path | None:
    """A whole copy in the side directory, if one can be made, and named by the state of the files it was made from.
    VACUUM copies the indexes page by page, so a damaged one is left behind only if the tables are copied row by row."""
    try:
        directory = side.make_directory(side.directory_of(database.path), like=database.path)
        if shutil.disk_usage(directory).free < 2 * database.path.stat().st_size:
            return None
    except (StoreUnavailable, OSError):
        return None
    copy = directory / f"salvaged-{_state(database.path)}.db"
    if copy.exists():
        return copy  # of the very same files: whoever is started again and again must not fill the disk
    part = copy.with_suffix(".part")
    for way in (_vacuum, _copy_tables):
        part.unlink(missing_ok=True)
        try:
            with database.alone() as connection:
                way(connection, part)
            os.chmod(part, database.path.stat().st_mode & 0o660)
            result = integrity.check(part, budget=SALVAGE_SECONDS)
            if result.passed and result.complete:
                return part.rename(copy)
        except (StoreUnavailable, sqlite3.Error, OSError):
            continue
    part.unlink(missing_ok=True)
    return None


def _state(path: Path) -> str:
    found = [file.stat() for file in _files(path)]
    return "-".join(f"{one.st_mtime_ns:x}" for one in found if one.st_size)


def _vacuum(connection: sqlite3.Connection, copy: Path) -> None:
    connection.execute("VACUUM INTO ?", (str(copy),))


def _copy_tables(connection: sqlite3.Connection, copy: Path) -> None:
    connection.execute("ATTACH ? AS salvaged", (str(copy),))
    try:
        connection.execute("BEGIN")
        schema = connection.execute(SCHEMA).fetchall()
        for kind, name, sql in schema:
            connection.execute(CREATE.sub(r"\g<0> salvaged.", sql, count=1))
            if kind == "table":
                columns = [row[1] for row in connection.execute(f'PRAGMA main.table_info("{name}")')]
                # In an order: without one SQLite would copy the indexes of the table as they are.
                order = "1" if "WITHOUT ROWID" in sql else "rowid"
                chosen = ", ".join(f'"{column}"' for column in columns)
                connection.execute(
                    f'INSERT INTO salvaged."{name}" ({chosen}) SELECT {chosen} FROM main."{name}" NOT INDEXED '
                    f"ORDER BY {order}"
                )
        connection.execute(SEQUENCES)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("DETACH salvaged")


def _files(path: Path) -> list[Path]:
    return [file for file in (path, path.with_name(f"{path.name}-wal")) if file.exists()]


def _stamp(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
