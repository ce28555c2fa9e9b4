"""Enqueue inside a transaction of the user's own, on the user's own connection (PROTOCOL 36).

A psycopg connection, a Django connection or a SQLAlchemy connection or session over psycopg. The tasks are there when
the user commits, and never were if the user rolls back; workers find them by a NOTIFY that the same transaction sends
when it commits. Whatever goes wrong here is undone to a savepoint: the user's transaction goes on without it.

The connection is left as it was found: its row factory, its adapters and its search path are not touched, or put back.

Things that do not work: a savepoint as the outermost transaction (psycopg would commit at its end); asking the user's
connection whether the transaction is over (it may be another one's by then, or closed, or busy in another thread).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import psycopg
from psycopg.abc import Buffer

from everbeat.errors import StoreUnavailable, TaskConflict
from everbeat.model.task import Enqueued, NewTask
from everbeat.store.messages import Sent
from everbeat.store.postgres.arrays import teach
from everbeat.store.postgres.batch import OneByOne, Talk
from everbeat.store.postgres.bells import NotifyBells
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.transaction import Connection, PostgresTransaction
from everbeat.store.postgres.trouble import MISSING
from everbeat.store.transaction import Row, RowRefused
from everbeat.store.verbs import sending
from everbeat.store.wrapped import driver_connection, kind_of

IS_OURS = "SELECT to_regclass('everbeat_meta') IS NOT NULL"
STORE_ID = "SELECT value FROM everbeat_meta WHERE key = 'store_id'"
SEARCH_PATH = "SELECT current_setting('search_path')"
SET_SEARCH_PATH = "SELECT set_config('search_path', %s, true)"
THIS_TRANSACTION = "SELECT pg_current_xact_id()::text"
STATE_OF = "SELECT pg_xact_status(%s::text::xid8)"
READ_WRITE = " Begin one that may write (SET TRANSACTION READ WRITE); a standby has none, connect to its primary"


def enqueue_on(given: Any, tasks: Sequence[NewTask], *, database: PostgresDatabase, bells: NotifyBells) -> Sent:
    """All or none of them, in the transaction that is open on the connection or begins here."""
    own = driver_connection(given)
    if not isinstance(own, psycopg.Connection):
        raise ValueError(
            f"connection= takes a psycopg connection, or one of Django, or a connection or session of SQLAlchemy, over "
            f"psycopg 3, not {kind_of(given)}. Nothing was sent."
        )
    _require_transaction(own)
    guest = cast(Connection, _Guest(own))
    transaction = PostgresTransaction(guest, database.scope)
    try:
        path = _one(guest, SEARCH_PATH)  # the first statement begins the transaction, where none is open
        with transaction.part(), _found_by(guest, database.schema, path):
            _require_same_store(guest, database)
            results = _stored(sending.enqueue(transaction, tasks))
            bells.ring_at_commit(guest, {(kind.queue, kind.name) for kind in sending.kinds_of(tasks)})
            number = _one(guest, THIS_TRANSACTION)
    except _OtherStore as error:
        raise ValueError(str(error)) from None
    except RowRefused as refused:
        if isinstance(refused.__cause__, MISSING):
            raise _not_added(database, refused.__cause__) from refused
        raise
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        raise _not_added(database, error) from error
    return Sent(results, lambda: _is_open(database, number))


class _OtherStore(Exception):
    """The connection leads elsewhere."""


class _OurText(psycopg.adapt.Loader):
    """A text on a connection whose driver leaves texts as they come (SQL_ASCII): as we have stored it."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


class _Guest:
    """The user's connection, as far as a transaction of ours needs it, with cursors that are ours."""

    takes_copies = False
    """It may be in the middle of a pipeline."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def cursor(self) -> psycopg.Cursor[Row]:
        cursor = psycopg.Cursor(self._connection, row_factory=psycopg.rows.tuple_row)
        teach(cursor.adapters)
        if self._connection.info.encoding == "ascii":  # the server does not say what texts are in
            cursor.adapters.register_loader("text", _OurText)
        return cursor

    def execute(self, sql: Any, values: Any = None) -> psycopg.Cursor[Row]:
        return self.cursor().execute(sql, values)

    def together(self) -> Talk:
        return OneByOne(self.execute)

    def transaction(self) -> AbstractContextManager[Any]:
        return self._connection.transaction()


def _require_transaction(connection: psycopg.Connection[Any]) -> None:
    status = connection.info.transaction_status
    if connection.closed:
        raise ValueError("the connection is closed. Nothing was sent.")
    if status == psycopg.pq.TransactionStatus.INERROR:
        raise ValueError("the transaction on the connection has failed: it can only be rolled back. Nothing was sent.")
    if connection.autocommit and status == psycopg.pq.TransactionStatus.IDLE:
        raise ValueError(
            "the connection commits each statement by itself and no transaction is open, so there is nothing that the "
            "tasks could be part of. Use it inside `with connection.transaction():`, in Django inside "
            "`with transaction.atomic():`. Nothing was sent."
        )


@contextmanager
def _found_by(connection: Connection, schema: str | None, path: str) -> Iterator[None]:
    """Our tables are found where the store has them. If it raises, the savepoint puts the path back."""
    if schema is None:
        yield
        return
    connection.execute(SET_SEARCH_PATH, (f'"{schema}"',))
    yield
    connection.execute(SET_SEARCH_PATH, (path,))


def _require_same_store(connection: Connection, database: PostgresDatabase) -> None:
    if not _one(connection, IS_OURS) or _one(connection, STORE_ID) != database.scope:
        raise _OtherStore(
            f"the connection is not to the store {database.location}: a task can only be sent in a transaction of its "
            f"own store. Nothing was sent."
        )


def _stored(results: Sequence[Enqueued]) -> Sequence[Enqueued]:
    conflict = next((result for result in results if result.conflict), None)
    if conflict is not None:
        raise TaskConflict(conflict.id)
    return results


def _is_open(database: PostgresDatabase, number: str) -> bool:
    """Whether the transaction of this number is still under way, asked on a connection of our own."""
    with database.session() as connection:
        try:
            return bool(_one(connection, STATE_OF, number) == "in progress")
        except psycopg.errors.InvalidParameterValue:  # not from here: the server is another one by now
            return False


def _not_added(database: PostgresDatabase, error: BaseException) -> StoreUnavailable:
    said = str(error).splitlines()[0].rstrip(".")
    advice = READ_WRITE if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) else ""
    return StoreUnavailable(
        f"{database.location}: {said} on the connection that was given. The tasks were not added to its transaction."
        + advice
    )


def _one(connection: Connection, sql: str, *values: Any) -> Any:
    row = connection.execute(sql, values or None).fetchone()
    return row[0] if row else None
