"""What `db check` and a starting worker see of a PostgreSQL server: indexes, and transactions that hurt claims."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from tests.postgres import EmptyDatabase
from tests.words import enqueue

from everbeat.store.postgres import checks
from everbeat.store.postgres.store import PostgresStore

READY = "UPDATE pg_index SET indisready = %s WHERE indexrelid = 'shop.everbeat_tasks_ready'::regclass"


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    return a_database.url()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url, patience=2.0)) as store:
        yield store


@pytest.fixture
def administrator(url: str) -> Iterator["psycopg.Connection"]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def with_amcheck(administrator: "psycopg.Connection") -> None:
    if not administrator.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'").fetchone():
        pytest.skip("this server has no amcheck; `make test-postgres VERSION=14` takes one that has")
    administrator.execute("CREATE EXTENSION amcheck")


def test_a_server_without_amcheck_is_told_what_it_lacks(store: PostgresStore) -> None:
    found = store.check_integrity(budget=10)

    assert (found.passed, found.complete) == (True, True)
    assert found.warnings == ["indexes were not checked: CREATE EXTENSION amcheck lets everbeat do it"]


def test_an_index_that_is_not_valid_is_an_error(store: PostgresStore, administrator: "psycopg.Connection") -> None:
    administrator.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'everbeat_tasks_due'::regclass")

    found = store.check_integrity(budget=10)

    assert (found.passed, found.errors) == (False, ["index everbeat_tasks_due is not valid"])


def test_the_oldest_transaction_is_named_with_what_ends_it(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "OLD_SECONDS", 0)
    with psycopg.connect(url, application_name="report") as forgotten:
        forgotten.execute("SELECT count(*) FROM everbeat_tasks")

        warning = store.check_integrity(budget=10).warnings[0]

        assert f"backend {forgotten.info.backend_pid} (report)" in warning
        assert f"SELECT pg_terminate_backend({forgotten.info.backend_pid})" in warning


@pytest.mark.usefixtures("with_amcheck")
def test_an_index_that_lacks_a_row_is_named_with_what_mends_it(url: str, administrator: "psycopg.Connection") -> None:
    """The tables need not be where amcheck is."""
    administrator.execute("DROP SCHEMA IF EXISTS shop CASCADE")
    with closing(PostgresStore(url, schema="shop", patience=2.0)) as store:
        administrator.execute(READY, (False,))
        enqueue(store)
        administrator.execute(READY, (True,))

        found = store.check_integrity(budget=10)

    assert not found.passed
    assert "REINDEX INDEX everbeat_tasks_ready makes it anew" in found.errors[0]


@pytest.mark.usefixtures("with_amcheck")
def test_a_check_that_takes_longer_than_it_may_is_not_complete_and_not_an_error(
    store: PostgresStore, administrator: "psycopg.Connection"
) -> None:
    with administrator.transaction():
        administrator.execute("LOCK TABLE everbeat_tasks IN ACCESS EXCLUSIVE MODE")

        found = store.check_integrity(budget=0.5)

    assert (found.passed, found.complete) == (True, False)
