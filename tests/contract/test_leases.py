"""A task with an exclusive key is taken from an owner that is not proven gone when its lease is over, not before."""

import pytest
from tests.conftest import OpenStore
from tests.words import (
    VirtualClock,
    a_worker,
    claim,
    claim_one,
    enqueue,
    ids,
    register,
    start,
    status_of,
)

from everbeat.model.recovery import Cause, Leased, Orphan, Settled, Settlement, Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Held

AGAIN = Verdict(change=Change.RECOVER, reason="worker w1 silent for 6s", billed=False)


@pytest.fixture(autouse=True)
def worker(store: Store) -> None:
    store.register(a_worker("w1", exclusive_lease_ms=5_000))


def take(store: Store, taken: Claim, *, is_certain: bool = False) -> Settlement:
    orphan = Orphan(claim=taken, cause=Cause.LEASE_LOST, evidence="silent", is_certain=is_certain)
    (settlement,) = store.recover([(orphan, AGAIN)])
    return settlement


def test_a_lease_is_kept_to_its_end(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", exclusive_key="k")
    enqueue(store, id="b", exclusive_key="k")
    taken = claim_one(store)

    clock.advance(5)
    assert take(store, taken) == Leased(task_id="a")
    assert status_of(store, "a") is TaskStatus.RUNNING
    clock.advance(0.1)

    assert take(store, taken) == Settled(task_id="a")
    assert ids(claim(store, places=5)) == ["a"]


def test_a_lease_begins_with_the_claim_however_long_ago_the_last_beat_was(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", exclusive_key="k")
    clock.advance(20)
    taken = claim_one(store)

    clock.advance(4)

    assert take(store, taken) == Leased(task_id="a")


def test_a_lease_begins_again_when_a_task_is_started_in_a_process_of_its_own(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", name="later", exclusive_key="k")
    (taken,) = claim(store, places=0, own=1)
    clock.advance(4)
    start(store, taken)

    clock.advance(4)

    assert take(store, taken) == Leased(task_id="a")


def test_a_renewed_lease_is_kept(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a", exclusive_key="k")
    taken = claim_one(store)
    held = Held(task_id="a", fence=taken.fence, role="runner", pid=1)
    for _ in range(10):
        clock.advance(4)
        assert store.renew("w1", [held], 0)

    assert take(store, taken) == Leased(task_id="a")


def test_who_was_declared_dead_renews_nothing(store: Store) -> None:
    store.declare_dead("w1", reason="by a person", cause="manual")

    assert not store.renew("w1", [], 0)


def test_what_is_known_not_to_run_any_more_waits_for_no_lease(store: Store) -> None:
    enqueue(store, id="a", exclusive_key="k")

    assert take(store, claim_one(store), is_certain=True) == Settled(task_id="a")


def test_a_task_that_is_claimed_only_waits_for_no_lease(store: Store) -> None:
    """Its code can not begin any more: the start is refused."""
    enqueue(store, id="a", name="later", exclusive_key="k")
    (taken,) = claim(store, places=0, own=1)

    assert take(store, taken) == Settled(task_id="a")
    assert start(store, taken).started == []


def test_a_task_without_a_key_waits_for_no_lease(store: Store) -> None:
    enqueue(store, id="a")

    assert take(store, claim_one(store)) == Settled(task_id="a")


def test_a_dead_worker_that_may_be_alive_keeps_its_lease_and_others_of_its_batch_do_not_wait(
    store: Store, clock: VirtualClock
) -> None:
    enqueue(store, id="a", exclusive_key="k")
    enqueue(store, id="b")
    taken = claim(store, places=2)
    store.declare_dead("w1", reason="by a person", cause="manual")

    orphans = [Orphan(claim=one, cause=Cause.LOST, evidence="gone") for one in taken]
    assert store.recover([(one, AGAIN) for one in orphans]) == [Leased(task_id="a"), Settled(task_id="b")]

    clock.advance(5.1)
    assert take(store, taken[0]) == Settled(task_id="a")


def test_the_lease_that_counts_is_the_one_its_owner_announced(open_store: OpenStore, clock: VirtualClock) -> None:
    store = open_store()
    store.register(a_worker("patient", exclusive_lease_ms=60_000))
    register(store, "other", exclusive_lease_ms=5_000)
    enqueue(store, id="a", exclusive_key="k")
    taken = claim_one(store, "patient")

    clock.advance(59)

    assert take(store, taken) == Leased(task_id="a")
