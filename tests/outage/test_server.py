"""The server restarts, goes away, loses a backend, is full or locked, while workers work.

Nobody who lives is declared dead, nothing that ended is lost, nothing runs a second time (P6, P8, PROTOCOL 7, 14, 30).
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Worker, Yard, is_alive
from tests.postgres import Cluster

from everbeat import StoreUnavailable, TaskStatus, Workflow
from everbeat.run.heartbeat import HUNG_US
from everbeat.run.spool import read
from everbeat.store.postgres.store import PostgresStore
from everbeat.testing import shift_clock

SOME_SECONDS = timedelta(seconds=10)
LONGER_THAN_EVERY_THRESHOLD, TWENTY_SECONDS = 6.0, 20.0
KINDS = ("quick", "quick_again", "a_quick", "work")
GATED = ("gated", "gated_again", "a_gated", "a_gated_again")
BACKENDS = """
SELECT pid FROM pg_stat_activity
 WHERE datname = %s AND application_name LIKE 'everbeat%%' AND client_port IS NOT NULL ORDER BY backend_start"""

SLOWLY = """
CREATE OR REPLACE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep({}); RETURN NEW; END $$"""
END_SLOW = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
ON_COMPLETION = """
CREATE TRIGGER slowly BEFORE UPDATE ON everbeat_tasks FOR EACH ROW WHEN (NEW.status = 'COMPLETED')
EXECUTE FUNCTION slowly()"""


def database_of(yard: Yard) -> str:
    assert yard.url is not None
    return yard.url.rpartition("/")[2]


def backends(cluster: Cluster, yard: Yard) -> list[int]:
    return [pid for (pid,) in cluster.sql(BACKENDS, database_of(yard))]


def terminate_all(cluster: Cluster, yard: Yard) -> None:
    for pid in yard.until(lambda: backends(cluster, yard), "somebody is connected"):
        cluster.sql("SELECT pg_terminate_backend(%s)", pid)


def restart(cluster: Cluster, yard: Yard) -> None:
    """`pg_ctl restart -m immediate`."""
    cluster.stop(signal.SIGQUIT)
    cluster.start()


def kill_one_backend(cluster: Cluster, yard: Yard) -> None:
    """The server ends every other one and recovers, without being started anew."""
    pids = yard.until(lambda: backends(cluster, yard), "somebody is connected")
    os.kill(pids[0], signal.SIGKILL)
    yard.until(lambda: not any(is_alive(pid) for pid in pids), "all of them are gone")
    cluster.wait()


BLOWS: dict[str, Callable[[Cluster, Yard], None]] = {
    "restarted at once": restart,
    "one backend killed": kill_one_backend,
    "all backends terminated": terminate_all,
}


def two_at_work(yard: Yard) -> tuple[dict[Worker, str], list[str]]:
    """Two workers, by their ids, and the tasks that they run until the gate "go" is opened."""
    workers = [yard.worker(ready=False), yard.worker()]
    yard.until_ready(workers[0])
    ids = [yard.send(name, "go") for name in GATED]
    for task_id in ids:
        yard.until_started(task_id)
    return {worker: worker.id for worker in workers}, ids


def assert_that_nobody_noticed(yard: Yard, ids: list[str], workers: dict[Worker, str]) -> None:
    """Everything completed in one run, and every worker is who it was."""
    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    starts = [line.task_id for line in yard.ledger() if line.word == "start"]
    assert sorted(starts) == sorted(ids)
    assert not yard.events("worker.dead")
    assert not yard.events("outcome.refused")
    assert {worker: worker.id for worker in workers} == workers
    assert [worker.stop() for worker in workers] == [0 for _ in workers]


def kept(yard: Yard, worker_id: str) -> list[str]:
    paths = list((yard.path / "state").rglob(f"worker-{worker_id}.spool"))
    return [one.task for path in paths for one in read(path)[0]]


@pytest.mark.parametrize("blow", BLOWS.values(), ids=BLOWS)
def test_a_server_that_is_hit_in_the_middle_of_everything(
    make_yard: MakeYard, cluster: Cluster, blow: Callable[[Cluster, Yard], None]
) -> None:
    """Claims, starts, outcomes and beats are on their way each time."""
    yard = make_yard(**FAST)
    workers = [yard.worker(ready=False), yard.worker()]
    yard.until_ready(workers[0])
    known = {worker: worker.id for worker in workers}
    ids = [task_id for name in KINDS for task_id in yard.send_many(name, [()] * 60)]

    for goal in (20, 80, 140):
        yard.until(lambda goal=goal: len({line.task_id for line in yard.ledger()}) >= goal, f"{goal} have begun")
        blow(cluster, yard)
    yard.until_ended(ids)

    assert_that_nobody_noticed(yard, ids, known)


def test_an_outage_longer_than_every_threshold_across_the_end_of_running_tasks(
    make_yard: MakeYard, cluster: Cluster
) -> None:
    yard = make_yard(**FAST)
    known, ids = two_at_work(yard)

    cluster.stop()
    yard.open("go")
    yard.until(lambda: all(yard.ends(task_id) for task_id in ids), "they have ended")
    away_since = max(yard.ends(task_id)[0].at_ns for task_id in ids)
    yard.until(lambda: yard.has_passed(away_since, TWENTY_SECONDS), "every threshold is over, five times")
    yard.until(
        lambda: sorted(task for worker_id in known.values() for task in kept(yard, worker_id)) == sorted(ids),
        "their outcomes are on disk",
    )
    assert all("store.unavailable" in worker.said() for worker in known)
    cluster.start()
    yard.until_ended(ids)

    yard.until(lambda: not any(kept(yard, worker_id) for worker_id in known.values()), "nothing is kept any more")
    yard.until_event("store.returned")
    assert_that_nobody_noticed(yard, ids, known)
    assert not yard.events("task.recovered")


def test_a_worker_killed_during_the_outage_loses_nothing_that_had_ended(make_yard: MakeYard, cluster: Cluster) -> None:
    yard = make_yard(**FAST)
    victim = yard.worker()
    ids = [yard.send(name, "go") for name in GATED]
    for task_id in ids:
        yard.until_started(task_id)
    heir = yard.worker()
    victim_id = victim.id

    cluster.stop()
    yard.open("go")
    yard.until(lambda: sorted(kept(yard, victim_id)) == sorted(ids), "their outcomes are on disk")
    victim.kill_tree(children_first=True)
    cluster.start()
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in ids} == {1}
    yard.until_event("spool.replayed", worker_id=victim_id)
    assert [event.worker_id for event in yard.events("worker.dead")] == [victim_id]
    assert heir.stop() == 0


def test_a_worker_told_to_stop_during_the_outage_stops_and_the_next_one_stores_what_ended(
    make_yard: MakeYard, cluster: Cluster
) -> None:
    yard = make_yard(**FAST)
    worker = yard.worker("--drain-timeout", "0")
    task_id, worker_id = yard.send("gated", "go"), worker.id
    yard.until_started(task_id)

    cluster.stop()
    yard.open("go")
    yard.until(lambda: kept(yard, worker_id) == [task_id], "its outcome is on disk")
    assert worker.stop() == 0
    cluster.start()
    assert yard.worker("--burst").ended() == 0

    yard.audit([task_id])
    assert (yard.status(task_id), len(yard.starts(task_id))) == (TaskStatus.COMPLETED, 1)


def test_workers_that_start_while_the_server_is_away_wait_for_it_or_for_a_signal(
    make_yard: MakeYard, cluster: Cluster
) -> None:
    yard = make_yard(**FAST)
    task_id = yard.send("quick")

    cluster.stop()
    patient, stopped = yard.worker(ready=False), yard.worker(ready=False)
    for worker in (patient, stopped):
        yard.until(lambda worker=worker: "Connection refused" in worker.said(), "it says what it waits for")
    assert stopped.stop() == 0
    cluster.start()

    yard.until_ended([task_id])
    assert_that_nobody_noticed(yard, [task_id], {patient: patient.id})


def test_that_the_server_is_back_is_known_long_before_the_next_beat(make_yard: MakeYard, cluster: Cluster) -> None:
    yard = make_yard()
    worker = yard.worker()

    cluster.stop()
    yard.until(lambda: "store.unavailable loop=" in worker.said(), "it says that it is away")
    cluster.start()
    began = time.monotonic()
    yard.until(lambda: "store.returned" in worker.said(), "it says that it is back")

    assert time.monotonic() - began < 15
    assert "store.unavailable" not in worker.said().partition("store.returned")[2]


def test_a_server_without_a_free_connection_is_named_and_waited_for(make_yard: MakeYard, cluster: Cluster) -> None:
    yard = make_yard(**FAST)
    worker = yard.worker()
    known = {worker: worker.id}
    before = yard.send("gated", "go")
    yard.until_started(before)

    with closing(Crowd(cluster)) as crowd:
        pids = backends(cluster, yard)
        crowd.take_all()
        crowd.terminate(pids)
        yard.until(lambda: crowd.take_all() or "too many clients" in worker.said(), "the worker says why")
        yard.open("go")
        burst, late = yard.worker("--burst", ready=False), yard.worker(ready=False)
        assert burst.ended() == 3
        yard.until(lambda: "too many clients" in late.said(), "the late one says why it waits")
        assert "Traceback" not in burst.said() + late.said()
    yard.until_ended([before])
    yard.until_ready(late)
    known[late] = late.id
    after = yard.send("quick")
    yard.until_ended([after])

    assert_that_nobody_noticed(yard, [before, after], known)


def test_a_database_that_was_read_only_for_a_while_is_written_again(make_yard: MakeYard, cluster: Cluster) -> None:
    """Sessions that began meanwhile stay read-only, like those with a standby that was the primary."""
    yard = make_yard(**FAST)
    worker = yard.worker()
    before = yard.send("gated", "go")
    yard.until_started(before)

    cluster.sql(f'ALTER DATABASE "{database_of(yard)}" SET default_transaction_read_only = on')
    terminate_all(cluster, yard)
    yard.until(lambda: "read-only transaction" in worker.said(), "the worker says why")
    with pytest.raises(StoreUnavailable, match="read-only"):
        yard.send("quick")
    yard.open("go")
    cluster.sql(f'ALTER DATABASE "{database_of(yard)}" RESET default_transaction_read_only')
    after = yard.send("quick")
    yard.until_ended([before, after])

    assert_that_nobody_noticed(yard, [before, after], {worker: worker.id})


def test_a_standby_holds_no_session_of_a_worker(make_yard: MakeYard, cluster: Cluster) -> None:
    yard = make_yard()
    standby = cluster.directory / "data" / "standby.signal"
    assert yard.url is not None
    with closing(PostgresStore(yard.url)) as store:
        cluster.stop(signal.SIGINT)  # as a primary does when another one has taken its place
        standby.touch(mode=0o644)
        cluster.start()
        with pytest.raises(StoreUnavailable, match="the server is a standby"):
            store.hold_session("w1")
        cluster.sql("SELECT pg_promote()")
        session = store.hold_session("w1")

    assert session is not None
    session.close()


def test_tables_that_somebody_has_locked_hold_up_the_work_and_nobody_dies_of_it(
    make_yard: MakeYard, cluster: Cluster
) -> None:
    """Longer than our own limit for locks, which is two seconds, and than the threshold."""
    yard = make_yard(**FAST)
    known, ids = two_at_work(yard)

    with psycopg.connect(cluster.url(database_of(yard))) as stranger:
        stranger.execute("LOCK TABLE everbeat_tasks, everbeat_workers IN ACCESS EXCLUSIVE MODE")
        yard.open("go")
        yard.until(
            lambda: all("lock timeout" in worker.said() for worker in known), "both workers say what is in the way"
        )
        ended_at = max(line.at_ns for line in yard.ledger())
        yard.until(lambda: yard.has_passed(ended_at, LONGER_THAN_EVERY_THRESHOLD), "the threshold is over")
    yard.until_ended(ids)

    assert_that_nobody_noticed(yard, ids, known)


def test_outcomes_whose_statement_takes_too_long_are_kept_and_nobody_dies_of_it(
    make_yard: MakeYard, cluster: Cluster
) -> None:
    """Longer than a statement of ours may take, which is half a minute."""
    yard = make_yard(**FAST)
    known, ids = two_at_work(yard)

    with psycopg.connect(cluster.url(database_of(yard)), autocommit=True) as owner:
        owner.execute(SLOWLY.format(120).encode())
        owner.execute(ON_COMPLETION)
        yard.open("go")
        yard.until(lambda: any("statement timeout" in worker.said() for worker in known), "a worker says what it met")
        assert {yard.status(task_id) for task_id in ids} == {TaskStatus.RUNNING}
        owner.execute(SLOWLY.format(0).encode())
    yard.until_ended(ids, timeout=120)

    assert_that_nobody_noticed(yard, ids, known)


def test_a_worker_beats_also_while_all_it_does_is_to_wait_for_a_slow_store(
    make_yard: MakeYard, cluster: Cluster
) -> None:
    """Its only task has ended. For longer than a dispatcher that does not turn is beaten for."""
    yard = make_yard(**FAST)
    worker = yard.worker()
    known, ids = {worker: worker.id}, [yard.send("gated", "go")]
    yard.until_started(ids[0])

    with psycopg.connect(cluster.url(database_of(yard)), autocommit=True) as owner:
        owner.execute(SLOWLY.format(120).encode())
        owner.execute(ON_COMPLETION)
        yard.open("go")
        yard.until(lambda: yard.ledger()[-1].word == "end", "its task has ended")
        yard.until(lambda: yard.has_passed(yard.ledger()[-1].at_ns, HUNG_US / 1e6 + 3), "it waits", timeout=60)
        (info,) = yard.store.workers(alive_only=True)
        owner.execute(SLOWLY.format(0).encode())
        owner.execute(END_SLOW)
    yard.until_ended(ids, timeout=60)

    assert info.silent_for_us < 2_000_000
    assert_that_nobody_noticed(yard, ids, known)


@pytest.mark.parametrize("held", ["everbeat_workflows", "everbeat_workflow_tasks"])
def test_a_workflow_that_somebody_has_locked_holds_up_its_own_tasks_and_no_others(
    make_yard: MakeYard, cluster: Cluster, held: str
) -> None:
    """A person who left a transaction open in psql, for longer than our limit for locks and than the threshold."""
    yard = make_yard(**FAST)
    worker = yard.worker()
    known = {worker: worker.id}
    free, locked = (one_node(yard, name).start(yard.app) for name in ("free", "locked"))
    nodes = [str(node.task_id) for run in (free, locked) for node in run.nodes()]
    plain = [yard.send("a_gated", "go")]
    for task_id in (*nodes, *plain):
        yard.until_started(task_id)

    with psycopg.connect(cluster.url(database_of(yard))) as stranger:
        key = "id" if held == "everbeat_workflows" else "workflow_id"
        stranger.execute(f"SELECT 1 FROM {held} WHERE {key} = %s FOR UPDATE".encode(), [locked.id])
        yard.open("go")
        yard.until_ended([nodes[0], *plain])
        plain += [yard.send("quick") for _ in range(5)]
        yard.until_ended(plain)
        ended_at = max(line.at_ns for line in yard.ledger())
        yard.until(lambda: yard.has_passed(ended_at, LONGER_THAN_EVERY_THRESHOLD), "the threshold is over")
        assert yard.status(nodes[1]) is TaskStatus.RUNNING
    yard.until_ended(nodes)

    assert [run.status() for run in (free, locked)] == ["COMPLETED", "COMPLETED"]
    assert_that_nobody_noticed(yard, [*nodes, *plain], known)


def one_node(yard: Yard, name: str) -> Workflow:
    flow = Workflow(name)
    flow.add(yard.app.tasks["a_gated"], "go")
    return flow


@pytest.mark.parametrize("minutes", [-2, 2])
def test_a_worker_whose_clock_is_two_minutes_off_works_like_any_other(
    make_yard: MakeYard, cluster: Cluster, tmp_path: Path, minutes: int
) -> None:
    yard, clock = make_yard(**FAST), tmp_path / "clock"
    shift_clock(clock, minutes * 60)
    workers = [yard.worker("--queues", "off", clock_file=clock, ready=False), yard.worker("--queues", "right")]
    yard.until_ready(workers[0])
    known = {worker: worker.id for worker in workers}
    ids = [yard.send("quick", delay=1.0, queue=queue) for queue in ("off", "right")]
    held = [yard.send("gated", "go", queue=queue) for queue in ("off", "right")]
    yard.until_ended(ids)
    began = max(yard.until_started(task_id).at_ns for task_id in held)
    yard.until(lambda: yard.has_passed(began, LONGER_THAN_EVERY_THRESHOLD), "every threshold is over")
    yard.open("go")
    yard.until_ended(held)

    for task_id in (*ids, *held):
        task = yard.task(task_id)
        assert task.started_at is not None
        assert task.finished_at is not None
        waited, ran = task.started_at - task.run_at, task.finished_at - task.started_at
        assert timedelta(seconds=-1) < waited < timedelta(seconds=60)  # a flush has the time of its first statement
        assert timedelta(0) <= ran < timedelta(seconds=60)
    assert_that_nobody_noticed(yard, ids + held, known)


@pytest.mark.parametrize("minutes", [-2, 2])
def test_what_a_worker_whose_clock_is_two_minutes_off_reports_fits_the_stamps_of_the_database(
    make_yard: MakeYard, cluster: Cluster, tmp_path: Path, minutes: int
) -> None:
    yard, clock = make_yard(**FAST), tmp_path / "clock"
    shift_clock(clock, minutes * 60)
    begins = yard.store.now()
    victim = yard.worker("--queues", "victim")
    task_id = yard.send("gated", "go", queue="victim")
    yard.until_started(task_id)
    off = yard.worker("--queues", "off", clock_file=clock, ready=False)
    yard.until_ready(off)
    victim.kill()
    yard.until(lambda: any(report.recovered_tasks for report in yard.store.reports(limit=10)), "it was reported")
    ends = yard.store.now()

    reports = yard.store.reports(limit=10)
    row = next(worker for worker in yard.store.workers() if worker.id == victim.id)
    found = next(report for report in reports if report.recovered_tasks)
    assert row.ended_at is not None
    assert abs(row.ended_at - found.started_at) < SOME_SECONDS  # it began so long before as its machine says
    assert row.ended_at <= found.completed_at
    for report in reports:
        assert begins - SOME_SECONDS < report.started_at <= report.completed_at <= ends


class Crowd:
    """Strangers who take every connection that a server has."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connections: list[psycopg.Connection] = []

    def take_all(self) -> None:
        while True:
            try:
                self._connections.append(psycopg.connect(self._cluster.url("postgres")))
            except psycopg.OperationalError:
                return

    def terminate(self, pids: list[int]) -> None:
        """And whatever they leave is taken at once."""
        for pid in pids:
            self._connections[0].execute("SELECT pg_terminate_backend(%s)", (pid,))
        self.take_all()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
