"""Tasks that end while nobody can write to the store, under workers that do not live to see it return (P8)."""

from collections.abc import Callable

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Running, Worker, Yard

from everbeat import TaskStatus
from everbeat.run.spool import read

ENDS: dict[str, Callable[[Worker], object]] = {
    "supervisor killed": lambda worker: worker.kill(),
    "everything killed": lambda worker: worker.kill_tree(children_first=True),
    "told to stop": lambda worker: worker.stop(),
}
NAMES = ("gated", "gated_again", "a_gated", "a_gated_again")


def finished_in_vain(yard: Yard, worker: Worker) -> tuple[list[str], Running]:
    """Tasks of this worker that have ended, and that the store does not know to have; and who is in the way."""
    ids = [yard.send(name, "go") for name in NAMES]
    for task_id in ids:
        yard.until_started(task_id)
    stranger = yard.stranger()
    yard.open("go")
    yard.until(lambda: sorted(kept(yard, worker)) == sorted(ids), "their outcomes are in the spool")
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.RUNNING}
    yard.until(lambda: f"store blocked by pid {stranger.pid}" in worker.said(), "the worker says who is in the way")
    return ids, stranger


def kept(yard: Yard, worker: Worker) -> list[str]:
    path = yard.store.state_directory / f"worker-{worker.id}.spool"
    return [one.task for one in read(path)[0]] if path.exists() else []


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_ended_while_the_store_was_away_is_stored_by_the_next_worker_and_not_run_again(
    yard: Yard, end: Callable[[Worker], object]
) -> None:
    worker = yard.worker("--drain-timeout", "0")
    ids, stranger = finished_in_vain(yard, worker)
    old_id = worker.id

    end(worker)
    stranger.kill()
    assert yard.worker("--burst").ended() == 0

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in ids} == {1}
    (told,) = yard.events("spool.replayed", worker_id=old_id)
    assert told.facts == {"settled": 4, "adopted": 0, "refused": 0}
    assert not yard.events("task.recovered")
    assert not list(yard.store.state_directory.glob("worker-*"))


def test_a_worker_that_runs_beside_it_stores_it_before_it_recovers_anything(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    victim, heir = yard.worker(ready=False), yard.worker("--queues", "elsewhere")
    yard.until_ready(victim)
    ids, stranger = finished_in_vain(yard, victim)

    victim.kill_tree(children_first=True)
    stranger.kill()
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in ids} == {1}
    assert heir.stop() == 0


def test_a_worker_that_lives_to_see_the_store_return_empties_its_spool(yard: Yard) -> None:
    worker = yard.worker()
    ids, stranger = finished_in_vain(yard, worker)

    stranger.kill()
    yard.until_ended(ids)

    yard.audit(ids)
    yard.until(lambda: not kept(yard, worker), "the spool is empty")
    assert worker.stop() == 0
    assert not list(yard.store.state_directory.glob("worker-*"))
