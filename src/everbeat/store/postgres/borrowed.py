"""Enqueue inside a transaction of the user's own, on the user's own connection (PROTOCOL 36).

A psycopg connection, a Django connection or a SQLAlchemy connection or session over psycopg. The tasks are there when
the user commits, and never were if the user rolls back; workers find them by a NOTIFY that the same transaction sends
when it commits.
"""

from collections.abc import Sequence
from typing import Any

import psycopg

from everbeat.errors import StoreUnavailable, TaskConflict
from everbeat.model.task import Enqueued, NewTask
from everbeat.store.postgres.bells import NotifyBells
from everbeat.store.postgres.connection import CLOCK_ID, Connection, PostgresDatabase, PostgresTransaction, now_on
from everbeat.store.transaction import RowRefused
from everbeat.store.verbs import sending

STORE_ID = "SELECT value FROM everbeat_meta WHERE key = 'store_id'"


def enqueue_on(
    given: Any, tasks: Sequence[NewTask], *, database: PostgresDatabase, bells: NotifyBells
) -> list[Enqueued]:
    """All or none of them, in the transaction that is open on the connection or begins here."""
    connection = _psycopg_connection(given)
    _require_transaction(connection)

    def moment() -> tuple[int, int, str]:
        now = now_on(connection)
        return now, now, CLOCK_ID

    with _Plainly(connection):
        _require_same_store(connection, database)
        transaction = PostgresTransaction(connection, database.scope, moment)
        try:
            with transaction.part():
                results = sending.enqueue(transaction, tasks)
                conflict = next((result for result in results if result.conflict), None)
                if conflict is not None:
                    raise TaskConflict(conflict.id)
                bells.ring_at_commit(connection, {(task.kind.queue, task.kind.name) for task in tasks})
        except RowRefused:
            raise
        except psycopg.OperationalError as error:
            raise StoreUnavailable(
                f"{database.location}: {str(error).splitlines()[0]} on the connection that was given. The tasks were "
                f"not added to its transaction."
            ) from error
    return results


def _psycopg_connection(given: Any) -> Connection:
    """The psycopg connection below whatever the user works with."""
    found = given
    if hasattr(found, "ensure_connection"):  # Django
        found.ensure_connection()
        found = found.connection
    if callable(getattr(found, "connection", None)):  # a SQLAlchemy session
        found = found.connection()
    found = getattr(found, "connection", found)  # a SQLAlchemy connection, or what its pool gives
    found = getattr(found, "driver_connection", found)
    if not isinstance(found, psycopg.Connection):
        raise ValueError(
            f"connection= takes a psycopg connection, or one of SQLAlchemy or Django over psycopg 3, not "
            f"{type(given).__module__}.{type(given).__qualname__}. Nothing was sent."
        )
    return found


def _require_transaction(connection: Connection) -> None:
    is_open = connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
    if connection.autocommit and not is_open:
        raise ValueError(
            "the connection commits each statement by itself and no transaction is open, so there is nothing that the "
            "tasks could be part of. Use it inside `with connection.transaction():`. Nothing was sent."
        )


def _require_same_store(connection: Connection, database: PostgresDatabase) -> None:
    row = connection.execute("SELECT to_regclass('everbeat_meta') IS NOT NULL").fetchone()
    found = connection.execute(STORE_ID).fetchone() if row and row[0] else None
    if found != (database.scope,):
        raise ValueError(
            f"the connection is not to the store {database.location}: a task can only be sent in a transaction of its "
            f"own store. Nothing was sent."
        )


class _Plainly:
    """Rows are tuples, whatever the user likes them to be."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._row_factory = connection.row_factory

    def __enter__(self) -> None:
        self._connection.row_factory = psycopg.rows.tuple_row

    def __exit__(self, *error: object) -> None:
        self._connection.row_factory = self._row_factory
