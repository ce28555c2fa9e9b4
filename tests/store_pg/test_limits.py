"""A limit that is set while others claim counts for whoever comes after it (PROTOCOL 25)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from tests.postgres import EmptyDatabase
from tests.words import a_room, a_task, claim, completed, register

from everbeat.model.recovery import Settled
from everbeat.store.messages import Ending, Flush
from everbeat.store.postgres.dialect import translate
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.verbs import queueing

WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    return a_database.with_tables()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url)) as store:
        yield store


@pytest.mark.parametrize("has_claimed", [False, True], ids=["first claim", "later claim"])
def test_who_waits_for_somebody_who_sets_a_limit_keeps_to_it(store: PostgresStore, url: str, has_claimed: bool) -> None:
    register(store, "w1")
    if has_claimed:
        store.enqueue([a_task(id="before")])
        assert len(claim(store)) == 1
    store.enqueue([a_task() for _ in range(5)])

    with (
        psycopg.connect(url) as setter,
        psycopg.connect(url, autocommit=True) as watch,
        ThreadPoolExecutor(1) as thread,
    ):
        setter.execute(translate(queueing.KNOW), ("default",))
        setter.execute(translate(queueing.LIMIT), (2, "default", 2))
        setter.execute(translate(queueing.NO_CLAIMS))
        claiming = thread.submit(claim, store, places=5)
        while not watch.execute(WAITING).fetchall():
            assert not claiming.done()
        setter.execute(translate(queueing.COUNT_THEM), ("default",))
        setter.commit()
        claimed = len(claiming.result())

    assert claimed == (1 if has_claimed else 2)


def test_who_settles_and_claims_at_once_keeps_to_a_limit_that_was_just_set(store: PostgresStore, url: str) -> None:
    register(store, "w1")
    store.enqueue([a_task() for _ in range(6)])
    held = claim(store)
    flush = Flush(worker_id="w1", endings=[Ending(held[0], completed())], room=a_room(5), seen_beat=0)

    with (
        psycopg.connect(url) as setter,
        psycopg.connect(url, autocommit=True) as watch,
        ThreadPoolExecutor(1) as thread,
    ):
        setter.execute(translate(queueing.KNOW), ("default",))
        setter.execute(translate(queueing.LIMIT), (2, "default", 2))
        setter.execute(translate(queueing.NO_CLAIMS))
        flushing = thread.submit(store.flush, flush)
        while not watch.execute(WAITING).fetchall():
            assert not flushing.done()
        setter.execute(translate(queueing.COUNT_THEM), ("default",))
        setter.commit()
        flushed = flushing.result()

    assert (flushed.settlements, len(flushed.claims)) == ([Settled(held[0].id)], 2)
