"""A store with something wrong in it: one row of each table, and what a hand may have written into each of its columns.

The tables and columns are read from the store itself, so a new one is tried as well. What the database itself refuses
(NULL where there must be something, on PostgreSQL any value of another type) can not be there; its CHECKs are taken
away, and that a fence is not NULL, because whoever writes by hand can do that, too.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psycopg
from tests.words import (
    abandoned,
    claim_one,
    completed,
    enqueue,
    register,
    requeue,
    retried,
    settle,
    succeeded,
)  # fmt: skip

from everbeat.config import PostgresConfig, SQLiteConfig
from everbeat.store.interface import Store
from everbeat.store.messages import Held

VALUES: dict[str, object] = {
    "null": None,
    "minus one": -1,
    "zero": 0,
    "year 3000": 32_503_680_000_000_000,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "real": 1.5,
    "infinite": float("inf"),
    "empty": "",
    "text": "yesterday",
    "brace": '{"max_attempts":',
    "list": '["a", {}]',
    "number as text": "12",
    "json null": "null",
    "nul": "a\0b",
    "markup": "[red]\x1b[31m%s{}\n",
    "long": "x" * 10_000,
    "bytes": b"\xff\xfe\x00",
    "not utf-8": b"\xed\xa0\x80",  # written as text, below
}
AS_TEXT = "not utf-8"
MOST_ROWS = 12


class Column(NamedTuple):
    name: str
    kind: str
    """INTEGER, TEXT, BLOB or REAL."""
    is_key: bool
    is_given: bool
    """By the database itself; the largest of all would be the last it can give."""


class Hand(Protocol):
    """Somebody who writes into the tables of a store."""

    broker: SQLiteConfig | PostgresConfig

    @property
    def url(self) -> str: ...

    def tables(self) -> dict[str, list[Column]]:
        """Every table of ours with its columns."""

    def ask(self, sql: str) -> list[tuple[Any, ...]]: ...

    @contextmanager
    def writing(self) -> Iterator["Pen"]:
        """One connection, for many rows."""


class Pen(Protocol):
    def rows(self, sql: str) -> list[tuple[Any, ...]]: ...

    def write(self, sql: str) -> None: ...

    def put(self, table: str, row: dict[str, object], as_text: str | None = None) -> bool:
        """Whether the database took it."""

    def all_or_none(self, statements: Iterable["Statement"]) -> bool:
        """Whether the database took all of them."""

    def spoil(self, table: str, column: str) -> None:
        """What makes no sense in a column of every row, for tables that have one row only."""


class Statement(NamedTuple):
    sql: str
    values: Sequence[object] = ()
    """In place of question marks."""


# -- SQLite -----------------------------------------------------------------------------------------------------------


NULL_FENCES = """
UPDATE sqlite_schema SET sql = replace(sql, 'fence          INTEGER NOT NULL', 'fence INTEGER')
 WHERE name = 'everbeat_tasks'"""


@dataclass(frozen=True, slots=True)
class SQLiteHand:
    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def broker(self) -> SQLiteConfig:
        return SQLiteConfig(self.path, durability="normal")

    def tables(self) -> dict[str, list[Column]]:
        names = self.ask("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'everbeat%' ORDER BY name")
        return {name: list(self._columns(name)) for (name,) in names}

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            return connection.execute(sql).fetchall()

    @contextmanager
    def writing(self) -> Iterator["SQLitePen"]:
        with self._connection() as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA ignore_check_constraints=1")
            connection.execute("PRAGMA writable_schema=1")
            connection.execute(NULL_FENCES)
            connection.execute("PRAGMA writable_schema=RESET")
            connection.execute("BEGIN IMMEDIATE")
            yield SQLitePen(connection)
            connection.execute("COMMIT")

    def _columns(self, table: str) -> Iterator[Column]:
        found = self.ask(f"PRAGMA table_info({table})")
        keys = [name for _, name, _, _, _, key in found if key]
        for _, name, kind, _, _, key in found:
            yield Column(name, kind, bool(key), keys == [name] and kind == "INTEGER")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            yield connection


@dataclass(frozen=True, slots=True)
class SQLitePen:
    connection: sqlite3.Connection

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def write(self, sql: str) -> None:
        self.connection.execute(sql)

    def put(self, table: str, row: dict[str, object], as_text: str | None = None) -> bool:
        places = ", ".join("CAST(? AS TEXT)" if name == as_text else "?" for name in row)
        try:
            self.connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values()))
        except sqlite3.IntegrityError:
            return False
        return True

    def all_or_none(self, statements: Iterable[Statement]) -> bool:
        self.connection.execute("SAVEPOINT all_or_none")
        try:
            for sql, values in statements:
                self.connection.execute(sql, list(values))
        except sqlite3.IntegrityError:
            self.connection.execute("ROLLBACK TO all_or_none")
            return False
        finally:
            self.connection.execute("RELEASE all_or_none")
        return True

    def spoil(self, table: str, column: str) -> None:
        assert self.connection.execute(f"UPDATE {table} SET {column} = 'yesterday'").rowcount > 0


# -- PostgreSQL -------------------------------------------------------------------------------------------------------

KINDS = {"bigint": "INTEGER", "text": "TEXT", "bytea": "BLOB", "double precision": "REAL"}
COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type, k.column_name IS NOT NULL, c.is_identity = 'YES'
  FROM information_schema.columns c
  JOIN information_schema.tables t USING (table_schema, table_name)
  LEFT JOIN (information_schema.key_column_usage k JOIN information_schema.table_constraints p
             ON p.constraint_name = k.constraint_name AND p.constraint_type = 'PRIMARY KEY')
    ON k.table_name = c.table_name AND k.column_name = c.column_name
 WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.table_name LIKE 'everbeat%'
 ORDER BY c.table_name, c.ordinal_position"""
