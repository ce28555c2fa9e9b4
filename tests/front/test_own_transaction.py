"""Sending inside a transaction of one's own on PostgreSQL: psycopg, SQLAlchemy and Django, each the real library."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from django.conf import settings
from django.utils.connection import ConnectionProxy
from tests.front.conftest import HandWorker
from tests.postgres import EmptyDatabase

from everbeat import AppConfig, Everbeat, PostgresConfig, ResultTimeout, StoreUnavailable, TaskConflict, TaskNotFound
from everbeat.model.state import TaskStatus
from everbeat.store.messages import TaskFilter

INSERT = "INSERT INTO orders VALUES (1)"
TABLE = "CREATE TABLE orders (number bigint)"


@dataclass
class Own:
    """A transaction of the user's, whichever library it is of."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


def with_psycopg(url: str, stack: ExitStack) -> Own:
    connection = stack.enter_context(closing(psycopg.connect(url, row_factory=psycopg.rows.dict_row)))
    return Own(connection, connection.execute, connection.commit, connection.rollback)


def an_engine(url: str, stack: ExitStack) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    stack.callback(engine.dispose)
    return engine


def with_session(url: str, stack: ExitStack) -> Own:
    session = stack.enter_context(sqlalchemy.orm.Session(an_engine(url, stack)))
    return Own(session, lambda sql: session.execute(sqlalchemy.text(sql)), session.commit, session.rollback)


def with_connection(url: str, stack: ExitStack) -> Own:
    connection = stack.enter_context(an_engine(url, stack).connect())
    return Own(connection, connection.exec_driver_sql, connection.commit, connection.rollback)


def a_django_connection(url: str, stack: ExitStack) -> Any:
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    from django.db.utils import ConnectionHandler

    parts = urlsplit(url)
    known = {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username,
        "PASSWORD": parts.password or "", "HOST": parts.hostname, "PORT": parts.port,
    }  # fmt: skip
    connection = ConnectionProxy(ConnectionHandler({"default": known}), "default")
    stack.callback(connection.close)
    return connection


def with_django(url: str, stack: ExitStack) -> Own:
    connection = a_django_connection(url, stack)
    connection.set_autocommit(False)
    return Own(connection, lambda sql: connection.cursor().execute(sql), connection.commit, connection.rollback)


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    return a_database.url()


@pytest.fixture
def app(url: str) -> Iterator[Everbeat]:
    with Everbeat(url) as app:
        app.open()
        with psycopg.connect(url) as connection:
            connection.execute(TABLE)
        yield app


@pytest.fixture
def add(app: Everbeat) -> Any:
    @app.task(name="add")
    def add(a: int, b: int = 10) -> int:
        return a + b

    return add


@pytest.fixture
def other_schema(url: str) -> Iterator[PostgresConfig]:
    yield PostgresConfig(database_url=url, schema="other")
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA other CASCADE")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=[with_psycopg, with_session, with_connection, with_django])
def own(request: pytest.FixtureRequest, app: Everbeat, url: str, stack: ExitStack) -> Own:
    made: Own = request.param(url, stack)
    return made


def ids(app: Everbeat) -> list[str]:
    return [task.id for task in app.store.tasks(TaskFilter())]


