"""Exclusive keys: of the tasks with one key at most one is ready or owned, and while any waits one is."""

import random
from collections.abc import Callable

import pytest
from tests.conftest import OpenStore
from tests.words import (
    SECOND,
    VirtualClock,
    a_room,
    a_task,
    abandoned,
    carry_out,
    claim,
    claim_one,
    completed,
    enqueue,
    facts_of,
    failed,
    handed_back,
    ids,
    recover,
    register,
    requeue,
    retried,
    settle,
    start,
    status_of,
    succeeded,
)

from everbeat.model.order import Order
from everbeat.model.recovery import Adopted, Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush, TaskFilter


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def send(store: Store, *names: str, **facts: object) -> None:
    store.enqueue([a_task(id=name, exclusive_key="k", **facts) for name in names])


def test_one_task_of_a_key_is_ready_and_the_others_say_what_they_wait_for(store: Store) -> None:
    send(store, "a", "b", "c")

    assert [facts_of(store, name, "waiting_for")[0] for name in "abc"] == [
        "a free slot", "exclusive:k", "exclusive:k",
    ]  # fmt: skip
    assert ids(claim(store, places=5)) == ["a"]


def test_keys_hold_over_names_queues_and_calls(store: Store) -> None:
    send(store, "a")
    send(store, "b", name="sub", queue="mail")
    store.enqueue([a_task(id="c", exclusive_key="other")])

    assert ids(claim(store, places=5)) == ["a", "c"]


@pytest.mark.parametrize(
    "end",
    [completed(), failed(), retried(60 * SECOND), abandoned(), Verdict(change=Change.CANCEL)],
    ids=["completed", "failed", "retried later", "abandoned", "cancelled"],
)
def test_the_end_of_the_holder_gives_the_turn_to_the_next_in_the_same_flush(store: Store, end: Verdict) -> None:
    send(store, "a", "b", "c")
    taken = claim_one(store)

    flushed = store.flush(Flush(worker_id="w1", endings=[Ending(claim=taken, verdict=end)], room=a_room(5)))

    assert ids(flushed.claims) == ["b"]


def test_the_turn_goes_by_priority_and_then_by_age(store: Store) -> None:
    send(store, "holder")
    send(store, "late", "later", priority=100)
    send(store, "urgent", priority=1)
    order = []
    while taken := claim(store, places=5):
        order += ids(taken)
        settle(store, taken[0], completed())

    assert order == ["holder", "urgent", "late", "later"]


def test_what_is_handed_back_or_recovered_at_once_stands_in_line_again_at_its_place(store: Store) -> None:
    send(store, "a", "b")

    settle(store, claim_one(store), handed_back())
    assert ids(claim(store, places=5)) == ["a"]
    send(store, "urgent", priority=1)
    recover(store, store.owned_by("w1")[0], Verdict(change=Change.RECOVER, billed=False))

    assert ids(claim(store, places=5)) == ["urgent"]


def test_a_delayed_task_takes_no_turn_before_its_time_and_none_from_others_then(
    store: Store, clock: VirtualClock
) -> None:
    send(store, "delayed", delay_us=10 * SECOND)
    send(store, "a")
    (first,) = claim(store, places=5)
    assert first.id == "a"

    clock.advance(10)
    assert claim(store, places=5) == []
    assert facts_of(store, "delayed", "waiting_for") == ("exclusive:k",)
    settle(store, first, completed())

    assert ids(claim(store, places=5)) == ["delayed"]


def test_a_delayed_task_is_ready_in_its_time_if_nobody_has_the_turn(store: Store, clock: VirtualClock) -> None:
    send(store, "delayed", delay_us=10 * SECOND)
    clock.advance(10)

    assert ids(claim(store)) == ["delayed"]


def test_the_turn_of_a_task_that_expires_goes_on(store: Store, clock: VirtualClock) -> None:
    send(store, "a", good_until=clock.wall + SECOND)
    send(store, "b")
    clock.advance(1)

    store.expire(settle_us=0)

    assert ids(claim(store)) == ["b"]


def test_the_turn_of_a_task_that_a_person_ends_goes_on(store: Store) -> None:
    send(store, "a", "b", "c")

    carry_out(store, Order.CANCEL, "a")
    carry_out(store, Order.FAIL, "b")

    assert ids(claim(store)) == ["c"]


