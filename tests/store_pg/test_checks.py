"""What `db check` and a starting worker see of a PostgreSQL server: indexes, and transactions that hurt claims."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgres import EmptyDatabase
from tests.words import enqueue

from everbeat.store.postgres import checks, limited
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


# What an earlier test has broken off may still run: a server looks for its client once a second.
END_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"""


def test_the_oldest_transaction_is_named_with_what_ends_it(
    store: PostgresStore, url: str, administrator: "psycopg.Connection", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "OLD_SECONDS", 0)
    administrator.execute(END_OTHERS)
    with psycopg.connect(url, application_name="report") as forgotten:
        forgotten.execute("SELECT count(*) FROM everbeat_tasks")

        warning = store.check_integrity(budget=10).warnings[0]

        assert f"backend {forgotten.info.backend_pid} (report)" in warning
        assert f"SELECT pg_terminate_backend({forgotten.info.backend_pid})" in warning


def test_transactions_that_may_not_be_seen_are_not_called_absent(
    url: str, administrator: "psycopg.Connection", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "OLD_SECONDS", 0)
    administrator.execute(END_OTHERS)
    role, place = f"checks_{os.getpid()}", urlsplit(url)
    administrator.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO {role}".encode())
    own = place._replace(netloc=f"{role}@{place.netloc.rpartition('@')[2]}").geturl()
    try:
        with closing(PostgresStore(own, patience=2.0)) as store, psycopg.connect(url) as forgotten:
            forgotten.execute("SELECT 1")
            pid = forgotten.info.backend_pid
            blind = store.check_integrity(budget=10)
            administrator.execute(f"GRANT pg_read_all_stats TO {role}".encode())
            sighted = store.check_integrity(budget=10)

        assert (blind.warnings, len(blind.notes), len(sighted.notes)) == ([], 2, 1)
        assert " sessions of other users could not be looked into" in blind.notes[0]
        assert f"GRANT pg_read_all_stats TO {role}" in blind.notes[0]
        assert f"backend {pid}" in sighted.warnings[0]
    finally:
        administrator.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def test_a_walk_through_a_large_store_takes_as_long_as_it_takes(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.database.session() as connection:
        connection.execute("SET statement_timeout = '100ms'")
    monkeypatch.setattr(limited, "ANSWER_SECONDS", 0.1)
    for walk in (store.contradictions, lambda: store.oddities(scan=True)):
        with psycopg.connect(url) as slow:
            slow.execute("LOCK TABLE everbeat_tasks")
            threading.Timer(0.5, slow.rollback).start()

            assert walk() == []


def test_an_index_is_checked_for_as_long_as_there_is_time(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "AMCHECK", "SELECT 'public', true, 'somebody'")
    monkeypatch.setattr(checks, "INDEXES", "SELECT 'everbeat_tasks_due', 1::bigint")
    monkeypatch.setattr(checks, "CHECK_INDEX", "SELECT pg_sleep(%s::bigint)")
    monkeypatch.setattr(limited, "ANSWER_SECONDS", 0.5)

    found = store.check_integrity(budget=10)

    assert (found.passed, found.complete, found.notes) == (True, True, [])


def test_an_encoding_that_lacks_characters_is_named(url: str, administrator: "psycopg.Connection") -> None:
    name = f"test_latin_{os.getpid()}"
    administrator.execute(
        f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'".encode()
    )
    with closing(PostgresStore(urlsplit(url)._replace(path=f"/{name}").geturl(), patience=2.0)) as store:
        (warning,) = store.check_integrity(budget=10).warnings
        with pytest.raises(ValueError, match="has no equivalent in encoding"):
            enqueue(store, unique_key="\u20ac")
    administrator.execute(f"DROP DATABASE {name}".encode())

    assert "encoding of the database is LATIN1" in warning
    assert "ENCODING 'UTF8'" in warning


def test_row_level_security_that_may_hide_tasks_from_this_user_is_named(
    store: PostgresStore, url: str, administrator: "psycopg.Connection"
) -> None:
    role, place = f"checks_{os.getpid()}", urlsplit(url)
    administrator.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public TO {role}".encode())
    administrator.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
    administrator.execute("ALTER TABLE everbeat_tasks ENABLE ROW LEVEL SECURITY")
    own = place._replace(netloc=f"{role}@{place.netloc.rpartition('@')[2]}").geturl()
    try:
        with closing(PostgresStore(own, patience=2.0)) as theirs:
            (warning,) = theirs.check_integrity(budget=10).warnings
    finally:
        administrator.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())

    assert "row-level security is in force for this user on everbeat_tasks: " in warning
    assert f"ALTER ROLE {role} BYPASSRLS" in warning
    assert store.check_integrity(budget=10).warnings == []  # its owner sees everything
