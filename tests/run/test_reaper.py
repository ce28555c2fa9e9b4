"""Who is declared dead, by whom and when."""

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import a_policy, enqueue

from everbeat.errors import StoreUnavailable

AGAIN = a_policy(max_attempts=5, has_retry=True)
QUICK = {
    "runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000, "running_stale_threshold_ms": 10_000,
    "claimed_stale_threshold_ms": 5_000, "check_interval_ms": 2_000,
}  # fmt: skip


def live(stage: Stage, seconds: float, *workers: SimulatedWorker) -> None:
    """They beat, turn and look for that long; everybody else stands still."""
    for _ in range(round(seconds * 4)):
        stage.clock.advance(0.25)
        for worker in workers:
            worker.turn()
            worker.reaper.tick()
            if stage.clock.mono_us() % 1_000_000 == 0:
                worker.heartbeat.tick()


def status(stage: Stage, worker: SimulatedWorker) -> str:
    return next(info.status.value for info in stage.store.workers() if info.id == worker.id)


def running(stage: Stage, worker: SimulatedWorker) -> str:
    task = enqueue(stage.store, policy=AGAIN)
    worker.get_up()
    worker.crew.begin(1)
    return task


def test_a_freed_lock_is_acted_on_at_the_next_look(stage: Stage) -> None:
    dead, judge = stage.worker("dead", processes=1), stage.worker("judge", processes=1)
    task = running(stage, dead)
    judge.reaper.tick()
    assert status(stage, dead) == "alive"
    dead.vanish()

    judge.reaper.tick()

    assert status(stage, dead) == "dead"
    assert stage.status(task) == ["PENDING"]
    assert stage.task(task).lost_count == 1


@pytest.mark.proves("FR-039", "FR-042", "FR-043", "AC-007")
def test_silence_is_judged_after_the_threshold_and_not_before(stage: Stage) -> None:
    frozen, judge = stage.worker("frozen", processes=1, **QUICK), stage.worker("judge", **QUICK)
    task = running(stage, frozen)
    live(stage, 20, frozen, judge)

    live(stage, 10, judge)
    assert status(stage, frozen) == "alive"
    live(stage, 3, judge)

    assert status(stage, frozen) == "dead"
    assert stage.status(task) == ["PENDING"]


@pytest.mark.proves("FR-044")
def test_a_frozen_worker_whose_lock_is_held_has_its_running_tasks_taken_at_their_word(stage: Stage) -> None:
    frozen, judge = stage.worker("frozen", processes=1, **QUICK), stage.worker("judge", **QUICK)
    task = enqueue(stage.store)
    frozen.get_up()  # sent, and nobody has begun it yet

    live(stage, 30, judge)

    assert stage.status(task) == ["FAILED"]  # it may begin any time


def test_after_an_outage_of_the_store_everybody_gets_a_full_window(stage: Stage) -> None:
    late, judge = stage.worker("late", processes=1, **QUICK), stage.worker("judge", **QUICK)
    running(stage, late)
    live(stage, 20, late, judge)
    stage.clock.advance(3600)  # nobody could write

    live(stage, 9, judge)
    assert status(stage, late) == "alive"
    live(stage, 4, judge)

    assert status(stage, late) == "dead"


def test_a_judge_that_was_held_up_does_not_judge(stage: Stage) -> None:
    silent, other = stage.worker("silent", processes=1, **QUICK), stage.worker("other", **QUICK)
    judge = stage.worker("judge", **QUICK)
    running(stage, silent)
    live(stage, 20, silent, other, judge)
    for second in range(30):  # the store is healthy: the other one beats
        stage.clock.advance(1)
        other.turn(), other.heartbeat.tick()
        if second % 3 == 0:
            judge.reaper.tick()
    assert status(stage, silent) == "alive"

    live(stage, 1, judge)

    assert status(stage, silent) == "dead"


def test_a_judge_that_is_never_on_time_does_not_keep_others_from_judging(stage: Stage) -> None:
    silent, judge = stage.worker("silent", processes=1, **QUICK), stage.worker("judge", **QUICK)
    sick = stage.worker("sick", **QUICK)
    running(stage, silent)
    for turn in range(40):
        live(stage, 1, judge)
        sick.turn(), sick.heartbeat.tick()
        if turn % 3 == 0:
            sick.reaper.tick()

    assert status(stage, silent) == "dead"
    assert status(stage, sick) == "alive"


def test_workers_that_live_shortly_judge_too(stage: Stage) -> None:
    silent = stage.worker("silent", processes=1, **QUICK)
    task = running(stage, silent)

    for number in range(20):
        burst = stage.worker(f"burst-{number}", **QUICK)
        live(stage, 1, burst)
        burst.store.retire(burst.id)

    assert status(stage, silent) == "dead"
    assert stage.status(task) == ["PENDING"]


