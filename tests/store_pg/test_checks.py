"""What `db check` and a starting worker see of a PostgreSQL server: indexes, and transactions that hurt claims."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from tests.postgres import EmptyDatabase

from everbeat.store.postgres import checks
from everbeat.store.postgres.store import PostgresStore


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


def test_a_server_without_amcheck_is_told_what_it_lacks(store: PostgresStore) -> None:
    found = store.check_integrity(budget=10)

    assert (found.passed, found.complete, found.warnings) == (True, True, [])
    assert found.notes == ["indexes were not checked: CREATE EXTENSION amcheck lets everbeat do it"]


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
