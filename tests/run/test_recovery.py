"""What becomes of the tasks and the files of workers that are gone."""

from collections.abc import Sequence

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import BOOT_ID, a_policy, a_worker, enqueue

from everbeat.model.task import Claim
from everbeat.model.worker import Host
from everbeat.run import recovery
from everbeat.run.journal import Journal
from everbeat.store.moments import moment

AGAIN = a_policy(max_attempts=5, has_retry=True)


def files(stage: Stage) -> list[str]:
    return sorted(path.name for path in stage.directory.glob("worker-*"))


def test_the_journal_tells_what_had_begun_from_what_had_not(stage: Stage) -> None:
    dead, heir = stage.worker("dead", processes=1), stage.worker("heir")
    dead.learn("add")
    begun, taken, unread = [enqueue(stage.store) for _ in range(3)]
    dead.get_up()
    dead.crew.begin(1), dead.crew.take(1)
    dead.vanish()

    report = heir.recovery.run(actor="test", but=heir.id)

    assert stage.status(begun, taken, unread) == ["FAILED", "PENDING", "PENDING"]
    assert report is not None
    assert [task.action for task in report.recovered_tasks] == ["failed", "pending", "pending"]
    assert [worker.orphaned_tasks for worker in report.dead_workers] == [[begun, taken, unread]]


def test_a_report_sets_attempts_against_what_limits_them(stage: Stage) -> None:
    own = a_policy(on_crash="retry", max_recovery_attempts=5)
    policies = {"plain": None, "repeated": AGAIN, "on_crash": a_policy(on_crash="retry"), "own": own}
    for name, policy in policies.items():
        enqueue(stage.store, id=name, policy=policy)
    dead, heir = stage.worker("dead", processes=4), stage.worker("heir")
    dead.get_up()
    for slot in range(1, 5):
        dead.crew.begin(slot)
    dead.vanish()

    report = heir.recovery.run(actor="test", but=heir.id)

    assert report is not None
    told = {task.task_id: (task.action, task.attempt_count, task.max_attempts) for task in report.recovered_tasks}
    assert told == {"plain": ("failed", 1, 1), "repeated": ("retry", 1, 5), "on_crash": ("retry", 1, 3),
                    "own": ("retry", 1, 5)}  # fmt: skip


def test_a_report_tells_the_time_of_the_clock_that_all_others_go_by(stage: Stage) -> None:
    left_behind(stage)
    heir = stage.worker("heir")
    stage.clock.advance(3600)

    report = heir.recovery.run(actor="test", but=heir.id)

    assert report is not None
    assert report.started_at == report.completed_at == moment(stage.clock.wall_us())


def test_without_a_journal_running_is_taken_at_its_word(stage: Stage) -> None:
    dead, heir = stage.worker("dead", processes=1), stage.worker("heir")
    task = enqueue(stage.store)
    dead.get_up()
    dead.journal.path.unlink()
    dead.vanish()

    heir.recovery.run(actor="test", but=heir.id)

    assert stage.status(task) == ["FAILED"]


def test_the_journal_of_a_worker_that_stopped_properly_is_believed(stage: Stage) -> None:
    stopped, heir = stage.worker("stopped", processes=1), stage.worker("heir")
    task = enqueue(stage.store)
    stopped.get_up()
    stopped.store.retire(stopped.id)

    heir.recovery.run(actor="test", but=heir.id)

    assert stage.status(task) == ["PENDING"]


