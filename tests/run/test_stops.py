"""Runs that are over their time or were cancelled: told to stop first, killed with their process if they do not."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import SECOND, a_policy, carry_out, enqueue

from everbeat.errors import StoreUnavailable
from everbeat.model.order import Order
from everbeat.model.task import TaskError
from everbeat.store.messages import Ours
from everbeat.store.sql.working import Working

TIMED = a_policy(timeout=30.0)
AGAIN = a_policy(max_attempts=5, has_retry=True, jitter=False, base_seconds=2.0)
TIMED_AGAIN = a_policy(timeout=30.0, max_attempts=2, has_retry=True, jitter=False, base_seconds=2.0)
CANCELLED = TaskError(code="TASK_CANCELLED", message="the task was cancelled while it ran")
STOPPED = TaskError(code="WORKER_STOPPED", message="the worker stops")
TIMED_OUT = TaskError(code="TASK_TIMEOUT", message="the task has run for longer than its timeout")
ASYNC, NEXT_ASYNC = 0, 3
"""The slots of the async process of a worker with one sync slot, and of the one after it."""


def up(stage: Stage, worker: SimulatedWorker, seconds: float) -> None:
    """Time passes; the dispatcher turns when it wants to, and once more at the end."""
    until = stage.clock.mono_us() + round(seconds * SECOND)
    while (left := until - stage.clock.mono_us()) > 0:
        stage.clock.advance(max(1, min(left, worker.dispatcher.wait_us())) / SECOND)
        worker.turn()


def begun(stage: Stage, **facts: object) -> tuple[SimulatedWorker, str]:
    """A worker with one process in which a task has begun."""
    worker = stage.worker(processes=1)
    task = enqueue(stage.store, **facts)
    worker.get_up()
    worker.crew.begin(1)
    return worker, task


# -- in a process of its own ------------------------------------------------------------------------------------------


def test_a_run_over_its_time_is_told_to_stop(stage: Stage) -> None:
    worker, task = begun(stage, policy=TIMED)
    child = worker.crew.children[1]

    up(stage, worker, 29.9)
    assert child.interrupts == []
    up(stage, worker, 0.2)
    assert child.interrupts == [task]

    worker.crew.end(1, error=TIMED_OUT)
    worker.turn()
    info = stage.task(task)
    assert (info.status, info.error_code) == ("FAILED", "TASK_TIMEOUT")
    assert worker.crew.children[1] is child


def test_time_counts_from_the_begin_mark(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store, policy=TIMED)
    worker.get_up()
    up(stage, worker, 25)
    worker.crew.begin(1)
    child = worker.crew.children[1]

    up(stage, worker, 29.9)
    assert child.interrupts == []
    up(stage, worker, 0.2)
    assert child.interrupts == [task]


def test_a_run_that_does_not_listen_is_killed_and_failed_only_when_its_process_is_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, task = begun(stage, policy=TIMED)
    killed: list[int] = []
    monkeypatch.setattr(worker.crew, "kill", killed.append)

    up(stage, worker, 31.9)
    assert killed == []
    up(stage, worker, 1)
    assert killed == [1]
    assert stage.status(task) == ["RUNNING"]

    worker.crew.die(1, -9)
    worker.turn()
    info = stage.task(task)
    assert (info.status, info.error_code, info.crash_count) == ("FAILED", "TASK_TIMEOUT", 0)
    assert info.error_message == (
        "the task ran for longer than its timeout of 30 s and did not stop; process 1001 on host-1 was killed"
    )
    assert stage.events()[-2:] == ["child.killed", "task.failed"]


def test_an_outcome_that_is_in_the_channel_wins_over_the_kill(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, task = begun(stage, policy=TIMED)
    monkeypatch.setattr(worker.crew, "kill", lambda slot: None)
    up(stage, worker, 33)

    worker.crew.end(1)
    worker.crew.die(1, -9)
    worker.turn()

    assert stage.status(task) == ["COMPLETED"]


def test_a_run_that_catches_the_timeout_and_returns_has_completed(stage: Stage) -> None:
    worker, task = begun(stage, policy=TIMED)
    up(stage, worker, 31)

    worker.crew.end(1)
    worker.turn()

    assert stage.status(task) == ["COMPLETED"]
    up(stage, worker, 10)
    assert sorted(worker.crew.children) == [1]


@pytest.mark.parametrize("listens", [True, False])
def test_a_timeout_is_retried_by_the_policy_and_billed(stage: Stage, listens: bool) -> None:
    worker, task = begun(stage, policy=TIMED_AGAIN)
    up(stage, worker, 31)
    if listens:
        worker.crew.end(1, error=TIMED_OUT)
    up(stage, worker, 2)

    info = stage.task(task)
    assert (info.status, info.attempt) == ("PENDING", 1)
    assert [(a.error_code, a.will_retry) for a in info.attempts] == [("TASK_TIMEOUT", True)]

    worker.crew.get_ready()
    up(stage, worker, 3)
    worker.crew.begin(1)
    up(stage, worker, 40)
    info = stage.task(task)
    assert (info.status, info.attempt, info.error_code) == ("FAILED", 2, "TASK_TIMEOUT")


def test_quick_tasks_with_a_timeout_never_share_a_queue(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.learn("add")
    timed = [enqueue(stage.store, policy=TIMED) for _ in range(2)]
    plain = enqueue(stage.store)
    worker.get_up()

    assert worker.crew.sends == timed[:1]

    worker.crew.run(1)
    worker.look()
    worker.crew.run(1)
    worker.look()
    assert stage.status(*timed, plain) == ["COMPLETED", "COMPLETED", "RUNNING"]


def test_what_ends_in_time_leaves_nothing_to_watch(stage: Stage) -> None:
    worker, task = begun(stage, policy=TIMED)

    worker.crew.end(1)
    worker.turn()

    assert stage.status(task) == ["COMPLETED"]
    assert worker.dispatcher.stops.watched == {}
    up(stage, worker, 31)
    assert worker.dispatcher.wait_us() > 10 * SECOND


def test_a_process_that_can_not_be_told_is_killed_on_time_all_the_same(stage: Stage) -> None:
    worker, task = begun(stage, policy=TIMED)
    child = worker.crew.children[1]
    child.is_deaf = True
    up(stage, worker, 30.5)
    child.is_deaf = False
    up(stage, worker, 0.2)
    assert child.interrupts == [task]
    child.is_deaf = True

    up(stage, worker, 2)

    assert stage.task(task).error_code == "TASK_TIMEOUT"


def test_a_timeout_works_while_the_store_is_away_and_while_the_worker_drains(stage: Stage) -> None:
    worker, task = begun(stage, policy=TIMED)
    worker.dispatcher.drain(3600 * SECOND)
    worker.line.is_down = True

    up(stage, worker, 33)
    assert worker.crew.children == {}
    worker.line.is_down = False
    up(stage, worker, 2)

    assert stage.task(task).error_code == "TASK_TIMEOUT"
    assert worker.dispatcher.is_drained


def test_a_process_that_dies_by_itself_after_it_was_told_has_crashed(stage: Stage) -> None:
    worker, task = begun(stage, policy=TIMED)
    up(stage, worker, 31)

    worker.crew.die(1, -11)
    worker.turn()

    info = stage.task(task)
    assert (info.error_code, info.crash_count) == ("WORKER_CRASHED", 1)


# -- in the process that async tasks share ----------------------------------------------------------------------------


def sharing(stage: Stage, *policies: str | None) -> tuple[SimulatedWorker, list[str]]:
    """Async tasks that have begun in one process, the first with a timeout."""
    worker = stage.worker(processes=1, async_slots=5)
    tasks = [enqueue(stage.store, name="later", policy=policy) for policy in (TIMED, *policies)]
    worker.get_up()
    for _ in tasks:
        worker.crew.begin(ASYNC)
    return worker, tasks


def test_an_async_run_that_does_not_listen_and_is_alone_is_killed_after_its_grace(stage: Stage) -> None:
    worker, (task,) = sharing(stage)

    up(stage, worker, 32.1)

    assert stage.task(task).error_code == "TASK_TIMEOUT"


def test_neighbours_have_five_seconds_to_end_before_the_process_is_killed(stage: Stage) -> None:
    worker, (culprit, ends, again, once) = sharing(stage, None, AGAIN, None)
    crew = worker.crew
    up(stage, worker, 32.1)
    assert ASYNC in crew.children
    assert crew.children[ASYNC].interrupts == [culprit]

    crew.children[ASYNC].taken.rotate(-1)
    crew.end(ASYNC)  # the second
    up(stage, worker, 4.8)
    assert stage.status(culprit, ends, again, once) == ["RUNNING", "COMPLETED", "RUNNING", "RUNNING"]
    up(stage, worker, 0.2)

    assert stage.status(culprit, ends, again, once) == ["FAILED", "COMPLETED", "CLAIMED", "FAILED"]
    assert stage.task(culprit).error_code == "TASK_TIMEOUT"
    assert stage.task(once).error_code == "NEIGHBOUR_CRASHED"
    info = stage.task(again)
    assert (info.error_code, info.crash_count) == ("NEIGHBOUR_CRASHED", 0)
    assert info.error_message == f"process 1002 on host-1 was killed because task {culprit} in it did not stop"


def test_the_process_is_killed_as_soon_as_its_last_neighbour_has_ended(stage: Stage) -> None:
    worker, (culprit, neighbour) = sharing(stage, None)
    up(stage, worker, 32.1)
    worker.crew.children[ASYNC].taken.rotate(-1)

    worker.crew.end(ASYNC)
    worker.turn(2)

    assert stage.status(culprit, neighbour) == ["FAILED", "COMPLETED"]


def test_another_process_serves_while_one_is_drained(stage: Stage) -> None:
    worker, (culprit, neighbour) = sharing(stage, None)
    up(stage, worker, 32.1)
    late = enqueue(stage.store, name="later")

    worker.crew.get_ready(NEXT_ASYNC)
    worker.look()
    worker.crew.run(NEXT_ASYNC)
    worker.turn()

    assert stage.status(culprit, neighbour, late) == ["RUNNING", "RUNNING", "COMPLETED"]
    up(stage, worker, 6)
    assert sorted(worker.crew.children) == [1, NEXT_ASYNC]
    assert worker.dispatcher.wait_us() > 10 * SECOND


def test_a_run_that_listens_while_its_process_is_drained_is_not_killed(stage: Stage) -> None:
    worker, (culprit, neighbour) = sharing(stage, None)
    up(stage, worker, 33)

    worker.crew.end(ASYNC, error=TIMED_OUT)
    up(stage, worker, 60)
    assert stage.status(culprit, neighbour) == ["FAILED", "RUNNING"]

    worker.crew.end(ASYNC)
    worker.turn(2)
    assert stage.status(neighbour) == ["COMPLETED"]
    assert ASYNC not in worker.crew.children


def test_two_that_do_not_listen_are_both_the_reason(stage: Stage) -> None:
    worker, tasks = sharing(stage, TIMED)

    up(stage, worker, 32.1)

    assert [stage.task(task).error_code for task in tasks] == ["TASK_TIMEOUT"] * 2


def test_what_the_drained_process_has_not_taken_goes_to_the_next(stage: Stage) -> None:
    worker, (culprit, neighbour) = sharing(stage, None)
    unread = enqueue(stage.store, name="later")
    worker.look()
    up(stage, worker, 32.1)

    worker.crew.get_ready(NEXT_ASYNC)
    worker.turn()
    worker.crew.run(NEXT_ASYNC)
    worker.turn()

    assert stage.status(culprit, neighbour, unread) == ["RUNNING", "RUNNING", "COMPLETED"]


# -- cancelled --------------------------------------------------------------------------------------------------------


def cancel(stage: Stage, worker: SimulatedWorker, *tasks: str) -> None:
    for task in tasks:
        assert stage.store.cancel(task, actor="ann")
    worker.heed()


def test_a_run_that_was_cancelled_is_told_and_ends_when_it_listens(stage: Stage) -> None:
    worker, task = begun(stage, policy=AGAIN)
    cancel(stage, worker, task)
    assert worker.crew.children[1].interrupts == [task]
    assert stage.status(task) == ["RUNNING"]

    worker.crew.end(1, error=CANCELLED)
    worker.turn()

    assert stage.status(task) == ["CANCELLED"]
    assert [a.outcome for a in stage.task(task).attempts] == ["TASK_CANCELLED"]
    up(stage, worker, 5)
    assert sorted(worker.crew.children) == [1]


def test_a_cancelled_run_that_does_not_listen_is_killed_after_half_a_second(stage: Stage) -> None:
    worker, task = begun(stage, policy=AGAIN)
    cancel(stage, worker, task)

    up(stage, worker, 0.4)
    assert stage.status(task) == ["RUNNING"]
    up(stage, worker, 0.2)

    info = stage.task(task)
    assert (info.status, info.error_code) == ("CANCELLED", "TASK_CANCELLED")
    assert info.error_message == "cancelled while it ran; it did not stop, so process 1001 on host-1 was killed"
    assert stage.events()[-1] == "child.killed"


def test_cancelled_is_committed_only_when_the_process_is_gone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, task = begun(stage)
    monkeypatch.setattr(worker.crew, "kill", lambda slot: None)
    cancel(stage, worker, task)
    up(stage, worker, 10)
    assert stage.status(task) == ["RUNNING"]

    worker.crew.die(1, -9)
    worker.turn()

    assert stage.status(task) == ["CANCELLED"]


@pytest.mark.parametrize("when", ["before it is read", "after it was told", "with its death"])
def test_an_outcome_wins_over_a_cancel_that_is_not_committed(stage: Stage, when: str) -> None:
    worker, task = begun(stage)
    assert stage.store.cancel(task, actor="ann")
    if when != "before it is read":
        worker.heed()
    worker.crew.end(1)
    if when == "with its death":
        worker.crew.die(1, -9)

    worker.heed()
    worker.turn()

    assert stage.status(task) == ["COMPLETED"]


def test_a_cancel_that_comes_after_the_end_is_told_so(stage: Stage) -> None:
    worker, task = begun(stage)
    worker.crew.end(1)
    worker.turn()

    assert stage.store.cancel(task, actor="ann") is False


def test_what_has_not_begun_is_taken_back_and_cancelled_at_once(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.learn("add")
    head, second, third = (enqueue(stage.store) for _ in range(3))
    worker.get_up()
    worker.crew.begin(1)

    cancel(stage, worker, second)

    assert stage.status(head, second) == ["RUNNING", "CANCELLED"]
    assert worker.crew.children[1].interrupts == []
    info = stage.task(second)
    assert (info.attempts, info.history[-1].reason) == ([], "cancelled; its code never began")
    worker.crew.end(1)
    worker.turn()
    worker.crew.run(1)
    worker.turn()
    assert stage.status(head, third) == ["COMPLETED", "COMPLETED"]


def test_a_task_that_its_process_took_and_has_not_begun_is_told(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.crew.take(1)

    cancel(stage, worker, task)
    assert worker.crew.children[1].interrupts == [task]
    up(stage, worker, 0.6)

    assert stage.status(task) == ["CANCELLED"]


def test_what_is_sent_behind_a_cancelled_run_is_not_harmed_by_its_kill(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.learn("add")
    head, behind = enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1)

    cancel(stage, worker, head)
    up(stage, worker, 0.6)
    worker.crew.get_ready()
    worker.turn()
    worker.crew.run(1)
    worker.turn()

    assert stage.status(head, behind) == ["CANCELLED", "COMPLETED"]
    assert stage.task(behind).attempts == []


def test_a_run_that_fails_by_itself_after_a_cancel_is_not_retried(stage: Stage) -> None:
    worker, task = begun(stage, policy=AGAIN)
    assert stage.store.cancel(task, actor="ann")

    worker.crew.end(1, error=TaskError(code="UNHANDLED_EXCEPTION", message="it broke"))
    worker.turn()

    info = stage.task(task)
    assert (info.status, [a.outcome for a in info.attempts]) == ("CANCELLED", ["UNHANDLED_EXCEPTION"])


@pytest.mark.parametrize("is_read", [True, False])
def test_a_cancelled_run_whose_process_dies_by_itself_is_cancelled(stage: Stage, is_read: bool) -> None:
    worker, task = begun(stage, policy=AGAIN)
    assert stage.store.cancel(task, actor="ann")
    if is_read:
        worker.heed()

    worker.crew.die(1, -11)
    worker.turn()

    assert (stage.status(task), stage.task(task).crash_count) == (["CANCELLED"], 1)


def test_a_cancel_during_the_grace_of_a_timeout_is_a_cancel(stage: Stage) -> None:
    worker, task = begun(stage, policy=TIMED_AGAIN)
    up(stage, worker, 30.1)

    cancel(stage, worker, task)
    assert worker.crew.children[1].interrupts == [task, task]
    up(stage, worker, 0.6)

    assert stage.status(task) == ["CANCELLED"]


def test_a_cancelled_run_of_a_worker_that_stops_is_cancelled(stage: Stage) -> None:
    worker, task = begun(stage, policy=AGAIN)
    assert stage.store.cancel(task, actor="ann")
    worker.dispatcher.drain(0)
    worker.turn()

    worker.crew.end(1, error=STOPPED)
    worker.turn()

    assert stage.status(task) == ["CANCELLED"]


def test_requests_are_asked_again_while_the_store_can_not_be_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, task = begun(stage)
    assert stage.store.cancel(task, actor="ann")
    read = worker.store.ours

    def is_away(worker_id: str, *, seen_beat: int) -> Ours:
        raise StoreUnavailable("away")

    monkeypatch.setattr(worker.store, "ours", is_away)
    worker.heed()
    monkeypatch.setattr(worker.store, "ours", read)
    stage.clock.advance(0.5)
    worker.turn()

    assert worker.crew.children[1].interrupts == [task]


def test_the_cancelled_task_of_a_dead_worker_is_cancelled_by_whoever_recovers_it(stage: Stage) -> None:
    worker, task = begun(stage, policy=AGAIN)
    assert stage.store.cancel(task, actor="ann")
    worker.vanish()
    heir = stage.worker("heir")

    report = heir.recovery.run(actor="startup/heir")

    assert stage.status(task) == ["CANCELLED"]
    assert report is not None
    assert [(told.task_id, told.action) for told in report.recovered_tasks] == [(task, "cancelled")]
    assert stage.events().count("task.recovered") == 1
    assert stage.task(task).history[-1].actor == "system/recovery"


def test_an_async_run_that_was_cancelled_spares_its_neighbours(stage: Stage) -> None:
    worker, (neighbour, culprit) = sharing(stage, None)
    cancel(stage, worker, culprit)
    up(stage, worker, 0.6)
    assert stage.status(neighbour, culprit) == ["RUNNING", "RUNNING"]

    worker.crew.end(ASYNC)
    worker.turn(2)

    assert stage.status(neighbour, culprit) == ["COMPLETED", "CANCELLED"]


def test_nobody_reads_requests_for_a_worker_that_runs_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    monkeypatch.delattr(Working, "ours")

    worker.heed()


def test_a_task_that_raises_the_interrupt_of_a_stop_by_itself_has_failed_like_any_other(stage: Stage) -> None:
    """Otherwise it could run for ever, unbilled."""
    worker, task = begun(stage, policy=AGAIN)

    worker.crew.end(1, error=STOPPED)
    worker.turn()

    info = stage.task(task)
    assert (info.status, info.attempt, info.run_at - info.created_at) == ("PENDING", 1, timedelta(seconds=2))


@pytest.mark.parametrize("order", [Order.CANCEL, Order.FAIL])
def test_of_several_that_wait_behind_one_and_are_not_to_run_none_is_sent_to_another_process(
    stage: Stage, order: Order
) -> None:
    worker = stage.worker(processes=2)
    worker.turn()
    worker.crew.get_ready(1)
    worker.turn()
    worker.learn("add")
    first, *behind = [enqueue(stage.store) for _ in range(3)]
    worker.look()
    worker.crew.begin(1)
    worker.crew.get_ready(2)
    worker.turn()
    assert carry_out(stage.store, order, *behind) == behind

    worker.heed()
    worker.turn()

    assert worker.crew.sends == [first, *behind]
    assert worker.holds() == [first]


# -- taken away -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "status"), [(Order.REQUEUE, "PENDING"), (Order.FAIL, "FAILED")])
def test_a_run_whose_task_a_person_has_taken_away_is_told_to_stop_and_killed_if_it_does_not(
    stage: Stage, order: Order, status: str
) -> None:
    worker, task = begun(stage)
    child = worker.crew.children[1]
    worker.dispatcher.slots.staffing = replace(worker.dispatcher.slots.staffing, sync_names=frozenset())  # runs no more
    assert carry_out(stage.store, order, task) == [task]

    worker.heed()
    assert child.interrupts == [task]
    up(stage, worker, 0.6)

    assert worker.crew.children.get(1) is not child
    assert worker.holds() == []
    info = stage.task(task)
    assert (info.status, info.crash_count, info.lost_count) == (status, 0, 0)
    assert "outcome.refused" not in stage.events()


def test_a_task_that_was_taken_away_before_it_began_runs_nowhere_under_its_old_ownership(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    worker.turn()
    worker.crew.get_ready(1)
    worker.turn()
    worker.learn("add")
    first, taken = [enqueue(stage.store) for _ in range(2)]
    worker.look()
    worker.crew.begin(1)
    worker.crew.get_ready(2)
    worker.turn()
    assert carry_out(stage.store, Order.FAIL, taken) == [taken]

    worker.heed()
    worker.turn()

    assert worker.holds() == [first]
    assert worker.crew.sends == [first, taken]
    assert stage.status(first, taken) == ["RUNNING", "FAILED"]


def test_a_run_that_listens_when_it_was_taken_away_leaves_no_late_outcome_and_a_result_does(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    listens, returns = enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1), worker.crew.begin(2)
    carry_out(stage.store, Order.FAIL, listens, returns)
    worker.heed()

    worker.crew.end(1, error=CANCELLED)
    worker.crew.end(2, result=b"9")
    worker.turn()

    assert stage.store.late_outcomes(listens) == []
    assert [late.has_result for late in stage.store.late_outcomes(returns)] == [True]
    assert worker.holds() == []


def test_neighbours_of_a_run_that_was_taken_away_may_end(stage: Stage) -> None:
    worker, (neighbour, taken) = sharing(stage, None)
    carry_out(stage.store, Order.FAIL, taken)
    worker.heed()
    up(stage, worker, 0.6)

    worker.crew.end(ASYNC)
    worker.turn(2)

    assert stage.status(neighbour, taken) == ["COMPLETED", "FAILED"]


def test_a_worker_that_was_declared_dead_learns_it_without_waiting_for_its_next_beat(stage: Stage) -> None:
    worker, _ = begun(stage)
    stage.store.declare_dead(worker.id, reason="by hand", cause="person")

    worker.heed()

    assert worker.dispatcher.mandate.is_fenced


def test_nothing_is_stopped_because_of_a_store_that_has_forgotten_the_worker(stage: Stage) -> None:
    worker, _ = begun(stage)
    worker.dispatcher.books.seen_beat = 7  # and the store knows of none

    worker.heed()
    up(stage, worker, 1)

    assert worker.dispatcher.mandate.is_displaced
    assert worker.crew.children[1].interrupts == []
