"""What happens before a worker claims anything, in its order; and that all of it may be repeated."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.damage import damage_index, wreck_table
from tests.run.stage import SimulatedWorker, Stage
from tests.words import VirtualClock, a_policy, a_worker, enqueue, register

from everbeat.config import RecoveryConfig
from everbeat.errors import RecoveryFailed
from everbeat.model.report import Progress, RecoveryReport
from everbeat.model.worker import Host
from everbeat.report.log import Reporter
from everbeat.run import recovery as recovery_module
from everbeat.run import startup as startup_module
from everbeat.run.startup import Startup

AGAIN = a_policy(max_attempts=3, has_retry=True)
ME = Host(name="host-1", boot_id="", pid=1, pid_started=1, pid_namespace=1)


def a_startup(stage: Stage, worker: SimulatedWorker | None = None, **facts: Any) -> Startup:
    me = (worker or stage.worker("starter")).host
    stage.store.on_events(Reporter().heard)
    plain: dict[str, Any] = {"store": stage.store, "config": RecoveryConfig(), "me": me, "clock": stage.clock,
                             "reporter": Reporter(), "actor": "startup/starter"}  # fmt: skip
    return Startup(**(plain | facts))


def a_dead_worker(stage: Stage, name: str = "dead", *, policy: str | None = AGAIN) -> str:
    dead = stage.worker(name, processes=1)
    task = enqueue(stage.store, policy=policy)
    dead.get_up()
    dead.crew.begin(1)
    dead.vanish()
    return task


# -- the whole sequence -----------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-011", "FR-012", "FR-018", "FR-025", "FR-026", "FR-028", "AC-002", "AC-003", "AC-012")
def test_the_report_tells_of_the_file_its_log_the_dead_and_their_tasks(stage: Stage) -> None:
    task = a_dead_worker(stage)

    report = a_startup(stage).run()

    assert stage.status(task) == ["PENDING"]
    assert report.integrity_check_passed is True
    assert report.wal_frames_checkpointed > 0
    assert [(one.task_id, one.action, one.success) for one in report.recovered_tasks] == [(task, "retry", True)]
    assert [(dead.worker_id, dead.orphaned_tasks) for dead in report.dead_workers] == [("dead", [task])]
    assert stage.store.reports(limit=1) == [report]


@pytest.mark.parametrize("minutes", [-2, 2])
def test_what_it_would_do_has_the_times_of_the_store(stage: Stage, minutes: int) -> None:
    off = VirtualClock()
    off.wall = stage.clock.wall_us() + minutes * 60_000_000

    report = a_startup(stage, clock=off).look()

    assert (report.dry_run, report.completed_at) == (True, stage.store.now())


@pytest.mark.proves("FR-002")
def test_each_step_comes_after_the_one_before(stage: Stage) -> None:
    a_dead_worker(stage)
    steps: list[str] = []

    a_startup(
        stage,
        on_progress=lambda progress: steps.append(progress.stage),
        on_whole=lambda: steps.append("whole"),
    ).run()

    assert steps == ["integrity", "checkpoint", "whole", "spools", "workers", "orphans"]


@pytest.mark.proves("FR-004", "FR-005", "FR-020", "AC-013")
def test_it_is_announced_when_it_starts_and_when_it_is_done(stage: Stage) -> None:
    task = a_dead_worker(stage)

    a_startup(stage).run()

    told = [event for event in stage.store.events() if event.name.startswith(("recovery.", "task.", "worker.dead"))]
    assert [event.name for event in told] == [
        "recovery.started", "worker.dead", "task.recovered", "recovery.completed"
    ]  # fmt: skip
    assert told[2].task_id == task
    assert told[3].facts["recovered"] == 1
    assert told[3].facts["integrity"] == "PASSED"


@pytest.mark.proves("FR-003", "NFR-007", "AC-014", "FR-046")
def test_it_is_logged_with_its_numbers(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    task = a_dead_worker(stage)

    with caplog.at_level("INFO", logger="everbeat"):
        a_startup(stage).run()

    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "recovery.started actor=startup/starter"
    assert any(line.startswith("worker.dead worker=dead ") for line in lines)
    assert any(line.startswith(f"task.recovered task={task} ") and " action=retry " in line for line in lines)
    assert any(line.startswith("recovery.completed actor=startup/starter orphaned=1 recovered=1 ") for line in lines)


@pytest.mark.proves("FR-050")
def test_what_was_cleaned_up_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    a_dead_worker(stage)

    with caplog.at_level("INFO", logger="everbeat"):
        a_startup(stage).run()

    assert 'files.removed files="[\\"worker-dead.lock\\"]"' in [record.getMessage() for record in caplog.records]


@pytest.mark.proves("FR-029", "FR-030", "NFR-006", "AC-011")
def test_done_again_it_does_nothing_more(stage: Stage) -> None:
    task = a_dead_worker(stage)
    starter = stage.worker("starter")
    a_startup(stage, starter).run()
    before = stage.task(task)

    again = a_startup(stage, starter).run()

    assert (again.orphaned_tasks_found, again.dead_workers, again.wal_frames_checkpointed > 0) == (0, [], True)
    assert stage.task(task) == before


def test_the_living_are_not_disturbed(stage: Stage) -> None:
    alive = stage.worker("alive", processes=1)
    task = enqueue(stage.store)
    alive.get_up()
    alive.crew.begin(1)

    report = a_startup(stage).run()

    assert (report.dead_workers, report.orphaned_tasks_found, report.undecided) == ([], 0, [])
    assert stage.status(task) == ["RUNNING"]
    alive.crew.end(1)
    alive.turn()
    assert stage.status(task) == ["COMPLETED"]


def test_what_only_silence_can_tell_is_undecided_until_then(stage: Stage) -> None:
    """A worker in another container: its lock file is not to be seen from here."""
    register(stage.store, "elsewhere", beat_interval_ms=30_000)
    enqueue(stage.store)
    stage.store.beat("elsewhere", [])
    stage.clock.advance(100)

    report = a_startup(stage).run()

    (undecided,) = report.undecided
    assert (undecided.worker_id, undecided.tasks) == ("elsewhere", 0)
    waits = undecided.until - report.completed_at
    assert 199 <= waits.total_seconds() <= 300
    assert "undecided until" in report.to_report()
    assert report.dead_workers == []


@pytest.mark.proves("FR-013", "FR-014")
@pytest.mark.parametrize(("action", "status"), [("retry", "PENDING"), ("fail", "FAILED"), ("pending", "PENDING")])
def test_the_action_of_the_configuration_is_taken(stage: Stage, action: Any, status: str) -> None:
    task = a_dead_worker(stage)

    report = a_startup(stage, config=RecoveryConfig(action=action)).run()

    assert stage.status(task) == [status]
    assert report.recovered_tasks[0].action == {"fail": "failed"}.get(action, action)


def test_a_recovery_that_is_switched_off_leaves_the_tasks_and_counts_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_dead_worker(stage)
    monkeypatch.setenv("EVERBEAT_RECOVERY_ENABLED", "0")

    report = a_startup(stage, config=RecoveryConfig()).run()

    assert stage.status(task) == ["RUNNING"]
    assert (report.orphaned_tasks_found, report.left_alone) == (0, 1)
    assert "Left Alone By Configuration: 1" in report.to_report()
    assert "Integrity Check: NOT RUN" in report.to_report()


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-006")
@pytest.mark.parametrize("wanted", [True, False])
def test_the_integrity_check_is_run_if_it_is_wanted(stage: Stage, wanted: bool) -> None:
    report = a_startup(stage, config=RecoveryConfig(integrity_check_on_startup=wanted)).run()

    assert report.integrity_check_passed is (True if wanted else None)
    assert f"Integrity Check: {'PASSED' if wanted else 'NOT RUN'}\n" in report.to_report()


@pytest.mark.proves("FR-057")
def test_a_damaged_index_is_repaired_before_anything_is_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path)
    for number in range(10):
        enqueue(stage.store, id=f"task-{number}")
    stage.close()
    damage_index(stage.path)
    stage = Stage(tmp_path)

    with caplog.at_level("INFO", logger="everbeat"):
        report = a_startup(stage).run()

    assert report.integrity_check_passed is True
    assert "Integrity Check: PASSED (repaired by REINDEX)\n" in report.to_report()
    assert "store.repaired" in stage.events()
    assert any("store.damaged" in record.getMessage() for record in caplog.records)
    assert stage.store.get("task-7") is not None
    stage.close()


@pytest.mark.proves("FR-008")
def test_damage_that_can_not_be_repaired_halts_and_nothing_is_written(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    enqueue(stage.store)
    stage.close()
    wreck_table(stage.path)
    before = stage.path.read_bytes()
    stage = Stage(tmp_path)

    with pytest.raises(RecoveryFailed) as caught:
        a_startup(stage, a_stranger(stage)).run()

    said = str(caught.value)
    assert f"sqlite:///{stage.path} is damaged and could not be repaired" in said
    assert "recovery point: " in said
    assert caught.value.backup_command in said
    assert caught.value.errors
    stage.close()
    assert stage.path.read_bytes() == before


def test_a_damaged_store_that_others_use_is_not_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    for number in range(10):
        enqueue(stage.store, id=f"task-{number}")
    stage.close()
    damage_index(stage.path)
    stage = Stage(tmp_path)
    monkeypatch.setattr(startup_module, "workers_in", lambda directory: [(4711, 1)])

    with pytest.raises(RecoveryFailed, match=r"was not repaired, because workers use it \(pid 4711\): stop them"):
        a_startup(stage, a_stranger(stage)).run()
    stage.close()


def test_a_check_that_was_cut_is_named_incomplete_in_the_report(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_module, "INTEGRITY_SECONDS", 0.000_001)

    report = a_startup(stage).run()

    assert report.integrity_check_passed is None
    assert "Integrity Check: INCOMPLETE (nothing wrong until it was cut after " in report.to_report()
    assert any("incomplete" in warning for warning in report.warnings)


def test_a_changed_journal_mode_is_a_warning_in_the_report(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.close()
    with closing(sqlite3.connect(stage.path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    stage = Stage(tmp_path)

    report = a_startup(stage).run()

    assert report.warnings == ["the journal mode was delete; it is a write-ahead log again"]
    stage.close()


def test_a_checkpoint_that_a_reader_holds_up_is_told_and_logged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(stage.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM everbeat_tasks").fetchone()
        enqueue(stage.store)

        report = a_startup(stage).run()

    assert [warning.partition(" ")[2] for warning in report.warnings] == [
        "frames stay in the write-ahead log, safely: somebody reads the database"
    ]
    assert any(record.getMessage().startswith("recovery.warning ") for record in caplog.records)


@pytest.mark.proves("FR-069")
def test_commits_that_were_lost_are_flagged(stage: Stage) -> None:
    """The journal tells of a run that the store knows nothing of: its log was removed."""
    dead = stage.worker("dead", processes=1)
    dead.journal.begin(0, seq=99, fence=1)
    dead.vanish()

    report = a_startup(stage).run()

    (warning,) = report.warnings
    assert warning.startswith("commits were lost: worker dead began tasks that the store knows nothing of")


# -- degraded ---------------------------------------------------------------------------------------------------------


def poison(stage: Stage, task: str) -> None:
    """Nothing can be written about this task."""
    with stage.store.database.write() as tx:
        tx.run(
            f"CREATE TRIGGER poison BEFORE UPDATE ON everbeat_tasks WHEN old.id = '{task}' "
            "BEGIN SELECT raise(ABORT, 'it is cursed'); END"
        )


@pytest.mark.proves("FR-027", "NFR-009")
def test_a_task_that_can_not_be_recovered_leaves_the_store_degraded_and_the_rest_recovered(stage: Stage) -> None:
    cursed, well = a_dead_worker(stage, "dead-1"), a_dead_worker(stage, "dead-2")
    poison(stage, cursed)

    report = a_startup(stage).run()

    assert stage.status(cursed, well) == ["RUNNING", "PENDING"]
    assert (report.successful_recoveries, report.failed_recoveries, report.is_degraded) == (1, 1, True)
    assert "FAILED (IntegrityError: it is cursed)" in report.to_report()
    assert "Degraded: 1 task could not be recovered and will be tried again" in report.to_report()
    assert stage.store.degraded() == "1 task could not be recovered: IntegrityError: it is cursed"
    assert "store.degraded" in stage.events()


def test_a_task_that_can_be_recovered_at_last_ends_the_degraded_mode(stage: Stage) -> None:
    cursed = a_dead_worker(stage)
    poison(stage, cursed)
    a_startup(stage).run()
    with stage.store.database.write() as tx:
        tx.run("DROP TRIGGER poison")

    a_startup(stage, stage.worker("again")).run()

    assert stage.status(cursed) == ["PENDING"]
    assert stage.store.degraded() is None
    assert stage.events()[-2] == "store.whole" or "store.whole" in stage.events()


def test_the_reaper_tries_a_poison_row_again_when_it_judges_and_not_at_every_look(stage: Stage) -> None:
    cursed = a_dead_worker(stage)
    poison(stage, cursed)
    worker = stage.worker("judge", check_interval_ms=1_000)
    tries: list[int] = []
    write = worker.recovery._store.recover

    def count(verdicts: Any, **how: Any) -> Any:
        tries.append(len(verdicts))
        return write(verdicts, **how)

    worker.recovery._store.recover = count  # type: ignore[method-assign]
    for _ in range(40):
        stage.clock.advance(0.25)
        enqueue(stage.store)
        worker.reaper.tick()

    assert 8 <= sum(tries) <= 12
    assert len([report for report in stage.store.reports(limit=100) if report.failed_recoveries]) == 1


# -- rows by hand -----------------------------------------------------------------------------------------------------

BY_HAND = "UPDATE everbeat_tasks SET {change} WHERE id = ?"


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ("worker_id = NULL", "PENDING", "worker (none) is unknown"),
        ("worker_id = 'nobody'", "PENDING", "worker nobody is unknown"),
        ("worker_id = x'00ff'", "PENDING", "is unknown"),
        ("policy = '{\"max_attempts\":'", "FAILED", "its stored policy can not be read"),
        ("policy = '[]'", "FAILED", "its stored policy can not be read"),
        ("started_at = 9000000000000000000, created_at = 9000000000000000000", "PENDING", "its lock is free"),
        ("started_at = 'yesterday'", "PENDING", "its lock is free"),
        ("queue = x'ff', name = ''", "PENDING", "its lock is free"),
    ],
)
def test_a_row_written_by_hand_is_recovered_if_it_can_be(stage: Stage, change: str, status: str, said: str) -> None:
    odd, well = a_dead_worker(stage, "dead-1"), a_dead_worker(stage, "dead-2")
    with stage.store.database.write() as tx:
        tx.run(BY_HAND.format(change=change), (odd,))

    report = a_startup(stage).run()

    told = {task.task_id: task for task in report.recovered_tasks}
    assert stage.store.database.path.exists()
    with stage.store.database.read() as tx:
        assert tx.all("SELECT status FROM everbeat_tasks WHERE id IN (?, ?) ORDER BY seq", (odd, well)) == [
            (status,), ("PENDING",)
        ]  # fmt: skip
    assert said in (told[odd].reason or "")
    assert all(task.success for task in told.values())
    assert json.loads(report.to_json())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("attempt = 'many'", "its attempt can not be 'many'"),
        ("crash_count = -1", "its crash_count can not be '-1'"),
        ("fence = x'00'", "its fence can not be"),
        ("id = x'6162'", "its id can not be"),
    ],
)
def test_a_row_that_makes_no_sense_is_left_and_told_and_the_rest_recovered(
    stage: Stage, change: str, said: str
) -> None:
    odd, well = a_dead_worker(stage, "dead-1"), a_dead_worker(stage, "dead-2")
    with stage.store.database.write() as tx:
        tx.run(BY_HAND.format(change=change), (odd,))

    report = a_startup(stage).run()

    assert stage.status(well) == ["PENDING"]
    assert (next(task.error for task in report.recovered_tasks if not task.success) or "").startswith(said)
    assert report.is_degraded
    assert json.loads(report.to_json())
    assert RecoveryReport.from_json(report.to_json()) == report


def test_times_in_the_far_future_are_told(stage: Stage) -> None:
    task = enqueue(stage.store)
    with stage.store.database.write() as tx:
        tx.run(BY_HAND.format(change="due_at = 9000000000000000000"), (task,))

    report = a_startup(stage).run()

    assert report.warnings == [f"task {task} waits for a time in the far future (9999-12-30)"]


@pytest.mark.parametrize(
    "change",
    [
        "beat_mono = 9000000000000000000",
        "beat_mono = 'now'",
        "queues = '[', task_names = '{'",
        "beat_at = 'noon', started_at = 9000000000000000000",
        "pid = 'me', lock_inode = NULL",
        "status = 'zombie'",
    ],
)
def test_a_worker_row_written_by_hand_does_not_keep_others_from_being_recovered(stage: Stage, change: str) -> None:
    task = a_dead_worker(stage)
    register(stage.store, "odd")
    with closing(sqlite3.connect(stage.path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=1")
        if "NULL" in change:
            change = change.replace("NULL", "'x'")
        connection.execute(f"UPDATE everbeat_workers SET {change} WHERE id = 'odd'")

    a_startup(stage).run()

    assert stage.status(task) == ["PENDING"]


def test_a_beat_in_the_far_future_is_silence(stage: Stage) -> None:
    judge = stage.worker("judge", running_stale_threshold_ms=10_000, check_interval_ms=1_000,
                         runner_heartbeat_interval_ms=1_000)  # fmt: skip
    register(stage.store, "odd", beat_interval_ms=1_000)
    with stage.store.database.write() as tx:
        tx.run("UPDATE everbeat_workers SET beat_mono = ? WHERE id = 'odd'", (1 << 61,))
    assert any("has a heartbeat in the future" in said for said in stage.store.oddities(scan=False))

    for _ in range(60):
        stage.clock.advance(0.25)
        judge.turn()
        judge.reaper.tick()
        if stage.clock.mono_us() % 1_000_000 == 0:
            judge.heartbeat.tick()

    assert {worker.id: worker.status.value for worker in stage.store.workers()}["odd"] == "dead"


# -- many -------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-023", "FR-024", "NFR-010")
def test_of_many_orphans_the_first_thousand_are_listed_and_all_are_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is told after each batch, with the number of all."""
    register(stage.store, "gone")
    with stage.store.database.write() as tx:
        tx.run(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000) "
            "INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, fence, worker_id,"
            " attempt, policy) "
            "SELECT 'many-' || n, 'add', 'default', 100, x'5b5d', 'RUNNING', 1, 1, 1, 'gone', 1, "
            "CASE WHEN n % 3 THEN ? END FROM n",
            (AGAIN,),
        )
    stage.store.declare_dead("gone", reason="its lock is free", cause="proof")
    told: list[Progress] = []

    report = a_startup(stage, on_progress=told.append).run()

    assert (report.orphaned_tasks_found, report.successful_recoveries, report.failed_recoveries) == (3000, 3000, 0)
    assert len(report.recovered_tasks) == 1000
    assert "  ... and 2000 more\n" in report.to_report()
    orphans = [progress for progress in told if progress.stage == "orphans"]
    assert {progress.total for progress in orphans} == {3000}
    assert orphans[-1].done == 3000
    with stage.store.database.read() as tx:
        assert tx.all("SELECT status, count(*) FROM everbeat_tasks GROUP BY status ORDER BY status") == [
            ("FAILED", 1000), ("PENDING", 2000)
        ]  # fmt: skip
        for table in ("history", "attempts"):
            assert tx.one(f"SELECT count(*), count(DISTINCT task_id) FROM everbeat_{table}") == (3000, 3000)
        assert tx.one("SELECT count(*) FROM everbeat_events WHERE name = 'task.recovered'") == (3000,)


