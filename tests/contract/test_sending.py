"""Enqueue: all or none, once per id, and the order in which tasks are claimed."""

from copy import deepcopy
from dataclasses import replace

import pytest
from tests.conftest import OpenStore
from tests.words import (
    SECOND,
    VirtualClock,
    a_room,
    a_task,
    carry_out,
    claim,
    claim_one,
    completed,
    enqueue,
    facts_of,
    ids,
    register,
    retried,
    settle,
)

from everbeat.errors import TaskNotFound
from everbeat.model.order import Order
from everbeat.model.state import TaskStatus
from everbeat.model.task import Alike, Enqueued, NewTask
from everbeat.store.interface import Store
from everbeat.store.messages import Flush, TaskFilter
from everbeat.store.transaction import RowRefused


def test_a_task_is_pending_once_it_is_enqueued(store: Store) -> None:
    (stored,) = store.enqueue([a_task(id="a", name="add", queue="mail", priority=7, args=b"[1]", max_attempts=3)])

    assert stored == Enqueued(id="a", created=True)
    assert facts_of(store, "a", "name", "queue", "priority", "status", "attempt", "max_attempts", "fence") == (
        "add", "mail", 7, TaskStatus.PENDING, 0, 3, 0
    )  # fmt: skip


MANY = 450
"""So many are sent in another way than a few, where there is one."""


def test_many_at_once_are_stored_as_they_are_in_their_order(store: Store) -> None:
    facts = {"queue": "Büro", "priority": 7, "max_attempts": 3, "good_until": 1 << 60, "policy": '{"timeout":1.5}'}
    tasks = [a_task(id=f"täsk-{n}", args=b"\x00\xff" * n, unique_key=f"k{n}", **facts) for n in range(MANY)]
    tasks += [a_task(id=f"later-{n}", delay_us=SECOND) for n in range(MANY)]

    stored = store.enqueue(tasks)

    assert stored == [Enqueued(id=task.id, created=True) for task in tasks]
    register(store, "w1")
    claims = claim(store, places=2 * MANY)
    assert [(one.id, one.args) for one in claims] == [(task.id, task.args) for task in tasks[:MANY]]
    assert {(one.queue, one.policy) for one in claims} == {("Büro", '{"timeout":1.5}')}
    assert facts_of(store, "täsk-9", "priority", "max_attempts", "status") == (7, 3, TaskStatus.RUNNING)
    assert enqueue(store, unique_key="k9") == "täsk-9"


def in_columns(tasks: list[NewTask]) -> Alike:
    return Alike(
        tasks[0].kind, [one.id for one in tasks], [one.args for one in tasks], [one.unique_key for one in tasks]
    )


def test_many_in_columns_are_the_same_as_many_one_by_one(store: Store) -> None:
    tasks = [a_task(id=f"t{n}", args=b"%d" % n, unique_key=f"k{n}" if n % 3 else None) for n in range(MANY)]
    sent = in_columns(tasks)

    stored = store.enqueue(sent)

    assert list(sent) == tasks
    assert list(sent[5:7]) == tasks[5:7]
    assert list(stored) == [Enqueued(id=task.id, created=True) for task in tasks]
    assert list(stored[1:3]) == list(stored)[1:3]
    assert store.enqueue(sent) == store.enqueue(tasks) == [Enqueued(id=task.id, created=False) for task in tasks]
    assert enqueue(store, unique_key="k1") == "t1"
    register(store, "w1")
    assert [(one.id, one.args) for one in claim(store, places=MANY)] == [(task.id, task.args) for task in tasks]


def test_of_many_in_columns_one_whose_key_is_held_finds_the_holder(store: Store) -> None:
    enqueue(store, id="holder", unique_key="k9")

    stored = store.enqueue(in_columns([a_task(id=f"t{n}", unique_key=f"k{n}") for n in range(MANY)]))

    assert [(one.id, one.created) for one in stored][8:11] == [("t8", True), ("holder", False), ("t10", True)]


