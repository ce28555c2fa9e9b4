"""What an administrator has set for a role or a database changes nothing about what is stored and who stays."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from tests.flow_words import begin, graph, states
from tests.postgres import EmptyDatabase

from everbeat.store.postgres.store import PostgresStore

SETTINGS = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "DateStyle": "German",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
    "synchronous_commit": "off",
    "statement_timeout": "1s",
    "lock_timeout": "10ms",
    "idle_session_timeout": "50ms",
}
NEWER = {170000: ("transaction_timeout", "1s")}
OURS = {
    "synchronous_commit": "on",
    "statement_timeout": "30s",
    "lock_timeout": "2s",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    url = a_database.with_tables()
    with psycopg.connect(url) as connection:
        newer = dict(setting for since, setting in NEWER.items() if connection.info.server_version >= since)
    said = "%20".join(f"-c%20{name}%3D{value}" for name, value in (SETTINGS | newer).items())
    return f"{url}?options={said}"  # as good as ALTER ROLE ... SET, and nobody else's


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url)) as store:
        yield store


def test_no_limit_of_a_role_ends_a_session_of_ours(store: PostgresStore) -> None:
    with store.database.session() as connection:
        found = {
            name: (connection.execute("SELECT current_setting(%s, true)", (name,)).fetchone() or ("",))[0]
            for name in OURS
        }

    assert {name: value or "0" for name, value in found.items()} == OURS


def test_numbers_that_are_missing_are_missing(store: PostgresStore) -> None:
    begin(store, graph(a="", b="a"))

    assert states(store) == {"a": "ENQUEUED", "b": "PENDING"}
