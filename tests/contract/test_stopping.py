"""The cancel of a task that runs: a request that its owner reads, and that nobody forgets."""

import select
import time
from collections.abc import Callable

import pytest
from tests.conftest import OpenStore
from tests.words import (
    abandoned,
    carry_out,
    claim_one,
    completed,
    enqueue,
    facts_of,
    failed,
    handed_back,
    ids,
    raised,
    recover,
    register,
    requeue,
    retried,
    settle,
    status_of,
    succeeded,
)

from everbeat.decide.stop import cancelled_by_force
from everbeat.model.order import Order
from everbeat.model.recovery import Settled, Settlement
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.store.interface import Store


def requested(store: Store, worker_id: str) -> list[tuple[int, int]]:
    return [key for key, is_wanted in store.ours(worker_id).owned.items() if is_wanted]


def a_run(store: Store) -> Claim:
    enqueue(store, id="a")
    return claim_one(store)


def test_a_request_leaves_the_task_to_its_owner(store: Store) -> None:
    taken = a_run(store)

    assert store.cancel("a", actor="user/ann") is True

    assert requested(store, "w1") == [(taken.seq, taken.fence)]
    assert facts_of(store, "a", "status", "fence", "worker_id") == (TaskStatus.RUNNING, taken.fence, "w1")
    (entry,) = facts_of(store, "a", "history")[0]
    assert (entry.actor, entry.change, entry.new_status) == ("user/ann", "cancel_requested", "RUNNING")


def test_asked_twice_is_asked_once_and_both_are_told_that_it_is_stored(store: Store) -> None:
    taken = a_run(store)

    assert [store.cancel("a", actor="ann"), store.cancel("a", actor="ben")] == [True, True]

    assert requested(store, "w1") == [(taken.seq, taken.fence)]
    assert [entry.actor for entry in facts_of(store, "a", "history")[0]] == ["ann"]


def test_a_worker_reads_the_requests_for_its_own_tasks_only(store: Store) -> None:
    for task in ("a", "b"):
        enqueue(store, id=task)
    claim_one(store, "w1")
    other = claim_one(store, "w2")
    store.cancel("b", actor="me")

    assert requested(store, "w1") == []
    assert requested(store, "w2") == [(other.seq, other.fence)]


def test_the_bell_of_the_owner_says_that_it_is_asked_to_stop_a_run(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    for task in ("a", "b"):
        enqueue(here, id=task)
    claim_one(here, "w1")
    claim_one(here, "w2")
    mine, other = here.listen("w1"), here.listen("w2")
    mine.clear()
    other.clear()

    there.cancel("a", actor="me")

    give_up = time.monotonic() + 30
    while not mine.clear():  # what was sent before may ring it as well, later than this
        assert time.monotonic() < give_up
        select.select([mine], [], [], 1)
    assert (other.clear(), mine.clear()) == (False, False)
    mine.close()
    other.close()


def test_what_its_owner_ended_by_force_is_cancelled_and_its_run_is_kept(store: Store) -> None:
    taken = a_run(store)
    store.cancel("a", actor="ann")

    settle(store, taken, cancelled_by_force("process 7"))

    status, attempts, history = facts_of(store, "a", "status", "attempts", "history")
    assert status is TaskStatus.CANCELLED
    assert [(a.outcome, a.will_retry) for a in attempts] == [("TASK_CANCELLED", False)]
    assert [(entry.actor, entry.change) for entry in history] == [("ann", "cancel_requested"), ("worker/w1", "cancel")]
    assert requested(store, "w1") == []


@pytest.mark.parametrize("verdict", [completed(), failed()], ids=lambda verdict: verdict.change)
def test_the_end_of_its_code_counts_if_it_comes_first(store: Store, verdict: object) -> None:
    taken = a_run(store)
    store.cancel("a", actor="me")

    settle(store, taken, verdict)  # type: ignore[arg-type]

    assert status_of(store, "a") in (TaskStatus.COMPLETED, TaskStatus.FAILED)
    assert requested(store, "w1") == []


@pytest.mark.parametrize(
    "end",
    [
        lambda store, taken: settle(store, taken, retried(), outcome=raised()),
        lambda store, taken: settle(store, taken, handed_back()),
        lambda store, taken: requeue(store, taken),
        lambda store, taken: recover(store, taken, abandoned(crashes=1, quarantined=True)),
    ],
    ids=["retry", "hand back", "recover", "abandon"],
)
def test_what_would_run_again_or_has_lost_its_runner_is_cancelled_instead(
    store: Store, end: Callable[[Store, Claim], Settlement]
) -> None:
    """Asked for after the verdict was made: it is read again in the transaction that writes it."""
    taken = a_run(store)
    store.cancel("a", actor="me")

    assert end(store, taken) == Settled(task_id="a", change=Change.CANCEL)

    assert facts_of(store, "a", "status", "quarantined") == (TaskStatus.CANCELLED, False)
    assert facts_of(store, "a", "history")[0][-1].change == "cancel"


def test_a_retry_that_became_a_cancel_is_not_refused_when_it_is_sent_again(store: Store) -> None:
    taken = a_run(store)
    store.cancel("a", actor="me")
    settle(store, taken, retried(), outcome=raised())

    assert settle(store, taken, retried(), outcome=raised()) == Settled(task_id="a")
    assert store.late_outcomes("a") == []


def test_who_waits_for_it_is_woken(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    taken = a_run(here)
    there.cancel("a", actor="me")
    requeue(here, taken)

    end = there.wait("a", 0)

    assert end is not None
    assert end.status is TaskStatus.CANCELLED


def test_an_orphan_is_read_with_its_request(store: Store) -> None:
    a_run(store)
    store.cancel("a", actor="me")
    store.declare_dead("w1", reason="gone", cause="proof")

    (orphan,) = store.orphans(limit=10)

    assert orphan.cancel_requested


@pytest.mark.parametrize("order", [Order.REQUEUE, Order.RETRY])
def test_whoever_asks_for_another_run_gets_it(store: Store, order: Order) -> None:
    taken = a_run(store)
    store.cancel("a", actor="me")
    if order is Order.RETRY:
        settle(store, taken, cancelled_by_force("process 7"))
    carry_out(store, order, "a")

    register(store, "w3")
    again = claim_one(store, "w3")

    assert requested(store, "w3") == []
    settle(store, again, retried(), outcome=raised())
    assert status_of(store, "a") is TaskStatus.PENDING


def test_a_late_result_of_a_cancelled_run_is_kept(store: Store) -> None:
    taken = a_run(store)
    store.cancel("a", actor="me")
    recover(store, taken, abandoned())

    settle(store, taken, completed(), outcome=succeeded())

    assert status_of(store, "a") is TaskStatus.CANCELLED
    assert [late.has_result for late in store.late_outcomes("a")] == [True]


def test_one_order_cancels_what_waits_and_asks_for_the_end_of_what_runs(store: Store) -> None:
    for task in ("a", "b", "c"):
        enqueue(store, id=task)
    taken = claim_one(store)

    assert sorted(carry_out(store, Order.CANCEL, "a", "b", "c")) == ["a", "b", "c"]

    assert ids([taken]) == ["a"]
    assert [status_of(store, task) for task in ("a", "b", "c")] == ["RUNNING", "CANCELLED", "CANCELLED"]
