"""The schema, in numbered steps. Created on an empty store; changed only when asked to (PROTOCOL 37)."""

import sqlite3
import uuid
from importlib import resources
from pathlib import Path

from everbeat.errors import SchemaMismatch, StoreUnavailable
from everbeat.model.flow import NodeStatus, WorkflowStatus
from everbeat.model.state import TaskStatus
from everbeat.store.sqlite.connection import SQLiteDatabase

IS_OURS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'everbeat_meta'"
VERSION = "SELECT value FROM everbeat_meta WHERE key = 'schema_version'"
SET_META = "INSERT INTO everbeat_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def steps() -> list[tuple[int, str]]:
    folder = resources.files("everbeat.store.sqlite") / "schema"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [(int(file.name[:4]), file.read_text()) for file in files]


def newest() -> int:
    return steps()[-1][0]


def version_of(database: SQLiteDatabase) -> int | None:
    """None for a file without our tables."""
    with database.read(steady=True) as tx:
        if tx.one(IS_OURS) is None:
            return None
        return _number(database.path, tx.one(VERSION))


def check(path: Path, found: int) -> None:
    if found > newest():
        raise SchemaMismatch(
            f"{path} has schema {found}, this Everbeat knows up to {newest()}. Nothing was changed. Upgrade Everbeat."
        )
    if found < newest():
        raise SchemaMismatch(
            f"{path} has schema {found}, this Everbeat needs {newest()}. Nothing was changed. Run: everbeat db migrate"
        )


def missing(found: int | None) -> list[tuple[int, str]]:
    """The steps from there to the newest schema."""
    return [(version, script) for version, script in steps() if version > (found or 0)]


def sql(found: int | None) -> str:
    """What `upgrade` or `create` would run, for people."""
    todo = missing(found)
    lines = [f"-- step {version:04}\n{_filled(script)}" for version, script in todo]
    if found is None:
        lines.insert(0, "PRAGMA journal_mode=WAL;")
        lines.append(_set_meta("store_id", str(uuid.uuid4())))
    if todo:
        lines.append(_set_meta("schema_version", str(newest())))
    return "\n".join(lines)


def _set_meta(key: str, value: str) -> str:
    return SET_META.replace("(?, ?)", f"('{key}', '{value}')") + ";"


def upgrade(database: SQLiteDatabase) -> int:
    """Bring the schema to the newest step, all or nothing, and say which it had. Raises SchemaMismatch if it is newer
    than this program."""
    with database.alone() as connection:
        connection.execute("BEGIN IMMEDIATE")
        found = version_in(connection, database.path)
        if found is None:
            raise StoreUnavailable(f"{database.path} is not an Everbeat store. Nothing was changed.")
        if found > newest():
            check(database.path, found)
        apply_missing(connection, found)
        connection.execute("COMMIT")
    return found


def apply_missing(connection: sqlite3.Connection, found: int) -> None:
    """In the transaction that the connection is in."""
    for version, script in missing(found):
        _apply(connection, version, script)


def version_in(connection: sqlite3.Connection, path: Path) -> int | None:
    """None for a file without our tables."""
    if connection.execute(IS_OURS).fetchone() is None:
        return None
    return _number(path, connection.execute(VERSION).fetchone())


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
            return _number(database.path, connection.execute(VERSION).fetchone())
        for version, script in steps():
            _apply(connection, version, script)
        connection.execute(SET_META, ("store_id", str(uuid.uuid4())))
        connection.execute("COMMIT")
    return newest()


def _apply(connection: sqlite3.Connection, version: int, script: str) -> None:
    statement = ""
    for line in _filled(script).splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    connection.execute(SET_META, ("schema_version", str(version)))


def _filled(script: str) -> str:
    states = {"{states}": TaskStatus, "{workflow_states}": WorkflowStatus, "{node_states}": NodeStatus}
    for place, named in states.items():
        script = script.replace(place, ", ".join(f"'{status}'" for status in named))
    return script


def _number(path: Path, stored: tuple[str, ...] | None) -> int:
    if stored is None or not stored[0].isdecimal():
        raise StoreUnavailable(f"{path}: its schema version is missing or damaged. Nothing was changed.")
    return int(stored[0])
