"""Workflows that somebody has locked: what ends in them waits for that, and nothing else does (PROTOCOL 35)."""

from tests.flow_words import begin, graph, state, states
from tests.run.stage import SimulatedWorker, Stage
from tests.run.test_spool import records
from tests.words import SECOND, enqueue

from everbeat.model.flow import NodeStatus, WorkflowStatus
from everbeat.store.messages import Flush, Flushed
from everbeat.store.transaction import RowRefused

N, W = NodeStatus, WorkflowStatus
PAUSES = [100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 5_000_000]


def lock(stage: Stage, worker: SimulatedWorker, *flows: str) -> None:
    for flow in flows:
        worker.line.lock(flow, stage.store.workflow_nodes(flow))


def pass_time(stage: Stage, worker: SimulatedWorker, seconds: float) -> None:
    """Turn by turn, whenever the dispatcher wants to be woken; and beat."""
    until = stage.clock.mono_us() + round(seconds * SECOND)
    while stage.clock.mono_us() < until:
        left = until - stage.clock.mono_us()
        stage.clock.advance(max(1, min(worker.dispatcher.wait_us(), left)) / SECOND)
        worker.turn()
    worker.heartbeat.tick()


def test_what_ends_in_a_locked_workflow_waits_and_all_else_is_settled_at_once(stage: Stage) -> None:
    worker = stage.worker(processes=3)
    begin(stage.store, graph("locked", a="", b="a"))
    begin(stage.store, graph("free", a="", b="a"))
    plain = enqueue(stage.store)
    worker.get_up()
    lock(stage, worker, "locked")
    for slot in (1, 2, 3):
        worker.crew.run(slot)

    worker.turn()
    assert stage.status("locked:a", plain) == ["RUNNING", "COMPLETED"]
    worker.turn(2)  # each of the workflows by itself
    assert stage.status("locked:a", "free:a", "free:b") == ["RUNNING", "COMPLETED", "RUNNING"]

    worker.line.unlock("locked")
    pass_time(stage, worker, 1)
    assert stage.status("locked:a", "locked:b") == ["COMPLETED", "RUNNING"]
    assert worker.crew.sends.count("locked:a") == 1
    assert worker.holds() == ["free:b", "locked:b"]


def test_a_lock_is_tried_again_with_growing_pauses_told_once_and_the_work_goes_on(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    begin(stage.store, graph("locked", a=""))
    worker.get_up()
    lock(stage, worker, "locked")
    worker.crew.run(1)
    worker.turn(2)
    pauses = []
    for _ in PAUSES:
        pauses.append(worker.dispatcher.wait_us())
        stage.clock.advance(pauses[-1] / SECOND)
        worker.turn()
        task = enqueue(stage.store)
        worker.look()
        worker.crew.run(1)
        worker.turn()
        assert stage.status(task) == ["COMPLETED"]

    assert pauses == PAUSES
    assert stage.events().count("workflow.locked") == 1
    assert worker.dispatcher.store_away_us == 0


def test_what_is_set_apart_and_then_refused_holds_up_nothing_else(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    begin(stage.store, graph("locked", a=""))
    worker.get_up()
    lock(stage, worker, "locked")
    worker.crew.run(1)
    worker.turn(2)
    usual = worker.store.flush

    def refusing(flush: Flush) -> Flushed:
        if any(ending.claim.workflow_id for ending in flush.endings):
            raise RowRefused("a statement of workflows that this server does not understand")
        return usual(flush)

    worker.store.flush = refusing  # type: ignore[method-assign]
    stage.clock.advance(1)
    task = enqueue(stage.store)
    worker.look()
    worker.crew.run(1)
    worker.turn()

    assert stage.status(task, "locked:a") == ["COMPLETED", "RUNNING"]
    assert worker.dispatcher.wait_us() > 0, "it is not tried again at once"


def test_what_is_set_apart_is_held_and_kept_on_disk_until_it_is_settled(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    begin(stage.store, graph("locked", a="", b=""))
    worker.get_up()
    lock(stage, worker, "locked")
    worker.crew.run(1)
    worker.turn(2)
    worker.crew.run(2)  # joins what waits already: nothing is tried before its time
    worker.turn()

    pass_time(stage, worker, 100)
    assert worker.holds() == ["locked:a", "locked:b"]
    assert records(worker) == [("locked:a", 1), ("locked:b", 1)]
    assert not worker.dispatcher.is_idle
    worker.line.unlock("locked")
    pass_time(stage, worker, 6)

    assert (state(stage.store, "locked"), worker.holds(), records(worker)) == (W.COMPLETED, [], [])
    assert stage.events().count("workflow.completed") == 1


def test_no_more_tasks_of_a_locked_workflow_are_claimed_until_it_is_free(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    begin(stage.store, graph("locked", a="", b=""))
    plain = enqueue(stage.store)
    worker.get_up()
    lock(stage, worker, "locked")
    worker.crew.run(1)

    worker.turn()
    assert stage.status("locked:b", plain) == ["PENDING", "RUNNING"]
    worker.crew.run(1)
    worker.line.unlock("locked")
    pass_time(stage, worker, 1)
    assert stage.status("locked:a", "locked:b") == ["COMPLETED", "RUNNING"]


def test_a_worker_that_stops_leaves_what_is_set_apart_in_its_spool(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    begin(stage.store, graph("locked", a=""))
    worker.get_up()
    lock(stage, worker, "locked")
    worker.crew.run(1)
    worker.turn()

    worker.dispatcher.drain(SECOND)
    pass_time(stage, worker, 2)
    assert not worker.dispatcher.is_drained
    pass_time(stage, worker, 20)

    assert worker.dispatcher.is_drained
    worker.dispatcher.keep_rest()
    assert records(worker) == [("locked:a", 1)]
    assert states(stage.store, "locked") == {"a": N.RUNNING}


def test_a_commit_without_an_answer_settles_what_was_set_apart_once(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    begin(stage.store, graph("locked", a="", b="a"))
    worker.get_up()
    lock(stage, worker, "locked")
    worker.crew.run(1)
    worker.turn(2)
    worker.line.unlock("locked")
    worker.line.break_after_commit()

    pass_time(stage, worker, 1)

    assert stage.status("locked:a", "locked:b") == ["COMPLETED", "RUNNING"]
    assert worker.holds() == ["locked:b"]
    assert "outcome.refused" not in stage.events()


def test_a_lock_on_something_else_is_an_outage_like_any_other(stage: Stage) -> None:
    """All rows of the store are held, not those of a workflow alone: nothing is taken for settled."""
    worker = stage.worker(processes=2)
    begin(stage.store, graph("locked", a=""))
    plain = enqueue(stage.store)
    worker.get_up()
    worker.line.is_locked = True
    worker.crew.run(1), worker.crew.run(2)
    worker.turn()
    pass_time(stage, worker, 10)

    assert stage.status("locked:a", plain) == ["RUNNING", "RUNNING"]
    assert worker.dispatcher.store_away_us > 0
    worker.line.is_locked = False
    pass_time(stage, worker, 6)
    assert stage.status("locked:a", plain) == ["COMPLETED", "COMPLETED"]
    assert worker.dispatcher.store_away_us == 0
