"""Enqueue inside a transaction of the user's own, on the user's own connection to the store's file (PROTOCOL 36).

The tasks are there when the user commits, and never were if the user rolls back; workers find them by their poll. The
connection is left as it was found, but for automatic checkpoints: those are switched off, because only we know when no
writer overlaps with one.

Things that do not work: the autocommit mode without a transaction (there would be nothing to roll back); a savepoint as
the outermost transaction (its release commits); trusting the file name (a copy of the file has the same store id).
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from everbeat.clock import Clock
from everbeat.errors import StoreUnavailable, TaskConflict
from everbeat.model.task import Enqueued, NewTask
from everbeat.store.messages import Sent
from everbeat.store.sqlite.connection import SQLiteDatabase
from everbeat.store.sqlite.transaction import SQLiteTransaction
from everbeat.store.verbs import sending
from everbeat.store.wrapped import driver_connection, kind_of

FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"
STORE_ID = "SELECT value FROM everbeat_meta WHERE key = 'store_id'"


def enqueue_on(given: Any, tasks: Sequence[NewTask], *, database: SQLiteDatabase, store_id: str, clock: Clock) -> Sent:
    """All or none of them, in the transaction that is open on the connection or begins here."""
    connection = driver_connection(given)
    if not isinstance(connection, sqlite3.Connection):
        raise ValueError(
            f"connection= takes an open sqlite3.Connection to the store's own file, or one of SQLAlchemy or Django "
            f"over sqlite3, not {kind_of(given)}. Nothing was sent."
        )
    try:
        with _plainly(connection):
            _require_same_store(connection, database, store_id)
            connection.execute("PRAGMA wal_autocheckpoint=0")
            _require_transaction(connection)
            transaction = SQLiteTransaction(connection, clock)
            with transaction.part():
                results = _stored(sending.enqueue(transaction, tasks))
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(
            f"{database.path}: {error} on the connection that was given. The tasks were not added to its transaction. "
            f"A transaction that will write should begin with BEGIN IMMEDIATE"
        ) from error
    except sqlite3.ProgrammingError as error:  # it is closed, or belongs to another thread
        raise ValueError(f"the connection can not be used: {str(error).rstrip('.')}. Nothing was sent.") from error
    return Sent(results, lambda: _is_open(connection))


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # it was closed
        return False


def _stored(results: Sequence[Enqueued]) -> Sequence[Enqueued]:
    conflict = next((result for result in results if result.conflict), None)
    if conflict is not None:
        raise TaskConflict(conflict.id)
    return results


@contextmanager
def _plainly(connection: sqlite3.Connection) -> Iterator[None]:
    """Rows are tuples and texts are str, whatever the user likes them to be."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory


def _require_same_store(connection: sqlite3.Connection, database: SQLiteDatabase, store_id: str) -> None:
    (file,) = connection.execute(FILE).fetchone()
    problem = f"the connection is to {file or 'a database in memory'}, the store is {database.path}"
    try:
        found = connection.execute(STORE_ID).fetchone()
        is_same = found == (store_id,) and bool(file) and os.path.samefile(file, database.path)
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        is_same = False
    except OSError:
        is_same = False
    if not is_same:
        raise ValueError(f"{problem}: a task can only be sent in a transaction of its own store. Nothing was sent.")


def _require_transaction(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        return
    autocommit = getattr(connection, "autocommit", -1)
    if autocommit is True or (autocommit == -1 and connection.isolation_level is None):
        raise ValueError(
            "the connection commits each statement by itself and no transaction is open, so there is nothing that the "
            'tasks could be part of. Execute "BEGIN IMMEDIATE" first. Nothing was sent.'
        )
    connection.execute("BEGIN IMMEDIATE")  # where sqlite3 itself would have begun one, at the first INSERT