def test_a_task_in_line_may_be_ended_without_harm(store: Store) -> None:
    send(store, "a", "b", "c")
    carry_out(store, Order.CANCEL, "b")

    settle(store, claim_one(store), completed())

    assert ids(claim(store)) == ["c"]


def test_a_revived_task_stands_in_line(store: Store) -> None:
    send(store, "a", "b")
    carry_out(store, Order.CANCEL, "a")
    carry_out(store, Order.RETRY, "a")

    assert ids(claim(store, places=5)) == ["b"]


def test_a_late_result_that_is_adopted_or_accepted_gives_the_turn_to_the_next(store: Store) -> None:
    send(store, "a", "b", "c")
    first = claim_one(store)
    requeue(store, first)
    assert settle(store, first, completed(), outcome=succeeded()) == Adopted(task_id="a")
    second = claim_one(store)
    carry_out(store, Order.REQUEUE, "b", force=True)
    settle(store, second, completed(), outcome=succeeded())

    assert store.accept("b", actor="me")

    assert ids(claim(store, places=5)) == ["c"]


@pytest.mark.parametrize("order", [Order.REQUEUE, Order.FAIL])
def test_a_person_does_not_take_a_running_task_from_its_key_without_force(store: Store, order: Order) -> None:
    send(store, "a", "b")
    claim_one(store)

    assert carry_out(store, order, "a") == []
    assert claim(store, places=5) == []

    assert carry_out(store, order, "a", force=True) == ["a"]
    assert len(claim(store, places=5)) == 1


def test_an_async_task_with_a_key_has_a_process_of_its_own(store: Store) -> None:
    send(store, "a", name="later")
    (taken,) = claim(store, places=0, own=1)
    assert taken.status is TaskStatus.CLAIMED
    start(store, taken)
    assert status_of(store, "a") is TaskStatus.RUNNING


def test_tasks_with_a_key_are_never_framed(store: Store) -> None:
    for number in range(3):
        enqueue(store, exclusive_key=f"key {number}")
    room = a_room(1)
    room.depths = {"add": 64}

    assert len(store.flush(Flush(worker_id="w1", room=room)).claims) == 1


def test_a_call_that_stores_nothing_leaves_the_turn_where_it_was(store: Store) -> None:
    enqueue(store, id="taken")

    store.enqueue([a_task(id="a", exclusive_key="k"), a_task(id="taken", args=b"[9]")])
    send(store, "b")

    assert ids(claim(store, places=5)) == ["taken", "b"]


def test_a_line_that_nobody_serves_is_mended(open_store: OpenStore, store: Store) -> None:
    """Somebody's hand in the store: the row that had the turn is gone."""
    send(store, "a", "b", "c")
    with store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run("DELETE FROM everbeat_tasks WHERE id = 'a'")
    assert claim(store) == []

    assert store.mend_turns() == ""

    assert ids(claim(store, places=5)) == ["b"]


# -- everything at once -----------------------------------------------------------------------------------------------