def orders(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM orders").fetchone()
        return int(row[0]) if row else 0


def test_a_task_is_sent_when_the_transaction_is_committed(add: Any, own: Own, worker: HandWorker) -> None:
    own.execute(INSERT)
    handle = add.options(connection=own.connection).enqueue(1, 2)
    with pytest.raises(TaskNotFound):
        handle.status()

    own.commit()

    assert (handle.status(), handle.created) == (TaskStatus.PENDING, True)
    worker.run_one()
    assert handle.result(timeout=0) == 3


def test_a_task_was_never_sent_if_the_transaction_is_rolled_back(app: Everbeat, add: Any, own: Own, url: str) -> None:
    own.execute(INSERT)
    handle = add.options(connection=own.connection).enqueue(1, 2)

    own.rollback()

    assert (ids(app), orders(url)) == ([], 0)
    with pytest.raises(TaskNotFound):
        handle.result()


def test_the_transaction_may_begin_with_the_task(app: Everbeat, add: Any, own: Own) -> None:
    add.options(connection=own.connection, exclusive_key="x", unique_key="y", delay=5).enqueue(1)
    add.options(connection=own.connection).enqueue_many([(1, 2), (3, 4)])
    assert ids(app) == []

    own.commit()

    assert len(ids(app)) == 3


def test_waiting_for_a_result_inside_the_transaction_is_refused(add: Any, own: Own) -> None:
    handle = add.options(connection=own.connection).enqueue(1)

    with pytest.raises(RuntimeError, match="Commit before waiting"):
        handle.result()
    with pytest.raises(RuntimeError, match="Commit before waiting"):
        asyncio.run(handle.aresult())

    own.commit()
    own.execute(INSERT)  # a transaction of its own, which has nothing to do with the task
    with pytest.raises(ResultTimeout):
        handle.result(timeout=0)


def test_what_is_refused_leaves_the_transaction_as_it_was(app: Everbeat, add: Any, own: Own, url: str) -> None:
    add.options(id="order-1").enqueue(1)
    own.execute(INSERT)

    assert not add.options(id="order-1", connection=own.connection).enqueue(1).created
    with pytest.raises(TaskConflict):
        add.options(id="order-1", connection=own.connection).enqueue(2)
    add.options(id="order-2", connection=own.connection).enqueue(2)
    own.commit()

    assert (sorted(ids(app)), orders(url)) == (["order-1", "order-2"], 1)


def test_another_store_is_refused_and_spoils_nothing(
    add: Any, own: Own, other_schema: PostgresConfig, url: str
) -> None:
    with closing(Everbeat(AppConfig(broker=other_schema))) as other:
        other.open()
    own.execute(INSERT)
    own.execute("SET LOCAL search_path TO other, public")

    with pytest.raises(ValueError, match="its own store"):
        add.options(connection=own.connection).enqueue(1)
    own.commit()

    assert orders(url) == 1


def test_tables_in_a_schema_of_their_own_are_found_and_the_search_path_is_left_alone(
    app: Everbeat, own: Own, other_schema: PostgresConfig, url: str
) -> None:
    with closing(Everbeat(AppConfig(broker=other_schema))) as other:
        add = other.task(name="add")(lambda a: a)
        other.open()
        own.execute(INSERT)
        handle = add.options(connection=own.connection).enqueue(1)
        own.execute(INSERT)  # in public, where the search path of the connection still leads
        own.commit()

        assert handle.status() is TaskStatus.PENDING
    assert (orders(url), ids(app)) == (2, [])


def test_a_worker_that_waits_is_woken_by_the_commit(app: Everbeat, add: Any, own: Own, worker: HandWorker) -> None:
    with closing(app.store.listen(worker.id)) as bell:
        bell.clear()
        add.options(connection=own.connection).enqueue(1)
        bell.wait(0.2)
        assert ids(app) == []

        own.commit()

        bell.wait(60)
        assert worker.run_one().name == "add"


# -- what is no transaction of the store ------------------------------------------------------------------------------


def test_a_connection_that_commits_by_itself_is_refused(app: Everbeat, add: Any, url: str, stack: ExitStack) -> None:
    plain = stack.enter_context(closing(psycopg.connect(url, autocommit=True)))
    alchemy = stack.enter_context(an_engine(url, stack).connect().execution_options(isolation_level="AUTOCOMMIT"))

    for connection in (plain, alchemy, a_django_connection(url, stack)):
        with pytest.raises(ValueError, match=r"transaction\.atomic"):
            add.options(connection=connection).enqueue(1)
    with plain.transaction():
        add.options(connection=plain).enqueue(1)

    assert len(ids(app)) == 1


def test_a_failed_or_closed_transaction_is_told_so(add: Any, url: str) -> None:
    with closing(psycopg.connect(url)) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nothing")
        with pytest.raises(ValueError, match="rolled back"):
            add.options(connection=connection).enqueue(1)
    with pytest.raises(ValueError, match="closed"):
        add.options(connection=connection).enqueue(1)


@pytest.mark.parametrize("kind", ["server", "file"])
def test_a_closed_connection_of_sqlalchemy_is_told_so(
    add: Any, url: str, tmp_path: Path, stack: ExitStack, kind: str
) -> None:
    engine = an_engine(url if kind == "server" else f"sqlite:///{tmp_path}/jobs.db", stack)
    connection = engine.connect()
    connection.close()

    with pytest.raises(ValueError, match=r"sqlalchemy.engine.base.Connection, is closed. Nothing was sent"):
        add.options(connection=connection).enqueue(1)


def test_another_database_or_driver_is_refused(add: Any, a_database: EmptyDatabase, url: str, stack: ExitStack) -> None:
    with (
        closing(psycopg.connect(url, dbname="postgres")) as connection,
        pytest.raises(ValueError, match="its own store"),
    ):
        add.options(connection=connection).enqueue(1)
    with sqlalchemy.create_engine("sqlite://").connect() as other, pytest.raises(ValueError, match="psycopg"):
        add.options(connection=other).enqueue(1)


def test_a_connection_that_may_not_send_says_so_and_can_go_on(add: Any, url: str) -> None:
    with closing(psycopg.connect(url)) as connection:
        connection.execute("CREATE ROLE everbeat_nobody")
        try:
            connection.execute("GRANT USAGE ON SCHEMA public TO everbeat_nobody")
            connection.execute("GRANT INSERT ON orders TO everbeat_nobody; SET ROLE everbeat_nobody")
            connection.execute(INSERT)
            with pytest.raises(StoreUnavailable, match=r"permission denied.*not added to its transaction"):
                add.options(connection=connection).enqueue(1)
            connection.execute(INSERT)
        finally:
            connection.rollback()


def test_the_connection_is_left_as_it_was(add: Any, url: str) -> None:
    with closing(psycopg.connect(url, row_factory=psycopg.rows.dict_row)) as connection:
        add.options(connection=connection).enqueue(1)

        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_an_async_connection_is_refused_with_what_to_use(add: Any, url: str) -> None:
    async def send() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            add.options(connection=connection).enqueue(1)

    with pytest.raises(ValueError, match=r"psycopg\.AsyncConnection is asynchronous.*asyncio\.to_thread"):
        asyncio.run(send())


class AsyncSession:
    """In the shape of SQLAlchemy's, which needs greenlet to be imported at all."""

    async def connection(self) -> None: ...

    async def execute(self, statement: object) -> None: ...


def test_an_async_session_is_refused_and_nothing_is_left_unawaited(add: Any) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=r"AsyncSession is asynchronous.*sqlalchemy\.orm\.Session"):
            add.options(connection=AsyncSession()).enqueue(1)
        gc.collect()

    assert not [one for one in said if "never awaited" in str(one.message)]


def test_a_transaction_that_may_not_write_is_told_so_and_can_go_on(app: Everbeat, add: Any, own: Own) -> None:
    own.execute("SET TRANSACTION READ ONLY")

    with pytest.raises(StoreUnavailable, match=r"read-only transaction.*not added.*SET TRANSACTION READ WRITE"):
        add.options(connection=own.connection).enqueue(1)

    own.execute("SELECT count(*) FROM orders")
    own.commit()
    assert ids(app) == []


# -- the same libraries on a file -------------------------------------------------------------------------------------


def test_sqlalchemy_works_on_a_file_too(tmp_path: Any) -> None:
    with closing(Everbeat(f"sqlite:///{tmp_path}/jobs.db")) as app:
        add = app.task(name="add")(lambda a: a)
        app.open()
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/jobs.db")
        with sqlalchemy.orm.Session(engine) as session:
            session.execute(sqlalchemy.text(TABLE))
            handle = add.options(connection=session).enqueue(1)
            with pytest.raises(RuntimeError, match="Commit before waiting"):
                handle.result()
            session.rollback()
            assert ids(app) == []
            add.options(connection=session).enqueue(1)
            session.commit()
        engine.dispose()

        assert len(ids(app)) == 1