@pytest.mark.parametrize("same", ["its id", "its key"])
def test_of_many_at_once_one_that_is_there_already_is_found_and_the_others_are_stored(store: Store, same: str) -> None:
    store.enqueue([a_task(id="there", unique_key="k")])
    tasks = [a_task(id=f"new-{n}") for n in range(MANY)]
    tasks[MANY // 2] = a_task(id="there" if same == "its id" else "another", unique_key="k")

    stored = store.enqueue(tasks)

    assert [one.id for one in stored if not one.created] == ["there"]
    assert sum(one.created for one in stored) == MANY - 1
    assert store.get("new-0") is not None


def test_of_many_at_once_none_is_stored_if_one_contradicts_what_is_there(store: Store) -> None:
    store.enqueue([a_task(id="there", args=b"[1]")])

    stored = store.enqueue([*(a_task(id=f"new-{n}") for n in range(MANY)), a_task(id="there", args=b"[2]")])

    assert [one.id for one in stored if one.conflict] == ["there"]
    assert store.get("new-0") is None


def test_what_one_process_has_sent_another_one_sees(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()

    enqueue(here, id="a")

    assert claim_one(there).id == "a"


def test_enqueue_of_nothing_is_nothing(store: Store) -> None:
    assert store.enqueue([]) == []


def test_the_same_id_and_arguments_again_is_the_same_task(store: Store) -> None:
    store.enqueue([a_task(id="a")])

    assert store.enqueue([a_task(id="a"), a_task(id="b")]) == [
        Enqueued(id="a", created=False),
        Enqueued(id="b", created=True),
    ]


def test_a_task_that_is_said_to_be_new_and_is_not_is_the_one_that_is_there(store: Store) -> None:
    for number in range(3):  # from the third time on the statement may be known by name
        store.enqueue([a_task(id=f"new-{number}", is_new=True)])
    enqueue(store, id="there")

    same = store.enqueue([a_task(id="there", is_new=True)])
    other = store.enqueue([a_task(id="there", args=b"[3]", is_new=True)])

    assert [*same, *other] == [Enqueued("there", created=False), Enqueued("there", created=False, conflict=True)]
    assert len(store.tasks(TaskFilter())) == 4


@pytest.mark.parametrize("other", [{"args": b"[9]"}, {"name": "sub"}])
def test_a_conflict_stores_nothing_of_the_whole_call(store: Store, other: dict[str, object]) -> None:
    store.enqueue([a_task(id="a")])

    stored = store.enqueue([a_task(id="b"), a_task(id="a", **other), a_task(id="c")])

    assert stored == [
        Enqueued(id="b", created=False),
        Enqueued(id="a", created=False, conflict=True),
        Enqueued(id="c", created=False),
    ]
    assert [store.get("b"), store.get("c")] == [None, None]
    assert facts_of(store, "a", "name") == ("add",)


def test_one_id_twice_in_a_call_is_one_task(store: Store) -> None:
    assert store.enqueue([a_task(id="a"), a_task(id="a")]) == [
        Enqueued(id="a", created=True),
        Enqueued(id="a", created=False),
    ]


def test_one_id_twice_in_a_call_with_other_arguments_is_a_conflict(store: Store) -> None:
    stored = store.enqueue([a_task(id="a"), a_task(id="a", args=b"[9]")])

    assert [one.conflict for one in stored] == [False, True]
    assert store.get("a") is None


@pytest.mark.parametrize("args", [b"[1]", b"[2]"])
def test_one_id_twice_in_a_call_beside_a_held_unique_key_is_what_two_calls_make_of_it(
    store: Store, args: bytes
) -> None:
    enqueue(store, id="holder", unique_key="k")
    repeated = a_task(id="a", args=b"[2]")

    stored = store.enqueue([a_task(id="a", args=args, unique_key="k"), repeated, repeated])

    assert stored == [
        Enqueued(id="holder", created=False),
        Enqueued(id="a", created=True),
        Enqueued(id="a", created=False),
    ]


def test_one_id_many_times_in_a_call_takes_the_first_key_that_is_free(store: Store) -> None:
    enqueue(store, id="holder", unique_key="held")
    keys = ["held", "held", "free", "held", "free"]

    stored = store.enqueue([a_task(id="a", unique_key=key) for key in keys])

    assert [(one.id, one.created) for one in stored] == [
        ("holder", False), ("holder", False), ("a", True), ("a", False), ("a", False)
    ]  # fmt: skip


def test_an_id_stays_taken_after_its_task_has_ended(store: Store) -> None:
    enqueue(store, id="a")
    store.cancel("a", actor="me")

    assert store.enqueue([a_task(id="a")]) == [Enqueued(id="a", created=False)]
    assert facts_of(store, "a", "status") == (TaskStatus.CANCELLED,)


def test_a_row_that_can_not_be_stored_fails_its_own_call_and_stores_nothing(store: Store) -> None:
    with pytest.raises(RowRefused):
        store.enqueue([a_task(id="a"), a_task(id="b", run_at=1 << 70)])

    assert store.get("a") is None
    assert enqueue(store, id="c") == "c"


def test_an_id_that_was_never_sent_is_not_found(store: Store) -> None:
    assert store.get("nobody") is None
    with pytest.raises(TaskNotFound, match="nobody"):
        store.finished("nobody")


# -- unique keys ------------------------------------------------------------------------------------------------------


def test_a_second_task_with_a_unique_key_finds_the_first(store: Store) -> None:
    store.enqueue([a_task(id="a", unique_key="invoice 17")])

    stored = store.enqueue([a_task(id="b", unique_key="invoice 17", args=b"[9]"), a_task(id="c")])

    assert stored == [Enqueued(id="a", created=False), Enqueued(id="c", created=True)]
    assert store.get("b") is None


def test_a_unique_key_in_one_call_stores_the_first_of_its_tasks(store: Store) -> None:
    stored = store.enqueue([a_task(id=name, unique_key="k") for name in "abc"])

    assert stored == [Enqueued(id="a", created=True), *[Enqueued(id="a", created=False)] * 2]


def test_of_many_with_unique_keys_those_that_are_held_find_their_holders(store: Store) -> None:
    enqueue(store, id="holder", unique_key="k300")
    tasks = [a_task(id=f"t{n}", unique_key=f"k{n}" if n % 3 == 0 else None) for n in range(600)]

    stored = store.enqueue(tasks)

    assert [one.created for one in stored] == [n != 300 for n in range(600)]
    assert stored[300].id == "holder"
    assert {one.id for one in store.enqueue(tasks)} == {one.id for one in stored}


def test_a_unique_key_is_held_per_task_name(store: Store) -> None:
    stored = store.enqueue([a_task(id="a", unique_key="k"), a_task(id="b", name="sub", unique_key="k")])

    assert [one.created for one in stored] == [True, True]


@pytest.mark.parametrize("held", [TaskStatus.PENDING, TaskStatus.RUNNING])
def test_a_unique_key_is_held_until_its_task_has_ended(store: Store, held: TaskStatus) -> None:
    enqueue(store, id="a", unique_key="k")
    taken = claim_one(store) if held is TaskStatus.RUNNING else None

    assert enqueue(store, id="b", unique_key="k") == "a"

    settle(store, taken, completed()) if taken else store.cancel("a", actor="me")
    assert enqueue(store, id="c", unique_key="k") == "c"


def test_a_task_that_waits_for_its_retry_holds_its_unique_key(store: Store) -> None:
    enqueue(store, id="a", unique_key="k")

    settle(store, claim_one(store), retried(delay_us=60 * SECOND))

    assert enqueue(store, id="b", unique_key="k") == "a"


def test_the_same_id_again_is_the_same_task_whoever_holds_its_unique_key_now(store: Store) -> None:
    enqueue(store, id="a", unique_key="k")
    store.cancel("a", actor="me")
    enqueue(store, id="b", unique_key="k")

    assert enqueue(store, id="a", unique_key="k") == "a"


def test_a_conflict_of_ids_beside_a_held_unique_key_stores_nothing(store: Store) -> None:
    store.enqueue([a_task(id="a"), a_task(id="b", unique_key="k")])

    stored = store.enqueue([a_task(id="c"), a_task(id="d", unique_key="k"), a_task(id="a", args=b"[9]")])

    assert [one.conflict for one in stored] == [False, False, True]
    assert [store.get("c"), store.get("d")] == [None, None]


def test_an_ended_task_is_not_revived_while_another_holds_its_unique_key(store: Store) -> None:
    enqueue(store, id="a", unique_key="k")
    store.cancel("a", actor="me")
    enqueue(store, id="b", unique_key="k")

    assert carry_out(store, Order.RETRY, "a") == []
    assert facts_of(store, "a", "status") == (TaskStatus.CANCELLED,)


def test_of_ended_tasks_with_one_unique_key_the_newest_is_revived(store: Store) -> None:
    for name in "abc":
        enqueue(store, id=name, unique_key="k")
        store.cancel(name, actor="me")

    assert carry_out(store, Order.RETRY, "a", "b", "c") == ["c"]


# -- order ------------------------------------------------------------------------------------------------------------


def test_claims_go_by_priority_then_by_age_over_all_names_and_queues(store: Store) -> None:
    register(store, "w1")
    store.enqueue([
        a_task(id="late", priority=100),
        a_task(id="urgent", priority=1, name="sub", queue="mail"),
        a_task(id="middle-1", priority=50, queue="mail"),
        a_task(id="middle-2", priority=50, name="sub"),
        a_task(id="last", priority=100, queue="mail"),
    ])  # fmt: skip

    assert ids(claim(store, places=5)) == ["urgent", "middle-1", "middle-2", "late", "last"]


def test_a_worker_claims_from_its_queues_only(store: Store) -> None:
    register(store, "w1")
    for queue in ("a", "b", "c"):
        enqueue(store, id=queue, queue=queue)

    assert ids(claim(store, places=5, queues=["b", "c", "z"])) == ["b", "c"]


def test_a_worker_claims_only_names_it_knows(store: Store) -> None:
    register(store, "w1")
    for name in ("aaa", "add", "new.task", "sub", "zzz"):
        enqueue(store, id=name, name=name)

    assert ids(claim(store, places=5)) == ["add", "sub"]


def test_nothing_is_claimed_that_has_no_place(store: Store) -> None:
    register(store, "w1")
    store.enqueue([a_task() for _ in range(3)])

    assert len(claim(store, places=2)) == 2
    assert len(claim(store, places=0)) == 0
    assert len(claim(store, places=9)) == 1


def test_a_task_is_claimed_once_by_however_many_workers(open_store: OpenStore) -> None:
    stores = {worker: open_store() for worker in ("w1", "w2", "w3")}
    for worker, store in stores.items():
        register(store, worker)
    sent = [stored.id for stored in store.enqueue([a_task() for _ in range(30)])]

    taken = [one for _ in range(5) for worker, store in stores.items() for one in ids(claim(store, worker, places=3))]

    assert sorted(taken) == sorted(sent)


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_delayed_task_is_claimed_when_its_time_has_come(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    enqueue(store, id="a", delay_us=10 * SECOND)

    flushed = store.flush(Flush(worker_id="w1", room=a_room()))
    assert (flushed.claims, flushed.next_due_in_us) == ([], 10 * SECOND)
    clock.advance(9.9)
    assert claim(store) == []
    clock.advance(0.1)
    assert ids(claim(store)) == ["a"]


def test_a_time_that_has_passed_is_now(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    enqueue(store, id="a", run_at=clock.wall - 5)

    assert ids(claim(store)) == ["a"]


def test_the_next_due_task_is_told_even_to_a_worker_without_room(store: Store) -> None:
    register(store, "w1")
    for seconds in (30, 10, 20):
        enqueue(store, delay_us=seconds * SECOND)

    assert store.flush(Flush(worker_id="w1")).next_due_in_us == 10 * SECOND


def test_more_tasks_due_at_once_than_one_flush_ripens_are_all_claimed(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    store.enqueue([a_task(delay_us=SECOND) for _ in range(1_500)])
    clock.advance(2)

    first = store.flush(Flush(worker_id="w1", room=a_room(2_000)))
    second = store.flush(Flush(worker_id="w1", room=a_room(2_000)))

    assert (len(first.claims), first.next_due_in_us) == (1_000, 0)
    assert (len(second.claims), second.next_due_in_us) == (500, None)


def test_a_retry_waits_for_its_time_and_keeps_its_place_by_age(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="old")
    taken = claim_one(store)
    settle(store, taken, retried(delay_us=5 * SECOND))
    enqueue(store, id="young")
    assert facts_of(store, "old", "waiting_for") == ("its time, 2027-01-15 08:00:05 UTC",)

    clock.advance(5)

    assert ids(claim(store, places=2)) == ["old", "young"]


def test_a_pending_task_says_what_it_waits_for(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="now")
    enqueue(store, id="then", delay_us=60 * SECOND)

    assert facts_of(store, "now", "waiting_for") == ("a worker; none is running",)
    assert facts_of(store, "then", "waiting_for") == ("its time, 2027-01-15 08:01:00 UTC",)


def test_a_task_whose_time_has_come_waits_for_a_worker(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="then", delay_us=60 * SECOND)

    clock.advance(60)

    assert facts_of(store, "then", "waiting_for") == ("a worker; none is running",)


def test_a_task_for_a_time_beyond_all_calendars_spoils_no_list(store: Store) -> None:
    far: NewTask = a_task(id="far", delay_us=1 << 61)
    store.enqueue([far])

    assert facts_of(store, "far", "run_at")[0].year == 9999


def test_a_name_is_never_read_as_sql(store: Store) -> None:
    odd = "o'clock\"; DROP TABLE everbeat_tasks; -- %s {} $1"
    worker = f"w {odd}"
    room = replace(a_room(queues=[odd]), sync_names=frozenset({odd}))
    register(store, worker, queues=(odd,), task_names=(odd,))
    enqueue(store, id=odd, name=odd, queue=odd, unique_key=odd, exclusive_key=odd)
    enqueue(store, id="second", name=odd, queue=odd, exclusive_key=odd)

    (first,) = store.flush(Flush(worker_id=worker, room=deepcopy(room))).claims
    settle(store, first, completed())
    (second,) = store.flush(Flush(worker_id=worker, room=deepcopy(room))).claims

    assert (first.id, second.id) == (odd, "second")
    assert [task.id for task in store.tasks(TaskFilter(names=(odd,), queues=(odd,)))] == ["second", odd]
