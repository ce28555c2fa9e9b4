"""The schema in PostgreSQL: the same numbered steps as in SQLite, in its own types (see dialect.py).

Created on a database without our tables, by one process at a time; upgraded only when asked to (PROTOCOL 37), all or
nothing, while others work: whoever waits for a lock on a table holds up everybody who comes after, so each try waits
shortly, and there are many.
"""

import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import psycopg

from everbeat.crashpoint import crash_point
from everbeat.errors import StoreUnavailable
from everbeat.store import schema
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.dialect import translate, translate_schema
from everbeat.store.postgres.transaction import Connection
from everbeat.store.postgres.trouble import IN_THE_WAY

IS_OURS = "SELECT to_regclass('everbeat_meta') IS NOT NULL"
ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('everbeat schema'), hashtext(current_schema()))"
# Less than what our own sessions wait for a lock.
LIMITS = "SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = 0"
AGAIN_SECONDS = 0.5
TRY_SECONDS = 60.0
LONGEST_SECONDS = 86_400.0
"""A step that looks at every row of a large table takes as long as it takes."""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
MAKE_SCHEMA = 'CREATE SCHEMA IF NOT EXISTS "{name}"'


def found_in(database: PostgresDatabase) -> schema.Found | None:
    """None for a database without our tables."""
    with database.session() as connection, database.transaction(connection):
        return _found(database, connection)


def create(database: PostgresDatabase) -> schema.Found:
    """Make the schema if there is none, and say which there is now. Several processes may try at once."""
    return _patiently(database, _create)


def upgrade(database: PostgresDatabase) -> schema.Found:
    """Bring the schema to the newest step, all or nothing, and say which it had. Raises SchemaMismatch if this program
    can not use it, or if workers are at work that could not use it afterwards: they have been told to end."""
    _patiently(database, _raise_min_reader)
    return _patiently(database, _upgrade)


def sql(found: int | None) -> str:
    """What `upgrade` or `create` would run, for people."""
    return schema.migration(found, translate_schema)


def _patiently(
    database: PostgresDatabase, change: Callable[[PostgresDatabase, Connection], schema.Found]
) -> schema.Found:
    give_up = time.monotonic() + TRY_SECONDS
    while True:
        with database.session() as connection:
            try:
                with database.transaction(connection):
                    connection.execute(LIMITS)
                    found = change(database, connection)
                    crash_point("migrate.before_commit")
            except IN_THE_WAY:
                if time.monotonic() > give_up:
                    raise
            else:
                crash_point("migrate.after_commit")
                return found
        time.sleep(AGAIN_SECONDS)


def _create(database: PostgresDatabase, connection: Connection) -> schema.Found:
    if database.schema is not None and not _has_schema(connection, database.schema):
        with suppress(psycopg.errors.UniqueViolation), connection.transaction():  # somebody else has just made it
            connection.execute(MAKE_SCHEMA.format(name=database.schema))
    connection.execute(ONE_AT_A_TIME)
    found = _found(database, connection)
    if found is not None:
        return found
    _apply(connection, schema.steps())
    _set(connection, "store_id", str(uuid.uuid4()))
    return schema.Found(schema.newest(), schema.min_reader())


def _raise_min_reader(database: PostgresDatabase, connection: Connection) -> schema.Found:
    """From now on older workers claim nothing more."""
    found = _usable(database, connection)
    if schema.min_reader() > found.min_reader:
        _set(connection, schema.MIN_READER, str(schema.min_reader()))
    return found


def _upgrade(database: PostgresDatabase, connection: Connection) -> schema.Found:
    found = _usable(database, connection)
    todo = schema.missing(found.version)
    if any(step.min_reader > 1 for step in todo):
        older = connection.execute(translate(schema.OLDER_WORKERS), (schema.min_reader(),)).fetchall()
        schema.refuse_older(database.location, older, _now(connection))
    if todo:
        with connection.taking(LONGEST_SECONDS):
            _apply(connection, todo)
    return found


def _usable(database: PostgresDatabase, connection: Connection) -> schema.Found:
    connection.execute(ONE_AT_A_TIME)
    found = _found(database, connection)
    if found is None:
        raise StoreUnavailable(f"{database.location} has no tables of Everbeat. Nothing was changed.")
    if found.version > schema.newest():
        schema.check(database.location, found)
    return found


def _apply(connection: Connection, todo: list[schema.Step]) -> None:
    for step in todo:
        connection.execute(translate_schema(step.script).encode())
    _set(connection, schema.MIN_READER, str(schema.min_reader()))
    _set(connection, schema.VERSION, str(schema.newest()))


def _set(connection: Connection, key: str, value: str) -> None:
    connection.execute(translate(schema.SET_META), (key, value))


def _now(connection: Connection) -> int:
    """By the clock that beats are written by."""
    row = connection.execute(NOW).fetchone()
    return 0 if row is None else int(row[0])


def _has_schema(connection: Connection, name: str) -> bool:
    """Asked first: IF NOT EXISTS needs the right to create one even where there is one."""
    row = connection.execute(HAS_SCHEMA, (name,)).fetchone()
    return row is not None and bool(row[0])


def _found(database: PostgresDatabase, connection: Connection) -> schema.Found | None:
    found = connection.execute(IS_OURS).fetchone()
    if found is None or not found[0]:
        return None
    return schema.read(database.location, connection.execute(schema.FOUND).fetchall())
