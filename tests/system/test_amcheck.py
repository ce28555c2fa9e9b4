"""What amcheck sees of the indexes. The server of the wheel has no extensions, so this is one of the system."""

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

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


def test_indexes_that_may_not_be_checked_are_not_called_checked(url: str, administrator: "psycopg.Connection") -> None:
    administrator.execute(
        'CREATE ROLE "Owner" LOGIN IN ROLE pg_read_all_stats; GRANT CREATE ON SCHEMA public TO "Owner"'
    )
    place = urlsplit(url)
    own = place._replace(netloc=f"Owner@{place.netloc.rpartition('@')[2]}").geturl()
    with closing(PostgresStore(own, patience=2.0)) as store:
        refused = store.check_integrity(budget=10)
        grant = 'GRANT EXECUTE ON FUNCTION public.bt_index_check(regclass, boolean) TO "Owner"'
        administrator.execute(grant)
        allowed = store.check_integrity(budget=10)

    assert refused.passed
    assert refused.notes == [f"indexes were not checked: this user may not use amcheck. {grant} lets everbeat do it"]
    assert (allowed.passed, allowed.notes) == (True, [])


def test_a_schema_of_amcheck_that_is_closed_is_named_with_the_grant(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(
            "CREATE ROLE guest LOGIN IN ROLE pg_read_all_stats; GRANT CREATE ON SCHEMA public TO guest"
        )
        administrator.execute("CREATE SCHEMA tools; CREATE EXTENSION amcheck SCHEMA tools")
    place = urlsplit(url)
    with closing(PostgresStore(place._replace(netloc=f"guest@{place.netloc.rpartition('@')[2]}").geturl())) as store:
        found = store.check_integrity(budget=10)

    assert "GRANT USAGE ON SCHEMA tools TO guest; GRANT EXECUTE ON FUNCTION tools.bt_index_check" in found.notes[0]
