"""A worker behind pgbouncer in transaction mode, where each transaction may get another session of the server."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.hosts import Hosts
from tests.postgres import USER, Cluster, free_port
from tests.words import a_task, claim, completed, enqueue, register, status_of

from everbeat import TaskStatus
from everbeat.model import event
from everbeat.model.worker import WorkerStatus
from everbeat.store.messages import Ending, Flush
from everbeat.store.postgres.store import PostgresStore

RECOVERY = {
    "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000,
    "check_interval_ms": 1_000,
    "running_stale_threshold_ms": 4_000,
    "claimed_stale_threshold_ms": 4_000,
}
SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
"""


@pytest.fixture
def pooler(cluster: Cluster) -> Iterator[int]:
    """Its port. It refuses to be run by root."""
    nobody, port = pwd.getpwnam("nobody"), free_port()
    settings = cluster.directory / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(server=cluster.port, port=port).replace("* =", f"* = user={USER}"))
    os.chmod(settings, 0o644)
    with (cluster.directory / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(
            ["pgbouncer", settings], stdout=log, stderr=log, cwd="/", user=nobody.pw_uid, group=nobody.pw_gid,
            extra_groups=[],
        )  # fmt: skip
    yield port
    process.terminate()
    process.wait()


@pytest.fixture
def hosts(cluster: Cluster, tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(cluster.new_database(), tmp_path, RECOVERY)
    yield hosts
    hosts.close()


def through(port: int, url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{USER}@127.0.0.1:{port}").geturl()


def test_behind_a_pooler_only_locks_of_files_and_heartbeats_tell_and_workers_say_so(hosts: Hosts, pooler: int) -> None:
    url = through(pooler, hosts.url)
    hosts.until(lambda: _answers(url), "the pooler answers")
    here, elsewhere = hosts.worker("here", url=url, elsewhere=False), hosts.worker("elsewhere", url=url)
    sent = [hosts.send(name) for name in ("again", "again", "again", "again", "once", "once")]
    for task_id in sent:
        hosts.until_started(task_id)
    judge = hosts.worker("judge", url=url)
    assert hosts.query("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'everbeat:%%'") == []
    for worker in (here, elsewhere, judge):
        assert worker.said().count("session.unusable") == 1
        assert "heartbeats only, no session lease" in worker.said()

    here.kill()
    elsewhere.kill()

    hosts.until(lambda: len(hosts.events(event.WORKER_DEAD)) == 2, "both were found dead")
    hosts.open()
    hosts.until(lambda: all(hosts.status(task_id).is_terminal for task_id in sent), "all have ended")
    causes = dict(hosts.query("SELECT id, end_cause FROM everbeat_workers WHERE status = 'dead'"))
    assert causes == {here.id: "proof", elsewhere.id: "silence"}
    assert [hosts.status(task_id) for task_id in sent] == [TaskStatus.COMPLETED] * 4 + [TaskStatus.FAILED] * 2
    assert [len(hosts.starts(task_id)) for task_id in sent] == [2] * 4 + [1] * 2
    assert judge.info.status is WorkerStatus.ALIVE


def test_a_store_in_a_schema_of_its_own_is_found_behind_a_pooler(hosts: Hosts, pooler: int) -> None:
    """No session keeps a search path there."""
    url = through(pooler, hosts.url)
    hosts.until(lambda: _answers(url), "the pooler answers")
    with psycopg.connect(hosts.url, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Night shift"')
    with closing(PostgresStore(url, schema="Night shift", patience=5.0)) as store:
        register(store, "w1")
        single = enqueue(store)
        several = [one.id for one in store.enqueue([a_task(), a_task()])]

        claims = claim(store, places=5)
        store.flush(Flush(worker_id="w1", endings=[Ending(claim=one, verdict=completed()) for one in claims]))

        assert {one.id for one in claims} == {single, *several}
        assert status_of(store, single) is TaskStatus.COMPLETED
        assert len(store.workers()) == 1
    assert [count for (count,) in hosts.query('SELECT count(*) FROM "Night shift".everbeat_tasks')] == [3]


def _answers(url: str) -> bool:
    psycopg.connect(url).close()
    return True