class Chance:
    """Random deeds on a few keys."""

    def __init__(self, store: Store, clock: VirtualClock, seed: int) -> None:
        self.store, self.clock, self.random = store, clock, random.Random(seed)
        self.held: list[Claim] = []
        self.sent = 0

    def deeds(self) -> list[Callable[[], object]]:
        return [self.send, self.send, self.claim, self.claim, self.settle, self.settle, self.recover, self.order,
                self.wait, self.expire]  # fmt: skip

    def send(self) -> None:
        tasks = []
        for _ in range(self.random.randint(1, 3)):
            self.sent += 1
            key = self.random.choice("abc")
            facts = {
                "id": f"{key}-{self.sent}",
                "exclusive_key": key,
                "name": self.random.choice(["add", "sub", "later"]),
                "priority": self.random.randint(1, 3),
                "delay_us": self.random.choice([None, None, 3 * SECOND]),
                "good_until": self.random.choice([None, None, self.clock.wall + 5 * SECOND]),
            }
            tasks.append(a_task(**facts))
        self.store.enqueue(tasks)

    def claim(self) -> None:
        taken = claim(self.store, "w1", self.random.randint(0, 2), own=self.random.randint(0, 1))
        waiting = [one for one in taken if one.status is TaskStatus.CLAIMED]
        if waiting and self.random.random() < 0.8:
            start(self.store, *waiting)
        self.held += taken

    def settle(self) -> None:
        if self.held:
            taken = self.held.pop(self.random.randrange(len(self.held)))
            verdicts = [completed(), failed(), retried(), retried(2 * SECOND), handed_back()]
            outcome = self.random.choice([None, succeeded()])
            settle(self.store, taken, self.random.choice(verdicts), outcome=outcome)

    def recover(self) -> None:
        if self.held:
            taken = self.random.choice(self.held)
            verdicts = [abandoned(), Verdict(change=Change.RECOVER), Verdict(change=Change.RECOVER, delay_us=SECOND)]
            recover(self.store, taken, self.random.choice(verdicts))

    def order(self) -> None:
        orders = [Order.CANCEL, Order.RETRY, Order.REQUEUE, Order.FAIL, Order.PURGE]
        known = self.store.tasks(TaskFilter(limit=1000))
        chosen = self.random.sample(known, min(len(known), 3))
        if chosen:
            carry_out(self.store, self.random.choice(orders), *(one.id for one in chosen), force=True)
            self.store.accept(chosen[0].id, actor="me")

    def wait(self) -> None:
        self.clock.advance(self.random.choice([0.5, 1, 4]))

    def expire(self) -> None:
        self.store.expire(settle_us=0)


# Of each key: who has the turn, and who stands in line. What is not due, or was not made ready since, does neither.
TURNS = """
SELECT exclusive_key, sum(CASE WHEN status <> 'PENDING' OR waiting_for IS NULL THEN 1 ELSE 0 END),
       sum(CASE WHEN waiting_for = 'exclusive:' || exclusive_key THEN 1 ELSE 0 END)
  FROM everbeat_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') OR (status = 'PENDING' AND due_at IS NULL)
 GROUP BY exclusive_key"""


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_one_task_of_each_key_has_the_turn_while_any_waits(
    store: Store, clock: VirtualClock, seed: int
) -> None:
    chance = Chance(store, clock, seed)
    for _ in range(250):
        deed = chance.random.choice(chance.deeds())
        deed()

        with store.database.read() as tx:
            found = tx.all(TURNS)
        assert all(turns <= 1 and (turns == 1 or not lines) for _, turns, lines in found), (deed, found)
    assert chance.sent > 50


# -- paused queues ----------------------------------------------------------------------------------------------------


def pause(store: Store, queue: str, *, is_paused: bool = True) -> None:
    assert store.set_paused(queue, is_paused=is_paused, actor="me")


def test_who_waits_in_a_paused_queue_gives_the_turn_to_the_next_of_another_and_stands_in_line_again(
    store: Store,
) -> None:
    send(store, "a")
    send(store, "b", queue="mail")
    pause(store, "default")

    (taken,) = claim(store, places=5)
    assert taken.id == "b"
    assert facts_of(store, "a", "waiting_for") == ("exclusive:k",)
    settle(store, taken, completed())
    assert claim(store, places=5) == []
    pause(store, "default", is_paused=False)

    assert ids(claim(store, places=5)) == ["a"]


def test_what_is_sent_while_the_one_with_the_turn_is_paused_goes_first(store: Store) -> None:
    send(store, "a")
    pause(store, "default")

    send(store, "b", queue="mail")

    assert ids(claim(store, places=5)) == ["b"]


def test_a_paused_task_that_runs_keeps_its_turn(store: Store) -> None:
    send(store, "a")
    send(store, "b", queue="mail")
    (taken,) = claim(store, places=5)
    pause(store, "default")

    assert claim(store, places=5) == []
    settle(store, taken, handed_back())

    assert ids(claim(store, places=5)) == ["b"]


def test_when_every_queue_of_a_key_is_paused_the_first_in_line_has_the_turn_for_the_time_after(store: Store) -> None:
    send(store, "holder")
    send(store, "a", "b", queue="mail")
    (taken,) = claim(store, places=5)
    pause(store, "default"), pause(store, "mail")
    settle(store, taken, completed())
    assert claim(store, places=5) == []

    pause(store, "mail", is_paused=False)

    assert ids(claim(store, places=5)) == ["a"]
