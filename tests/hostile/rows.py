"""A store with something wrong in it: one row of each table, and what a hand may have written into each of its columns.

The tables and columns are read from the store itself, so a new one is tried as well. What the database itself refuses
(NULL where there must be something) can not be there.
"""

import sqlite3
from contextlib import closing
from importlib import resources
from pathlib import Path

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

from everbeat import Everbeat, Workflow
from everbeat.config import AppConfig, SQLiteConfig
from everbeat.store.interface import Held, Store
from everbeat.store.open import open_store

VALUES: dict[str, object] = {
    "null": None,
    "minus one": -1,
    "zero": 0,
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


def schema() -> str:
    folder = resources.files("everbeat.store.schema")
    return "\n".join(file.read_text() for file in folder.iterdir() if file.name.endswith(".sql"))


def tables(path: Path) -> dict[str, list[str]]:
    """Every table of ours with its columns."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'everbeat%'")
        names = sorted(name for (name,) in found)
        return {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in names}


def spread(path: Path, table: str, column: str) -> int:
    """For each value: copies of the rows of a table with that value in one column. How many the database took."""
    taken = 0
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA ignore_check_constraints=1")
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        numbered = {name for _, name, kind, _, _, key in columns if key and kind == "INTEGER"}
        named = {name for _, name, kind, _, _, key in columns if key and kind != "INTEGER"} | {"id"} - numbered
        if column in numbered:  # given by the database itself; the largest of all would be the last it can give
            return 0
        rows = connection.execute(f"SELECT * FROM {table} LIMIT {MOST_ROWS}").fetchall()
        for title, value in VALUES.items():
            for row in rows:
                copy = {name: cell for (_, name, *_), cell in zip(columns, row, strict=True) if name not in numbered}
                copy |= {name: f"{copy[name]}-{title.replace(' ', '-')}" for name in named & copy.keys()}
                copy[column] = value
                taken += _put(connection, table, copy, column if title == AS_TEXT else None)
    return taken


def spoil(path: Path, **columns: str) -> None:
    """Text in a column of every row, for tables that have one row only."""
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        for table, column in columns.items():
            assert connection.execute(f"UPDATE {table} SET {column} = 'yesterday'").rowcount > 0


def _put(connection: sqlite3.Connection, table: str, row: dict[str, object], as_text: str | None) -> bool:
    """Whether the database took it."""
    places = {name: "CAST(? AS TEXT)" if name == as_text else "?" for name in row}
    try:
        with connection:
            connection.execute(
                f"INSERT INTO {table} ({', '.join(places)}) VALUES ({', '.join(places.values())})", list(row.values())
            )
    except sqlite3.IntegrityError:
        return False
    return True


def furnish(path: Path) -> None:
    """A store with at least one row in every table."""
    config = AppConfig(broker=SQLiteConfig(path, durability="normal"))
    with closing(open_store(config)) as store:
        _fill(store)
    with Everbeat(config) as app:
        _start_workflow(app)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in tables(path):
            if connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,):
                _insert_something(connection, table)


def _fill(store: Store) -> None:
    """Tasks in every state, with their runs, history and late outcomes."""
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
    register(store, "w3", beat_interval_ms=1_000)
    held = claim_one(store, "w3")
    store.beat("w3", [Held(task_id=held.id, fence=held.fence, role="runner", pid=7)])
    enqueue(store, id="pending", name="add")
    enqueue(store, id="keyed", name="add", unique_key="u", exclusive_key="x")
    enqueue(store, id="in line", name="add", exclusive_key="x")
    store.set_paused("paused", is_paused=True, actor="me")
    store.take_role("reaper", "w3", lease_us=1)
    store.note_degraded("a task could not be recovered")


def _start_workflow(app: Everbeat) -> None:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    flow = Workflow("sum")
    flow.add(add, flow.add(add, 1, 2), 3)
    flow.start(app, id="flow")


def _insert_something(connection: sqlite3.Connection, table: str) -> None:
    """A plausible row: a number or a word in each column."""
    row = {
        name: {"TEXT": "something", "BLOB": b"something"}.get(kind, 1)
        for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
    }
    names, places = ", ".join(row), ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(row.values()))