def test_a_worker_declared_dead_in_the_middle_of_a_pass_is_not_taken_for_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner row was read when it was alive; its process is frozen, not gone, and may begin what it was sent."""
    gone, frozen = stage.worker("a-gone", processes=1), stage.worker("b-frozen", processes=1)
    heir = stage.worker("heir")
    enqueue(stage.store)
    gone.get_up()
    unread = enqueue(stage.store)
    frozen.get_up()
    gone.vanish()
    find = heir.recovery._store.orphans

    def find_and_lose(*, limit: int, after: Claim | None = None) -> Sequence[Claim]:
        if after is not None:
            stage.store.declare_dead(frozen.id, reason="silent", cause="silence")
        return find(limit=limit, after=after)

    monkeypatch.setattr(heir.recovery._store, "orphans", find_and_lose)
    monkeypatch.setattr(recovery, "FIRST", 1)
    monkeypatch.setattr(recovery, "next_batch", lambda size, took_us: 1)
    heir.recovery.run(actor="test", but=heir.id)

    assert stage.status(unread) == ["FAILED"]


def test_a_pass_that_finds_nothing_writes_nothing(stage: Stage) -> None:
    worker = stage.worker()
    before = worker.judge_line.commits

    assert worker.recovery.run(actor="test", but=worker.id) is None
    assert worker.judge_line.commits == before


def test_what_is_to_be_left_alone_is_left_and_does_not_hide_the_rest(stage: Stage) -> None:
    dead = stage.worker("dead", processes=1)
    heir = stage.worker("heir", auto_fail_stale_running=False)
    task = enqueue(stage.store, policy=AGAIN)
    dead.get_up()
    dead.crew.begin(1)
    dead.vanish()

    heir.recovery.run(actor="test", but=heir.id)

    assert stage.status(task) == ["RUNNING"]
    assert files(stage) == ["worker-dead.journal", "worker-dead.lock", "worker-heir.journal", "worker-heir.lock"]


# -- files ------------------------------------------------------------------------------------------------------------


def left_behind(stage: Stage) -> SimulatedWorker:
    dead = stage.worker("dead", processes=1)
    enqueue(stage.store, policy=AGAIN)
    dead.get_up()
    dead.crew.begin(1)
    dead.vanish()
    return dead


@pytest.mark.proves("FR-048")
def test_the_files_of_a_worker_that_is_gone_and_owns_nothing_are_removed(stage: Stage) -> None:
    left_behind(stage)
    heir = stage.worker("heir")

    heir.recovery.run(actor="test", but=heir.id)

    assert files(stage) == ["worker-heir.journal", "worker-heir.lock"]
    heir.recovery.tidy()  # missing files are fine


def test_the_files_of_a_worker_that_still_owns_something_stay(stage: Stage) -> None:
    dead = left_behind(stage)
    heir = stage.worker("heir")
    stage.store.declare_dead(dead.id, reason="gone", cause="proof")

    heir.recovery.tidy()

    assert "worker-dead.journal" in files(stage)
    assert "worker-dead.lock" in files(stage)


def test_the_files_of_a_worker_declared_dead_whose_lock_is_held_stay(stage: Stage) -> None:
    stage.worker("frozen")
    heir = stage.worker("heir")
    stage.store.declare_dead("frozen", reason="silent", cause="silence")

    heir.recovery.tidy()

    assert "worker-frozen.lock" in files(stage)


def test_files_of_an_earlier_boot_are_removed_and_a_worker_without_files_is_passed_over(stage: Stage) -> None:
    heir = stage.worker("heir")
    for name, path in (("old", stage.directory / "worker-old.lock"), ("foreign", "")):
        lock = a_worker(name).lock
        host = Host(name="host-1", boot_id="an earlier boot", pid=1, pid_started=1, pid_namespace=1)
        stage.clock.id = "an earlier boot"
        stage.store.register(a_worker(name, host=host, lock=type(lock)(path=str(path), device=1, inode=1)))
        stage.clock.id = BOOT_ID
    (stage.directory / "worker-old.lock").touch()
    Journal.create(stage.directory, "old", boot_id=BOOT_ID, slots=1, entries=1).close(unlink=False)
    stage.clock.advance(3600)

    heir.recovery.run(actor="test", but=heir.id)

    assert files(stage) == ["worker-heir.journal", "worker-heir.lock"]
