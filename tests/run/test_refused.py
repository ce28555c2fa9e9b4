"""A row that the store will never take harms nobody else (PROTOCOL 7). Triggers of a user's own stand for such rows."""

from tests.run.stage import Stage
from tests.words import enqueue

from everbeat.model import event


def with_sql(stage: Stage, statement: str) -> None:
    with stage.store.database.write() as tx:
        tx.run(statement)


def refuse(stage: Stage, task_id: str, *, when: str = "true") -> None:
    """From now on every change of this task that is like this fails."""
    with_sql(
        stage,
        f"""CREATE TRIGGER refuse BEFORE UPDATE ON everbeat_tasks WHEN NEW.id = '{task_id}' AND {when}
            BEGIN SELECT RAISE(ABORT, 'not this one'); END""",
    )


def allow(stage: Stage) -> None:
    with_sql(stage, "DROP TRIGGER refuse")


def refusals(stage: Stage) -> list[tuple[str | None, str]]:
    return [(e.task_id, e.facts["error"]) for e in stage.store.events() if e.name == event.ROW_REFUSED]


def test_an_outcome_that_can_not_be_stored_fails_its_task_and_no_other(stage: Stage) -> None:
    worker = stage.worker(processes=3)
    bad, good, other = enqueue(stage.store), enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    refuse(stage, bad, when="NEW.status = 'COMPLETED'")

    following = enqueue(stage.store)
    for slot in (1, 2, 3):
        worker.crew.run(slot)
    worker.turn(3)

    assert stage.status(bad, good, other, following) == ["FAILED", "COMPLETED", "COMPLETED", "RUNNING"]
    assert stage.task(bad).error_code == "RESULT_INVALID"
    assert stage.task(bad).error_message == "its outcome could not be stored: IntegrityError: not this one"
    assert worker.holds() == [following]
    assert refusals(stage) == [(bad, "complete: IntegrityError: not this one")]


def test_a_task_that_can_not_be_ended_at_all_stays_ours_and_is_told_once(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    bad, good = enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    refuse(stage, bad)

    worker.crew.run(1), worker.crew.run(2)
    worker.turn(5)
    for _ in range(3):
        worker.heartbeat.tick()
        worker.turn()

    assert stage.status(bad, good) == ["RUNNING", "COMPLETED"]
    assert worker.holds() == [bad]
    assert worker.dispatcher.is_idle
    assert refusals(stage) == [
        (bad, "complete: IntegrityError: not this one"),
        (bad, "fail: IntegrityError: not this one"),
    ]
    worker.dispatcher.drain(0)
    assert worker.dispatcher.is_drained


def test_a_task_that_can_not_be_claimed_does_not_stop_those_behind_it(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    bad, good = enqueue(stage.store), enqueue(stage.store)
    later = enqueue(stage.store, delay_us=1_000_000)
    refuse(stage, bad)

    worker.get_up()
    worker.crew.run(2)
    stage.clock.advance(2)
    worker.turn(2)
    worker.crew.run(1)
    worker.turn()
    allow(stage)
    worker.look()

    assert stage.status(bad, good, later) == ["RUNNING", "COMPLETED", "COMPLETED"]
    assert refusals(stage) == [(bad, "claim: IntegrityError: not this one")]
