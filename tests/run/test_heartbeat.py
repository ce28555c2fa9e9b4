"""A worker tells the store that it lives, as long as its dispatcher does."""

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import enqueue

from everbeat.errors import StoreUnavailable
from everbeat.report.log import Reporter
from everbeat.run.heartbeat import Heartbeat
from everbeat.run.resources import Resources
from everbeat.run.service import Service
from everbeat.store.messages import Flush


def beats(stage: Stage) -> list[tuple[str, str]]:
    with stage.store.database.read() as tx:
        return [(row[0], row[1]) for row in tx.all("SELECT task_id, role FROM everbeat_heartbeats ORDER BY id")]


def silence(stage: Stage, worker: SimulatedWorker) -> float:
    (info,) = [info for info in stage.store.workers() if info.id == worker.id]
    return info.silent_for_us / 1e6


def claim_unnoticed(worker: SimulatedWorker) -> None:
    """A flush whose answer never came: the store shows tasks that the dispatcher does not hold."""
    slots = worker.dispatcher.slots
    room = slots.room({}, worker.dispatcher.clock.mono_us())
    worker.store.flush(Flush(worker_id=worker.id, room=room))


def test_a_beat_that_is_written_ends_an_outage_also_for_a_dispatcher_that_has_not_asked_again(stage: Stage) -> None:
    worker, reporter = stage.worker(), Reporter()
    heartbeat = Heartbeat(
        worker_id=worker.id, store=stage.store, dispatcher=worker.dispatcher, recovery=worker.config.to_policy(),
        clock=stage.clock, interval=30.0, reporter=reporter,
    )  # fmt: skip
    worker.line.is_down = True
    worker.get_up()
    reporter.store_unavailable("dispatcher", StoreUnavailable("away"))
    stage.clock.advance(40)
    assert worker.dispatcher.store_away_us > 0

    heartbeat.tick()

    assert (reporter.store_away_for, worker.dispatcher.store_away_us) == (0, 0)


def test_a_beat_does_not_end_an_outage_of_a_dispatcher_that_has_asked_again_in_vain(stage: Stage) -> None:
    worker, reporter = stage.worker(), Reporter()
    heartbeat = Heartbeat(
        worker_id=worker.id, store=stage.store, dispatcher=worker.dispatcher, recovery=worker.config.to_policy(),
        clock=stage.clock, interval=30.0, reporter=reporter,
    )  # fmt: skip
    worker.line.is_down = True
    for _ in range(4):
        worker.get_up()
        reporter.store_unavailable("dispatcher", StoreUnavailable("away"))
        stage.clock.advance(40)
        heartbeat.tick()

    assert worker.dispatcher.store_away_us >= 120_000_000
    assert reporter.store_away_for > 0
    assert event_names(stage) == ["store.returned"]

    worker.line.is_down = False
    worker.get_up()
    heartbeat.tick()
    assert (reporter.store_away_for, worker.dispatcher.store_away_us) == (0, 0)


def event_names(stage: Stage) -> list[str]:
    return [one.name for one in stage.store.events(limit=50) if one.name.startswith("store.")]


