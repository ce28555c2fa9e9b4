"""The dispatcher on a stage: what it claims, sends, takes back and settles, whatever its processes and its store do."""

from dataclasses import replace

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import SECOND, a_policy, an_error, enqueue

from everbeat.decide.pace import FRAME_US
from everbeat.model.task import TaskError
from everbeat.run.findings import Findings
from everbeat.run.news import AppFacts, AppFailed, AppReady
from everbeat.run.slot import ASYNC_FRAMES

AGAIN = a_policy(max_attempts=5, has_retry=True, jitter=False, base_seconds=2.0)
STOPPED = TaskError(code="WORKER_STOPPED", message="the worker stops")
"""After this time behind a slow task, what has not begun is taken back."""


def enqueue_many(stage: Stage, count: int, **facts: object) -> list[str]:
    return [enqueue(stage.store, **facts) for _ in range(count)]


def solo_async(stage: Stage, count: int = 1) -> list[str]:
    """Async tasks that must run alone: each took part in the death of a shared process once."""
    rival = stage.worker("rival", processes=1, async_slots=10)
    tasks = enqueue_many(stage, count + 1, name="later", policy=AGAIN)
    rival.get_up()
    for _ in tasks:
        rival.crew.begin(0)
    rival.dispatcher.drain(SECOND)
    rival.crew.die(0, -11)
    rival.turn()
    stage.store.cancel(tasks[-1], actor="test")
    return tasks[:-1]


# -- quick async tasks ------------------------------------------------------------------------------------------------


def test_quick_async_tasks_are_claimed_before_there_is_a_place_for_them(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=2, frame_depth=2)
    worker.learn("later")
    tasks = enqueue_many(stage, 25, name="later")

    worker.get_up()

    assert len(worker.crew.sends) == 2 + ASYNC_FRAMES * 2
    assert stage.status(*tasks) == ["RUNNING"] * 8 + ["PENDING"] * 17


