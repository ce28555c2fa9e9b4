"""Alive and ready, as probes are told."""

from tests.run.stage import Stage

from everbeat.errors import StoreUnavailable
from everbeat.report.log import Reporter
from everbeat.run.health import Health


def test_a_worker_that_has_not_begun_is_alive_and_not_ready(stage: Stage) -> None:
    health = Health(stage.clock, Reporter())

    assert health.live().is_good
    assert not health.ready().is_good
    assert "recovering" in health.ready().says


def test_it_is_alive_while_its_dispatcher_turns(stage: Stage) -> None:
    worker = stage.worker()
    health = Health(stage.clock, Reporter())
    health.begin(worker.dispatcher)
    assert health.live().is_good

    stage.clock.advance(9)
    assert health.live().is_good
    stage.clock.advance(2)
    assert not health.live().is_good
    assert "11s" in health.live().says
    worker.turn()
    assert health.live().is_good


def test_asked_seldom_it_is_still_alive_if_the_dispatcher_has_turned_meanwhile(stage: Stage) -> None:
    worker = stage.worker()
    health = Health(stage.clock, Reporter())
    health.begin(worker.dispatcher)
    health.live()

    stage.clock.advance(3600)
    worker.turn()

    assert health.live().is_good


def test_it_is_not_ready_while_it_stops(stage: Stage) -> None:
    worker = stage.worker()
    health = Health(stage.clock, Reporter())
    health.begin(worker.dispatcher)
    worker.turn()
    assert health.ready().is_good

    worker.dispatcher.drain(0)

    assert not health.ready().is_good
    assert "stopping" in health.ready().says


def test_it_is_not_ready_while_its_store_is_another_one(stage: Stage) -> None:
    worker = stage.worker()
    health = Health(stage.clock, Reporter())
    health.begin(worker.dispatcher)

    worker.dispatcher.mandate.is_displaced = True

    assert not health.ready().is_good
    assert "not the one it was" in health.ready().says


def test_a_store_that_is_away_makes_it_unready_after_half_a_minute_and_never_dead(stage: Stage) -> None:
    worker = stage.worker()
    health = Health(stage.clock, Reporter())
    health.begin(worker.dispatcher)
    worker.get_up()
    worker.line.is_down = True
    worker.look()
    assert health.ready().is_good

    for _ in range(31):
        stage.clock.advance(1)
        worker.look()
    assert not health.ready().is_good
    assert "away for 31s" in health.ready().says
    assert health.live().is_good

    worker.line.is_down = False
    stage.clock.advance(1)
    worker.look()
    assert health.ready().is_good


def test_a_beat_that_can_not_be_written_counts_as_well(stage: Stage) -> None:
    worker, reporter = stage.worker(), Reporter()
    health = Health(stage.clock, reporter)
    health.begin(worker.dispatcher)

    reporter.store_unavailable("heartbeat", StoreUnavailable("away"))

    assert health.store_away_for > 0
    reporter.store_returned()
    assert health.store_away_for == 0
