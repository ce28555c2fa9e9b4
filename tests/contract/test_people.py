"""What people ask for and what they see: cancel, another run, counts, lists, events, and waiting for an end."""

import asyncio
import threading
from datetime import timedelta

import pytest
from tests.conftest import OpenStore
from tests.contract.test_owning import claimed
from tests.words import (
    VirtualClock,
    a_policy,
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
    raised,
    recover,
    register,
    retried,
    settle,
    start,
    status_of,
)

from everbeat.errors import TaskNotFound
from everbeat.model.event import Event
from everbeat.model.order import Order
from everbeat.model.state import TaskStatus
from everbeat.model.task import Finished
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter
from everbeat.store.moments import moment
from everbeat.store.verbs.looking import HIDDEN

# -- cancel and another run -------------------------------------------------------------------------------------------


def test_a_pending_task_is_cancelled_and_never_claimed(store: Store) -> None:
    register(store, "w1")
    enqueue(store, id="a")

    assert store.cancel("a", actor="user/ann") is True

    assert claim(store) == []
    assert facts_of(store, "a", "status", "fence") == (TaskStatus.CANCELLED, 1)
    (entry,) = facts_of(store, "a", "history")[0]
    assert (entry.actor, entry.change, entry.old_status, entry.new_status) == (
        "user/ann",
        "cancel",
        "PENDING",
        "CANCELLED",
    )


def test_a_claimed_task_is_cancelled_before_its_code_begins(store: Store) -> None:
    taken = claimed(store, "a")

    assert store.cancel("a", actor="me") is True

    assert start(store, taken).started == []
    settle(store, taken, handed_back())
    assert status_of(store, "a") is TaskStatus.CANCELLED


def test_what_has_ended_or_never_was_is_not_cancelled(store: Store) -> None:
    enqueue(store, id="a")
    settle(store, claim_one(store), completed())

    assert store.cancel("a", actor="me") is False
    assert store.cancel("nobody", actor="me") is False
    assert status_of(store, "a") is TaskStatus.COMPLETED


def test_another_run_begins_with_fresh_counters_and_a_new_attempt_number(store: Store) -> None:
    enqueue(store, id="a", max_attempts=3)
    recover(store, claim_one(store), abandoned(crashes=1, losses=1, dispatches=1, quarantined=True))

    assert carry_out(store, Order.RETRY, "a", "nobody") == ["a"]

    again = claim_one(store)
    assert (again.attempt, again.free_attempts) == (2, 1)
    assert (again.crash_count, again.lost_count, again.dispatch_count) == (0, 0, 0)
    assert again.solo  # it was set aside for killing its process
    assert facts_of(store, "a", "quarantined", "error_code", "finished_at") == (False, None, None)


def test_a_completed_task_is_not_run_again(store: Store) -> None:
    enqueue(store, id="a")
    settle(store, claim_one(store), completed())

    assert carry_out(store, Order.RETRY, "a") == []


