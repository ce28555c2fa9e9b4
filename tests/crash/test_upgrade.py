"""The tables are changed while workers and senders of the version before are at work (PROTOCOL 37).

The version after this one is played by the test itself, or by apps/newer.py: it knows more steps than the workers do.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.crash.apps.newer import ADDS
from tests.crash.conftest import both_stores
from tests.crash.test_flows import audit, until_over
from tests.crash.trees import task_of, until_at_rest
from tests.crash.yard import Yard

from everbeat import SchemaMismatch, TaskStatus, Workflow, WorkflowHandle
from everbeat.store import schema
from everbeat.store.open import maintenance_of
from everbeat.store.schema import Step
from everbeat.store.upkeep import Schema

TAKES = Step(3, "-- min_reader: 2\nALTER TABLE everbeat_tasks DROP COLUMN later;\nDROP TABLE everbeat_later;\n")

Migrate = Callable[..., Schema]


@pytest.fixture
def migrate(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Migrate:
    """`everbeat db migrate` of a version that knows these steps, too."""

    def as_newer(*more: Step) -> Schema:
        known: Sequence[Step] = schema.steps()
        with monkeypatch.context() as newer:
            newer.setattr(schema, "steps", lambda: [*known, *more])
            return maintenance_of(yard.app.config).migrate()

    return as_newer


@both_stores
def test_workers_and_senders_of_the_version_before_go_on_and_can_be_started(yard: Yard, migrate: Migrate) -> None:
    worker = yard.worker()
    running = yard.send("gated", "go")
    yard.until_started(running)

    done = migrate(ADDS)
    after = yard.send("quick")
    yard.until_ended([after])
    yard.open("go")
    yard.until_ended([running])
    assert worker.stop() == 0
    last = yard.send("quick")
    assert yard.worker("--burst").ended() == 0

    assert (done.found, done.newest) == (1, 2)
    yard.audit([running, after, last])
    assert {yard.status(task_id) for task_id in (running, after, last)} == {TaskStatus.COMPLETED}


@both_stores
def test_workers_too_old_for_what_comes_finish_what_they_run_and_claim_nothing_more(
    yard: Yard, migrate: Migrate
) -> None:
    migrate(ADDS)
    worker = yard.worker()
    running = yard.send("gated", "go")
    yard.until_started(running)

    with pytest.raises(SchemaMismatch, match=f"workers of an older version are at work: {worker.id}"):
        migrate(ADDS, TAKES)
    yard.until(lambda: "store.outgrown" in worker.said(), "the worker says so")
    late = yard.send("quick")
    yard.open("go")
    code = worker.ended()
    next_one = yard.worker(ready=False)

    assert (code, next_one.ended()) == (3, 3)
    assert "can not work with" in worker.said()
    assert "Upgrade Everbeat" in next_one.said()
    assert [yard.status(task_id) for task_id in (running, late)] == [TaskStatus.COMPLETED, TaskStatus.PENDING]
    assert (migrate(ADDS, TAKES).found, yard.starts(late)) == (2, [])


LONG_AGO = "UPDATE everbeat_workers SET beat_at = beat_at - 3600000000"


@both_stores
def test_a_worker_too_old_for_what_comes_that_was_killed_does_not_hold_it_up_for_ever(
    yard: Yard, migrate: Migrate
) -> None:
    """No worker can start meanwhile that would declare it dead."""
    migrate(ADDS)
    worker = yard.worker()
    worker.kill()

    with pytest.raises(SchemaMismatch, match=rf"{worker.id}.* in \d+s, if they were killed"):
        migrate(ADDS, TAKES)
    assert yard.worker(ready=False).ended() == 3
    yard.change(LONG_AGO)

    assert (migrate(ADDS, TAKES).found, migrate(ADDS, TAKES).found) == (2, 3)


TABLES = (
    "tasks", "attempts", "history", "late_outcomes", "events", "workers", "workflows", "workflow_tasks",
    "workflow_calls", "workflow_edges",
)  # fmt: skip
SAID = "SELECT value FROM everbeat_meta WHERE key IN ('schema_min_reader', 'schema_version') ORDER BY key"
KILLED = {
    "migrate.before_commit": (1, 1),
    "migrate.after_commit": (2, 1),
    "migrate.before_commit:1": (2, 1),
    "migrate.after_commit:1": (2, 3),
}
"""Where -> schema_min_reader and schema_version afterwards. First older workers are told to end, then the tables are
changed."""


@both_stores
@pytest.mark.parametrize("crash_at", KILLED)
def test_a_migration_of_a_store_in_use_killed_at_any_point_loses_nothing_and_is_made_whole_by_the_next(
    yard: Yard, crash_at: str
) -> None:
    run = leave_tasks_in_every_state(yard)
    before = rows(yard)
    width = len(before["tasks"][0])

    doomed = yard.command("db", "migrate", "--db", yard.location, crash_at=crash_at, newer=True)
    assert doomed.ended() == -9, doomed.said()
    said, between = said_of_schema(yard), rows(yard, width)
    again = yard.command("db", "migrate", "--db", yard.location, newer=True)

    assert again.ended() == 0, again.said()
    assert ("already" in again.said()) is (crash_at == "migrate.after_commit:1")
    assert (said, said_of_schema(yard)) == (KILLED[crash_at], (2, 3))
    assert before == between == rows(yard, width)
    assert yard.query("SELECT count(*) FROM everbeat_tasks WHERE later = id") == [(len(before["tasks"]),)]
    yard.open("go")
    yard.worker(newer=True)
    assert until_over(yard, run) == "COMPLETED"
    yard.until_ended([task.id for task in yard.tasks()])
    audit(yard)


def said_of_schema(yard: Yard) -> tuple[int, ...]:
    return tuple(int(value) for (value,) in yard.query(SAID))


def rows(yard: Yard, width: int | None = None) -> dict[str, list[tuple[Any, ...]]]:
    """Of all tables; of the tasks only so many columns: what is new comes last."""
    found = {table: yard.query(f"SELECT * FROM everbeat_{table}") for table in TABLES}
    found["tasks"] = [row[:width] for row in found["tasks"]]
    return {table: sorted(of_it, key=repr) for table, of_it in found.items()}


def leave_tasks_in_every_state(yard: Yard) -> WorkflowHandle:
    """And a workflow in the middle, by a worker that was killed when it had claimed one more."""
    task, flow = yard.app.tasks, Workflow("half")
    held = flow.add(task["gated_again"].options(queue="late"), "go", after=flow.add(task["quick_again"])).named("held")
    flow.add(task["joins_again"], held)
    run = flow.start(yard.app)
    yard.send("quick")
    yard.send("fails_at_once")
    yard.app.handle(yard.send("quick", queue="nobody")).cancel()
    yard.send("quick", queue="nobody", good_until=datetime.now(UTC) + timedelta(seconds=0.3))
    healthy = yard.worker("--queues", "default")
    until_at_rest(yard, "default", "nobody")
    assert healthy.stop() == 0
    doomed = yard.worker(crash_at="start.sent,claim.after_commit")
    yard.until_started(task_of(yard, run, "held"))
    yard.send("isolated")
    assert doomed.ended() == -9, doomed.said()
    yard.change(LONG_AGO)
    yard.send("quick")
    assert {one.status for one in yard.tasks()} == set(TaskStatus)
    return run