@pytest.mark.proves("FR-031", "FR-035", "FR-036", "AC-006")
def test_every_claim_is_beaten_for_until_its_end_is_committed(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.heartbeat.tick()
    worker.crew.run(1)
    worker.line.is_down = True
    worker.turn()
    worker.heartbeat.tick()
    worker.line.is_down = False
    stage.clock.advance(1)
    worker.turn()
    worker.heartbeat.tick()

    assert beats(stage) == [(task, "runner")] * 2


def test_a_task_that_waits_for_its_process_has_a_claimer(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=2)
    tasks = [enqueue(stage.store, name="later", policy='{"on_crash":"retry"}') for _ in range(2)]
    worker.get_up()
    worker.crew.begin(0), worker.crew.begin(0)
    worker.crew.die(0, -11)
    worker.turn()

    worker.heartbeat.tick()

    assert beats(stage) == [(tasks[0], "claimer")]


def test_a_hung_dispatcher_is_not_beaten_for(stage: Stage) -> None:
    worker = stage.worker()
    worker.turn()
    worker.heartbeat.tick()

    stage.clock.advance(9)
    worker.heartbeat.tick()
    assert silence(stage, worker) == 0
    stage.clock.advance(2)
    pause = worker.heartbeat.tick()
    assert silence(stage, worker) == 2
    assert pause == 1
    worker.turn()
    worker.heartbeat.tick()

    assert silence(stage, worker) == 0


def test_a_dispatcher_that_waits_for_its_store_is_beaten_for(stage: Stage) -> None:
    """Some statement of its flush takes long, or somebody's lock is in its way: it is not hung (PROTOCOL 9)."""
    worker, seen = stage.worker(), list[bool]()
    worker.get_up()

    def take_long() -> None:
        seen.append(worker.heartbeat.dispatcher_turns())
        stage.clock.advance(11)
        seen.append(worker.heartbeat.dispatcher_turns())

    worker.line.meanwhile = take_long
    enqueue(stage.store)
    worker.look()
    worker.line.meanwhile = lambda: None

    assert seen[:2] == [True, True]
    stage.clock.advance(11)
    assert not worker.heartbeat.dispatcher_turns()


def test_a_worker_that_takes_long_to_begin_is_beaten_for(stage: Stage) -> None:
    worker = stage.worker()

    for _ in range(3):
        stage.clock.advance(20)
        worker.heartbeat.tick()

    assert silence(stage, worker) == 0


def test_what_the_dispatcher_does_not_hold_is_returned_after_two_beats(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    task = enqueue(stage.store)
    claim_unnoticed(worker)
    worker.heartbeat.tick()
    assert stage.status(task) == ["RUNNING"]

    worker.turn()
    worker.heartbeat.tick()

    info = stage.task(task)
    assert (info.status, info.lost_count) == ("PENDING", 0)
    assert "does not hold it; its code never began" in (info.history[-1].reason or "")


def test_a_claim_that_is_still_on_its_way_to_the_dispatcher_is_no_stranger(stage: Stage) -> None:
    worker = stage.worker(processes=2, scribes=1)
    first = enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1)
    second = enqueue(stage.store)
    worker.look()
    worker.scribes.finish()  # committed; the dispatcher has not heard of it

    for _ in range(4):
        worker.heartbeat.tick()
        stage.clock.advance(2)
    worker.turn()

    assert worker.crew.sends == [first, second]
    assert stage.status(first, second) == ["RUNNING", "RUNNING"]


def test_a_stranger_must_be_seen_twice_under_the_same_fence(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    task = enqueue(stage.store)
    claim_unnoticed(worker)
    worker.heartbeat.tick()
    (claim,) = stage.store.owned_by(worker.id)
    worker.dispatcher.books.hold([claim], worker.dispatcher.slots[1])
    worker.turn()
    worker.heartbeat.tick()
    worker.dispatcher.books.holdings.clear()
    worker.turn()
    worker.heartbeat.tick()

    assert stage.status(task) == ["RUNNING"]


def test_a_beat_of_a_worker_declared_dead_changes_nothing_and_says_so(stage: Stage) -> None:
    worker = stage.worker()
    worker.turn()
    stage.store.declare_dead(worker.id, reason="silent", cause="silence")
    stage.clock.advance(7)

    worker.heartbeat.tick()

    assert worker.heartbeat.is_declared_dead
    assert silence(stage, worker) == 7


def pictures(stage: Stage) -> list[tuple[int, int]]:
    with stage.store.database.read() as tx:
        rows = tx.all("SELECT tasks_running, tasks_claimed, memory_usage_mb FROM everbeat_worker_states ORDER BY id")
    assert all(memory > 1 for _, _, memory in rows)  # this process is real
    return [(running, claimed) for running, claimed, _ in rows]


def test_a_beat_brings_a_picture_of_the_worker_every_half_minute(stage: Stage) -> None:
    worker = stage.worker(processes=1, runner_heartbeat_interval_ms=1_000, claimer_heartbeat_interval_ms=1_000)
    heartbeat = Heartbeat(
        worker_id=worker.id, store=worker.store, dispatcher=worker.dispatcher, recovery=worker.config.to_policy(),
        clock=stage.clock, interval=1.0, reporter=Reporter(), resources=Resources(stage.clock),
    )  # fmt: skip
    enqueue(stage.store)
    heartbeat.tick()
    worker.get_up()

    for _ in range(31):
        stage.clock.advance(1)
        worker.turn()
        heartbeat.tick()

    assert pictures(stage) == [(0, 0), (1, 0)]


@pytest.mark.proves("FR-051", "FR-052")
def test_a_heartbeat_that_can_not_be_written_is_tried_again_and_ends_nobody(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    service = Service(worker.heartbeat, Reporter())
    worker.turn()
    worker.beat_line.is_down = True
    stage.clock.advance(5)

    waits = [service._turn() for _ in range(3)]
    worker.beat_line.is_down = False
    waits.append(service._turn())

    assert waits[:3] == [0.25, 0.25, 0.25]
    assert waits[3] == worker.config.runner_heartbeat_interval_ms / 1000
    assert silence(stage, worker) == 0


def test_a_beat_that_failed_is_tried_again_within_a_quarter_of_the_smallest_threshold(stage: Stage) -> None:
    smallest = {"running_stale_threshold_ms": 2_000, "claimed_stale_threshold_ms": 2_000,
                "runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000}  # fmt: skip
    worker = stage.worker(processes=1, **smallest)
    worker.turn()
    worker.beat_line.is_down = True

    wait = Service(worker.heartbeat, Reporter())._turn()

    assert wait <= worker.config.running_stale_threshold_ms / 1000 / 4


@pytest.mark.proves("NFR-003")
def test_the_beats_of_many_tasks_are_one_transaction(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=100)
    for _ in range(100):
        enqueue(stage.store, name="later")
    worker.get_up()
    worker.heartbeat.tick()
    held, before = len(worker.holds()), worker.beat_line.commits
    stage.clock.advance(30)
    worker.turn()

    worker.heartbeat.tick()

    assert held >= 50
    assert worker.beat_line.commits == before + 1
    assert len(beats(stage)) == 2 * held
