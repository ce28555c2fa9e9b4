"""The server's queue of notifications is full, because a session that listens does not end its transaction.

It is shared by all databases of a server, so anybody's session can do that to us. Notifications are lost then, and
nothing else: what was stored is said to be stored, and everybody finds by looking what he is not told of.
"""

import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from tests.postgres import Cluster
from tests.words import a_task, claim_one, completed, enqueue, settle, status_of

from everbeat.model.state import TaskStatus
from everbeat.store.postgres.bells import PAUSE
from everbeat.store.postgres.store import PostgresStore

SMALLEST = "64"  # pages
USAGE = "SELECT pg_notification_queue_usage()"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    server = Cluster(max_notify_queue_pages=SMALLEST)
    yield server
    server.remove()


@pytest.fixture
def store(server: Cluster) -> Iterator[PostgresStore]:
    with closing(PostgresStore(server.new_database(), patience=2.0)) as store:
        yield store


def talk(talker: psycopg.Connection) -> None:
    while True:
        talker.execute("SELECT pg_notify('anything', repeat('.', 7900))")


@pytest.fixture
def forgotten(server: Cluster) -> Iterator[psycopg.Connection]:
    """Listens, and has left a transaction open; the queue is full behind it."""
    with psycopg.connect(server.url("postgres"), application_name="forgotten") as listener:
        listener.execute("LISTEN anything")
        listener.commit()
        listener.execute("SELECT 1")
        with psycopg.connect(server.url("postgres"), autocommit=True) as talker:
            talker.execute(USAGE)  # forgets what everybody has heard
            with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many notifications"):
                talk(talker)
            assert talker.execute(USAGE).fetchone() == (1.0,)
        yield listener


def test_what_is_sent_is_stored_and_said_to_be(store: PostgresStore, forgotten: psycopg.Connection) -> None:
    one = enqueue(store)
    two, three = (sent.id for sent in store.enqueue([a_task(), a_task(name="sub")]))

    assert [status_of(store, task_id) for task_id in (one, two, three)] == [TaskStatus.PENDING] * 3


def test_the_transaction_of_a_user_who_sends_in_it_commits(
    server: Cluster, store: PostgresStore, forgotten: psycopg.Connection
) -> None:
    with psycopg.connect(store.location) as connection:
        sent = store.enqueue_on(connection, [a_task(id="mine")])

    assert [one.id for one in sent.tasks] == ["mine"]
    assert status_of(store, "mine") is TaskStatus.PENDING


def test_what_has_ended_is_settled_and_said_to_be(store: PostgresStore, forgotten: psycopg.Connection) -> None:
    task = enqueue(store)
    taken = claim_one(store)
    time.sleep(PAUSE)  # who is told again so soon is told later, and not with the commit

    settle(store, taken, completed())

    assert store.wait(task, timeout=5) is not None


def test_the_check_names_whom_to_look_for(store: PostgresStore, forgotten: psycopg.Connection) -> None:
    (warning,) = store.check_integrity(budget=10).warnings

    assert "queue of notifications is" in warning
    assert f"backend {forgotten.info.backend_pid} (forgotten, database postgres)" in warning
    assert f"SELECT pg_terminate_backend({forgotten.info.backend_pid})" in warning


def test_a_queue_with_room_is_not_worth_a_word(store: PostgresStore) -> None:
    assert store.check_integrity(budget=10).warnings == []