def test_claims_of_a_silent_worker_go_back_earlier_than_it_is_declared_dead(stage: Stage) -> None:
    silent, judge = stage.worker("silent", processes=1, async_slots=2, **QUICK), stage.worker("judge", **QUICK)
    tasks = [enqueue(stage.store, name="later", policy=AGAIN) for _ in range(2)]
    silent.get_up()
    silent.crew.begin(0), silent.crew.begin(0)
    silent.crew.die(0, -11)
    silent.turn()
    assert stage.status(*tasks) == ["CLAIMED", "PENDING"]
    live(stage, 10, silent, judge)

    live(stage, 8, judge)

    assert stage.status(*tasks) == ["PENDING", "PENDING"]
    assert status(stage, silent) == "alive"
    silent.crew.get_ready(2)
    silent.turn(2)
    assert silent.crew.sends == tasks  # what was requeued behind its back was not started by it


def test_the_role_is_taken_over_when_its_holder_is_silent(stage: Stage) -> None:
    first, second = stage.worker("first", **QUICK), stage.worker("second", **QUICK)
    silent = stage.worker("silent", processes=1, **QUICK)
    live(stage, 5, first, second)
    assert not stage.store.take_role("reaper", "second", lease_us=1)

    live(stage, 20, second)

    assert stage.store.take_role("reaper", "second", lease_us=1)
    assert status(stage, first) == status(stage, silent) == "dead"


def test_two_reapers_at_once_recover_a_task_once(stage: Stage) -> None:
    dead, one, two = (stage.worker(name, processes=1) for name in ("dead", "one", "two"))
    task = running(stage, dead)
    one.reaper.tick(), two.reaper.tick()
    dead.vanish()

    one.reaper.tick(), two.reaper.tick()

    assert stage.task(task).lost_count == 1
    assert stage.events().count("worker.dead") == stage.events().count("task.recovered") == 1


def test_a_recovery_that_could_not_be_written_is_tried_again_at_the_next_look(stage: Stage) -> None:
    dead, judge = stage.worker("dead", processes=1), stage.worker("judge", processes=1)
    task = running(stage, dead)
    judge.reaper.tick()
    dead.vanish()
    assert judge.recovery.bury_proven(stage.store.workers(), but=judge.id)
    judge.judge_line.break_before_commit()

    with pytest.raises(StoreUnavailable):
        judge.reaper.tick()
    judge.reaper.tick()

    assert stage.status(task) == ["PENDING"]


# -- exclusive keys ---------------------------------------------------------------------------------------------------


def test_an_exclusive_task_of_a_silent_worker_is_taken_over_after_its_lease_and_nothing_else_is(stage: Stage) -> None:
    frozen, judge = stage.worker("frozen", processes=2), stage.worker("judge", processes=1)
    task = enqueue(stage.store, policy=AGAIN, exclusive_key="k")
    plain = enqueue(stage.store, policy=AGAIN)
    frozen.get_up()
    frozen.crew.begin(1)
    frozen.crew.begin(2)
    live(stage, 40, frozen, judge)

    live(stage, 29, judge)
    assert stage.status(task, plain) == ["RUNNING", "RUNNING"]
    live(stage, 3, judge)

    assert stage.task(task).attempts[0].error_code == "LEASE_LOST"
    assert stage.task(task).worker_id != "frozen"
    assert stage.status(plain) == ["RUNNING"]
    assert status(stage, frozen) == "alive"


def test_a_worker_that_renews_its_lease_keeps_its_exclusive_task(stage: Stage) -> None:
    owner, judge = stage.worker("owner", processes=1), stage.worker("judge", processes=1)
    task = enqueue(stage.store, policy=AGAIN, exclusive_key="k")
    owner.get_up()
    owner.crew.begin(1)

    live(stage, 120, owner, judge)

    assert stage.status(task) == ["RUNNING"]
    assert stage.task(task).worker_id == "owner"


def test_an_exclusive_task_of_a_worker_that_is_proven_gone_waits_for_no_lease(stage: Stage) -> None:
    dead, judge = stage.worker("dead", processes=1), stage.worker("judge", processes=1)
    task = enqueue(stage.store, policy=AGAIN, exclusive_key="k")
    dead.get_up()
    dead.crew.begin(1)
    dead.vanish()

    judge.reaper.tick()

    assert stage.status(task) == ["PENDING"]
    assert stage.task(task).lost_count == 1


def test_an_exclusive_task_of_a_worker_that_a_person_declared_dead_waits_for_its_lease(stage: Stage) -> None:
    frozen, judge = stage.worker("frozen", processes=1), stage.worker("judge", processes=1)
    task = enqueue(stage.store, policy=AGAIN, exclusive_key="k")
    frozen.get_up()
    frozen.crew.begin(1)
    live(stage, 1, judge)
    stage.store.declare_dead("frozen", reason="by a person", cause="manual")

    live(stage, 20, judge)
    assert stage.status(task) == ["RUNNING"]
    live(stage, 20, judge)

    assert stage.task(task).attempts[0].error_code == "LEASE_LOST"
