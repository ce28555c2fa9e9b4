"""The janitor: once an hour, a bite per turn, and not while the clock is in doubt."""

from tests.run.stage import Stage
from tests.words import SECOND, a_task, claim, completed, register, settle

from everbeat.config import RecoveryConfig
from everbeat.run.janitor import LOOK_SECONDS, Janitor

DAY = 86_400


def a_janitor(stage: Stage, worker_id: str = "w1", **recovery: int | None) -> Janitor:
    config = RecoveryConfig(**recovery)  # type: ignore[arg-type]
    return Janitor(worker_id=worker_id, store=stage.open_line()[0], config=config, clock=stage.clock)


def work(janitor: Janitor) -> int:
    """Turn until it has nothing to do; how many turns that took."""
    turns = 1
    while janitor.tick() < LOOK_SECONDS:
        turns += 1
        assert turns < 1000
    return turns


def end_tasks(stage: Stage, count: int) -> None:
    register(stage.store, "w1")
    stage.store.enqueue([a_task() for _ in range(count)])
    for taken in claim(stage.store, places=count):
        settle(stage.store, taken, completed())


def test_what_is_too_old_is_deleted_and_what_is_not_stays(stage: Stage) -> None:
    end_tasks(stage, 3)
    janitor = a_janitor(stage)
    stage.clock.advance(29 * DAY)
    work(janitor)
    assert sum(count.count for count in stage.store.counts()) == 3

    stage.clock.advance(2 * DAY)
    work(janitor)

    assert stage.store.counts() == []


def test_none_keeps_the_records_for_ever(stage: Stage) -> None:
    end_tasks(stage, 3)
    janitor = a_janitor(stage, terminal_record_retention_hours=None)

    stage.clock.advance(3650 * DAY)
    work(janitor)

    assert sum(count.count for count in stage.store.counts()) == 3
    assert "worker.started" in stage.events()


def test_with_everything_switched_off_the_store_is_not_even_written(stage: Stage) -> None:
    janitor = a_janitor(
        stage, heartbeat_retention_hours=None, worker_state_retention_hours=None, terminal_record_retention_hours=None
    )
    version = stage.store.data_version()

    assert work(janitor) == 1
    assert stage.store.data_version() == version


def test_a_second_pass_waits_for_its_hour(stage: Stage) -> None:
    register(stage.store, "w1")
    janitor, other = a_janitor(stage), a_janitor(stage, "w2")

    assert work(janitor) > 1
    assert work(other) == 1
    stage.clock.advance(3601)
    assert work(other) > 1


def test_a_pass_that_its_worker_did_not_finish_is_finished_by_another(stage: Stage) -> None:
    end_tasks(stage, 1)
    janitor, other = a_janitor(stage), a_janitor(stage, "w2")
    stage.clock.advance(31 * DAY)
    janitor.tick()

    assert work(other) == 1  # it has the role
    stage.clock.advance(61)
    assert work(other) > 1
    assert stage.store.counts() == []


def test_a_clock_that_was_set_ahead_costs_nothing_for_an_hour(stage: Stage) -> None:
    end_tasks(stage, 1)
    janitor = a_janitor(stage)
    work(janitor)

    stage.clock.wall += 365 * DAY * SECOND
    work(janitor)
    assert len(stage.store.counts()) == 1
    stage.clock.wall -= 365 * DAY * SECOND  # somebody saw it
    work(janitor)
    stage.clock.advance(3601)
    work(janitor)

    assert len(stage.store.counts()) == 1


def test_a_clock_that_was_set_right_is_believed_after_an_hour(stage: Stage) -> None:
    end_tasks(stage, 1)
    janitor = a_janitor(stage)
    stage.clock.wall += 365 * DAY * SECOND
    work(janitor)

    stage.clock.advance(3601)
    work(janitor)

    assert stage.store.counts() == []
