"""An upgrade that finds somebody in its way waits for a moment at a time, so that nobody waits long behind it."""

import threading
import time
from contextlib import closing

import psycopg
import pytest
from tests.postgres import EmptyDatabase
from tests.words import enqueue

from everbeat.store import schema
from everbeat.store.postgres import limited
from everbeat.store.postgres.maintenance import PostgresMaintenance
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.schema import Step

STEP = Step(2, "ALTER TABLE everbeat_tasks ADD COLUMN later TEXT;\n")
SLOW_STEP = Step(2, "SELECT pg_sleep(1);\n")
TRIES = "SELECT query_start FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE everbeat_tasks%' AND state = 'active'"


def test_an_upgrade_gives_way_to_work_until_whoever_reads_the_table_has_ended(
    a_database: EmptyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = a_database.url()
    known = schema.steps()
    monkeypatch.setattr(schema, "steps", lambda: [*known, STEP])
    with monkeypatch.context() as before:
        before.setattr(schema, "steps", lambda: known)
        store = PostgresStore(url, patience=2.0)
    upgrade = threading.Thread(target=PostgresMaintenance(url, None, patience=2.0).migrate)

    with closing(store), psycopg.connect(url) as reader, psycopg.connect(url, autocommit=True) as looker:
        reader.execute("SELECT count(*) FROM everbeat_tasks")
        upgrade.start()
        tries: set[object] = set()
        give_up = time.monotonic() + 30
        while len(tries) < 2:
            assert time.monotonic() < give_up
            tries |= {row[0] for row in looker.execute(TRIES).fetchall()}
        sent = enqueue(store)
        reader.rollback()
        upgrade.join(30)

        assert store.get(sent) is not None
        assert looker.execute("SELECT later FROM everbeat_tasks").fetchall() == [(None,)]


def test_an_upgrade_of_a_large_table_takes_as_long_as_it_takes(
    a_database: EmptyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = a_database.url()
    PostgresStore(url, patience=2.0).close()
    known = schema.steps()
    monkeypatch.setattr(schema, "steps", lambda: [*known, SLOW_STEP])
    monkeypatch.setattr(limited, "ANSWER_SECONDS", 0.5)

    PostgresMaintenance(url, None, patience=2.0).migrate()

    assert PostgresMaintenance(url, None, patience=2.0).schema().is_current
