"""The tables are changed while workers and senders of the version before are at work (PROTOCOL 37).

The version after this one is played by the test itself: it knows more steps than the workers do.
"""

from collections.abc import Callable, Sequence

import pytest
from tests.crash.conftest import both_stores
from tests.crash.yard import Yard

from everbeat import SchemaMismatch, TaskStatus
from everbeat.store import schema
from everbeat.store.open import maintenance_of
from everbeat.store.schema import Step
from everbeat.store.upkeep import Schema

ADDS = Step(2, "ALTER TABLE everbeat_tasks ADD COLUMN later TEXT;\nCREATE TABLE everbeat_later (id INTEGER);\n")
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
