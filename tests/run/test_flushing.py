"""Flushes under way while the dispatcher goes on: what it may do meanwhile, and what their answers mean then."""

import os
import select
from contextlib import closing

import pytest
from tests.flow_words import begin, graph, state
from tests.run.stage import SimulatedWorker, Stage
from tests.run.test_refused import allow, refuse
from tests.words import a_policy, enqueue

from everbeat.errors import StoreUnavailable
from everbeat.model.flow import WorkflowStatus
from everbeat.run.flushing import MANY
from everbeat.run.scribes import Answer, Scribes
from everbeat.store.messages import Flush, Flushed
from everbeat.store.transaction import RowRefused

AGAIN = a_policy(max_attempts=5, has_retry=True)


def busy(stage: Stage, *, scribes: int = 1, processes: int = 2, **how: object) -> SimulatedWorker:
    """A worker one of whose processes runs a task, so that it does not write by itself."""
    worker = stage.worker(processes=processes, scribes=scribes, **how)
    enqueue(stage.store, id="runs")
    worker.get_up()
    worker.crew.begin(1)
    return worker


def claims_under_way(stage: Stage, worker: SimulatedWorker, *task_ids: str, **facts: object) -> None:
    for task_id in task_ids:
        enqueue(stage.store, id=task_id, **facts)
    worker.look()
    assert len(worker.scribes.waiting) == 1


# -- meanwhile -------------------------------------------------------------------------------------------------------


def test_a_worker_whose_processes_have_nothing_writes_by_itself(stage: Stage) -> None:
    worker = stage.worker(processes=2, scribes=1)
    task = enqueue(stage.store)

    worker.get_up()

    assert (worker.scribes.waiting, worker.crew.sends) == ([], [task])


