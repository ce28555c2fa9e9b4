"""The schema in a SQLite file: made, looked at, brought up to date."""

import sqlite3
import uuid
from pathlib import Path

from everbeat.crashpoint import crash_point
from everbeat.errors import StoreUnavailable
from everbeat.store import schema
from everbeat.store.sqlite.connection import SQLiteDatabase

IS_OURS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'everbeat_meta'"


def version_of(database: SQLiteDatabase) -> int | None:
    """None for a file without our tables."""
    with database.read(steady=True) as tx:
        if tx.one(IS_OURS) is None:
            return None
        return schema.number(str(database.path), tx.one(schema.VERSION))


def sql(found: int | None) -> str:
    """What `upgrade` or `create` would run, for people."""
    todo = schema.missing(found)
    lines = [f"-- step {version:04}\n{script}" for version, script in todo]
    if found is None:
        lines.insert(0, "PRAGMA journal_mode=WAL;")
        lines.append(schema.set_meta("store_id", str(uuid.uuid4())))
    if todo:
        lines.append(schema.set_meta("schema_version", str(schema.newest())))
    return "\n".join(lines)


def upgrade(database: SQLiteDatabase) -> int:
    """Bring the schema to the newest step, all or nothing, and say which it had. Raises SchemaMismatch if it is newer
    than this program."""
    with database.alone() as connection:
        connection.execute("BEGIN IMMEDIATE")
        found = version_in(connection, database.path)
        if found is None:
            raise StoreUnavailable(f"{database.path} is not an Everbeat store. Nothing was changed.")
        if found > schema.newest():
            schema.check(str(database.path), found)
        apply_missing(connection, found)
        crash_point("migrate.before_commit")
        connection.execute("COMMIT")
        crash_point("migrate.after_commit")
    return found


def apply_missing(connection: sqlite3.Connection, found: int) -> None:
    """In the transaction that the connection is in."""
    for version, script in schema.missing(found):
        _apply(connection, version, script)


def version_in(connection: sqlite3.Connection, path: Path) -> int | None:
    """None for a file without our tables."""
    if connection.execute(IS_OURS).fetchone() is None:
        return None
    return schema.number(str(path), connection.execute(schema.VERSION).fetchone())


def create(database: SQLiteDatabase) -> int:
    """Make the schema if the store has none, and say which it has now. Several processes may try at once; a file with
    somebody else's tables gets ours beside them."""
    with database.alone() as connection:
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnavailable(
                f"{database.path}: SQLite can not use a write-ahead log here (it offers {mode}). Nothing was changed. "
                f"Put the file on a local disk."
            )
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute(IS_OURS).fetchone():
            return schema.number(str(database.path), connection.execute(schema.VERSION).fetchone())
        for version, script in schema.steps():
            _apply(connection, version, script)
        connection.execute(schema.SET_META, ("store_id", str(uuid.uuid4())))
        crash_point("migrate.before_commit")
        connection.execute("COMMIT")
        crash_point("migrate.after_commit")
    return schema.newest()


def _apply(connection: sqlite3.Connection, version: int, script: str) -> None:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    connection.execute(schema.SET_META, ("schema_version", str(version)))
