"""The schema in PostgreSQL: the same numbered steps as in SQLite, in its own types (see dialect.py).

Created on a database without our tables, by one process at a time; upgraded only when asked to (PROTOCOL 37), all or
nothing, without waiting long for locks that others hold.
"""

import uuid

from everbeat.errors import StoreUnavailable
from everbeat.store import schema
from everbeat.store.postgres.connection import Connection, PostgresDatabase
from everbeat.store.postgres.dialect import translate, translate_schema

IS_OURS = "SELECT to_regclass('everbeat_meta') IS NOT NULL"
ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('everbeat schema'), hashtext(current_schema()))"
PATIENT = "SET LOCAL lock_timeout = '10s'"
HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
MAKE_SCHEMA = 'CREATE SCHEMA IF NOT EXISTS "{name}"'


def version_of(database: PostgresDatabase) -> int | None:
    """None for a database without our tables."""
    with database.session() as connection:
        return _version(database, connection)


def create(database: PostgresDatabase) -> int:
    """Make the schema if there is none, and say which there is now. Several processes may try at once."""
    with database.session() as connection, connection.transaction():
        connection.execute(PATIENT)
        if database.schema is not None and not _has_schema(connection, database.schema):
            connection.execute(MAKE_SCHEMA.format(name=database.schema))
        connection.execute(ONE_AT_A_TIME)
        found = _version(database, connection)
        if found is not None:
            return found
        for version, script in schema.steps():
            _apply(connection, version, script)
        connection.execute(translate(schema.SET_META), ("store_id", str(uuid.uuid4())))
    return schema.newest()


def upgrade(database: PostgresDatabase) -> int:
    """Bring the schema to the newest step, all or nothing, and say which it had. Raises SchemaMismatch if it is newer
    than this program."""
    with database.session() as connection, connection.transaction():
        connection.execute(PATIENT)
        connection.execute(ONE_AT_A_TIME)
        found = _version(database, connection)
        if found is None:
            raise StoreUnavailable(f"{database.location} has no tables of Everbeat. Nothing was changed.")
        if found > schema.newest():
            schema.check(database.location, found)
        for version, script in schema.missing(found):
            _apply(connection, version, script)
    return found


def sql(found: int | None) -> str:
    """What `upgrade` or `create` would run, for people."""
    todo = schema.missing(found)
    lines = [f"-- step {version:04}\n{translate_schema(script)}" for version, script in todo]
    if found is None:
        lines.append(schema.set_meta("store_id", str(uuid.uuid4())))
    if todo:
        lines.append(schema.set_meta("schema_version", str(schema.newest())))
    return "\n".join(lines)


def _apply(connection: Connection, version: int, script: str) -> None:
    connection.execute(translate_schema(script).encode())
    connection.execute(translate(schema.SET_META), ("schema_version", str(version)))


def _has_schema(connection: Connection, name: str) -> bool:
    """Asked first: IF NOT EXISTS needs the right to create one even where there is one."""
    row = connection.execute(HAS_SCHEMA, (name,)).fetchone()
    return row is not None and bool(row[0])


def _version(database: PostgresDatabase, connection: Connection) -> int | None:
    found = connection.execute(IS_OURS).fetchone()
    if found is None or not found[0]:
        return None
    return schema.number(database.location, connection.execute(schema.VERSION).fetchone())
