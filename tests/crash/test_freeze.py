"""SIGSTOP: what stands still past the threshold is replaced, and its late word changes nothing."""

import fcntl
import os
import random
import signal
from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Worker, Yard, is_alive, is_stopped

from everbeat import AppConfig, SQLiteConfig, TaskStatus
from everbeat.errors import StoreUnavailable
from everbeat.model.event import Event
from everbeat.model.worker import WorkerStatus
from everbeat.store.open import open_store

PATIENT = FAST | {"running_stale_threshold_ms": 20_000, "claimed_stale_threshold_ms": 20_000}


def test_a_stopped_busy_supervisor_is_replaced_and_its_results_do_not_count(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    zombie = yard.worker()
    again, once = yard.send("gated_again", "go"), yard.send("gated", "go")
    for task_id in (again, once):
        yard.until_started(task_id)
    heir = yard.worker()
    old_id = zombie.id

    zombie.freeze()
    meanwhile = yard.send("quick")
    yard.until_ended([meanwhile, once])
    yard.until_started(again, times=2)
    yard.open("go")
    yard.until(lambda: len(yard.ends(again)) == 2 and yard.ends(once), "the zombie's children have finished")
    yard.until_ended([again])
    zombie.thaw()
    yard.until_event("worker.fenced", worker_id=old_id)

    yard.audit([again, once, meanwhile])
    assert yard.result(again) == yard.starts(again)[1].fence
    assert (yard.status(once), yard.task(once).error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
    assert {event.worker_id for event in yard.events("outcome.refused")} == {old_id}
    assert sorted(event.task_id or "" for event in yard.events("outcome.refused")) == sorted([again, once])
    kept = yard.query("SELECT task_id, fence, found_status FROM everbeat_late_outcomes ORDER BY found_status")
    assert kept == [(again, 1, "COMPLETED"), (once, 1, "FAILED")]
    assert [event.facts["cause"] for event in yard.events("worker.dead", worker_id=old_id)] == ["silence"]
    assert goes_on_under_a_new_id(yard, zombie, old_id)
    assert heir.stop() == 0
    last = yard.send("quick")
    yard.until_ended([last])
    assert yard.status(last) is TaskStatus.COMPLETED
    assert zombie.stop() == 0


def test_a_stopped_idle_supervisor_takes_a_new_id_and_works_on(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    zombie, heir = yard.worker(ready=False), yard.worker()
    yard.until_ready(zombie)
    old_id = zombie.id

    zombie.freeze()
    yard.until_event("worker.dead", worker_id=old_id)
    zombie.thaw()
    yard.until_event("worker.fenced", worker_id=old_id)
    assert goes_on_under_a_new_id(yard, zombie, old_id)
    assert heir.stop() == 0
    ids = [yard.send("quick"), yard.send("a_quick")]
    yard.until_ended(ids)

    yard.audit(ids)
    assert zombie.stop() == 0


def test_the_result_of_a_revoked_task_that_nobody_took_since_is_adopted(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    zombie, judge = yard.worker(ready=False), yard.worker("--queues", "elsewhere")
    yard.until_ready(zombie)
    task_id = yard.send("gated_again", "go")
    yard.until_started(task_id)

    zombie.freeze()
    yard.until(lambda: yard.status(task_id) is TaskStatus.PENDING, "the task is recovered")
    yard.open("go")
    yard.until(lambda: yard.ends(task_id), "the zombie's child has finished")
    zombie.thaw()
    yard.until_ended([task_id])

    yard.audit([task_id])
    assert (yard.status(task_id), len(yard.starts(task_id))) == (TaskStatus.COMPLETED, 1)
    assert len(yard.events("outcome.adopted", task_id=task_id)) == 1
    assert judge.stop() == 0


def test_children_that_are_stopped_past_the_threshold_are_busy_and_not_dead(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    worker, other = yard.worker(ready=False), yard.worker()
    yard.until_ready(worker)
    ids = [yard.send(name, "go") for name in ("gated_again", "gated", "gated", "a_gated")]
    pids = [yard.until_started(task_id).pid for task_id in ids]

    worker.freeze(*pids)
    until_beaten(yard, worker, times=6)
    yard.open("go")
    worker.thaw(*pids)
    yard.until_ended(ids)

    yard.audit(ids)
    assert [len(yard.starts(task_id)) for task_id in ids] == [1, 1, 1, 1]
    assert not yard.events("worker.dead")
    assert not yard.events("child.died")
    assert (worker.stop(), other.stop()) == (0, 0)


def test_a_whole_tree_that_is_stopped_past_the_threshold_is_replaced(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    zombie = yard.worker()
    again, a_again, once = yard.send("gated_again", "go"), yard.send("a_gated_again", "go"), yard.send("gated", "go")
    ids = [again, a_again, once]
    for task_id in ids:
        yard.until_started(task_id)
    heir = yard.worker()
    old_id, tree = zombie.id, zombie.tree

    zombie.freeze(*tree)
    for task_id in (again, a_again):
        yard.until_started(task_id, times=2)
    yard.open("go")
    yard.until_ended(ids)
    zombie.thaw(*reversed(tree))
    yard.until_event("worker.fenced", worker_id=old_id)

    yard.audit(ids)
    assert [yard.result(task_id) for task_id in (again, a_again)] == [
        yard.starts(again)[1].fence,
        yard.starts(a_again)[1].fence,
    ]
    assert (yard.status(once), yard.task(once).error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
    assert goes_on_under_a_new_id(yard, zombie, old_id)
    assert heir.stop() == 0
    last = yard.send("quick")
    yard.until_ended([last])
    assert zombie.stop() == 0


def test_a_stop_shorter_than_the_threshold_goes_unnoticed(make_yard: MakeYard) -> None:
    yard = make_yard(**PATIENT)
    worker, witness = yard.worker(ready=False), yard.worker()
    yard.until_ready(worker)
    ids = [yard.send("gated_again", "go"), yard.send("gated", "go"), yard.send("a_gated", "go")]
    for task_id in ids:
        yard.until_started(task_id)

    for pids in ([worker.pid], worker.tree):
        worker.freeze(*pids)
        until_beaten(yard, witness, times=2)
        worker.thaw(*pids)
    yard.open("go")
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert [len(yard.starts(task_id)) for task_id in ids] == [1, 1, 1]
    assert not yard.events("worker.dead")
    assert not yard.events("task.recovered")


def test_when_every_worker_stood_still_nobody_is_declared_dead(make_yard: MakeYard) -> None:
    """A suspended machine, a stopped container: the living may beat first."""
    yard = make_yard(**FAST)
    workers = [yard.worker(ready=False), yard.worker()]
    yard.until_ready(workers[0])
    ids = [yard.send(name, "go") for name in ("gated", "gated_again", "a_gated")]
    for task_id in ids:
        yard.until_started(task_id)
    trees = [worker.tree for worker in workers]

    for worker, tree in zip(workers, trees, strict=True):
        worker.freeze(*tree)
    yard.until(lambda: min(worker.info.silent_for_us for worker in workers) > 8e6, "all were silent for 8 s")
    for worker, tree in zip(workers, trees, strict=True):
        worker.thaw(*tree)
        until_beaten(yard, worker, times=3)
    yard.open("go")
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert not yard.events("worker.dead")
    assert not yard.events("task.recovered")


@pytest.mark.proves("FR-054")
def test_a_store_that_nobody_could_write_for_long_has_lost_nothing_and_accuses_nobody(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    workers = [yard.worker(ready=False), yard.worker()]
    yard.until_ready(workers[0])
    ids = [yard.send(name, "go") for name in ("gated", "gated_again", "a_gated", "a_gated_again")]
    for task_id in ids:
        yard.until_started(task_id)

    stranger = yard.stranger()
    yard.open("go")
    yard.until(lambda: min(worker.info.silent_for_us for worker in workers) > 8e6, "nobody could beat for 8 s")
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.RUNNING}
    stranger.kill()
    yard.until_ended(ids)
    for worker in workers:
        until_beaten(yard, worker, times=5)

    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in ids} == {1}
    assert not yard.events("worker.dead")
    assert any(f"blocked by pid {stranger.pid}" in worker.said() for worker in workers)
    assert [worker.stop() for worker in workers] == [0, 0]


def test_a_zombie_that_was_told_to_stop_meanwhile_stops(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    zombie = yard.worker()
    task_id = yard.send("gated_again", "go")
    yard.until_started(task_id)
    heir = yard.worker()
    old_id = zombie.id

    zombie.freeze()
    zombie.signal(signal.SIGTERM)
    yard.until_started(task_id, times=2)
    zombie.thaw()

    assert zombie.ended() == 0
    yard.open("go")
    yard.until_ended([task_id])
    yard.audit([task_id])
    assert len(yard.events("worker.fenced", worker_id=old_id)) == 1
    assert [row.id for row in yard.store.workers() if row.status is WorkerStatus.ALIVE] == [heir.id]


@pytest.mark.timeout(240)
def test_a_supervisor_stopped_at_any_moment_does_not_keep_the_others_from_the_store(make_yard: MakeYard) -> None:
    """Where it holds the write lock they are told who does."""
    yard, chance = make_yard(**PATIENT), random.Random(7)
    steady, victim = yard.worker(ready=False), yard.worker()
    yard.until_ready(steady)
    ids: list[str] = []
    told = 0
    for _ in range(20):
        wanted = len(yard.ledger()) + chance.randrange(150)
        ids += yard.send_many("work_again", [(0.0,)] * 150)
        yard.until(lambda wanted=wanted: len(yard.ledger()) > wanted, "work is going on")
        stop_now(victim)
        blocker = yard.store.blocker()
        if blocker is not None and blocker.pid == victim.pid:
            told += names_the_blocker(yard.path, victim.pid)
        else:
            ids.append(yard.send("quick"))
        victim.thaw()
    yard.until_ended(ids, timeout=120)

    yard.audit(ids)
    assert not yard.events("worker.dead")
    print(f"told {told} times who blocks")  # noqa: T201
    assert (steady.stop(), victim.stop()) == (0, 0)


@pytest.mark.parametrize("check_interval_ms", [1_000, 6_000])
def test_a_stopped_worker_that_holds_the_write_lock_is_killed_whatever_the_check_interval(
    make_yard: MakeYard, check_interval_ms: int
) -> None:
    yard = make_yard(**FAST | {"check_interval_ms": check_interval_ms})
    steady, victim = yard.worker(ready=False), yard.worker(ready=False)
    yard.until_ready(steady)
    yard.until_ready(victim)
    ids = stop_inside_a_transaction(yard, victim)

    assert victim.ended() == -9
    ids.append(yard.send("quick"))
    yard.until_ended(ids)

    yard.audit(ids)
    assert f"pid {victim.pid} (stopped)" in steady.said()


@pytest.mark.timeout(300)
def test_a_worker_that_is_stopped_in_the_middle_of_its_commit_is_killed_although_nobody_can_even_read(
    make_yard: MakeYard,
) -> None:
    yard = make_yard(**FAST)
    steady, victim = yard.worker(ready=False), yard.worker(ready=False)
    yard.until_ready(steady)
    yard.until_ready(victim)
    ids = stop_inside_a_transaction(yard, victim)

    yard.tear()

    assert victim.ended(timeout=120) == -9
    ids.append(yard.send("quick"))
    yard.until_ended(ids, timeout=120)
    yard.audit(ids)
    assert steady.stop() == 0


@pytest.mark.timeout(300)
def test_a_worker_that_starts_while_nobody_can_even_read_ends_who_is_in_the_way(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    victim = yard.worker()
    ids = stop_inside_a_transaction(yard, victim)
    yard.tear()

    late = yard.worker(ready=False)

    assert victim.ended(timeout=120) == -9
    yard.until(lambda: late.is_ready() or late.process.poll() is not None, "it is ready", timeout=120)
    yard.until_ended(ids, timeout=120)
    yard.audit(ids)
    assert f"pid {victim.pid} (stopped)" in late.said()
    assert late.stop() == 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_away", [False, True], ids=["the store is there", "the store is away meanwhile"])
def test_a_worker_declared_dead_goes_on_although_a_process_of_it_could_not_be_ended(
    make_yard: MakeYard, is_away: bool
) -> None:
    """One that is being made by a stopped fork server can not."""
    yard = make_yard(**FAST)
    worker = yard.worker(processes=1)
    yard.until_ended([yard.send("quick"), yard.send("a_quick")])
    (old_id, server), slots = (worker.id, worker.fork_server), worker.slots
    os.kill(server, signal.SIGSTOP)
    os.kill(slots[0], signal.SIGKILL)
    yard.until_event("child.died", worker_id=old_id)

    assert yard.app.get_broker().sync.mark_worker_dead(old_id)
    yard.until(lambda: not any(is_alive(pid) for pid in slots), "its other processes are ended")
    if is_away:
        files = [path for path in yard.path.iterdir() if path.name.startswith("yard.db") and path.is_file()]
        for path in files:
            path.rename(path.with_name(f"away-{path.name}"))
        yard.until(lambda: "store.unavailable" in worker.said(), "it has noticed")
        for path in files:
            path.with_name(f"away-{path.name}").rename(path)
    yard.until(lambda: worker.info.status is WorkerStatus.ALIVE, "it has a new id")
    worker.thaw(server)
    task_id = yard.send("quick")
    yard.until_ended([task_id])

    assert yard.task(task_id).worker_id == worker.id != old_id
    assert worker.stop() == 0


def goes_on_under_a_new_id(yard: Yard, worker: Worker, old_id: str) -> bool:
    yard.until(lambda: worker.info.status is WorkerStatus.ALIVE, "the zombie has a new row")
    old = next(row for row in yard.store.workers() if row.id == old_id)
    return worker.id != old_id and old.status is WorkerStatus.DEAD


def until_beaten(yard: Yard, worker: Worker, times: int) -> None:
    """Until this worker has renewed its row so often."""
    seen: set[object] = set()

    def beaten() -> bool:
        seen.add(worker.info.last_beat_at)
        return len(seen) > times

    yard.until(beaten, f"worker {worker.id} has beaten {times} times")


def stop_now(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    worker.yard.until(lambda: is_stopped(worker.pid), "it is stopped")


def stop_inside_a_transaction(yard: Yard, worker: Worker) -> list[str]:
    """Stop it again and again under load, until it holds the write lock."""
    ids: list[str] = []
    while True:
        if len(ids) < 20_000:
            ids += yard.send_many("quick_again", [()] * 200)
        for _ in range(20):
            stop_now(worker)
            blocker = yard.store.blocker()
            if blocker is not None and blocker.pid == worker.pid:
                return ids
            worker.thaw()


def names_the_blocker(path: Path, pid: int) -> bool:
    with pytest.raises(StoreUnavailable, match=rf"blocked by pid {pid} \(stopped\)"):
        write_something(path)
    return True


def write_something(path: Path) -> None:
    with closing(open_store(AppConfig(broker=SQLiteConfig(path / "yard.db")), patience=0.5)) as store:
        store.announce([Event(name="test.written")])


def test_a_worker_starts_although_somebody_stands_still_in_the_turnstile(make_yard: MakeYard) -> None:
    """Between two transactions, or while it moves the log: the write lock is free, so nobody is in the way of work."""
    yard = make_yard(**PATIENT)
    before = yard.send("quick")
    with (yard.path / "yard.db.d" / "turnstile").open("rb+") as turnstile:
        fcntl.flock(turnstile, fcntl.LOCK_EX)

        worker = yard.worker()
        yard.until_ended([before])

    assert yard.status(before) is TaskStatus.COMPLETED
    (report,) = yard.store.reports(limit=1)
    assert any("write-ahead log stays as it is" in warning for warning in report.warnings)
    assert worker.stop() == 0