def test_a_long_recovery_announces_its_progress(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_module, "next_batch", lambda size, took_us: 1)
    monkeypatch.setattr(recovery_module, "FIRST", 1)
    monkeypatch.setattr(startup_module, "TELL_US", 0)
    for number in range(3):
        a_dead_worker(stage, f"dead-{number}")

    a_startup(stage).run()

    facts = [event.facts for event in stage.store.events() if event.name == "recovery.progress"]
    assert [(said["stage"], said["done"], said["total"]) for said in facts] == [
        ("orphans", 1, 3), ("orphans", 2, 3), ("orphans", 3, 3)
    ]  # fmt: skip


def test_two_recoveries_at_once_recover_each_task_once(stage: Stage) -> None:
    """The second one runs in the middle of the first, after it has looked and before it writes."""
    tasks = [a_dead_worker(stage, f"dead-{number}") for number in range(5)]
    first, second = a_startup(stage, stage.worker("first")), a_startup(stage, stage.worker("second"))
    reports: list[RecoveryReport] = []
    write = stage.store.recover

    def interrupted(verdicts: Any, **how: Any) -> Any:
        stage.store.recover = write  # type: ignore[method-assign]
        reports.append(second.run())
        return write(verdicts, **how)

    stage.store.recover = interrupted  # type: ignore[method-assign]
    reports.append(first.run())

    assert [report.successful_recoveries for report in reports] == [5, 0]
    assert [report.failed_recoveries for report in reports] == [0, 0]
    assert stage.status(*tasks) == ["PENDING"] * 5
    assert {stage.task(task).lost_count for task in tasks} == {1}


