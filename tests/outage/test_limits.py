"""What a session of ours allows itself (PROTOCOL 34), and what becomes of a store that came to such a limit."""

import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from tests.flow_words import begin, graph, states, take
from tests.words import completed, enqueue, register

from everbeat import StoreUnavailable
from everbeat.store.messages import Ending, Flush
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.transaction import Locked

LIMITS = {
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "2s",
    "statement_timeout": "30s",
    "client_connection_check_interval": "1s",
}


@pytest.fixture
def store(store_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(store_url, patience=2.0)) as store:
        yield store


def test_every_session_limits_itself(store: PostgresStore) -> None:
    with store.database.session() as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in LIMITS}

    assert found == {name: (value,) for name, value in LIMITS.items()}


def test_a_statement_that_takes_too_long_is_an_outage_and_the_next_one_is_not(store: PostgresStore) -> None:
    with pytest.raises(StoreUnavailable, match="statement timeout"):
        sleep_too_long(store)

    assert enqueue(store)


def test_a_lock_that_is_not_given_is_an_outage_that_names_who_to_look_for(store: PostgresStore, store_url: str) -> None:
    with psycopg.connect(store_url) as stranger:
        stranger.execute("LOCK TABLE everbeat_tasks IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match=r"lock timeout.*pg_stat_activity") as caught:
            enqueue(store)
    assert not caught.value.maybe_stored

    assert enqueue(store)


def test_a_flush_in_a_hurry_waits_for_a_lock_a_moment_only_and_changes_nothing(
    store: PostgresStore, store_url: str
) -> None:
    register(store, "w1")
    begin(store, graph(a=""))
    node = take(store)["a"]
    with store.database.write(hurries=True) as tx:
        assert tx.one("SHOW lock_timeout") == ("50ms",)
    wanted = Flush(worker_id="w1", endings=[Ending(claim=node, verdict=completed())], hurries=True)

    with psycopg.connect(store_url) as stranger:
        stranger.execute("SELECT 1 FROM everbeat_workflows FOR UPDATE")
        with pytest.raises(Locked, match="lock timeout"):
            store.flush(wanted)
    assert states(store) == {"a": "RUNNING"}

    store.flush(wanted)
    assert states(store) == {"a": "COMPLETED"}
    with store.database.session() as connection:
        assert connection.execute("SHOW lock_timeout").fetchone() == ("2s",)


def test_a_transaction_that_is_left_open_is_ended_by_the_server_and_has_changed_nothing(store: PostgresStore) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        write_too_slowly(store)

    assert not caught.value.maybe_stored
    assert store.store_id != "lost"


def sleep_too_long(store: PostgresStore) -> None:
    with store.database.session() as connection:
        connection.execute("SET statement_timeout = '50ms'")
        connection.execute("SELECT pg_sleep(10)")


def write_too_slowly(store: PostgresStore) -> None:
    """Until the server has ended the session."""
    with store.database.write() as tx, store.database.session() as other:
        tx.run("UPDATE everbeat_meta SET value = 'lost' WHERE key = 'store_id'")
        row = tx.one("SELECT pg_backend_pid()")
        tx.run("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
        while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", row).fetchone():
            time.sleep(0.01)
