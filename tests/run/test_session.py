"""Workers on several hosts, real ones over a real server: what becomes of those that lose their session."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.hosts import Hosts
from tests.postgres import Cluster, EmptyDatabase

from everbeat import TaskStatus
from everbeat.model import event
from everbeat.model.worker import WorkerStatus
from everbeat.store.postgres.lease import name_of

MakeHosts = Callable[..., Hosts]
SESSION = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
WAITS = "SELECT pid, query_start FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
ASKED_SINCE = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND query_start > %s"


@pytest.fixture
def make_hosts(tmp_path: Path) -> Iterator[MakeHosts]:
    made: list[Hosts] = []

    def make(url: str, **recovery: object) -> Hosts:
        made.append(Hosts(url, tmp_path, recovery))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


@pytest.fixture
def hosts(make_hosts: MakeHosts, a_database: EmptyDatabase) -> Hosts:
    return make_hosts(a_database.url())


def test_of_a_host_that_is_killed_what_may_run_again_does_and_the_rest_waits(hosts: Hosts) -> None:
    """PROTOCOL 12, 13, 24. By default its silence would tell after five minutes."""
    victim = hosts.worker("victim")
    again, once, alone = hosts.send_to(victim, ("again", {}), ("once", {}), ("again", {"exclusive_key": "k"}))
    other = hosts.worker("other")
    hosts.until_seen(victim, by=other)

    victim.kill()

    hosts.until_started(again, times=2)
    assert hosts.task(again).worker_id == other.id
    assert hosts.status(once) is hosts.status(alone) is TaskStatus.RUNNING
    assert hosts.task(once).worker_id == hosts.task(alone).worker_id == victim.id
    assert victim.info.status is WorkerStatus.ALIVE
    hosts.open()
    assert hosts.result(again) == hosts.starts(again)[1].fence


def test_a_worker_that_gets_its_session_back_in_time_keeps_its_tasks(hosts: Hosts) -> None:
    worker = hosts.worker("worker")
    (again,) = hosts.send_to(worker, ("again", {}))
    judge = hosts.worker("judge")
    hosts.until_seen(worker, by=judge)
    beats = hosts.query("SELECT beat_seq FROM everbeat_workers WHERE id = %s", worker.id)

    worker.end_session()

    hosts.until_said(worker, "session.returned")
    hosts.until_seen(worker, by=judge)
    assert hosts.query("SELECT beat_seq FROM everbeat_workers WHERE id = %s", worker.id) > beats, "it beats at once"
    hosts.open()
    assert hosts.result(again) == hosts.starts(again)[0].fence
    assert len(hosts.starts(again)) == 1


def test_a_worker_keeps_its_session_while_somebody_has_locked_the_table_of_workers(hosts: Hosts) -> None:
    """As VACUUM FULL does. It waits for the lock as long as any session of ours, and tries again."""
    worker = hosts.worker("worker")
    (again,) = hosts.send_to(worker, ("again", {}))
    judge = hosts.worker("judge")
    hosts.until_seen(worker, by=judge)
    with psycopg.connect(hosts.url) as locker:
        locker.execute("LOCK TABLE everbeat_workers")
        ((before, since),) = hosts.until(lambda: hosts.query(WAITS, name_of(worker.id)), "its look waits")
        hosts.until(lambda: hosts.query(ASKED_SINCE, name_of(worker.id), since), "it was refused, and asks again")

    hosts.until_seen(worker, by=judge)
    hosts.open()
    assert hosts.result(again) == hosts.starts(again)[0].fence
    assert hosts.query(SESSION, name_of(worker.id)) == [(before,)]
    assert "session.lost" not in worker.said()


def test_a_worker_keeps_its_session_while_it_may_not_look_at_the_others(hosts: Hosts) -> None:
    """As after a REVOKE, or while tables are put back: its session was given up and taken again 200 times a second."""
    worker = hosts.worker("worker")
    (again,) = hosts.send_to(worker, ("again", {}))
    judge = hosts.worker("judge")
    hosts.until_seen(worker, by=judge)
    ((before,),) = hosts.query(SESSION, name_of(worker.id))

    with psycopg.connect(hosts.url, autocommit=True) as owner:
        owner.execute("ALTER TABLE everbeat_workers RENAME TO aside")
        for _ in range(2):
            since = hosts.query("SELECT clock_timestamp()")[0][0]
            hosts.until(partial(hosts.query, ASKED_SINCE, name_of(worker.id), since), "it asks again")
        owner.execute("ALTER TABLE aside RENAME TO everbeat_workers")

    hosts.until_seen(worker, by=judge)
    hosts.open()
    assert hosts.result(again) == hosts.starts(again)[0].fence
    assert hosts.query(SESSION, name_of(worker.id)) == [(before,)]
    assert "session.lost" not in worker.said()


def test_a_worker_that_returns_late_stops_what_was_taken_from_it_and_goes_on(hosts: Hosts) -> None:
    frozen = hosts.worker("frozen")
    again, once = hosts.send_to(frozen, ("again", {}), ("once", {}))
    judge = hosts.worker("judge")
    hosts.until_seen(frozen, by=judge)
    os.kill(frozen.process.pid, signal.SIGSTOP)  # its children run on
    frozen.end_session()
    hosts.until_started(again, times=2)

    os.kill(frozen.process.pid, signal.SIGCONT)

    hosts.until(lambda: hosts.lines(again, "told"), "the first run was told to stop")
    assert hosts.lines(again, "told")[0].fence == hosts.starts(again)[0].fence
    hosts.until_said(frozen, "session.returned")
    hosts.open()
    assert hosts.result(again) == hosts.starts(again)[1].fence
    assert hosts.result(once) == hosts.starts(once)[0].fence
    assert frozen.info.status is WorkerStatus.ALIVE
    assert len(hosts.starts(once)) == 1


def test_without_a_grace_the_loss_of_a_session_says_nothing(make_hosts: MakeHosts, a_database: EmptyDatabase) -> None:
    """Only the heartbeats count, which are as fast here as they can be."""
    fast = {
        "runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000, "check_interval_ms": 1_000,
        "running_stale_threshold_ms": 5_000, "claimed_stale_threshold_ms": 5_000,
    }  # fmt: skip
    hosts = make_hosts(a_database.url(), session_grace_ms=None, **fast)
    victim = hosts.worker("victim")
    (again,) = hosts.send_to(victim, ("again", {}))
    hosts.worker("other")

    victim.kill()

    hosts.until_started(again, times=2)
    assert hosts.events(event.WORKER_DEAD) == [victim.id]
    assert "silent" in str(hosts.task(again).error_message)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


def test_of_many_hosts_that_are_lost_at_once_nothing_is_taken_before_their_silence_tells(
    make_hosts: MakeHosts, a_database: EmptyDatabase
) -> None:
    """PROTOCOL 12: three, and half or more of all. It looks like the server or the network, so the grace is not enough;
    what they held is recovered all the same, by the threshold."""
    hosts = make_hosts(
        a_database.url(),
        session_grace_ms=500,
        runner_heartbeat_interval_ms=1_000,
        claimer_heartbeat_interval_ms=1_000,
        running_stale_threshold_ms=6_000,
        claimed_stale_threshold_ms=6_000,
        check_interval_ms=1_000,
    )
    victims = [hosts.worker(f"victim-{number}", "--queues", f"q{number}") for number in range(3)]
    sent = [hosts.send("again", queue=f"q{number}") for number in range(3)]
    for task_id in sent:
        hosts.until_started(task_id)
    heir = hosts.worker("heir")
    for victim in victims:
        hosts.until_seen(victim, by=heir)

    for victim in victims:
        victim.signal(signal.SIGKILL)
    hosts.open()
    again = [hosts.result(task_id) for task_id in sent]

    assert again == [hosts.starts(task_id)[1].fence for task_id in sent]
    for task_id, victim in zip(sent, victims, strict=True):
        (recovered,) = hosts.task(task_id).history
        assert f"worker {victim.id} on" in str(recovered.reason)
        assert "silent for" in str(recovered.reason)
    assert set(hosts.events("worker.dead")) == {victim.id for victim in victims}


def test_when_the_server_restarts_itself_nobody_is_declared_dead_and_nothing_runs_twice(
    cluster: Cluster, make_hosts: MakeHosts
) -> None:
    """kill -9 of one backend frees all locks at once and leaves the server's start time as it was."""
    hosts = make_hosts(cluster.new_database())
    workers = []
    sent: list[str] = []
    for number in range(3):
        workers.append(hosts.worker(f"worker{number}"))
        sent += [hosts.send("again"), hosts.send("once")]
    for task_id in sent:
        hosts.until_started(task_id)
    for worker in workers:
        hosts.until_seen(worker, by=workers[0])
    ((pid,),) = hosts.query("SELECT pid FROM pg_stat_activity WHERE application_name = %s", name_of(workers[0].id))

    os.kill(pid, signal.SIGKILL)

    for worker in workers:
        hosts.until_said(worker, "session.returned")
    for worker in workers:
        hosts.until_seen(worker, by=workers[0])
    hosts.open()
    assert [hosts.result(task_id) for task_id in sent] == [hosts.starts(task_id)[0].fence for task_id in sent]
    assert [len(hosts.starts(task_id)) for task_id in sent] == [1] * len(sent)
    assert hosts.events(event.WORKER_DEAD) == []
