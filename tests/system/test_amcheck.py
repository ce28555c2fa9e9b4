"""What amcheck sees of the indexes. The server of the wheel has no extensions, so this is one of the system."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from tests.postgres import Cluster
from tests.words import enqueue

from everbeat.store.postgres.store import PostgresStore

READY = "UPDATE pg_index SET indisready = %s WHERE indexrelid = 'shop.everbeat_tasks_ready'::regclass"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    server = Cluster(version="15")
    yield server
    server.remove()


@pytest.fixture
def url(server: Cluster) -> str:
    return server.new_database()


@pytest.fixture
def administrator(url: str) -> Iterator["psycopg.Connection"]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION amcheck")
        yield connection


def test_an_index_that_lacks_a_row_is_named_with_what_mends_it(url: str, administrator: "psycopg.Connection") -> None:
    """The tables need not be where amcheck is."""
    with closing(PostgresStore(url, schema="shop", patience=2.0)) as store:
        administrator.execute(READY, (False,))
        enqueue(store)
        administrator.execute(READY, (True,))

        found = store.check_integrity(budget=10)

    assert not found.passed
    assert "REINDEX INDEX everbeat_tasks_ready makes it anew" in found.errors[0]


def test_a_check_that_takes_longer_than_it_may_is_not_complete_and_not_an_error(
    url: str, administrator: "psycopg.Connection"
) -> None:
    with closing(PostgresStore(url, patience=2.0)) as store, administrator.transaction():
        administrator.execute("LOCK TABLE everbeat_tasks IN ACCESS EXCLUSIVE MODE")

        found = store.check_integrity(budget=0.5)

    assert (found.passed, found.complete) == (True, False)
