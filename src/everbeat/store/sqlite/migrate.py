"""The schema in a SQLite file: made, looked at, brought up to date while others work (PROTOCOL 37)."""

import sqlite3
import uuid
from pathlib import Path

from everbeat.crashpoint import crash_point
from everbeat.errors import StoreUnavailable
from everbeat.store import schema
from everbeat.store.sqlite.connection import SQLiteDatabase

IS_OURS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'everbeat_meta'"


def found_in(database: SQLiteDatabase) -> schema.Found | None:
    """None for a file without our tables."""
    with database.read(steady=True) as tx:
        if tx.one(IS_OURS) is None:
            return None
        return schema.read(str(database.path), tx.all(schema.FOUND))


def sql(found: int | None) -> str:
    """What `upgrade` or `create` would run, for people."""
    said = schema.migration(found)
    return f"PRAGMA journal_mode=WAL;\n{said}" if found is None else said


def upgrade(database: SQLiteDatabase) -> schema.Found:
    """Bring the schema to the newest step, all or nothing, and say which it had. Raises SchemaMismatch if this program
    can not use it, or if workers are at work that could not use it afterwards: they have been told to end."""
    with database.alone() as connection:
        connection.execute("BEGIN IMMEDIATE")
        found = _usable(connection, database.path)
        if schema.min_reader() > found.min_reader:
            _set(connection, schema.MIN_READER, str(schema.min_reader()))
        crash_point("migrate.before_commit")
        connection.execute("COMMIT")
        crash_point("migrate.after_commit")
    with database.alone() as connection:
        connection.execute("BEGIN IMMEDIATE")
        found = _usable(connection, database.path)
        if any(step.min_reader > 1 for step in schema.missing(found.version)):
            older = connection.execute(schema.OLDER_WORKERS, (schema.min_reader(),)).fetchall()
            schema.refuse_older(str(database.path), older, database.clock.wall_us())
        apply_missing(connection, found.version)
        crash_point("migrate.before_commit")
        connection.execute("COMMIT")
        crash_point("migrate.after_commit")
    return found


def _usable(connection: sqlite3.Connection, path: Path) -> schema.Found:
    found = found_on(connection, path)
    if found is None:
        raise StoreUnavailable(f"{path} is not an Everbeat store. Nothing was changed.")
    if found.version > schema.newest():
        schema.check(str(path), found)
    return found


def apply_missing(connection: sqlite3.Connection, version: int) -> None:
    """In the transaction that the connection is in."""
    todo = schema.missing(version)
    for step in todo:
        _run(connection, step.script)
    if todo:
        _set(connection, schema.MIN_READER, str(schema.min_reader()))
        _set(connection, schema.VERSION, str(schema.newest()))


def found_on(connection: sqlite3.Connection, path: Path) -> schema.Found | None:
    """None for a file without our tables."""
    if connection.execute(IS_OURS).fetchone() is None:
        return None
    return schema.read(str(path), connection.execute(schema.FOUND))


def create(database: SQLiteDatabase) -> schema.Found:
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
        found = found_on(connection, database.path)
        if found is not None:
            return found
        apply_missing(connection, 0)
        _set(connection, "store_id", str(uuid.uuid4()))
        crash_point("migrate.before_commit")
        connection.execute("COMMIT")
        crash_point("migrate.after_commit")
    return schema.Found(schema.newest(), schema.min_reader())


def _run(connection: sqlite3.Connection, script: str) -> None:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def _set(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute(schema.SET_META, (key, value))
