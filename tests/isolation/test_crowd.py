"""Eight processes on one store, each doing at random what workers, reapers, senders and people do."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.isolation.crowd import LIMIT
from tests.postgres import EmptyDatabase
from tests.words import a_room, completed, recover, register

from everbeat.config import AppConfig, broker_from_url
from everbeat.model.flow import WorkflowChange
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.run.mending import mend_workflows
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush
from everbeat.store.open import open_store
from everbeat.store.sql.store import SQLStore

ROOT = Path(__file__).parents[2]
MEMBERS = 8
SECONDS = float(os.environ.get("EVERBEAT_CROWD", "5"))
SEED = int(os.environ.get("EVERBEAT_CROWD_SEED", "1"))
"""What each of them does by chance; when that meets what others do, no seed says."""
PATIENCE = 60.0
# One statement, so one moment.
TOO_MANY = f"""
SELECT 'queue few', count(*) FROM everbeat_tasks WHERE status IN ('CLAIMED', 'RUNNING') AND queue = 'few'
HAVING count(*) > {LIMIT.max_concurrency}
UNION ALL
SELECT 'key ' || exclusive_key, count(*) FROM everbeat_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') AND exclusive_key IS NOT NULL GROUP BY exclusive_key HAVING count(*) > 1
UNION ALL
SELECT 'unique ' || unique_key, count(*) FROM everbeat_tasks
 WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING') AND unique_key IS NOT NULL
 GROUP BY name, unique_key HAVING count(*) > 1"""
NOT_ENDED = "SELECT id, status, waiting_for, due_at, worker_id FROM everbeat_tasks WHERE finished_at IS NULL"
# A diamond has four nodes, each has one task at most, and the join has one only if both of its inputs completed.
TORN_FLOWS = """
SELECT w.id, w.status, w.nodes_left FROM everbeat_workflows w
 WHERE w.status NOT IN ('COMPLETED', 'FAILED', 'CANCELLED') OR w.nodes_left <> 0
    OR (SELECT count(*) FROM everbeat_workflow_tasks n WHERE n.workflow_id = w.id
         AND n.status IN ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')) <> 4
    OR (w.status = 'COMPLETED' AND (SELECT count(*) FROM everbeat_tasks t
         WHERE t.workflow_id = w.id AND t.status = 'COMPLETED') <> 4)
UNION ALL
SELECT 'node ' || t.node || ' of ' || t.workflow_id, 'tasks', count(*) FROM everbeat_tasks t
 WHERE t.workflow_id IS NOT NULL GROUP BY t.workflow_id, t.node HAVING count(*) > 1
UNION ALL
SELECT 'join of ' || t.workflow_id, 'too early', 1 FROM everbeat_tasks t
 WHERE t.workflow_id IS NOT NULL AND t.node = 3 AND t.status = 'COMPLETED'
   AND 2 <> (SELECT count(*) FROM everbeat_workflow_tasks n
              WHERE n.workflow_id = t.workflow_id AND n.node IN (1, 2) AND n.status = 'COMPLETED')"""
FLOWS = "SELECT id FROM everbeat_workflows"
STATES = "SELECT id, status, fence, result FROM everbeat_tasks"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/crowd.db"
    database: EmptyDatabase = request.getfixturevalue("a_database")
    return database.url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(AppConfig(broker=broker_from_url(url), eager=False))) as store:
        yield store


def ask(store: Store, sql: str) -> list[tuple[object, ...]]:
    assert isinstance(store, SQLStore)
    with store.database.read() as tx:
        return tx.all(sql)


def test_whatever_eight_processes_do_at_once_nothing_is_lost_doubled_or_stuck(url: str, store: Store) -> None:
    sys.stdout.write(f"to do the same again: EVERBEAT_CROWD_SEED={SEED}\n")  # shown if it fails
    said = [line for member in crowd(url, store, seed=SEED) for line in member]

    troubles = [line[1] for line in said if line[0] == "trouble"]
    assert [trouble for trouble in troubles if "deadlock" in trouble] == []
    owners = Counter((task_id, fence) for word, task_id, *fence_ in said if word == "claimed" for fence in fence_)
    assert [owner for owner, times in owners.items() if times > 1] == []
    found = {task_id: (status, fence, result) for task_id, status, fence, result in ask(store, STATES)}
    assert {line[1] for line in said if line[0] == "sent"} <= found.keys()
    accepted = Counter(line[1] for line in said if line[0] == "completed")
    assert [task_id for task_id, times in accepted.items() if times > 1 or found[task_id][0] != "COMPLETED"] == []
    assert play_to_the_end(store) == []
    assert ask(store, TORN_FLOWS) == []
    assert {line[1] for line in said if line[0] == "started"} == {flow for (flow,) in ask(store, FLOWS)} != set()
    assert len(owners) > 20, "hardly anything happened"


def crowd(url: str, store: Store, *, seed: int) -> list[list[list[str]]]:
    """What each of them said. While they are at it, somebody looks."""
    members = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.isolation.crowd", url, str(number), str(seed), str(SECONDS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for number in range(MEMBERS)
    ]  # fmt: skip
    try:
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n"
        for member in members:
            assert member.stdin is not None
            member.stdin.write("go\n")
            member.stdin.flush()
        give_up = time.monotonic() + SECONDS
        while time.monotonic() < give_up:
            assert ask(store, TOO_MANY) == []
            time.sleep(0.01)
        ended = [member.communicate(timeout=PATIENCE) for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait()
    assert [member.returncode for member in members] == [0] * MEMBERS
    return [[json.loads(line) for line in out.splitlines()] for out, _ in ended]


def play_to_the_end(store: Store) -> list[tuple[object, ...]]:
    """Everybody is gone, and one comes who recovers and runs what is left; what could not be ended."""
    for worker in store.workers(alive_only=True):
        store.declare_dead(worker.id, reason="gone", cause="host")
    torn = mend_workflows(store)
    assert (torn.mended, torn.stuck) == ({}, {}), "workflows were torn"
    for (flow,) in ask(store, FLOWS):
        store.change_workflow(WorkflowChange.RESUME, str(flow), actor="me")
    register(store, "heir")
    give_up = time.monotonic() + PATIENCE
    while (left := ask(store, NOT_ENDED)) and time.monotonic() < give_up:
        for claim in store.orphans(limit=100):
            recover(store, claim, Verdict(change=Change.RECOVER, reason="its worker died"))
        claims = store.flush(Flush(worker_id="heir", room=a_room(20))).claims
        store.flush(Flush(worker_id="heir", endings=[Ending(claim=one, verdict=completed()) for one in claims]))
    return left
