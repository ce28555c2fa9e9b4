"""Somebody has left a transaction open, and holds a workflow or a task: what recovery writes waits for that alone."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import psycopg
import pytest
from tests.flow_words import begin, graph, states
from tests.postgres import EmptyDatabase
from tests.words import a_policy, a_task, claim, register, status_of, succeeded

from everbeat.config import RecoveryConfig
from everbeat.model.recovery import Cause, Orphan, Settled, Settlement, Unsettled, Verdict
from everbeat.model.session import Suspect
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import Host
from everbeat.run.findings import Findings
from everbeat.run.recovery import Recovery
from everbeat.run.replay import replay_spools
from everbeat.run.spool import Spool
from everbeat.store.lots import MOST_LOCKED
from everbeat.store.postgres.store import PostgresStore

AGAIN = Verdict(change=Change.RECOVER, reason="its worker is gone")
S = TaskStatus
ME = Host(name="here", boot_id="boot", pid=1, pid_started=1, pid_namespace=1)
LONG_AGO = 1_000_000
LOCKED = "somebody has locked it or its workflow: SELECT * FROM pg_stat_activity WHERE xact_start IS NOT NULL"


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    return a_database.with_tables()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url, patience=2.0)) as store:
        yield store


@contextmanager
def held(url: str, rows: str) -> Iterator[None]:
    """As by a person at lunch."""
    with psycopg.connect(url) as stranger:
        assert stranger.execute(f"SELECT 1 FROM {rows} FOR UPDATE").fetchall()
        yield


def flow_held(url: str, *flows: str) -> AbstractContextManager[None]:
    named = ", ".join(f"'{flow}'" for flow in flows)
    return held(url, f"everbeat_workflows WHERE id IN ({named})")


def running(store: PostgresStore, *flows: str, plain: int = 2) -> dict[str, Claim]:
    """In one worker: the only node of each workflow, and plain tasks. They may run again."""
    register(store, "w1")
    again = {"policy": a_policy(max_attempts=5, has_retry=True), "max_attempts": 5}
    for flow in flows:
        begin(store, graph(flow, nodes={"a": again}, a=""))
    store.enqueue([a_task(id=f"plain-{number}", **again) for number in range(plain)])
    claims = claim(store, places=50)
    assert len(claims) == len(flows) + plain
    return {one.id: one for one in claims}


def decided(claims: dict[str, Claim]) -> list[tuple[Orphan, Verdict]]:
    return [(Orphan(claim=one, cause=Cause.LOST, evidence="lost"), AGAIN) for one in claims.values()]


def locked_out(settlements: list[Settlement] | None) -> set[str]:
    assert settlements is not None
    assert {type(one) for one in settlements} <= {Settled, Unsettled}
    return {one.task_id for one in settlements if isinstance(one, Unsettled)}


def statuses(store: PostgresStore, *task_ids: str) -> list[TaskStatus]:
    return [status_of(store, task_id) for task_id in task_ids]


def recovery(store: PostgresStore) -> Recovery:
    return Recovery(store, RecoveryConfig(), ME)


def test_a_locked_workflow_keeps_no_other_task_from_being_recovered(store: PostgresStore, url: str) -> None:
    claims = running(store, "locked", "free")
    with flow_held(url, "locked"):
        settlements = store.recover(decided(claims))
    assert locked_out(settlements) == {"locked:a"}
    assert [one.task_id for one in settlements] == list(claims)
    assert statuses(store, "plain-0", "plain-1", "free:a", "locked:a") == [S.PENDING, S.PENDING, S.PENDING, S.RUNNING]

    assert locked_out(store.recover(decided({"locked:a": claims["locked:a"]}))) == set()
    assert status_of(store, "locked:a") is S.PENDING


def test_a_locked_task_keeps_no_other_from_being_recovered(store: PostgresStore, url: str) -> None:
    claims = running(store, plain=8)
    with held(url, "everbeat_tasks WHERE id = 'plain-5'"):
        assert locked_out(store.recover(decided(claims))) == {"plain-5"}
    assert {one for one in claims if status_of(store, one) is S.RUNNING} == {"plain-5"}


def test_where_many_workflows_are_locked_plain_tasks_are_recovered_and_not_all_are_tried(
    store: PostgresStore, url: str
) -> None:
    flows = [f"flow-{number}" for number in range(MOST_LOCKED + 4)]
    claims = running(store, *flows)
    with flow_held(url, *flows):
        assert locked_out(store.recover(decided(claims))) == {f"{flow}:a" for flow in flows}
    assert statuses(store, "plain-0", "plain-1") == [S.PENDING, S.PENDING]


def test_what_a_suspect_holds_is_taken_but_for_what_is_locked(store: PostgresStore, url: str) -> None:
    claims = running(store, "locked")
    suspect = Suspect(worker_id="w1", beat_seq=0, missing_us=3_000_000)
    with flow_held(url, "locked"):
        assert locked_out(store.recover_suspected(suspect, decided(claims))) == {"locked:a"}
    assert statuses(store, "plain-0", "locked:a") == [S.PENDING, S.RUNNING]


def test_the_report_names_what_was_locked_and_it_is_recovered_later(store: PostgresStore, url: str) -> None:
    running(store, "locked")
    store.declare_dead("w1", reason="lost its lock", cause="proof")
    reaper = recovery(store)
    with flow_held(url, "locked"):
        first = reaper.finish(Findings(policy=reaper.policy), reaper.now(), actor="test")
    second = reaper.finish(Findings(policy=reaper.policy), reaper.now(), actor="test")

    assert first is not None
    assert second is not None
    told = {task.task_id: task.error for task in first.recovered_tasks}
    assert told == {"plain-0": None, "plain-1": None, "locked:a": LOCKED}
    assert [(task.task_id, task.error) for task in second.recovered_tasks] == [("locked:a", None)]
    assert not reaper.has_given_up


def test_an_outcome_in_a_spool_waits_for_a_lock_alone_and_its_task_does_not_run_again(
    store: PostgresStore, url: str
) -> None:
    claims = running(store, "locked")
    spool = Spool(store.state_directory, worker_id="w1", store_id=store.store_id)
    for task_id in ("locked:a", "plain-0"):
        spool.add(claims[task_id], succeeded(), None)
    spool.sync(0, at_once=True)
    store.declare_dead("w1", reason="lost its lock", cause="proof")
    reaper = recovery(store)

    with flow_held(url, "locked"):
        reaper.finish(Findings(policy=reaper.policy), reaper.now(), actor="test")
        reaper.await_outcomes(replay_spools(store))
    reaper.recover_orphans(Findings(policy=reaper.policy))  # the lock was given up a moment too late for the outcome
    assert statuses(store, "plain-0", "plain-1", "locked:a") == [S.COMPLETED, S.PENDING, S.RUNNING]
    assert spool.path.exists()

    reaper.finish(Findings(policy=reaper.policy), reaper.now(), actor="test")
    assert states(store, "locked") == {"a": "COMPLETED"}
    assert not spool.path.exists()
    assert store.late_outcomes("locked:a") == []
    (told,) = (one for one in store.events() if one.name == "spool.replayed")
    assert told.facts == {"settled": 2, "adopted": 0, "refused": 0}


def test_what_was_not_started_in_time_expires_but_for_what_is_locked(store: PostgresStore, url: str) -> None:
    for flow in ("locked", "free"):
        begin(store, graph(flow, nodes={"a": {"good_until": LONG_AGO}}, a=""))
    store.enqueue([a_task(id="plain", good_until=LONG_AGO)])

    with flow_held(url, "locked"):
        assert sorted(store.expire(settle_us=0)) == ["free:a", "plain"]
        assert store.expire(settle_us=0) == []
    assert store.expire(settle_us=0) == ["locked:a"]
    assert states(store, "locked") == states(store, "free") == {"a": "FAILED"}


def test_a_torn_workflow_that_is_locked_keeps_no_other_from_being_mended(store: PostgresStore, url: str) -> None:
    for flow in ("a-locked", "b-free"):
        begin(store, graph(flow, a="", b="a"))
    with store.database.write() as tx:
        tx.run("DELETE FROM everbeat_tasks")

    with flow_held(url, "a-locked"):
        mended, stuck, _ = store.mend_workflows()
        assert (list(mended), list(stuck)) == (["b-free"], ["a-locked"])
    mended, stuck, _ = store.mend_workflows()
    assert (list(mended), list(stuck)) == (["a-locked"], [])
