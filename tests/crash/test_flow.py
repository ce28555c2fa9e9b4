"""Order, queues, delays and retries through real workers; and everything at once, under a hail of kills."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.crash.conftest import MakeYard, both_stores
from tests.crash.yard import FAST, Worker, Yard

from everbeat import TaskStatus


@both_stores
def test_lower_priorities_run_first_and_equal_ones_in_the_order_they_were_sent(yard: Yard) -> None:
    ids = {number: yard.send("work", 0.0, priority=number) for number in (50, 1, 100, 7)}
    last, first = yard.send("work", 0.0, priority=100), yard.send("work", 0.0, priority=1)

    yard.worker("--burst", processes=1).ended()

    order = [line.task_id for line in yard.ledger() if line.word == "start"]
    assert order == [ids[1], first, ids[7], ids[50], ids[100], last]


def test_a_worker_takes_only_from_its_queues(yard: Yard) -> None:
    mail, reports, other = (yard.send("quick", queue=queue) for queue in ("mail", "reports", "default"))

    yard.worker("--burst", "--queues", "mail,reports").ended()
    assert [yard.status(task_id) for task_id in (mail, reports, other)] == ["COMPLETED", "COMPLETED", "PENDING"]
    yard.worker("--burst").ended()
    assert yard.status(other) is TaskStatus.COMPLETED


def test_a_delayed_task_starts_when_its_time_has_come(yard: Yard) -> None:
    yard.worker()
    later, now = yard.send("quick", delay=1.5), yard.send("quick")
    yard.until_ended([later, now])

    task = yard.task(later)
    assert task.started_at is not None
    assert task.started_at >= task.run_at
    assert (task.run_at - task.created_at).total_seconds() == 1.5
    assert yard.starts(now)[0].at_ns < yard.starts(later)[0].at_ns


@both_stores
def test_a_task_that_raises_is_retried_with_growing_pauses(yard: Yard) -> None:
    yard.worker()
    good, bad = yard.send("fails_twice"), yard.send("fails_always")
    yard.until_ended([good, bad])

    assert yard.result(good) == yard.starts(good)[2].fence
    runs = yard.starts(good)
    assert [line.attempt for line in runs] == [1, 2, 3]
    assert runs[1].at_ns - runs[0].at_ns >= 0.2e9
    assert runs[2].at_ns - runs[1].at_ns >= 0.4e9
    task = yard.full(bad)
    assert (task.status, task.error_code, task.attempt) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION", 3)
    assert [attempt.will_retry for attempt in task.attempts] == [True, True, False]
    assert (task.crash_count, task.lost_count) == (0, 0)


@both_stores
def test_an_idle_worker_is_woken_for_new_tasks_and_only_the_right_one_runs_them(yard: Yard) -> None:
    yard.worker("--queues", "mail", ready=False)
    yard.worker("--queues", "reports")
    yard.until(lambda: len(yard.store.workers()) == 2, "both are registered")
    by_queue = {row.queues: row.id for row in yard.store.workers()}
    for _ in range(5):
        ids = [yard.send("quick", queue="mail"), yard.send("quick", queue="reports")]
        yard.until_ended(ids)
        assert [yard.task(task_id).worker_id for task_id in ids] == [by_queue[("mail",)], by_queue[("reports",)]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("HAIL", "2"))))
def test_nothing_is_lost_or_run_twice_under_a_hail_of_blows(make_yard: MakeYard, seed: int) -> None:
    """2,000 tasks from four senders over two workers; for every hundred that end, one of the two is hit."""
    yard, chance = make_yard(**FAST), random.Random(seed)
    workers = [yard.worker(ready=False), yard.worker()]
    kinds = ("quick,work_again", "work,quick_again", "a_quick,work", "a_quick_again,quick")
    senders = [yard.producer("500", names) for names in kinds]
    blows: Counter[str] = Counter()

    def ended() -> int:
        """How many tasks have ended. What has died is replaced meanwhile: a frozen one is ended by the others, too."""
        workers[:] = [yard.worker(ready=False) if w.process.poll() is not None else w for w in workers]
        return sum(count.count for count in yard.store.counts() if count.status.is_terminal)

    while (done := ended()) < 2000:
        goal = min(2000, done + 100)
        yard.until(lambda goal=goal: ended() >= goal, "a hundred more have ended", timeout=120)
        number, blow = chance.randrange(2), chance.choice(list(BLOWS))
        blows[blow] += 1
        workers[1 - number].thaw()
        with suppress(StopIteration, ProcessLookupError, IndexError):  # it is just being replaced
            BLOWS[blow](workers[number], chance)
    assert [sender.ended() for sender in senders] == [0, 0, 0, 0]

    print(dict(blows))  # noqa: T201 - shown if the test fails
    ids = [task_id for sender in senders for task_id in sender.said().split()]
    assert len(set(ids)) == 2000
    assert {task.id for task in yard.tasks()} == set(ids)
    yard.audit(ids)
    codes = {task.error_code for task in yard.tasks() if task.status is TaskStatus.FAILED}
    assert codes <= {"WORKER_CRASHED", "NEIGHBOUR_CRASHED"}


def kill_a_child(worker: Worker, chance: random.Random) -> None:
    os.kill(chance.choice(worker.slots), signal.SIGKILL)


def kill_the_fork_server(worker: Worker, chance: random.Random) -> None:
    os.kill(worker.fork_server, signal.SIGKILL)


def kill_the_supervisor(worker: Worker, chance: random.Random) -> None:
    worker.kill()


def kill_everything(worker: Worker, chance: random.Random) -> None:
    worker.kill_tree(children_first=chance.random() < 0.5)


def tell_it_to_stop(worker: Worker, chance: random.Random) -> None:
    worker.thaw()
    if worker.is_ready():  # before, it is an ordinary process and dies of the signal
        assert worker.stop() in (0, -signal.SIGKILL)  # -9: it was frozen with the write lock


def freeze(worker: Worker, chance: random.Random) -> None:
    """Until the other one is hit."""
    worker.signal(signal.SIGSTOP)


BLOWS: dict[str, Callable[[Worker, random.Random], None]] = {
    blow.__name__: blow
    for blow in (kill_a_child, kill_the_fork_server, kill_the_supervisor, kill_everything, tell_it_to_stop, freeze)
}