def test_a_worker_does_not_wait_itself_for_a_store_that_did_not_answer(stage: Stage) -> None:
    worker = stage.worker(processes=1, scribes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.line.is_down = True
    worker.crew.run(1)
    worker.turn()
    assert worker.scribes.waiting == []
    stage.clock.advance(1)

    worker.turn()
    assert len(worker.scribes.waiting) == 1
    worker.line.is_down = False
    worker.finish()

    assert stage.status(task) == ["COMPLETED"]


def test_what_ends_while_a_flush_is_under_way_is_heard_and_settled_by_the_next(stage: Stage) -> None:
    worker = busy(stage)
    claims_under_way(stage, worker, "second")
    worker.crew.end(1)

    worker.turn()
    assert worker.dispatcher.slots[1].queue == {}
    assert len(worker.scribes.waiting) == 1  # the one scribe is busy
    worker.finish()

    assert stage.status("runs", "second") == ["COMPLETED", "RUNNING"]
    assert worker.crew.sends == ["runs", "second"]


def test_a_worker_waits_for_its_scribes_without_turning_in_vain(stage: Stage) -> None:
    worker = busy(stage)
    claims_under_way(stage, worker, "second")
    worker.crew.end(1)
    worker.turn()
    stage.clock.advance(0.05)
    worker.turn()

    assert worker.dispatcher.wait_us() > 1_000_000


def test_a_second_scribe_writes_what_ended_meanwhile_before_the_first_is_back(stage: Stage) -> None:
    worker = busy(stage, scribes=2)
    claims_under_way(stage, worker, "second")
    worker.crew.end(1)
    worker.turn()

    worker.scribes.finish(1)
    worker.turn()
    assert stage.status("runs", "second") == ["COMPLETED", "PENDING"]
    worker.finish()

    assert stage.status("runs", "second") == ["COMPLETED", "RUNNING"]


def test_room_that_was_offered_is_not_offered_again(stage: Stage) -> None:
    worker = busy(stage, scribes=2, processes=3, frame_depth=1)
    stage.clock.advance(0.011)  # it may take long, and nothing is put behind it
    claims_under_way(stage, worker, "second", "third", "fourth")
    worker.crew.end(1)

    worker.turn()
    (_, first), (_, second) = worker.scribes.waiting
    assert (sorted(first.room.slots), sorted(second.room.slots)) == ([2, 3], [1])  # type: ignore[union-attr]
    worker.finish()

    assert sorted(worker.crew.sends) == ["fourth", "runs", "second", "third"]
    assert [len(child.sent) for child in worker.crew.children.values()] == [1, 1, 1]


def in_turns(stage: Stage) -> SimulatedWorker:
    """A worker that fills one slot while the other runs what it has: `old`. For the first, `new` is being claimed."""
    worker = stage.worker(processes=2, scribes=1)
    worker.learn("add")
    enqueue(stage.store, id="runs")
    worker.get_up()
    worker.crew.begin(1)
    enqueue(stage.store, id="old")
    worker.look()
    worker.finish()
    worker.crew.end(1)
    enqueue(stage.store, id="new")
    worker.look()
    assert [sorted(flush.room.slots) for _, flush in worker.scribes.waiting] == [[1]]  # type: ignore[union-attr]
    return worker


def test_before_a_slot_is_filled_the_store_goes_on_with_the_other(stage: Stage) -> None:
    worker = in_turns(stage)
    worker.crew.run(2)
    worker.turn()
    worker.scribes.finish()

    worker.dispatcher.flushing.take_up(stage.clock.mono_us())

    ((_, ahead),) = worker.scribes.waiting
    assert [ending.claim.id for ending in ahead.endings] == ["old"]
    assert sorted(ahead.room.slots) == [2]  # type: ignore[union-attr]
    assert worker.crew.sends == ["runs", "old", "new"]
    worker.finish()
    assert stage.status("runs", "old", "new") == ["COMPLETED", "COMPLETED", "RUNNING"]


@pytest.mark.parametrize("how", ["declared dead", "no answer"])
def test_nothing_is_sent_ahead_after_an_answer_that_changes_what_may_be_done(stage: Stage, how: str) -> None:
    worker = in_turns(stage)
    worker.crew.run(2)
    worker.turn()
    if how == "declared dead":
        stage.store.declare_dead(worker.id, reason="silent", cause="silence")
    else:
        worker.line.break_after_commit()
    worker.scribes.finish()
    sent = worker.dispatcher.flushing.begun

    worker.dispatcher.flushing.take_up(stage.clock.mono_us())

    assert worker.dispatcher.flushing.begun == sent


def test_async_places_that_were_offered_are_not_offered_again(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=3, scribes=2, frame_depth=1)
    enqueue(stage.store, id="runs", name="later")
    worker.get_up()
    worker.crew.begin(0)
    claims_under_way(stage, worker, *(f"later-{number}" for number in range(4)), name="later")
    worker.crew.end(0)

    worker.turn()
    assert [flush.room.async_free for _, flush in worker.scribes.waiting] == [2, 1]  # type: ignore[union-attr]
    worker.finish()

    assert len(worker.crew.children[0].sent) == 3


def test_a_wake_up_is_not_lost_on_a_flush_that_had_looked_before_it(stage: Stage) -> None:
    worker = busy(stage)
    worker.look()
    worker.scribes.finish()  # it has found nothing
    enqueue(stage.store, id="second")
    worker.dispatcher.wake()

    worker.turn()
    worker.finish()

    assert worker.crew.sends == ["runs", "second"]


def test_what_two_flushes_at_once_have_not_found_is_looked_for_again(stage: Stage) -> None:
    """The first has the slot, and no use for it; the second could use it, and does not have it."""
    worker = busy(stage, scribes=2, processes=1, async_slots=1)
    claims_under_way(stage, worker, "second")
    worker.crew.end(1)
    worker.turn()
    assert len(worker.scribes.waiting) == 2

    worker.finish()

    assert worker.crew.sends == ["runs", "second"]


def test_a_burst_does_not_end_on_what_two_flushes_at_once_have_found(stage: Stage) -> None:
    worker = busy(stage, scribes=2, processes=1, async_slots=1)
    worker.look()
    worker.crew.end(1)
    worker.turn()
    worker.scribes.finish(), worker.scribes.finish()
    enqueue(stage.store, id="second")

    worker.turn()

    assert not worker.dispatcher.is_idle
    worker.finish()
    assert worker.crew.sends == ["runs", "second"]


def test_a_worker_that_has_found_nothing_rests(stage: Stage) -> None:
    worker = busy(stage)
    worker.look()

    worker.finish()

    assert (worker.scribes.waiting, worker.dispatcher.pacing.is_hungry) == ([], False)


def test_a_process_that_is_ready_starts_its_task_once(stage: Stage) -> None:
    worker = busy(stage, scribes=2)
    enqueue(stage.store, id="isolated", policy=a_policy(isolated=True))
    worker.look()
    worker.finish()
    (own,) = [slot for slot in worker.crew.children if slot > 2]
    worker.crew.get_ready(own)
    worker.turn()
    assert len(worker.scribes.waiting) == 1

    worker.turn()
    assert len(worker.scribes.waiting) == 1
    worker.finish()

    assert worker.crew.sends == ["runs", "isolated"]


# -- workflows ---------------------------------------------------------------------------------------------------------


def a_fan_that_runs(stage: Stage, *, nodes: int, scribes: int = 2) -> SimulatedWorker:
    """So many nodes of one workflow, in two processes."""
    worker = stage.worker(processes=2, scribes=scribes, frame_depth=nodes)
    worker.learn("add")
    begin(stage.store, graph("fan", **{f"n{number}": "" for number in range(nodes)}))
    worker.get_up()
    worker.finish()
    return worker


def ends_of(worker: SimulatedWorker) -> list[int]:
    return [len(flush.endings) for _, flush in worker.scribes.waiting]


def test_many_nodes_are_settled_by_one_flush_while_another_claims(stage: Stage) -> None:
    worker = a_fan_that_runs(stage, nodes=MANY + 1)
    enqueue(stage.store, id="ready")
    for _ in range(MANY):
        worker.crew.run(1)
    worker.look()

    (_, settles), (_, claims) = worker.scribes.waiting
    assert (len(settles.endings), settles.room.is_empty) == (MANY, True)  # type: ignore[union-attr]
    assert (claims.endings, claims.room.is_empty) == ([], False)  # type: ignore[union-attr]
    worker.scribes.finish(1)
    worker.turn()

    assert stage.status("ready", "fan:n0") == ["RUNNING", "RUNNING"]
    worker.finish()
    assert stage.status("fan:n0", f"fan:n{MANY - 1}", f"fan:n{MANY}") == ["COMPLETED", "COMPLETED", "RUNNING"]


def test_what_follows_from_many_nodes_is_looked_for_when_they_are_settled(stage: Stage) -> None:
    worker = busy(stage, scribes=2, frame_depth=MANY)
    worker.learn("add")
    stage.clock.advance(0.011)  # nothing is put behind what runs
    fan = {f"n{number}": "" for number in range(MANY)}
    begin(stage.store, graph("fan", **fan, join=" ".join(fan)))
    worker.look()
    worker.finish()
    for _ in fan:
        worker.crew.run(2)
    worker.look()
    assert ends_of(worker) == [MANY, 0]

    worker.scribes.finish(1)  # has looked, and found nothing
    worker.turn()
    worker.finish()

    assert stage.status("fan:join") == ["RUNNING"]


def test_who_looks_beside_a_flush_that_settles_nodes_and_finds_nothing_rests(stage: Stage) -> None:
    worker = a_fan_that_runs(stage, nodes=MANY + 1)
    for _ in range(MANY):
        worker.crew.run(1)
    worker.look()
    assert ends_of(worker) == [MANY, 0]

    worker.scribes.finish(1)
    worker.turn(2)

    assert ends_of(worker) == [MANY]


def test_other_tasks_are_settled_and_claimed_together_while_many_nodes_wait_for_a_lock(stage: Stage) -> None:
    worker = a_fan_that_runs(stage, nodes=MANY + 3)
    enqueue(stage.store, id="plain")
    worker.look()
    worker.finish()
    worker.crew.run(1)
    worker.turn()
    for slot in (1, 2):
        while len(worker.crew.children[slot].sent) > (slot == 1):
            worker.crew.run(slot)

    worker.turn()

    (_, first), (_, second) = worker.scribes.waiting
    assert [len(first.endings), len(second.endings)] == [1, 1]
    assert (second.endings[0].claim.id, second.room.is_empty) == ("plain", False)  # type: ignore[union-attr]


def test_nothing_is_sent_ahead_for_nodes_that_wait_for_a_lock(stage: Stage) -> None:
    worker = stage.worker(processes=3, scribes=2)
    begin(stage.store, graph("fan", a="", b="", c=""))
    worker.get_up()
    worker.finish()
    stage.clock.advance(0.011)  # nothing is put behind what runs
    worker.crew.run(1)
    worker.turn()
    worker.crew.run(2)
    worker.dispatcher.hearing.listen(stage.clock.mono_us(), gathers=False)
    sent = worker.dispatcher.flushing.begun

    worker.dispatcher.flushing._flush_ahead(set(), stage.clock.mono_us())

    assert worker.dispatcher.flushing.begun == sent


def test_a_store_that_takes_one_flush_at_a_time_settles_many_nodes_and_claims_in_one(stage: Stage) -> None:
    worker = a_fan_that_runs(stage, nodes=MANY + 1, scribes=1)
    for _ in range(MANY):
        worker.crew.run(1)

    worker.turn()

    ((_, flush),) = worker.scribes.waiting
    assert (len(flush.endings), flush.room.is_empty) == (MANY, False)  # type: ignore[union-attr]


def test_few_nodes_are_settled_by_the_flush_that_claims_what_follows(stage: Stage) -> None:
    worker = a_fan_that_runs(stage, nodes=MANY)
    for _ in range(MANY - 1):
        worker.crew.run(1)

    worker.turn()

    ((_, flush),) = worker.scribes.waiting
    assert (len(flush.endings), flush.room.is_empty) == (MANY - 1, False)  # type: ignore[union-attr]


def test_what_ends_in_a_workflow_waits_for_the_flush_that_has_its_lock_and_nothing_else_does(stage: Stage) -> None:
    worker = a_fan_that_runs(stage, nodes=3)
    enqueue(stage.store, id="plain")
    begin(stage.store, graph("other", a=""))
    worker.look()
    worker.finish()
    worker.crew.run(1)
    worker.turn()
    worker.crew.run(1)
    worker.turn()
    assert ends_of(worker) == [1]
    assert worker.dispatcher.wait_us() > 0  # nobody turns for what can not be told yet

    for slot in (1, 2):
        while worker.crew.children[slot].sent:
            worker.crew.run(slot)
    worker.turn()

    assert ends_of(worker) == [1, 2]
    assert {ending.claim.id for ending in worker.scribes.waiting[1][1].endings} == {"plain", "other:a"}
    worker.finish()
    assert stage.status("fan:n0", "fan:n1", "fan:n2", "plain", "other:a") == ["COMPLETED"] * 5
    assert state(stage.store, "fan") is WorkflowStatus.COMPLETED


@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
def test_what_waited_for_a_lock_is_settled_also_if_that_flush_fails(stage: Stage, when: str) -> None:
    worker = a_fan_that_runs(stage, nodes=3)
    worker.crew.run(1)
    worker.turn()
    worker.crew.run(1)
    worker.turn()
    if when == "after the commit":
        worker.line.break_after_commit()
    else:
        worker.line.break_before_commit()

    worker.scribes.finish()
    assert stage.status("fan:n0", "fan:n1", "fan:n2").count("COMPLETED") == int(when == "after the commit")
    for _ in range(3):
        stage.clock.advance(1)
        worker.turn()
        worker.finish()

    assert sorted(stage.status("fan:n0", "fan:n1", "fan:n2")) == ["COMPLETED", "COMPLETED", "RUNNING"]
    assert len(worker.holds()) == 1


# -- what has changed when the answer comes --------------------------------------------------------------------------


def test_what_was_claimed_for_a_process_that_is_gone_goes_back_unbilled(stage: Stage) -> None:
    worker = busy(stage)
    claims_under_way(stage, worker, "second")
    worker.scribes.finish()
    worker.crew.die(2, -9)
    worker.turn()  # hears both

    worker.finish()

    info = stage.task("second")
    assert (info.status, info.attempt, info.fence) == ("PENDING", 0, 2)
    assert worker.crew.sends == ["runs"]


def test_what_was_claimed_when_a_drain_begins_goes_back_and_is_waited_for(stage: Stage) -> None:
    worker = busy(stage)
    claims_under_way(stage, worker, "second")
    worker.dispatcher.drain(0)
    worker.crew.end(1)
    worker.turn()
    assert not worker.dispatcher.is_drained

    worker.finish()

    assert worker.dispatcher.is_drained
    assert stage.status("runs", "second") == ["COMPLETED", "PENDING"]
    assert worker.crew.sends == ["runs"]


def test_a_start_whose_process_died_meanwhile_goes_back_unbilled(stage: Stage) -> None:
    worker = busy(stage)
    enqueue(stage.store, id="isolated", policy=a_policy(isolated=True))
    worker.look()
    worker.finish()
    (own,) = [slot for slot in worker.crew.children if slot > 2]
    worker.crew.get_ready(own)
    worker.turn()
    worker.crew.die(own, -9)
    worker.turn()

    worker.scribes.finish()
    assert stage.status("isolated") == ["RUNNING"]
    worker.dispatcher.drain(10_000_000)
    worker.turn()
    worker.finish()

    assert stage.status("isolated") == ["PENDING"]
    assert worker.crew.sends == ["runs"]
    with stage.store.database.read() as tx:
        assert tx.one("SELECT attempt, free_attempts FROM everbeat_tasks WHERE id = 'isolated'") == (1, 1)


def test_a_task_that_must_not_share_a_queue_is_not_put_behind_one_that_moved_there(stage: Stage) -> None:
    worker = stage.worker(processes=2, scribes=1)
    worker.learn("add")
    enqueue(stage.store, id="slow"), enqueue(stage.store, id="behind")
    worker.turn()
    worker.crew.get_ready(1)
    worker.turn()
    worker.crew.begin(1)
    assert [claim.id for _, claim in worker.crew.children[1].sent] == ["behind"]
    worker.crew.get_ready(2)
    enqueue(stage.store, id="alone", policy=a_policy(timeout=5.0))
    worker.look()
    assert len(worker.scribes.waiting) == 1

    worker.wait_in_vain()  # what waits behind a slow task moves to the other slot
    worker.finish()

    assert [claim.id for _, claim in worker.crew.children[2].sent] == ["behind"]
    assert stage.status("alone") == ["PENDING"]


# -- failures --------------------------------------------------------------------------------------------------------


def test_what_a_failed_flush_was_to_tell_is_told_by_the_next_with_what_came_since(stage: Stage) -> None:
    worker = busy(stage, processes=3)
    claims_under_way(stage, worker, "second", "third")
    worker.finish()
    worker.crew.begin(2), worker.crew.begin(3)
    worker.crew.end(1)
    worker.turn()
    worker.crew.end(2)
    worker.turn()
    worker.line.is_down = True
    worker.scribes.finish()
    worker.turn()
    assert stage.status("runs", "second") == ["RUNNING", "RUNNING"]
    worker.line.is_down = False
    stage.clock.advance(1)

    worker.turn()
    assert len(worker.scribes.waiting[0][1].endings) == 2
    worker.finish()

    assert stage.status("runs", "second", "third") == ["COMPLETED", "COMPLETED", "RUNNING"]


def test_what_a_failed_flush_was_to_claim_is_looked_for_again(stage: Stage) -> None:
    worker = busy(stage)
    claims_under_way(stage, worker, "second")
    worker.line.break_before_commit()
    worker.scribes.finish()
    worker.turn()
    stage.clock.advance(1)

    worker.turn()
    worker.finish()

    assert worker.crew.sends == ["runs", "second"]


def test_a_drain_waits_for_a_claim_under_way_though_nothing_is_held(stage: Stage) -> None:
    worker = busy(stage, scribes=2)
    claims_under_way(stage, worker, "second")
    worker.crew.end(1)
    worker.turn()
    worker.scribes.finish(1)  # what ended is settled; the claim is still on its way
    worker.dispatcher.drain(0)
    worker.turn()
    assert worker.holds() == []
    assert not worker.dispatcher.is_drained

    worker.finish()

    assert worker.dispatcher.is_drained
    assert stage.status("runs", "second") == ["COMPLETED", "PENDING"]


def test_nothing_is_asked_or_claimed_in_doubt_before_every_flush_is_back(stage: Stage) -> None:
    worker = busy(stage, scribes=2, processes=3)
    claims_under_way(stage, worker, "second")
    worker.crew.end(1)
    worker.turn()
    worker.line.break_after_commit()
    worker.scribes.finish(0)  # its claim was made, and its answer is lost
    worker.turn()
    stage.clock.advance(5)
    worker.turn()
    assert worker.dispatcher.books.are_in_doubt
    assert len(worker.scribes.waiting) == 1

    worker.scribes.finish()
    worker.turn()
    worker.finish()

    assert not worker.dispatcher.books.are_in_doubt
    worker.look()
    worker.finish()
    assert (stage.task("second").fence, worker.crew.sends) == (3, ["runs", "second"])
    assert stage.status("runs") == ["COMPLETED"]


def test_a_row_that_is_refused_under_way_is_left_out_the_second_time(stage: Stage) -> None:
    worker = busy(stage)
    claims_under_way(stage, worker, "second")
    worker.finish()
    worker.crew.begin(2)
    refuse(stage, "second", when="NEW.status = 'COMPLETED'")
    worker.crew.end(1), worker.crew.end(2)
    enqueue(stage.store, id="third")
    worker.dispatcher.wake()
    for _ in range(4):
        worker.turn()
        worker.finish()
    allow(stage)

    assert stage.status("runs", "second", "third") == ["COMPLETED", "FAILED", "RUNNING"]


def test_a_store_that_refuses_everything_is_asked_again_after_a_while(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    task = enqueue(stage.store)
    asked: list[Flush] = []

    def refuse_all(flush: Flush) -> Flushed:
        asked.append(flush)
        raise RowRefused("a statement that this server does not understand")

    flush, worker.store.flush = worker.store.flush, refuse_all  # type: ignore[method-assign]
    worker.look()
    worker.turn(3)

    assert [one.row_by_row for one in asked] == [False, True]
    assert worker.dispatcher.wait_us() > 0
    assert worker.dispatcher.tally.last_error == "a statement that this server does not understand"

    worker.store.flush = flush  # type: ignore[method-assign]
    stage.clock.advance(1)
    worker.turn()

    assert stage.status(task) == ["RUNNING"]


def test_a_worker_whose_flush_takes_long_goes_on_beating(stage: Stage) -> None:
    worker = busy(stage)
    claims_under_way(stage, worker, "second")

    for _ in range(30):
        stage.clock.advance(1)
        worker.turn()
        worker.heartbeat.tick()

    (standing,) = stage.store.workers()
    assert standing.silent_for_us == 0


# -- the threads -----------------------------------------------------------------------------------------------------


def answer(scribes: Scribes) -> Answer:
    select.select([scribes.fileno()], [], [], 10)
    ((_, found),) = scribes.answers()
    return found


def test_scribes_ring_when_they_have_an_answer(stage: Stage) -> None:
    worker = stage.worker()
    with closing(Scribes(worker.store, 2)) as scribes:
        assert scribes.answers() == []
        scribes.write(1, Flush(worker_id=worker.id))

        assert answer(scribes) == Flushed(alive=True)
        assert scribes.is_free
        assert select.select([scribes.fileno()], [], [], 0)[0] == []


def test_a_store_that_is_away_is_an_answer(stage: Stage) -> None:
    worker = stage.worker()
    worker.line.is_down = True
    with closing(Scribes(worker.store, 1)) as scribes:
        scribes.write(1, Flush(worker_id=worker.id))

        assert isinstance(answer(scribes), StoreUnavailable)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_has_foreseen_ends_the_dispatcher(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = stage.worker()
    monkeypatch.setattr(worker.store, "flush", lambda flush: 1 / 0)
    with closing(Scribes(worker.store, 1)) as scribes:
        scribes.write(1, Flush(worker_id=worker.id))
        select.select([scribes.fileno()], [], [], 10)

        with pytest.raises(RuntimeError, match="nobody has foreseen"):
            scribes.answers()


def test_a_scribe_that_hangs_does_not_keep_its_worker_from_ending(stage: Stage) -> None:
    worker = stage.worker()
    waits, goes_on = os.pipe()
    worker.line.meanwhile = lambda: os.read(waits, 1) and None
    scribes = Scribes(worker.store, 1)
    scribes.write(1, Flush(worker_id=worker.id))

    scribes.close()

    os.write(goes_on, b"x")
    assert isinstance(answer(scribes), Flushed)