CHECKS = """
SELECT 'ALTER TABLE ' || conrelid::regclass || ' DROP CONSTRAINT ' || quote_ident(conname)
  FROM pg_constraint WHERE contype = 'c' AND connamespace = 'public'::regnamespace"""
FAR_AWAY = 2**63 - 1
REFUSED = (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError, psycopg.OperationalError)
"""A row, by its types, or a key that is too long."""


@dataclass(frozen=True, slots=True)
class PostgresHand:
    url: str

    @property
    def broker(self) -> PostgresConfig:
        return PostgresConfig(self.url)

    def tables(self) -> dict[str, list[Column]]:
        tables: dict[str, list[Column]] = {}
        for table, name, kind, is_key, is_given in self.ask(COLUMNS):
            tables.setdefault(table, []).append(Column(name, KINDS[kind], is_key, is_given))
        return tables

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    @contextmanager
    def writing(self) -> Iterator["PostgresPen"]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for (without,) in connection.execute(CHECKS).fetchall():
                connection.execute(without)
            connection.execute("ALTER TABLE everbeat_tasks ALTER COLUMN fence DROP NOT NULL")
            yield PostgresPen(connection)


@dataclass(frozen=True, slots=True)
class PostgresPen:
    connection: "psycopg.Connection[tuple[Any, ...]]"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql.encode()).fetchall()

    def write(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    def put(self, table: str, row: dict[str, object], as_text: str | None = None) -> bool:
        places = ", ".join(["%s"] * len(row))
        try:
            said = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})".encode()
            self.connection.execute(said, list(row.values()))
        except REFUSED:
            assert not self.connection.closed
            return False
        return True

    def all_or_none(self, statements: Iterable[Statement]) -> bool:
        try:
            with self.connection.transaction():
                for sql, values in statements:
                    self.connection.execute(sql.replace("?", "%s").encode(), list(values))
        except REFUSED:
            assert not self.connection.closed
            return False
        return True

    def spoil(self, table: str, column: str) -> None:
        assert self.connection.execute(f"UPDATE {table} SET {column} = {FAR_AWAY}".encode()).rowcount > 0


# -- both -------------------------------------------------------------------------------------------------------------


def tables_of_the_schema() -> list[str]:
    folder = resources.files("everbeat.store.schema")
    scripts = "\n".join(file.read_text() for file in folder.iterdir() if file.name.endswith(".sql"))
    return sorted(re.findall(r"^CREATE TABLE (everbeat_\w+)", scripts, re.M))


def spread(hand: Hand, tables: Sequence[str]) -> dict[str, int]:
    """For each value and column: copies of the rows of a table with that value in that column. How many rows each table
    has taken."""
    known = hand.tables()
    with hand.writing() as pen:
        return {table: sum(_spread(pen, table, known[table])) for table in tables}


def _spread(pen: Pen, table: str, columns: Sequence[Column]) -> Iterator[bool]:
    named = {column.name for column in columns if column.kind == "TEXT" and (column.is_key or column.name == "id")}
    free = [column.name for column in columns if not column.is_given]
    rows = pen.rows(f"SELECT {', '.join(free)} FROM {table} LIMIT {MOST_ROWS}")
    for column in free:
        for title, value in VALUES.items():
            for row in rows:
                copy = dict(zip(free, row, strict=True))
                copy |= {name: f"{copy[name]}-{title}-{column}".replace(" ", "-") for name in named}
                yield pen.put(table, copy | {column: value}, column if title == AS_TEXT else None)


def something(column: Column) -> object:
    return {"TEXT": "something", "BLOB": b"something"}.get(column.kind, 1)


def fill(store: Store) -> None:
    """Tasks in every state, with their runs, history and late outcomes. Workers beat often: who starts while one of
    another machine seems to live waits for its next beat."""
    for worker in ("w1", "w2", "w3"):
        register(store, worker, beat_interval_ms=1_000)
    enqueue(store, id="completed", name="add")
    settle(store, claim_one(store), completed(), outcome=succeeded())
    enqueue(store, id="failed", name="add")
    settle(store, claim_one(store), abandoned(quarantined=True))
    enqueue(store, id="retried", name="add", max_attempts=3)
    settle(store, claim_one(store), retried(delay_us=3_600_000_000))
    enqueue(store, id="late", name="add")
    lost = claim_one(store)
    requeue(store, lost)
    rival = claim_one(store, "w2")
    settle(store, lost, completed(), outcome=succeeded())
    settle(store, rival, completed(), outcome=succeeded())
    enqueue(store, id="running", name="add")
    held = claim_one(store, "w3")
    store.beat("w3", [Held(task_id=held.id, fence=held.fence, role="runner", pid=7)])
    enqueue(store, id="pending", name="add")
    enqueue(store, id="keyed", name="add", unique_key="u", exclusive_key="x")
    enqueue(store, id="in line", name="add", exclusive_key="x")
    store.set_paused("paused", is_paused=True, actor="me")
    store.take_role("reaper", "w3", lease_us=1)
    store.note_degraded("a task could not be recovered")
