"""Limits and pauses of queues: nothing above the limit, nothing lost below it, nobody else slowed."""

import threading

import pytest
from tests.conftest import OpenStore
from tests.words import (
    SECOND,
    a_room,
    a_task,
    abandoned,
    carry_out,
    claim,
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
)

from everbeat.model.order import Order
from everbeat.model.recovery import Verdict
from everbeat.model.worker import QueueSetting
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush, QueueInfo


def limit(store: Store, worker: str, limit: int | None, *, queue: str = "few", paused: bool = False) -> str:
    """A worker whose configuration says so has started."""
    return register(store, worker, settings=(QueueSetting(name=queue, max_concurrency=limit, paused=paused),))


def send(store: Store, count: int, **facts: object) -> list[str]:
    return [stored.id for stored in store.enqueue([a_task(queue="few", **facts) for _ in range(count)])]


# -- limits -----------------------------------------------------------------------------------------------------------


def test_no_more_tasks_of_a_queue_are_owned_than_its_limit_allows(store: Store) -> None:
    limit(store, "w1", 3)
    register(store, "w2")
    sent = send(store, 10)

    assert ids(claim(store, "w1", places=2)) == sent[:2]
    assert ids(claim(store, "w2", places=5)) == sent[2:3]
    assert claim(store, "w2", places=5) == []


def test_a_full_queue_leaves_its_workers_to_the_others(store: Store) -> None:
    limit(store, "w1", 1)
    send(store, 5, priority=1)
    others = [enqueue(store, name="sub"), enqueue(store)]

    assert ids(claim(store, places=5))[1:] == others


def test_a_limit_counts_over_all_names_of_its_queue(store: Store) -> None:
    limit(store, "w1", 3)
    send(store, 2)
    send(store, 2, name="sub")

    assert len(claim(store, places=10)) == 3


@pytest.mark.parametrize(
    "end", [completed(), retried(60 * SECOND), handed_back()], ids=["completed", "retried", "handed back"]
)
def test_the_end_of_an_ownership_makes_a_place_for_the_next_in_the_same_flush(store: Store, end: Verdict) -> None:
    limit(store, "w1", 1)
    first, second = send(store, 2)
    taken = claim_one(store)

    ending = Ending(claim=taken, verdict=end)
    flushed = store.flush(Flush(worker_id="w1", endings=[ending], room=a_room(5)))

    assert ids(flushed.claims) == [first if end == handed_back() else second]


def test_a_recovered_task_gives_its_place_back(store: Store) -> None:
    limit(store, "w1", 1)
    _, second = send(store, 2)
    recover(store, claim_one(store), abandoned())

    assert ids(claim(store, places=5)) == [second]


@pytest.mark.parametrize("order", [Order.REQUEUE, Order.FAIL])
def test_a_task_that_a_person_takes_from_its_owner_gives_its_place_back(store: Store, order: Order) -> None:
    limit(store, "w1", 1)
    first, second = send(store, 2)
    claim_one(store)

    carry_out(store, order, first)

    assert ids(claim(store, places=5)) == [first if order is Order.REQUEUE else second]


def test_a_limit_that_comes_later_counts_what_runs_already(store: Store) -> None:
    register(store, "w1")
    send(store, 10)
    running = claim(store, places=4)

    limit(store, "w2", 5)

    assert len(claim(store, "w2", places=10)) == 1
    for taken in running:
        settle(store, taken, completed())
    assert len(claim(store, "w2", places=10)) == 4


def test_a_smaller_limit_lets_what_runs_end(store: Store) -> None:
    limit(store, "w1", 4)
    send(store, 10)
    running = claim(store, places=4)
    limit(store, "w2", 2)

    settle(store, running[0], completed())
    settle(store, running[1], completed())
    assert claim(store, places=4) == []
    settle(store, running[2], completed())

    assert len(claim(store, places=4)) == 1