def test_the_late_result_of_a_run_before_the_revival_is_refused(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    recover(store, taken, abandoned())
    carry_out(store, Order.RETRY, "a")

    settle(store, taken, completed())

    assert status_of(store, "a") is TaskStatus.PENDING


# -- lists and counts -------------------------------------------------------------------------------------------------


def test_counts_are_by_queue_and_status(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    store.enqueue([a_task(queue="mail"), a_task(queue="mail"), a_task(queue="sms")])
    claim(store, queues=["sms"])

    counts = {(count.queue, count.status): count.count for count in store.counts()}

    assert counts == {("mail", TaskStatus.PENDING): 2, ("sms", TaskStatus.RUNNING): 1}
    assert store.counts()[0].oldest_run_at == moment(clock.wall)


def test_tasks_are_listed_newest_first_and_filtered_by_all_that_is_said(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    enqueue(store, id="a", queue="mail")
    settle(store, claim_one(store), failed())
    clock.advance(60)
    enqueue(store, id="b", queue="mail")
    enqueue(store, id="c", name="sub")

    def listed(**wanted: object) -> list[str]:
        return [info.id for info in store.tasks(TaskFilter(**wanted))]  # type: ignore[arg-type]

    assert listed() == ["c", "b", "a"]
    assert listed(limit=2) == ["c", "b"]
    assert listed(statuses=[TaskStatus.FAILED, TaskStatus.CANCELLED]) == ["a"]
    assert listed(queues=["mail"], statuses=[TaskStatus.PENDING]) == ["b"]
    assert listed(names=["sub"]) == ["c"]
    assert listed(error_codes=["UNHANDLED_EXCEPTION"]) == ["a"]
    assert listed(since=moment(clock.wall - 1)) == ["c", "b"]
    assert listed(quarantined=True) == []
    assert listed(quarantined=False) == ["c", "b", "a"]


def test_events_are_read_on_from_where_one_stopped(store: Store, clock: VirtualClock) -> None:
    store.announce([Event(name="store.blocked", facts={"by": "pid 7"}), Event(name="child.died", task_id="a")])
    first, second = store.events()
    clock.advance(60)
    store.announce([Event(name="child.died", task_id="b", worker_id="w1")])

    assert (first.name, first.facts, first.at) == (
        "store.blocked",
        {"by": "pid 7"},
        moment(clock.wall) - timedelta(minutes=1),
    )
    assert [event.task_id for event in store.events(after=second.id)] == ["b"]
    assert [event.task_id for event in store.events(since=moment(clock.wall))] == ["b"]
    assert [event.id for event in store.events(task_id="a")] == [second.id]
    assert [event.id for event in store.events(limit=1)] == [first.id]
    assert store.events(task_id="a", after=second.id) == []


def test_what_a_sensitive_task_said_is_shown_to_its_sender_only(store: Store) -> None:
    for task_id, policy in (("open", None), ("secret", a_policy(sensitive=True))):
        enqueue(store, id=task_id, policy=policy)
        taken = claim_one(store)
        settle(store, taken, failed(), outcome=raised())
        settle(store, taken, retried(), outcome=raised())

    def shown(task_id: str) -> set[str | None]:
        (message, attempts) = facts_of(store, task_id, "error_message", "attempts")
        late = store.late_outcomes(task_id)
        assert (len(attempts), len(late)) == (1, 1)
        return {message, attempts[0].error_message, late[0].error_message, store.tasks(TaskFilter())[0].error_message}

    assert shown("open") == {"it broke", HIDDEN}  # the newest of the list is the secret one
    assert shown("secret") == {HIDDEN}
    end = store.finished("secret")
    assert end is not None
    assert end.error is not None
    assert end.error.message == "it broke"


def test_our_own_words_about_a_sensitive_task_are_shown(store: Store) -> None:
    enqueue(store, id="a", policy=a_policy(sensitive=True))
    recover(store, claim_one(store), abandoned())

    assert facts_of(store, "a", "error_message") == ("its worker died",)


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_ends_with_the_task(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    enqueue(here, id="a")
    taken = claim_one(there)
    found: list[Finished | None] = []
    waiter = threading.Thread(target=lambda: found.append(here.wait("a", 30)))
    waiter.start()

    settle(there, taken, completed(b"7"))

    waiter.join(10)
    (end,) = found
    assert end is not None
    assert end.result == b"7"


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_waiting_for_what_does_not_end_ends_in_time(store: Store, timeout: float) -> None:
    enqueue(store, id="a")

    assert store.wait("a", timeout) is None
    assert asyncio.run(store.await_("a", timeout)) is None


def test_waiting_for_a_task_that_never_was_is_an_error(store: Store) -> None:
    with pytest.raises(TaskNotFound):
        store.wait("nobody", 5)
    with pytest.raises(TaskNotFound):
        asyncio.run(store.await_("nobody", 5))


def test_a_coroutine_waits_while_others_go_on(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    enqueue(here, id="a")
    taken = claim_one(there)

    async def both() -> Finished | None:
        waiting = asyncio.create_task(here.await_("a", 30))
        await asyncio.to_thread(settle, there, taken, completed(b"7"))
        return await waiting

    end = asyncio.run(both())
    assert end is not None
    assert end.result == b"7"


def test_a_wait_that_is_cancelled_while_its_bell_is_being_hung_leaves_none_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(store, id="a")
    hanging, is_cancelled, closed = threading.Event(), threading.Event(), threading.Event()
    for_waiter = store.bells.for_waiter  # type: ignore[attr-defined]

    def slowly(task_id: str) -> object:
        hanging.set()
        assert is_cancelled.wait(30)
        bell = for_waiter(task_id)
        close = bell.close
        monkeypatch.setattr(bell, "close", lambda: (closed.set(), close()))
        return bell

    async def wait_and_give_up() -> None:
        waiting = asyncio.create_task(store.await_("a", 30))
        await asyncio.to_thread(hanging.wait, 30)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        is_cancelled.set()

    monkeypatch.setattr(store.bells, "for_waiter", slowly)  # type: ignore[attr-defined]
    asyncio.run(wait_and_give_up())  # ends when its threads have

    assert closed.is_set()


def test_a_cancelled_task_ends_the_waiting_too(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    enqueue(here, id="a")
    found: list[Finished | None] = []
    waiter = threading.Thread(target=lambda: found.append(here.wait("a", 30)))
    waiter.start()

    there.cancel("a", actor="me")

    waiter.join(10)
    assert [end.status for end in found if end] == [TaskStatus.CANCELLED]
