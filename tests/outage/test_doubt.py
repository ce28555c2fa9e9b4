"""The line breaks around COMMIT, and nobody knows on which side of it (PROTOCOL 7).

The store is asked before anything else is claimed, and everything that is sent a second time is written once.
"""

import threading

import psycopg
import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Yard
from tests.outage.proxy import Proxy, Where
from tests.outage.test_server import database_of
from tests.postgres import Cluster

from everbeat import TaskStatus

LAUNCHES = b"SET status = 'RUNNING', fence = fence + 1"
COMPLETES = b"SET status = 'COMPLETED'"
DECLARES_DEAD = b"SET status = 'dead'"
BEATS = b"beat_seq = beat_seq + 1"
WHERES: list[Where] = ["before", "after"]


@pytest.mark.parametrize("where", WHERES)
def test_a_claim_whose_commit_got_no_answer_is_run_once_and_not_billed(yard: Yard, proxy: Proxy, where: Where) -> None:
    worker = yard.worker(environment={"YARD_URL": proxy.url})
    cut = proxy.cut_commit(where, LAUNCHES)

    task_id = yard.send("quick")
    yard.until_ended([task_id])

    assert cut.is_done
    yard.audit([task_id])
    assert (yard.status(task_id), len(yard.starts(task_id))) == (TaskStatus.COMPLETED, 1)
    (start,) = yard.starts(task_id)
    assert (start.attempt, start.fence) == (1, 3 if where == "after" else 1)  # no process has seen the first claim
    assert not yard.events("task.recovered")  # by its own worker, at once
    assert yard.task(task_id).lost_count == 0
    assert worker.stop() == 0


def test_who_asks_what_is_his_waits_for_what_is_still_being_committed(yard: Yard, cluster: Cluster) -> None:
    """The server may learn of a broken line long after the worker did."""
    worker, task_id = yard.worker("--queues", "elsewhere"), yard.send("quick")
    name, found = database_of(yard), []
    asking = threading.Thread(target=lambda: found.extend(yard.store.surely_owned_by(worker.id)))
    with psycopg.connect(cluster.url(name)) as flush:
        flush.execute("SELECT 1 FROM everbeat_workers WHERE id = %s FOR KEY SHARE", (worker.id,))
        flush.execute("UPDATE everbeat_tasks SET status = 'CLAIMED', fence = 1, worker_id = %s", (worker.id,))
        asking.start()
        yard.until(lambda: cluster.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"), "it waits")
    asking.join()

    assert [claim.id for claim in found] == [task_id]


@pytest.mark.parametrize("name", ["quick", "a_quick", "fails_always"])
@pytest.mark.parametrize("where", WHERES)
def test_an_outcome_whose_commit_got_no_answer_is_stored_once(
    yard: Yard, proxy: Proxy, where: Where, name: str
) -> None:
    worker = yard.worker(environment={"YARD_URL": proxy.url})
    cut = proxy.cut_commit(where, COMPLETES if name != "fails_always" else b"run_at = coalesce(")

    task_id = yard.send(name)
    yard.until_ended([task_id])

    assert cut.is_done
    yard.audit([task_id])
    runs = 3 if name == "fails_always" else 1
    assert len(yard.starts(task_id)) == runs
    assert len(yard.full(task_id).attempts) == (runs if name == "fails_always" else 0)
    assert not yard.events("outcome.refused")
    assert worker.stop() == 0


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("statement", [DECLARES_DEAD, b"lost_count = lost_count +"], ids=["verdict", "recovery"])
def test_a_recovery_whose_commit_got_no_answer_is_made_once(
    make_yard: MakeYard, proxy: Proxy, where: Where, statement: bytes
) -> None:
    yard = make_yard(**FAST)
    victim = yard.worker()
    task_id, victim_id = yard.send("gated_again", "go"), victim.id
    yard.until_started(task_id)
    heir = yard.worker(environment={"YARD_URL": proxy.url})
    cut = proxy.cut_commit(where, statement)

    victim.kill()
    yard.until_started(task_id, times=2)
    yard.open("go")
    yard.until_ended([task_id])

    assert cut.is_done
    yard.audit([task_id])
    assert yard.task(task_id).lost_count == 1
    assert len(yard.starts(task_id)) == 2
    assert [event.worker_id for event in yard.events("worker.dead")] == [victim_id]
    assert len(yard.events("task.recovered", task_id=task_id)) == 1
    assert heir.stop() == 0


@pytest.mark.parametrize("where", WHERES)
def test_a_beat_without_an_answer_changes_nothing(make_yard: MakeYard, proxy: Proxy, where: Where) -> None:
    yard = make_yard(**FAST)
    worker = yard.worker(environment={"YARD_URL": proxy.url})
    worker_id = worker.id
    cut = proxy.cut_commit(where, BEATS)
    yard.until(lambda: cut.is_done, "a beat was cut")

    task_id = yard.send("quick")
    yard.until_ended([task_id])

    assert worker.id == worker_id
    assert not yard.events("worker.dead")
    assert worker.stop() == 0
