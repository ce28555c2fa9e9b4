"""A task that was not started while it was good has expired, and never starts."""

import threading

import pytest
from tests.conftest import OpenStore
from tests.words import (
    NOON,
    SECOND,
    VirtualClock,
    a_task,
    carry_out,
    claim,
    claim_alone,
    claim_one,
    completed,
    enqueue,
    facts_of,
    handed_back,
    ids,
    recover,
    register,
    retried,
    settle,
    start,
    status_of,
)

from everbeat.decide.room import Room
from everbeat.model.order import Order
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Flush, TaskFilter
from everbeat.store.verbs.expiring import BITE

SOON = NOON + 10 * SECOND
SETTLE = 30 * SECOND


def expire(store: Store) -> list[str]:
    return store.expire(settle_us=SETTLE)


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def test_a_task_that_was_not_started_in_its_time_has_expired(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=SOON)
    enqueue(store, id="b", good_until=SOON + SECOND)
    enqueue(store, id="c")
    assert expire(store) == []

    clock.advance(10)

    assert expire(store) == ["a"]
    assert [status_of(store, name) for name in "abc"] == [TaskStatus.EXPIRED, TaskStatus.PENDING, TaskStatus.PENDING]


@pytest.mark.parametrize("fence", [2**63 - 1, -(2**63)], ids=["largest", "smallest"])
def test_a_fence_that_nobody_writes_keeps_no_other_task_from_expiring(
    store: Store, clock: VirtualClock, fence: int
) -> None:
    enqueue(store, id="odd", good_until=SOON)
    enqueue(store, id="a", good_until=SOON)
    with store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run(f"UPDATE everbeat_tasks SET fence = {fence} WHERE id = 'odd'")
    expire(store)
    clock.advance(10)

    assert expire(store) == ["a"]
    claim(store)
    assert facts_of(store, "odd", "status", "error_code") == (TaskStatus.FAILED, "ROW_UNREADABLE")


def test_an_expiry_says_who_and_why(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=SOON)
    clock.advance(10)

    expire(store)

    (entry,) = facts_of(store, "a", "history")[0]
    assert (entry.actor, entry.change, entry.old_status, entry.new_status) == (
        "system/expiry", "expire", "PENDING", "EXPIRED"
    )  # fmt: skip
    assert facts_of(store, "a", "finished_at", "waiting_for", "fence")[1:] == (None, 1)
    (told,) = store.events(task_id="a")
    assert (told.name, told.facts["name"]) == ("task.expired", "add")


def test_a_task_past_its_time_is_not_claimed_though_nobody_has_ended_it_yet(store: Store, clock: VirtualClock) -> None:
    store.enqueue([a_task(id="a", good_until=SOON), a_task(id="b")])

    clock.advance(10)

    assert ids(claim(store, places=2)) == ["b"]


def test_a_task_is_claimed_up_to_its_time(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=SOON)

    clock.advance(9.999)

    assert ids(claim(store)) == ["a"]


def test_a_task_that_runs_goes_on_past_its_time(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=SOON)
    taken = claim_one(store)

    clock.advance(60)

    assert expire(store) == []
    settle(store, taken, completed())
    assert status_of(store, "a") is TaskStatus.COMPLETED


def test_a_task_that_waits_claimed_for_its_process_does_not_start_past_its_time(
    store: Store, clock: VirtualClock
) -> None:
    taken = _claimed_alone(store)
    clock.advance(10)

    assert start(store, taken).started == []

    settle(store, taken, handed_back())
    assert expire(store) == ["a"]


def _claimed_alone(store: Store) -> Claim:
    """An async task that must run alone waits CLAIMED for its process."""
    enqueue(store, id="a", name="later", good_until=SOON)
    async_room = Room(sync_names=frozenset(), async_names=frozenset({"later"}), queues=None, async_free=1)
    (first,) = store.flush(Flush(worker_id="w1", room=async_room)).claims
    recover(store, first, Verdict(change=Change.RECOVER, billed=False, solo=True))
    return claim_alone(store)


def test_a_retry_whose_time_comes_too_late_expires_while_it_waits(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=SOON, max_attempts=3)
    settle(store, claim_one(store), retried(delay_us=60 * SECOND))

    clock.advance(10)

    assert expire(store) == ["a"]


def test_many_expire_in_bites(store: Store, clock: VirtualClock) -> None:
    store.enqueue([a_task(good_until=SOON) for _ in range(BITE + 10)])
    clock.advance(10)

    assert [len(expire(store)) for _ in range(3)] == [BITE, 10, 0]


def test_a_crowd_past_its_time_hides_what_is_behind_it_only_until_it_is_ended(
    store: Store, clock: VirtualClock
) -> None:
    store.enqueue([a_task(good_until=SOON) for _ in range(300)])
    enqueue(store, id="behind")
    clock.advance(10)
    assert claim(store) == []

    expire(store)

    assert ids(claim(store)) == ["behind"]


@pytest.mark.parametrize("step", [6, -3600])
def test_after_a_step_of_the_clock_nothing_expires_for_a_while(store: Store, clock: VirtualClock, step: int) -> None:
    enqueue(store, id="a", good_until=SOON)
    expire(store)
    clock.wall += step * SECOND
    enqueue(store, id="b", good_until=clock.wall + SECOND)
    assert expire(store) == []

    clock.advance(29)
    assert expire(store) == []
    clock.advance(1)

    assert "b" in expire(store)


def test_after_a_step_that_was_set_right_nothing_has_been_lost(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=NOON + 3600 * SECOND)
    expire(store)
    clock.wall += 86_400 * SECOND
    assert (expire(store), claim(store)) == ([], [])

    clock.advance(20)
    clock.wall -= 86_400 * SECOND
    clock.advance(20)

    assert expire(store) == []
    assert ids(claim(store)) == ["a"]


def test_a_step_that_nobody_looked_at_is_seen_by_the_next_process(open_store: OpenStore, clock: VirtualClock) -> None:
    enqueue(open_store(), id="a", good_until=SOON)
    expire(open_store())
    clock.wall += 3600 * SECOND

    assert expire(open_store()) == []


def test_a_clock_that_is_slewed_is_followed(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=NOON + 200 * SECOND)
    for _ in range(10):
        clock.wall += 2 * SECOND
        clock.advance(18)
        last = expire(store)

    assert last == ["a"]


def test_a_revived_task_is_good_without_an_end(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", good_until=SOON)
    clock.advance(10)
    expire(store)

    assert carry_out(store, Order.RETRY, "a") == ["a"]

    assert ids(claim(store)) == ["a"]


def test_two_who_end_the_same_tasks_tell_each_of_them_once(open_store: OpenStore, clock: VirtualClock) -> None:
    stores = [open_store() for _ in range(4)]
    stores[0].enqueue([a_task(good_until=SOON) for _ in range(2 * BITE)])
    clock.advance(10)
    ended: list[str] = []

    def sweep(store: Store) -> None:
        while found := expire(store):
            ended.extend(found)

    threads = [threading.Thread(target=sweep, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ended) == len(set(ended)) == 2 * BITE
    assert len(stores[0].tasks(TaskFilter(statuses=[TaskStatus.EXPIRED], limit=10_000))) == 2 * BITE