# -- a look -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(stage: Stage) -> None:
    again, once = a_dead_worker(stage, "dead-1"), a_dead_worker(stage, "dead-2", policy=None)
    starter = stage.worker("starter")
    before = dump(stage)

    report = a_startup(stage, starter).look()

    assert report.dry_run
    assert {task.task_id: task.action for task in report.recovered_tasks} == {again: "retry", once: "failed"}
    assert {dead.worker_id for dead in report.dead_workers} == {"dead-1", "dead-2"}
    assert "(dry run: nothing was changed)" in report.to_report()
    assert dump(stage) == before
    done = a_startup(stage, starter).run()
    assert {task.task_id: task.action for task in done.recovered_tasks} == {again: "retry", once: "failed"}


def dump(stage: Stage) -> list[str]:
    with closing(sqlite3.connect(stage.path)) as connection:
        return list(connection.iterdump())


def a_stranger(stage: Stage) -> Any:
    """Somebody who starts, without a row in a store that can not be written."""

    class Stranger:
        host = replace(ME, boot_id=a_worker("x").host.boot_id)

    return Stranger()


def test_one_poison_row_among_many_is_found_and_the_others_are_recovered(stage: Stage) -> None:
    register(stage.store, "gone")
    with stage.store.database.write() as tx:
        tx.run(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000) "
            "INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, fence, worker_id,"
            " attempt, policy) "
            "SELECT 'many-' || n, 'add', 'default', 100, x'5b5d', 'RUNNING', 1, 1, 1, 'gone', 1, ? FROM n",
            (AGAIN,),
        )
        tx.run("UPDATE everbeat_tasks SET attempt = 'many' WHERE id = 'many-2500'")
        tx.run("UPDATE everbeat_tasks SET cancel_requested_at = 1 WHERE id = 'many-2700'")
    poison(stage, "many-2345")
    stage.store.declare_dead("gone", reason="its lock is free", cause="proof")

    report = a_startup(stage).run()

    with stage.store.database.read() as tx:
        left = tx.all("SELECT id, status FROM everbeat_tasks WHERE status <> 'PENDING' ORDER BY seq")
    assert left == [("many-2345", "RUNNING"), ("many-2500", "RUNNING"), ("many-2700", "CANCELLED")]
    assert (report.orphaned_tasks_found, report.successful_recoveries, report.failed_recoveries) == (3000, 2998, 2)
    assert report.dead_workers == []
    assert stage.store.orphans(limit=10, after=None)[0].id == "many-2345"
