"""Sending inside a transaction of one's own: there when it is committed, and never there if it is not."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.front.conftest import HandWorker

import everbeat
from everbeat import Everbeat, StoreUnavailable, TaskConflict, TaskNotFound, TaskStatus
from everbeat.store.messages import TaskFilter

SOURCE = Path(everbeat.__file__).parents[1]


@pytest.fixture
def path(app: Everbeat, tmp_path: Path) -> Path:
    app.open()
    return tmp_path / "front.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER)")
        connection.commit()
        yield connection


@pytest.fixture
def add(app: Everbeat) -> Any:
    @app.task(name="add")
    def add(a: int, b: int = 10) -> int:
        return a + b

    return add


def orders(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])


def test_a_task_is_sent_when_the_transaction_is_committed(
    add: Any, connection: sqlite3.Connection, worker: HandWorker
) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    handle = add.options(connection=connection).enqueue(1, 2)
    with pytest.raises(TaskNotFound):
        handle.status()

    connection.commit()

    assert (handle.status(), handle.created) == (TaskStatus.PENDING, True)
    worker.run_one()
    assert handle.result(timeout=0) == 3


def test_a_task_was_never_sent_if_the_transaction_is_rolled_back(
    app: Everbeat, add: Any, connection: sqlite3.Connection
) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    handle = add.options(connection=connection).enqueue(1, 2)

    connection.rollback()

    assert (app.store.tasks(TaskFilter()), orders(connection)) == ([], 0)
    with pytest.raises(TaskNotFound):
        handle.result()


def test_the_transaction_may_begin_with_the_task(app: Everbeat, add: Any, connection: sqlite3.Connection) -> None:
    with connection:
        add.options(connection=connection).enqueue_many([(1, 2), (3, 4)])
        assert connection.in_transaction
        assert app.store.tasks(TaskFilter()) == []

    assert len(app.store.tasks(TaskFilter())) == 2


def test_an_explicit_transaction_is_used(app: Everbeat, add: Any, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        add.options(connection=connection).enqueue(1)
        assert app.store.tasks(TaskFilter()) == []
        connection.execute("COMMIT")

    assert len(app.store.tasks(TaskFilter())) == 1


def test_a_connection_that_commits_by_itself_is_refused(app: Everbeat, add: Any, path: Path) -> None:
    own = closing(sqlite3.connect(path, isolation_level=None))
    with own as connection, pytest.raises(ValueError, match="BEGIN IMMEDIATE"):
        add.options(connection=connection).enqueue(1)

    assert app.store.tasks(TaskFilter()) == []


def test_waiting_for_a_result_inside_the_transaction_is_refused(add: Any, connection: sqlite3.Connection) -> None:
    handle = add.options(connection=connection).enqueue(1)

    with pytest.raises(RuntimeError, match="Commit before waiting"):
        handle.result()
    with pytest.raises(RuntimeError, match="Commit before waiting"):
        asyncio.run(handle.aresult())

    connection.commit()
    connection.close()
    with pytest.raises(everbeat.ResultTimeout):
        handle.result(timeout=0)


def test_the_same_id_again_is_the_same_task_and_another_call_a_conflict_that_spoils_nothing(
    app: Everbeat, add: Any, connection: sqlite3.Connection
) -> None:
    add.options(id="order-1").enqueue(1)
    connection.execute("INSERT INTO orders VALUES (1)")

    assert not add.options(id="order-1", connection=connection).enqueue(1).created
    with pytest.raises(TaskConflict):
        add.options(id="order-1", connection=connection).enqueue(2)
    add.options(id="order-2", connection=connection).enqueue(2)
    connection.commit()

    assert orders(connection) == 1
    assert sorted(task.id for task in app.store.tasks(TaskFilter())) == ["order-1", "order-2"]


def test_the_connection_is_left_as_it_was(add: Any, connection: sqlite3.Connection) -> None:
    add.options(id="x").enqueue(1)
    connection.row_factory, connection.text_factory = sqlite3.Row, bytes

    again = add.options(id="x", connection=connection).enqueue(1)

    assert not again.created
    assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)
    (checkpoint,) = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    assert checkpoint == 0


def test_a_bad_argument_leaves_the_transaction_alone(add: Any, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")

    with pytest.raises(everbeat.PayloadError):
        add.options(connection=connection).enqueue("x")
    connection.commit()

    assert orders(connection) == 1


def test_another_database_is_refused(app: Everbeat, add: Any, path: Path, tmp_path: Path) -> None:
    add.enqueue(0)
    app.close()
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    app.open()
    with closing(Everbeat(f"sqlite:///{tmp_path}/other.db")) as other:
        other.open()

    for file in (copy, tmp_path / "other.db", tmp_path / "empty.db", ":memory:"):
        with closing(sqlite3.connect(file)) as connection, pytest.raises(ValueError, match="its own store"):
            add.options(connection=connection).enqueue(1)


def test_a_link_to_the_file_is_the_file(app: Everbeat, add: Any, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with closing(sqlite3.connect(link)) as connection, connection:
        add.options(connection=connection).enqueue(1)

    assert len(app.store.tasks(TaskFilter())) == 1


def test_a_stale_transaction_is_told_what_to_do(app: Everbeat, add: Any, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    assert orders(connection) == 0
    add.enqueue(0)

    with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
        add.options(connection=connection).enqueue(1)

    connection.rollback()
    assert len(app.store.tasks(TaskFilter())) == 1


def test_it_can_be_awaited_in_the_thread_of_the_connection(
    app: Everbeat, add: Any, connection: sqlite3.Connection
) -> None:
    async def send() -> None:
        await add.options(connection=connection).aenqueue(1)
        await add.options(connection=connection).aenqueue_many([(2,), (3,)])

    asyncio.run(send())
    connection.commit()

    assert len(app.store.tasks(TaskFilter())) == 3


def test_a_connection_that_is_closed_or_of_another_thread_is_told_so(add: Any, path: Path) -> None:
    closed = sqlite3.connect(path)
    closed.close()
    with pytest.raises(ValueError, match=r"closed database\. Nothing was sent"):
        add.options(connection=closed).enqueue(1)

    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(sqlite3.connect, path).result()
        with pytest.raises(ValueError, match=r"created in a thread.*Nothing was sent"):
            add.options(connection=elsewhere).enqueue(1)
        pool.submit(elsewhere.close).result()


def test_only_a_connection_is_one(add: Any) -> None:
    with pytest.raises(ValueError, match="connection must be"):
        add.options(connection="jobs.db")


SHOP = """
from everbeat import Everbeat
app = Everbeat("sqlite:///jobs.db")

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b
"""


def test_a_worker_finds_it_after_the_commit(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    app = Everbeat(f"sqlite:///{tmp_path}/jobs.db")
    add = app.task(name="add")(lambda a, b: a + b)
    app.open()
    command = [sys.executable, "-m", "everbeat", "worker", "start", "shop:app", "--processes", "1"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    worker = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert any(line.strip() == "ready" for line in worker.stdout)
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            handle = add.options(connection=connection).enqueue(1, 2)
            connection.commit()
            assert handle.result(timeout=60) == 3
    finally:
        worker.terminate()
        worker.communicate()
        app.close()