def test_no_more_of_them_wait_than_could_be_run_one_after_the_other_in_a_moment(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=2)
    worker.dispatcher.pace.saw("later", FRAME_US // 3)
    tasks = enqueue_many(stage, 40, name="later")

    worker.get_up()
    worker.look()

    assert stage.status(*tasks).count("RUNNING") == 2 + 3 * ASYNC_FRAMES


def test_where_nothing_ends_what_waits_for_a_place_is_given_back_and_no_more_is_claimed(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=2)
    worker.learn("later")
    tasks = enqueue_many(stage, 25, name="later")
    worker.get_up()
    for _ in range(2):
        worker.crew.begin(0)

    worker.wait_in_vain()
    worker.turn(4)

    assert stage.status(*tasks) == ["RUNNING"] * 2 + ["PENDING"] * 23
    assert [stage.task(task).attempt for task in tasks[2:]] == [0] * 23


def test_slow_tasks_in_the_async_process_leave_no_place_to_wait_for(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=2)
    slow = enqueue_many(stage, 2, name="later")
    worker.get_up()
    for _ in slow:
        worker.crew.begin(0)
    worker.learn("later")
    quick = enqueue_many(stage, 5, name="later")

    worker.look()

    assert stage.status(*quick) == ["PENDING"] * 5


def test_a_cancelled_task_that_waits_for_a_place_never_runs(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=1)
    worker.learn("later")
    first, second, third = enqueue_many(stage, 3, name="later")
    worker.get_up()
    worker.crew.begin(0)

    stage.store.cancel(second, actor="test")
    worker.heed()
    worker.turn(3)

    assert stage.status(first, second) == ["RUNNING", "CANCELLED"]
    assert stage.status(third)[0] in ("PENDING", "RUNNING")
    assert worker.crew.children[0].interrupts == []


def test_what_waits_for_a_place_goes_back_at_once_when_the_worker_stops(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=1)
    worker.learn("later")
    runs, *waits = enqueue_many(stage, 4, name="later", policy=AGAIN)
    worker.get_up()
    worker.crew.begin(0)

    worker.dispatcher.drain(SECOND)
    worker.turn(2)

    assert stage.status(runs, *waits) == ["RUNNING"] + ["PENDING"] * 3
    assert [stage.task(task).attempt for task in waits] == [0] * 3


# -- claims and sends -------------------------------------------------------------------------------------------------


def test_a_new_worker_starts_its_processes_without_waiting(stage: Stage) -> None:
    worker = stage.worker(processes=2, async_slots=5)

    assert worker.dispatcher.wait_us() == 0
    worker.turn()

    assert sorted(worker.crew.children) == [0, 1, 2]


def test_running_is_committed_before_the_bytes_of_a_task_reach_a_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, seen = stage.worker(), []
    task = enqueue(stage.store)
    send = worker.crew.send
    monkeypatch.setattr(worker.crew, "send", lambda *args: seen.append(stage.status(task)) or send(*args))

    worker.get_up()

    assert seen == [["RUNNING"]]


def test_what_ended_and_what_begins_share_one_commit(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    first = enqueue_many(stage, 2)
    worker.get_up()
    second = enqueue_many(stage, 2)
    worker.crew.run(1), worker.crew.run(2)
    before = worker.line.commits

    worker.turn()

    assert worker.line.commits - before == 1
    assert stage.status(*first) == ["COMPLETED", "COMPLETED"]
    assert worker.crew.sends == first + second


def test_a_slot_that_is_about_to_end_as_well_shares_the_commit(stage: Stage) -> None:
    worker = stage.worker(processes=3, frame_depth=1)
    worker.learn("add")
    tasks = enqueue_many(stage, 3)
    worker.get_up()
    worker.crew.run(1)
    worker.crew.soon.extend([lambda: worker.crew.run(2), lambda: worker.crew.run(3)])
    before = worker.line.commits

    worker.turn()

    assert worker.line.commits - before == 1
    assert stage.status(*tasks) == ["COMPLETED"] * 3


def test_nobody_waits_for_a_slow_task_or_for_a_long_row_of_quick_ones(stage: Stage) -> None:
    slow, busy = stage.worker("slow", processes=2, frame_depth=1), stage.worker("busy", processes=2)
    for worker in (slow, busy):
        worker.learn("add")
    slow.dispatcher.pace.saw("sub", SECOND)
    enqueue_many(stage, 1, name="sub"), enqueue_many(stage, 1)
    slow.get_up()
    enqueue_many(stage, 10)
    busy.get_up()
    waited: list[str] = []
    for worker in (slow, busy):
        worker.crew.soon.append(lambda name=worker.id: waited.append(name))
        quick = next(slot for slot, child in worker.crew.children.items() if child.sent[0][1].name == "add")
        worker.crew.run(quick)
        worker.turn()

    assert waited == []


def test_nothing_is_claimed_that_can_not_start_now(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    tasks = enqueue_many(stage, 5)

    worker.turn()
    assert stage.status(*tasks) == ["PENDING"] * 5  # no process is up
    worker.crew.get_ready(2)
    worker.turn(3)

    assert stage.status(*tasks) == ["RUNNING"] + ["PENDING"] * 4
    assert worker.holds() == tasks[:1]


def test_tasks_of_a_quick_name_are_sent_several_at_a_time(stage: Stage) -> None:
    worker = stage.worker(processes=2, frame_depth=4)
    worker.learn("add")
    tasks = enqueue_many(stage, 10)

    worker.get_up()

    assert [len(child.sent) for child in worker.crew.children.values()] == [4, 4]
    assert stage.status(*tasks) == ["RUNNING"] * 8 + ["PENDING"] * 2


def test_a_task_with_an_earlier_crash_is_never_framed(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    crasher = enqueue(stage.store, policy=AGAIN)
    worker.get_up()
    worker.crew.begin(1)
    worker.crew.die(1, -11)
    worker.turn()
    worker.learn("add")
    others = enqueue_many(stage, 3)

    worker.get_up()

    assert [claim.id for _, claim in worker.crew.children[1].sent] == [crasher]
    assert stage.status(*others) == ["PENDING"] * 3


def test_a_full_queue_of_a_process_does_not_make_the_dispatcher_claim_and_return_without_end(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.crew.places = 2
    worker.learn("add")
    enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1)
    enqueue_many(stage, 2)
    worker.look()
    tasks = enqueue_many(stage, 3)
    before = worker.line.commits

    worker.look()
    worker.turn(20)

    assert worker.line.commits - before == 2  # claimed, and given back
    assert stage.status(*tasks) == ["PENDING"] * 3


# -- slow heads -------------------------------------------------------------------------------------------------------


def framed(stage: Stage, worker: SimulatedWorker, count: int) -> list[str]:
    worker.learn("add")
    tasks = enqueue_many(stage, count)
    worker.get_up()
    return tasks


def test_what_waits_behind_a_slow_task_goes_to_an_idle_slot_and_the_rest_back_unbilled(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    worker.turn()
    worker.crew.get_ready(1)
    worker.turn()
    slow, second, third = framed_on_one = [enqueue(stage.store) for _ in range(3)]
    worker.learn("add")
    worker.look()
    worker.crew.get_ready(2)
    worker.turn()
    worker.crew.begin(1)
    stage.clock.advance(0.016)
    worker.turn()
    assert worker.crew.sends == framed_on_one
    assert 0 < worker.dispatcher.wait_us() <= 5_000

    stage.clock.advance(0.005)
    assert worker.dispatcher.wait_us() == 0
    worker.turn()

    assert worker.crew.sends[3:4] == [second]
    assert [claim.id for _, claim in worker.crew.children[2].sent] == [second]
    info = stage.task(third)
    assert (info.status, info.attempt) == ("PENDING", 0)
    assert stage.status(slow) == ["RUNNING"]


def test_nothing_is_taken_back_because_the_machine_stood_still(stage: Stage) -> None:
    """Its processes did as well, and could not say what they had done."""
    worker = stage.worker(processes=1)
    tasks = framed(stage, worker, 3)
    worker.crew.begin(1)

    stage.clock.advance(60)
    worker.turn()
    worker.crew.end(1)
    worker.turn()

    assert [stage.task(task).fence for task in tasks] == [1, 1, 1]
    assert stage.status(*tasks) == ["COMPLETED", "RUNNING", "RUNNING"]


def test_a_task_that_was_handed_over_runs_once_and_under_the_same_ownership(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    worker.turn()
    worker.crew.get_ready(1)
    worker.turn()
    slow, second = enqueue_many(stage, 2)
    worker.learn("add")
    worker.look()
    worker.crew.get_ready(2)
    worker.turn()
    worker.crew.begin(1)
    worker.wait_in_vain()

    worker.crew.run(2)
    worker.crew.end(1)
    worker.turn()

    assert stage.status(slow, second) == ["COMPLETED", "COMPLETED"]
    assert (stage.task(second).attempt, stage.task(second).fence) == (1, 1)


def test_journal_entries_do_not_leak(stage: Stage) -> None:
    worker = stage.worker(processes=1, frame_depth=8)
    free = len(worker.journal._free)
    framed(stage, worker, 20)
    worker.crew.run(1)
    worker.turn()
    worker.crew.begin(1)
    worker.wait_in_vain()
    worker.turn()
    worker.crew.die(1, -9)
    worker.turn()
    worker.get_up()
    worker.crew.take(1)
    worker.crew.die(1, 1)
    worker.turn()
    worker.dispatcher.drain(0)
    worker.turn(2)

    assert worker.holds() == []
    assert len(worker.journal._free) == len(set(worker.journal._free)) == free


# -- retries and due times --------------------------------------------------------------------------------------------


def test_a_failed_task_is_retried_when_its_backoff_is_over(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store, policy=AGAIN)
    worker.get_up()
    worker.crew.run(1, error=an_error())
    worker.turn()
    assert stage.status(task) == ["PENDING"]
    assert worker.dispatcher.wait_us() == 2 * SECOND

    stage.clock.advance(1.9)
    worker.turn()
    assert stage.status(task) == ["PENDING"]
    stage.clock.advance(0.1)
    assert worker.dispatcher.wait_us() == 0
    worker.turn()

    assert stage.status(task) == ["RUNNING"]
    assert stage.task(task).attempt == 2


def test_a_delayed_task_that_is_due_while_all_slots_are_busy_starts_with_the_next_free_slot(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    busy, delayed = enqueue(stage.store), enqueue(stage.store, delay_us=SECOND)
    worker.get_up()
    worker.crew.begin(1)
    stage.clock.advance(5)
    worker.turn(3)
    assert worker.dispatcher.wait_us() > 0
    worker.crew.end(1)

    worker.turn()

    assert stage.status(busy, delayed) == ["COMPLETED", "RUNNING"]


# -- death ------------------------------------------------------------------------------------------------------------


def test_after_a_death_outcomes_count_the_begun_is_recovered_and_the_unread_goes_back(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    done, begun, unread = framed(stage, worker, 3)
    worker.crew.run(1)
    worker.crew.begin(1)
    worker.crew.die(1, -11)

    worker.turn()

    assert stage.status(done, begun, unread) == ["COMPLETED", "FAILED", "PENDING"]
    assert (stage.task(begun).crash_count, stage.task(begun).error_code) == (1, "WORKER_CRASHED")
    assert "SIGSEGV" in (stage.task(begun).error_message or "")
    assert stage.task(unread).history == []
    assert "child.died" in stage.events()
    assert worker.crew.spawned == 2


def test_a_task_that_kills_its_process_before_it_begins_is_stopped_after_three_times(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store)

    for _ in range(3):
        assert stage.status(task) == ["PENDING"]
        stage.clock.advance(3600)
        worker.turn()
        worker.get_up()
        worker.crew.take(1)
        worker.crew.die(1, 1)
        worker.turn()

    assert stage.status(task) == ["FAILED"]
    assert "before its code began, 3 times" in (stage.task(task).error_message or "")


def test_the_end_of_the_fork_server_is_a_loss_and_no_crash(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    begun, taken = enqueue_many(stage, 2, policy=AGAIN)
    worker.get_up()
    worker.crew.begin(1)
    worker.crew.take(2)
    worker.crew.lose_server()

    worker.turn()

    assert stage.status(begun, taken) == ["PENDING", "PENDING"]
    assert (stage.task(begun).lost_count, stage.task(begun).crash_count) == (1, 0)
    assert (stage.task(taken).lost_count, stage.task(taken).crash_count) == (0, 0)


def test_a_process_that_will_not_live_is_started_with_growing_pauses(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.turn()
    pauses = []

    for _ in range(4):
        worker.crew.die(1, 1)
        worker.turn()
        pauses.append(worker.dispatcher.wait_us())
        stage.clock.advance(5)
        worker.turn()

    assert pauses == [100_000, 500_000, 2_000_000, 5_000_000]


def test_neighbours_in_an_async_process_run_alone_next_time_and_do_not_pay(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=10)
    ended, first, second = enqueue_many(stage, 3, name="later", policy=AGAIN)
    once = enqueue(stage.store, name="later")
    worker.get_up()
    for _ in range(4):
        worker.crew.begin(0)
    worker.crew.end(0)
    worker.crew.die(0, -11)

    worker.turn()

    assert stage.status(ended, once) == ["COMPLETED", "FAILED"]
    assert stage.task(once).error_code == "NEIGHBOUR_CRASHED"
    assert stage.task(first).crash_count == stage.task(second).crash_count == 0
    with stage.store.database.read() as tx:
        runs = tx.all("SELECT attempt, free_attempts FROM everbeat_tasks WHERE id IN (?, ?)", (first, second))
    assert runs == [(1, 1), (1, 1)]
    worker.get_up()
    assert stage.status(first, second) == ["CLAIMED", "PENDING"]  # one process for tasks that run alone


# -- a process of its own ---------------------------------------------------------------------------------------------


def test_a_task_that_runs_alone_is_claimed_until_its_process_is_ready(stage: Stage) -> None:
    (task,) = solo_async(stage)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    assert stage.status(task) == ["CLAIMED"]
    assert [(held.task_id, held.role) for held in worker.dispatcher.held()] == [(task, "claimer")]

    worker.crew.get_ready(2)
    worker.turn()
    assert stage.status(task) == ["RUNNING"]
    assert [held.role for held in worker.dispatcher.held()] == ["runner"]
    worker.crew.run(2)
    worker.turn(2)

    assert stage.status(task) == ["COMPLETED"]
    assert 2 not in worker.crew.children


def test_the_next_task_that_runs_alone_starts_as_soon_as_the_process_of_the_last_is_gone(stage: Stage) -> None:
    first, second = solo_async(stage, 2)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    worker.crew.get_ready(2)
    worker.turn()
    worker.crew.run(2)

    worker.turn(3)

    assert stage.status(first, second) == ["COMPLETED", "CLAIMED"]


def test_a_burst_is_not_over_while_a_task_waits_for_a_process_of_its_own(stage: Stage) -> None:
    solo_async(stage, 2)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    worker.crew.get_ready(2)
    worker.turn()
    worker.crew.run(2)
    worker.turn()
    assert not worker.dispatcher.is_idle

    worker.get_up()
    worker.crew.get_ready(2)
    worker.turn()
    worker.crew.run(2)
    worker.turn(3)

    assert worker.dispatcher.is_idle


def test_a_process_of_its_own_that_never_comes_up_is_tried_again_with_growing_pauses(stage: Stage) -> None:
    (task,) = solo_async(stage)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    before = worker.crew.spawned

    for _ in range(50):
        if 2 in worker.crew.children:
            worker.crew.die(2, 1)
        worker.turn(2)
        stage.clock.advance(0.1)

    assert worker.crew.spawned - before <= 5
    assert stage.status(task) == ["PENDING"] or 2 in worker.crew.children
    stage.clock.advance(5)
    worker.turn(2)
    worker.crew.get_ready(2)
    worker.turn()
    assert stage.status(task) == ["RUNNING"]


@pytest.mark.parametrize(
    ("stage_of_death", "status", "counts"),
    [
        ("starting", "PENDING", (0, 0)),
        ("ready", "PENDING", (0, 0)),
        ("sent", "PENDING", (0, 0)),
        ("taken", "PENDING", (0, 0)),
        ("begun", "PENDING", (1, 0)),
        ("ended", "COMPLETED", (0, 0)),
    ],
)
def test_death_of_a_process_of_its_own(stage: Stage, stage_of_death: str, status: str, counts: tuple[int, int]) -> None:
    (task,) = solo_async(stage)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    crew, steps = worker.crew, ["starting", "ready", "sent", "taken", "begun", "ended"]
    reached = steps.index(stage_of_death)
    if reached >= 1:
        crew.get_ready(2)
    if reached >= 2:
        worker.turn()
    if reached >= 3:
        crew.take(2) if reached == 3 else crew.begin(2)
    if reached >= 5:
        crew.end(2)
    worker.dispatcher.slots.staffing = replace(worker.dispatcher.slots.staffing, async_names=frozenset())  # no more
    crew.die(2, -9)
    worker.turn(2)

    info = stage.task(task)
    assert info.status == status
    assert (info.crash_count, info.lost_count) == counts
    assert worker.holds() == []


def test_a_task_that_was_cancelled_before_its_process_was_ready_leaves_no_process_behind(stage: Stage) -> None:
    (task,) = solo_async(stage)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    assert stage.store.cancel(task, actor="test")

    worker.crew.get_ready(2)
    worker.turn(3)

    assert stage.status(task) == ["CANCELLED"]
    assert worker.holds() == []
    assert sorted(worker.crew.children) == [0, 1]


# -- the store is away ------------------------------------------------------------------------------------------------


def test_what_ends_while_the_store_is_away_is_settled_once_when_it_returns(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    tasks, waiting = enqueue_many(stage, 2), enqueue_many(stage, 2)
    worker.get_up()
    worker.line.is_down = True
    worker.crew.run(1)
    worker.turn()
    worker.crew.run(2)

    for _ in range(100):
        stage.clock.advance(1)
        worker.turn()
    assert worker.holds() == sorted(tasks)
    assert stage.status(*tasks, *waiting) == ["RUNNING"] * 2 + ["PENDING"] * 2
    worker.line.is_down = False
    stage.clock.advance(1)
    worker.turn()

    assert stage.status(*tasks, *waiting) == ["COMPLETED"] * 2 + ["RUNNING"] * 2
    assert worker.crew.sends == tasks + waiting


def test_a_store_that_is_away_is_asked_again_with_growing_pauses(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.line.is_down = True
    worker.get_up()
    pauses = []

    for _ in range(6):
        pauses.append(worker.dispatcher.wait_us())
        stage.clock.advance(pauses[-1] / SECOND)
        worker.turn()

    assert pauses == [50_000, 100_000, 200_000, 500_000, 1_000_000, 1_000_000]


def test_a_worker_that_drains_while_the_store_is_away_does_not_spin(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1)
    worker.line.is_down = True
    worker.look()
    worker.dispatcher.drain(60 * SECOND)
    stage.clock.advance(5)

    worker.turn()

    assert worker.dispatcher.wait_us() == 55 * SECOND


def test_a_flush_that_was_committed_without_an_answer_loses_nothing_and_runs_nothing_twice(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    first, second = enqueue_many(stage, 2)
    worker.get_up()
    worker.crew.run(1)
    worker.line.break_after_commit()

    worker.turn()
    assert stage.status(first, second) == ["COMPLETED", "RUNNING"]  # nobody knows
    assert worker.holds() == [first]
    stage.clock.advance(1)
    worker.turn()

    assert worker.holds() == [second]
    assert worker.crew.sends == [first, second]
    assert "outcome.refused" not in stage.events()
    assert stage.task(second).lost_count == 0
    worker.crew.run(1)
    worker.turn()
    assert stage.status(first, second) == ["COMPLETED", "COMPLETED"]


def test_events_of_a_flush_that_was_committed_without_an_answer_are_stored_once(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    enqueue(stage.store, policy=a_policy(max_attempts=5, has_retry=True, base_seconds=0.0))
    worker.get_up()
    worker.crew.begin(1)
    worker.crew.die(1, -9)
    worker.line.break_after_commit()

    worker.turn()
    stage.clock.advance(1)
    worker.turn()

    assert stage.events().count("child.died") == 1


def test_a_worker_in_doubt_of_its_claims_does_not_end_before_it_knows(stage: Stage) -> None:
    worker, task = stage.worker(processes=1), enqueue(stage.store)
    worker.line.break_after_commit()
    worker.get_up()
    assert stage.status(task) == ["RUNNING"]
    worker.line.is_down = True
    worker.dispatcher.drain(30 * SECOND)
    stage.clock.advance(1)
    worker.turn()
    assert not worker.dispatcher.is_drained

    worker.line.is_down = False
    stage.clock.advance(1)
    worker.turn()

    assert worker.dispatcher.is_drained
    assert stage.status(task) == ["PENDING"]


def test_a_retry_that_was_committed_without_an_answer_is_not_refused_when_it_is_sent_again(stage: Stage) -> None:
    worker, rival = stage.worker("w1", processes=1), stage.worker("w2", processes=1)
    task = enqueue(stage.store, policy=a_policy(max_attempts=5, has_retry=True, base_seconds=0.0))
    worker.get_up()
    worker.crew.run(1, error=an_error())
    worker.line.break_after_commit()
    worker.dispatcher.drain(SECOND)  # claims nothing in the same flush
    worker.turn()
    rival.get_up()

    stage.clock.advance(1)
    worker.turn()

    assert worker.holds() == []
    assert rival.holds() == [task]
    assert "outcome.refused" not in stage.events()
    assert len(stage.task(task).attempts) == 1


def test_a_start_that_was_committed_without_an_answer_counts_as_one_attempt(stage: Stage) -> None:
    (task,) = solo_async(stage)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    worker.crew.get_ready(2)
    worker.line.break_after_commit()
    worker.turn()
    assert not worker.crew.children[2].sent
    attempts = stage.task(task).attempt

    stage.clock.advance(1)
    worker.turn()

    assert [(claim.id, claim.attempt) for _, claim in worker.crew.children[2].sent] == [(task, attempts)]
    assert stage.task(task).attempt == attempts


def test_a_start_that_the_store_could_not_take_is_given_back_once_by_a_drain(stage: Stage) -> None:
    (task,) = solo_async(stage)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    before = len(stage.events())
    worker.line.is_down = True
    worker.crew.get_ready(2)
    worker.turn()
    worker.dispatcher.drain(SECOND)
    worker.line.is_down = False
    stage.clock.advance(0.5)

    worker.turn(2)

    assert stage.status(task) == ["PENDING"]
    assert worker.dispatcher.tally.largest_flush == 1
    assert worker.dispatcher.is_drained
    assert stage.events()[before:] == []


def test_a_crash_that_could_not_be_told_before_its_worker_vanished_is_a_loss_and_nothing_is_forgotten(
    stage: Stage,
) -> None:
    """A verdict without an outcome is kept in memory only: the begin mark in the journal is what remains of it."""
    worker = stage.worker(processes=3)
    again, once, unread = enqueue(stage.store, policy=AGAIN), enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1), worker.crew.begin(2), worker.crew.take(3)
    worker.line.is_down = True
    worker.crew.die(1, -11), worker.crew.die(2, -11), worker.crew.die(3, -11)
    worker.turn()
    worker.vanish()

    stage.worker("heir").recovery.run(actor="startup/heir")

    assert stage.status(again, once, unread) == ["PENDING", "FAILED", "PENDING"]
    assert [(stage.task(task).crash_count, stage.task(task).lost_count) for task in (again, once)] == [(0, 1), (0, 1)]
    assert stage.task(unread).attempts == []


# -- declared dead ----------------------------------------------------------------------------------------------------


def test_a_worker_declared_dead_claims_and_starts_nothing_more(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    worker.get_up()
    stage.store.declare_dead(worker.id, reason="silent", cause="silence")
    task = enqueue(stage.store)

    worker.look()

    assert worker.dispatcher.mandate.is_fenced
    assert stage.status(task) == ["PENDING"]
    assert worker.crew.sends == []


def test_a_result_that_comes_after_another_worker_has_the_task_is_refused_and_kept(stage: Stage) -> None:
    slow, rival = stage.worker("slow", processes=1), stage.worker("rival", processes=1)
    task = enqueue(stage.store, policy=AGAIN)
    slow.get_up()
    slow.crew.begin(1)
    stage.store.declare_dead("slow", reason="silent", cause="silence")
    rival.recovery.recover_orphans(Findings())
    rival.get_up()
    slow.crew.end(1, result=b"late")

    slow.turn()

    assert slow.dispatcher.mandate.is_fenced
    assert slow.dispatcher.tally.refused == 1
    assert slow.holds() == []
    assert stage.status(task) == ["RUNNING"]
    assert "outcome.refused" in stage.events()


def test_a_result_of_a_task_that_nobody_has_taken_again_is_adopted(stage: Stage) -> None:
    slow = stage.worker("slow", processes=1)
    task = enqueue(stage.store, policy=AGAIN)
    slow.get_up()
    slow.crew.begin(1)
    stage.store.declare_dead("slow", reason="silent", cause="silence")
    stage.worker("rival").recovery.recover_orphans(Findings())
    slow.crew.end(1, result=b"late")

    slow.turn()

    assert stage.status(task) == ["COMPLETED"]
    assert stage.events()[-1] == "outcome.adopted"


def test_the_processes_of_a_worker_declared_dead_are_ended_and_what_they_had_begun_is_lost(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    begun, unread = enqueue_many(stage, 2, policy=AGAIN)
    worker.get_up()
    worker.crew.begin(1)
    stage.store.declare_dead(worker.id, reason="silent", cause="silence")

    worker.dispatcher.dismiss()
    worker.turn(2)

    assert worker.dispatcher.is_dismissed
    assert worker.crew.children == {}
    assert (stage.task(begun).lost_count, stage.task(unread).lost_count) == (1, 0)
    assert stage.status(begun, unread) == ["PENDING", "PENDING"]


# -- stopping ---------------------------------------------------------------------------------------------------------


def test_a_drain_gives_back_at_once_what_has_not_begun_and_lets_the_rest_end(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    begun, unread = framed(stage, worker, 2)
    worker.crew.begin(1)

    worker.dispatcher.drain(10 * SECOND)
    worker.turn()
    assert stage.status(begun, unread) == ["RUNNING", "PENDING"]
    assert not worker.dispatcher.is_drained
    worker.crew.end(1)
    worker.turn(2)

    assert worker.dispatcher.is_drained
    assert stage.status(begun, unread) == ["COMPLETED", "PENDING"]


def test_a_drain_interrupts_when_its_time_is_up_and_then_kills(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    listens, deaf = enqueue_many(stage, 2, policy=AGAIN)
    worker.get_up()
    worker.crew.begin(1), worker.crew.begin(2)
    worker.dispatcher.drain(10 * SECOND)
    worker.turn()
    assert worker.dispatcher.wait_us() == 10 * SECOND

    stage.clock.advance(10)
    worker.turn()
    assert [child.interrupts for child in worker.crew.children.values()] == [[listens], [deaf]]
    worker.crew.end(1, error=STOPPED)
    worker.turn()
    assert worker.dispatcher.wait_us() == 2 * SECOND
    stage.clock.advance(2)
    worker.turn(2)

    assert worker.dispatcher.is_drained
    for task in (listens, deaf):
        info = stage.task(task)
        assert (info.status, info.crash_count, info.lost_count) == ("PENDING", 0, 0)
        assert info.attempts[0].outcome == "WORKER_STOPPED"


def test_a_second_signal_ends_the_patience_of_the_first(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1)
    worker.dispatcher.drain(100 * SECOND)
    worker.dispatcher.drain(0)

    worker.turn()

    assert worker.crew.children[1].interrupts == [task]


def test_a_drain_gives_up_when_the_store_does_not_come_back(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.crew.run(1)
    worker.line.is_down = True
    worker.dispatcher.drain(0)

    for _ in range(13):
        worker.turn()
        assert not worker.dispatcher.is_drained
        stage.clock.advance(1)

    assert worker.dispatcher.is_drained
    assert stage.status(task) == ["RUNNING"]


def test_a_process_that_was_being_started_for_a_task_is_dropped_by_a_drain(stage: Stage) -> None:
    (task,) = solo_async(stage)
    worker = stage.worker(processes=1, async_slots=5)
    worker.get_up()
    before = len(stage.events())

    worker.dispatcher.drain(SECOND)
    worker.turn(2)

    assert worker.dispatcher.is_drained
    assert stage.status(task) == ["PENDING"]
    assert 2 not in worker.crew.children
    assert stage.events()[before:] == []


def test_a_burst_is_over_when_nothing_is_held_and_nothing_can_start(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    enqueue_many(stage, 3)
    enqueue(stage.store, delay_us=3600 * SECOND)
    enqueue(stage.store, name="unknown")
    worker.turn()
    assert not worker.dispatcher.is_idle  # nobody has looked
    worker.get_up()

    for _ in range(2):
        assert not worker.dispatcher.is_idle
        for slot in (1, 2):
            if worker.crew.children[slot].sent:
                worker.crew.run(slot)
        worker.turn()

    assert worker.dispatcher.is_idle


def test_a_burst_is_not_over_while_the_store_can_not_be_asked(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.line.is_down = True
    worker.get_up()

    assert not worker.dispatcher.is_idle


def test_a_burst_is_hopeless_when_the_processes_that_are_missing_do_not_come_up(stage: Stage) -> None:
    worker = stage.worker(processes=1, async_slots=5)
    enqueue(stage.store)
    worker.turn()
    worker.crew.get_ready(0)
    worker.turn()

    for _ in range(4):
        assert worker.dispatcher.why_hopeless is None
        worker.crew.tell(AppFailed("raised", "no pool"))
        worker.crew.die(1, 70)
        worker.turn()
        stage.clock.advance(5)
        worker.turn()

    assert worker.dispatcher.why_hopeless == "no pool"
    assert not worker.dispatcher.is_idle
    worker.crew.get_ready(1)
    worker.turn()
    assert worker.dispatcher.why_hopeless is None


def test_a_burst_without_a_single_process_is_hopeless_although_tasks_wait(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    enqueue(stage.store)
    worker.turn()

    for _ in range(4):
        worker.crew.die(1, -11)
        worker.turn()
        stage.clock.advance(5)
        worker.turn()

    assert "SIGSEGV" in (worker.dispatcher.why_hopeless or "")


# -- what else is heard -----------------------------------------------------------------------------------------------


def test_a_process_that_does_not_beat_is_told_once_and_held_for(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.crew.begin(1)
    worker.crew.silent.add(1)

    for _ in range(3):
        worker.dispatcher.note_unresponsive()
        worker.turn()

    assert stage.events().count("child.unresponsive") == 1
    assert worker.holds() == [task]


def test_after_a_restart_of_the_fork_server_only_what_the_application_knows_now_is_claimed(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    worker.get_up()
    facts = AppFacts(store_url="", config_json="{}", sync_names=("sub",), async_names=(), fork_reason=None)
    worker.crew.tell(AppFailed("died", "the fork server ended"))
    worker.crew.tell(AppReady(facts))
    worker.turn()
    gone, known = enqueue(stage.store, name="add"), enqueue(stage.store, name="sub")

    worker.look()

    assert stage.status(gone, known) == ["PENDING", "RUNNING"]
    assert "app.failed" in stage.events()


def test_two_dispatchers_never_own_the_same_task(stage: Stage) -> None:
    workers = [stage.worker(name, processes=2) for name in ("w1", "w2", "w3")]
    tasks = enqueue_many(stage, 30)
    for worker in workers:
        worker.get_up()

    while any(worker.holds() for worker in workers):
        owned = [task for worker in workers for task in worker.holds()]
        assert len(owned) == len(set(owned))
        for worker in workers:
            for slot, child in worker.crew.children.items():
                if child.sent:
                    worker.crew.run(slot)
            worker.turn()

    assert stage.status(*tasks) == ["COMPLETED"] * 30
    assert sorted(task for worker in workers for task in worker.crew.sends) == sorted(tasks)
