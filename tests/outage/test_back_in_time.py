"""A failover to a database that knows less, or to another one (PROTOCOL 8): a worker claims nothing and waits."""

from collections.abc import Callable
from contextlib import closing

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Worker, Yard
from tests.outage.proxy import Proxy
from tests.outage.test_server import database_of, kept
from tests.postgres import Cluster

from everbeat import TaskStatus
from everbeat.store.postgres.store import PostgresStore


def cut_off(cluster: Cluster, name: str) -> None:
    """Nobody is connected to this database any more, and nobody can."""
    cluster.sql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    cluster.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", name)


def copy(cluster: Cluster, yard: Yard, target: str) -> None:
    name = database_of(yard)
    cut_off(cluster, name)
    cluster.sql(f'CREATE DATABASE "{target}" TEMPLATE "{name}"')
    cluster.sql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def swap(cluster: Cluster, yard: Yard, other: str) -> None:
    """The other one takes the name of the yard's database, and the other way round."""
    name = database_of(yard)
    cut_off(cluster, name)
    for old, new in ((name, "aside"), (other, name), ("aside", other)):
        cluster.sql(f'ALTER DATABASE "{old}" RENAME TO "{new}"')
    cluster.sql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def beaten(yard: Yard, worker: Worker, times: int) -> bool:
    rows = yard.query("SELECT beat_seq FROM everbeat_workers WHERE id = ?", worker.id)
    return bool(rows) and rows[0][0] >= times


def an_empty_database(cluster: Cluster, yard: Yard) -> str:
    return cluster.new_database().rpartition("/")[2]


def another_store(cluster: Cluster, yard: Yard) -> str:
    url = cluster.new_database()
    PostgresStore(url).close()
    return url.rpartition("/")[2]


def an_old_copy(cluster: Cluster, yard: Yard) -> str:
    copy(cluster, yard, f"old_{database_of(yard)}")
    return f"old_{database_of(yard)}"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (an_empty_database, "has no tables of Everbeat"),
        (another_store, "it is another store"),
        (an_old_copy, "it is older than it was"),
    ],
)
def test_a_worker_does_nothing_in_a_database_that_is_not_its_own_and_goes_on_when_its_own_is_back(
    make_yard: MakeYard, cluster: Cluster, make: Callable[[Cluster, Yard], str], reason: str
) -> None:
    yard = make_yard(**FAST)
    task_id = yard.send("gated", "go")
    worker = yard.worker()
    yard.until_started(task_id)
    other = make(cluster, yard)
    cluster.wait()
    yard.until(lambda: beaten(yard, worker, 8), "it has beaten a few times")
    worker_id = worker.id

    swap(cluster, yard, other)
    yard.until(lambda: reason in worker.said(), "it says what happened")
    yard.open("go")
    yard.until(lambda: kept(yard, worker_id) == [task_id], "the outcome is kept")
    if make is not an_empty_database:
        assert "store.replaced" in worker.said()
        later = yard.send("quick")
        told_at = yard.ends(task_id)[0].at_ns
        yard.until(lambda: yard.has_passed(told_at, 2.0), "it has had time to claim")
        assert yard.status(later) is TaskStatus.PENDING
        assert not yard.events("task.recovered")
    swap(cluster, yard, other)
    yard.until_ended([task_id])

    yard.audit([task_id])
    assert (worker.id, len(yard.starts(task_id))) == (worker_id, 1)
    assert not yard.events("worker.dead")
    assert worker.stop() == 0


def test_a_worker_does_nothing_in_a_copy_from_before_it_came(make_yard: MakeYard, cluster: Cluster) -> None:
    yard = make_yard(**FAST)
    task_id = yard.send("gated", "go")
    other = an_old_copy(cluster, yard)
    worker = yard.worker()
    yard.until_started(task_id)
    worker_id = worker.id

    swap(cluster, yard, other)
    yard.until(lambda: "it does not know this worker" in worker.said(), "it says what happened")
    yard.open("go")
    yard.until(lambda: kept(yard, worker_id) == [task_id], "the outcome is kept")

    assert yard.status(task_id) is TaskStatus.PENDING
    assert worker.stop() == 0
    assert kept(yard, worker_id) == [task_id]


def test_a_copy_on_another_server_is_not_the_store_that_was_entered(store_url: str, proxy: Proxy) -> None:
    other = Cluster()
    try:
        with closing(PostgresStore(proxy.url)) as store:
            assert store.standing("somebody").is_same_file
            name = store_url.rpartition("/")[2]
            other.sql(f'CREATE DATABASE "{name}"')
            PostgresStore(other.url(name)).close()

            proxy.lead_to(other.port)

            assert not store.standing("somebody").is_same_file
    finally:
        other.remove()