def test_a_limit_is_lifted_by_a_configuration_that_has_none(store: Store) -> None:
    limit(store, "w1", 1)
    send(store, 5)

    limit(store, "w2", None)

    assert len(claim(store, places=5)) == 5


def test_a_configuration_that_does_not_name_the_queue_leaves_its_limit(store: Store) -> None:
    limit(store, "w1", 1)
    limit(store, "w2", 7, queue="other")

    assert store.queues() == [
        QueueInfo(name="few", paused=False, max_concurrency=1),
        QueueInfo(name="other", paused=False, max_concurrency=7),
    ]


def test_a_change_of_a_limit_is_told_once(store: Store) -> None:
    for worker in ("w1", "w2"):
        limit(store, worker, 5)

    (told,) = [event for event in store.events() if event.name == "queue.limited"]
    assert told.facts == {"queue": "few", "max_concurrency": 5, "actor": "config"}


def test_a_queue_that_never_had_a_limit_is_not_told_to_have_one(store: Store) -> None:
    limit(store, "w1", None, paused=True)

    assert [event.name for event in store.events() if event.name.startswith("queue.")] == ["queue.paused"]
    assert store.queues() == [QueueInfo(name="few", paused=True, max_concurrency=None, paused_by="config")]


def test_a_task_of_a_full_queue_says_what_it_waits_for(store: Store) -> None:
    limit(store, "w1", 1)
    first, second = send(store, 2)
    assert facts_of(store, first, "waiting_for") == ("a free slot",)
    taken = claim_one(store)

    assert facts_of(store, second, "waiting_for") == ("its queue few, which has as many tasks as it may",)

    settle(store, taken, completed())
    assert facts_of(store, second, "waiting_for") == ("a free slot",)


def test_claims_of_many_at_once_stay_below_the_limit(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]
    limit(stores[0], "w0", 5)
    for number in range(1, 4):
        register(stores[number], f"w{number}")
    send(stores[0], 300)
    most: list[int] = []

    def work(number: int) -> None:
        store, worker = stores[number], f"w{number}"
        taken = claim(store, worker, 4)
        while taken:
            (owned,) = [sum(len(one.owned_by(f"w{n}")) for n, one in enumerate(stores))]
            most.append(owned)
            endings = [Ending(claim=one, verdict=completed()) for one in taken]
            taken = store.flush(Flush(worker_id=worker, endings=endings, room=a_room(4))).claims

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(most) <= 5
    left = claim(stores[0], "w0", 300)  # a worker that found the queue full has gone
    assert len(left) <= 5


# -- pauses by configuration ------------------------------------------------------------------------------------------


def test_a_configuration_pauses_a_queue_and_takes_its_own_pause_back(store: Store) -> None:
    limit(store, "w1", None, paused=True)
    (sent,) = send(store, 1)
    assert claim(store) == []
    assert facts_of(store, sent, "waiting_for") == ("its queue few, which is paused",)

    limit(store, "w2", None)

    assert ids(claim(store)) == [sent]


def test_a_configuration_does_not_take_back_the_pause_of_a_person(store: Store) -> None:
    store.set_paused("few", is_paused=True, actor="cli/ann")

    limit(store, "w1", None)

    send(store, 1)
    assert claim(store) == []
    assert [queue.paused_by for queue in store.queues()] == ["cli/ann"]


def test_a_pause_of_a_person_stays_a_persons_when_a_configuration_asks_for_it_too(store: Store) -> None:
    store.set_paused("few", is_paused=True, actor="cli/ann")
    limit(store, "w1", None, paused=True)

    limit(store, "w2", None)

    assert [(queue.paused, queue.paused_by) for queue in store.queues()] == [(True, "cli/ann")]


def test_a_person_may_resume_what_a_configuration_has_paused(store: Store) -> None:
    limit(store, "w1", None, paused=True)
    (sent,) = send(store, 1)

    assert store.set_paused("few", is_paused=False, actor="cli/ann")

    assert ids(claim(store)) == [sent]
