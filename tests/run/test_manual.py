"""Recovery at a person's request."""

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import a_policy, enqueue

from everbeat.run import manual
from everbeat.run.manual import ByHand

AGAIN = a_policy(max_attempts=5, has_retry=True)


def status(stage: Stage, worker: SimulatedWorker) -> str:
    return next(info.status.value for info in stage.store.workers() if info.id == worker.id)


def running(stage: Stage, worker: SimulatedWorker) -> str:
    task = enqueue(stage.store, policy=AGAIN)
    worker.get_up()
    worker.crew.begin(1)
    return task


def test_a_threshold_below_two_beats_is_taken_as_two_beats(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = running(stage, worker)
    stage.clock.advance(60)
    assert ByHand(stage.store, worker.config).mark_stale_tasks_as_failed(stale_threshold_ms=1) == 0

    stage.clock.advance(1)
    assert ByHand(stage.store, worker.config).mark_stale_tasks_as_failed(stale_threshold_ms=1) == 1

    info = stage.task(task)
    assert (info.status, info.error_code) == ("FAILED", "WORKER_CRASHED")
    assert info.history[-1].actor == "user/manual"
    assert status(stage, worker) == "dead"


def test_a_result_that_comes_after_a_person_failed_the_task_is_refused(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = running(stage, worker)
    stage.clock.advance(100)
    ByHand(stage.store, worker.config).mark_stale_tasks_as_failed(stale_threshold_ms=1)
    worker.crew.end(1)

    worker.turn()

    assert worker.dispatcher.mandate.is_fenced
    assert stage.status(task) == ["FAILED"]
    assert "outcome.refused" in stage.events()


def test_more_orphans_than_one_batch_are_all_settled(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "BATCH", 2)
    worker = stage.worker(processes=5)
    tasks = [enqueue(stage.store) for _ in range(5)]
    worker.get_up()
    ByHand(stage.store, worker.config).mark_worker_dead(worker.id)

    assert ByHand(stage.store, worker.config).requeue_stale_claimed(stale_threshold_ms=1) == 0
    assert ByHand(stage.store, worker.config).mark_stale_tasks_as_failed(stale_threshold_ms=1000) == 5
    assert stage.status(*tasks) == ["FAILED"] * 5


def test_a_worker_is_alive_while_it_beats_and_its_lock_is_held(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = running(stage, worker)
    assert ByHand(stage.store, worker.config).is_worker_alive(worker.id)
    assert not ByHand(stage.store, worker.config).is_worker_alive("nobody")
    (said,) = ByHand(stage.store, worker.config).get_worker_status()
    assert (said.current_task_id, said.is_alive) == (task, True)

    stage.clock.advance(301)

    assert not ByHand(stage.store, worker.config).is_worker_alive(worker.id)
    (stale,) = ByHand(stage.store, worker.config).detect_stale_workers()
    assert (stale.worker_id, stale.task_ids) == (worker.id, [task])


def test_a_worker_of_somebodys_own_making_lives_by_its_beats_alone(stage: Stage) -> None:
    config = stage.worker("w1").config
    ByHand(stage.store, config).send_heartbeat("own", None)
    assert ByHand(stage.store, config).is_worker_alive("own")

    stage.clock.advance(301)
    assert not ByHand(stage.store, config).is_worker_alive("own")
    ByHand(stage.store, config).send_heartbeat("own", None)

    assert ByHand(stage.store, config).is_worker_alive("own")
