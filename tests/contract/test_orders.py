"""Orders of a person about many tasks: each through the transition table, in the history, and under a new fence."""

from typing import Any

import pytest
from tests.contract.test_owning import claimed
from tests.words import (
    VirtualClock,
    a_task,
    abandoned,
    an_error,
    carry_out,
    claim,
    claim_one,
    completed,
    enqueue,
    facts_of,
    failed,
    ids,
    raised,
    recover,
    register,
    settle,
    start,
    status_of,
    succeeded,
)

from everbeat.model.order import FAILED_BY_HAND, REQUEUED_BY_HAND, Order
from everbeat.model.recovery import Superseded, Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter
from everbeat.store.moments import moment
from everbeat.store.sql.store import SQLStore
from everbeat.store.verbs import commanding


def ended(store: Store, task_id: str, **facts: object) -> str:
    enqueue(store, id=task_id, **facts)
    settle(store, claim_one(store), failed(), outcome=raised(an_error()))
    return task_id


# -- taken from a living owner ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "status", "outcome"),
    [(Order.REQUEUE, "PENDING", REQUEUED_BY_HAND), (Order.FAIL, "FAILED", FAILED_BY_HAND)],
)
def test_a_living_owner_s_result_is_refused_after_a_person_took_its_task(
    store: Store, order: Order, status: str, outcome: str
) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)

    assert carry_out(store, order, "a", actor="cli/ann") == ["a"]

    late = settle(store, taken, completed(), outcome=succeeded())
    assert late == Superseded(task_id="a", status=status, by=taken.fence + 1)
    history, attempts, now = facts_of(store, "a", "history", "attempts", "status")
    assert now == status
    assert [(h.actor, h.old_status, h.new_status) for h in history] == [("cli/ann", "RUNNING", status)]
    assert [(a.outcome, a.worker_id) for a in attempts] == [(outcome, "w1")]
    assert [found.has_result for found in store.late_outcomes("a")] == [True]


@pytest.mark.parametrize("order", [Order.REQUEUE, Order.FAIL, Order.CANCEL])
def test_an_owner_can_not_start_what_a_person_took_from_it(store: Store, order: Order) -> None:
    taken = claimed(store, "a")

    carry_out(store, order, "a")

    assert start(store, taken).started == []
    assert facts_of(store, "a", "attempts") == ([],)  # its code never ran


def test_a_requeued_task_runs_again_though_its_attempts_are_used_up(store: Store) -> None:
    enqueue(store, id="a", max_attempts=1)
    taken = claim_one(store)

    carry_out(store, Order.REQUEUE, "a")

    again = claim_one(store)
    assert (again.attempt, again.free_attempts, again.fence) == (2, 1, taken.fence + 2)


def test_a_failed_task_says_who_failed_it_and_why(store: Store) -> None:
    enqueue(store, id="a", delay_us=60_000_000)

    for _ in store.carry_out(Order.FAIL, TaskFilter(ids=["a"]), actor="cli/ann", reason="wrong month"):
        pass

    assert facts_of(store, "a", "status", "error_code", "error_message") == ("FAILED", FAILED_BY_HAND, "wrong month")
    assert [(h.actor, h.reason) for h in facts_of(store, "a", "history")[0]] == [("cli/ann", "wrong month")]


# -- a result that came too late --------------------------------------------------------------------------------------


def test_a_late_result_is_accepted_by_a_person(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    recover(store, taken, abandoned(quarantined=True))
    settle(store, taken, completed(b"7"), outcome=succeeded(b"7"))

    assert store.accept("a", actor="cli/ann") is True

    end = store.finished("a")
    assert end is not None
    assert (end.status, end.result, end.error) == (TaskStatus.COMPLETED, b"7", None)
    history, quarantined, fence = facts_of(store, "a", "history", "quarantined", "fence")
    assert (history[-1].actor, history[-1].change, quarantined, fence) == ("cli/ann", "accept", False, taken.fence + 2)


def test_an_accepted_result_saves_the_second_run(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    carry_out(store, Order.REQUEUE, "a")
    settle(store, taken, completed(), outcome=succeeded())

    assert store.accept("a", actor="me") is True

    assert claim(store) == []


def test_without_a_late_result_there_is_nothing_to_accept(store: Store) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    recover(store, taken, abandoned())
    assert store.accept("a", actor="me") is False
    settle(store, taken, failed(), outcome=raised())

    assert store.accept("a", actor="me") is False
    assert store.accept("nobody", actor="me") is False
    assert [late.error_code for late in store.late_outcomes("a")] == ["UNHANDLED_EXCEPTION"]


def test_a_late_result_is_not_accepted_while_the_task_runs_or_once_it_has_a_result(store: Store) -> None:
    enqueue(store, id="a")
    first = claim_one(store)
    recover(store, first, Verdict(change=Change.RECOVER))
    second = claim_one(store)
    settle(store, first, completed(b"1"), outcome=succeeded(b"1"))

    assert store.accept("a", actor="me") is False
    settle(store, second, completed(b"2"))
    assert store.accept("a", actor="me") is False
    end = store.finished("a")
    assert end is not None
    assert end.result == b"2"


# -- erase and purge --------------------------------------------------------------------------------------------------


def test_what_is_erased_is_blank_everywhere_and_the_row_stays(store: Store) -> None:
    enqueue(store, id="a", args=b'{"name":"Ada"}')
    taken = claim_one(store)
    settle(store, taken, failed(), outcome=raised())
    settle(store, taken, completed(b'"Ada"'), outcome=succeeded(b'"Ada"'))

    assert carry_out(store, Order.ERASE, "a", actor="cli/ann") == ["a"]

    task = store.get("a")
    assert task is not None
    assert (task.status, task.error_code, task.error_message) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION", None)
    assert [a.error_message for a in task.attempts] == [None]
    assert [(late.has_result, late.error_message) for late in store.late_outcomes("a")] == [(False, None)]
    assert (task.history[-1].change, task.history[-1].actor) == ("erase", "cli/ann")
    assert store.accept("a", actor="me") is False


def test_an_erased_task_does_not_run_again(store: Store) -> None:
    ended(store, "a")
    carry_out(store, Order.ERASE, "a")

    assert carry_out(store, Order.RETRY, "a") == []
    assert store.count_for(Order.RETRY, TaskFilter()) == 0


@pytest.mark.parametrize("order", [Order.ERASE, Order.PURGE])
def test_what_has_not_ended_is_neither_erased_nor_purged(store: Store, order: Order) -> None:
    enqueue(store, id="a")
    enqueue(store, id="b")
    claim_one(store)

    assert carry_out(store, order) == []
    assert (status_of(store, "a"), status_of(store, "b")) == (TaskStatus.RUNNING, TaskStatus.PENDING)


def test_a_purged_task_is_gone_with_its_records_and_the_purge_is_announced(store: Store) -> None:
    ended(store, "a")
    ended(store, "b", queue="mail")

    assert carry_out(store, Order.PURGE, queues=["mail"], actor="cli/ann") == ["b"]

    assert store.get("b") is None
    assert status_of(store, "a") is TaskStatus.FAILED
    assert store.events()[-1].facts == {"tasks": 1, "actor": "cli/ann"}
    enqueue(store, id="b")  # nothing of the old one sticks to a new one with its id
    assert facts_of(store, "b", "history", "attempts") == ([], [])


# -- the quarantine ---------------------------------------------------------------------------------------------------


def test_only_the_quarantine_is_released_and_discarded(store: Store) -> None:
    ended(store, "plain")
    for task_id in ("freed", "given up"):
        enqueue(store, id=task_id)
        recover(store, claim_one(store), abandoned(quarantined=True))

    assert carry_out(store, Order.DISCARD, "given up", "plain") == ["given up"]
    assert carry_out(store, Order.RELEASE) == ["freed"]

    assert facts_of(store, "given up", "status", "quarantined") == (TaskStatus.FAILED, False)
    assert facts_of(store, "given up", "history")[0][-1].change == "discard"
    assert facts_of(store, "freed", "status", "quarantined") == (TaskStatus.PENDING, False)
    assert status_of(store, "plain") is TaskStatus.FAILED


# -- many -------------------------------------------------------------------------------------------------------------


def test_many_are_changed_in_batches_each_with_its_history(store: Store) -> None:
    store.enqueue([a_task(id=f"task-{number}-of-many", queue="bulk") for number in range(1234)])
    enqueue(store, id="other")

    batches = list(store.carry_out(Order.CANCEL, TaskFilter(queues=["bulk"]), actor="cli/ann"))

    assert [len(batch) for batch in batches] == [500, 500, 234]
    assert {(count.queue, count.status): count.count for count in store.counts()} == {
        ("bulk", TaskStatus.CANCELLED): 1234,
        ("default", TaskStatus.PENDING): 1,
    }
    assert [h.actor for h in facts_of(store, "task-1233-of-many", "history")[0]] == ["cli/ann"]


def test_a_dry_run_names_what_would_be_changed_and_changes_nothing(store: Store) -> None:
    ended(store, "a")
    enqueue(store, id="b")

    looked = list(store.carry_out(Order.RETRY, TaskFilter(), actor="me", dry_run=True))

    assert looked == [["a"]]
    assert store.count_for(Order.RETRY, TaskFilter()) == 1
    assert facts_of(store, "a", "status", "fence")[0] is TaskStatus.FAILED


def test_old_means_ended_long_ago_or_for_what_waits_created_long_ago(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    enqueue(store, id="slow")
    taken = claim_one(store)
    enqueue(store, id="waits")
    clock.advance(3600)
    settle(store, taken, failed())
    clock.advance(60)

    def older(seconds: float) -> list[str]:
        cut = moment(clock.wall - round(seconds * 1e6))
        return [task.id for task in store.tasks(TaskFilter(older_than=cut))]

    assert older(30) == ["waits", "slow"]
    assert older(600) == ["waits"]


def test_an_order_for_a_status_it_does_not_fit_changes_nothing(store: Store) -> None:
    ended(store, "a")

    assert carry_out(store, Order.CANCEL, statuses=[TaskStatus.FAILED]) == []
    assert status_of(store, "a") is TaskStatus.FAILED


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [None, ["mail", "sms"]])
def test_nothing_of_a_paused_queue_is_claimed_until_it_is_resumed(store: Store, queues: list[str] | None) -> None:
    register(store, "w1")
    enqueue(store, id="a", queue="mail")
    enqueue(store, id="b", queue="sms")

    assert store.set_paused("mail", is_paused=True, actor="cli/ann") is True
    assert store.set_paused("mail", is_paused=True, actor="cli/ann") is False
    assert ids(claim(store, places=5, queues=queues)) == ["b"]
    assert facts_of(store, "a", "waiting_for") == ("its queue mail, which is paused",)
    assert [(queue.name, queue.paused) for queue in store.queues()] == [("mail", True)]

    assert store.set_paused("mail", is_paused=False, actor="cli/ann") is True
    assert ids(claim(store, places=5, queues=queues)) == ["a"]
    assert [(e.name, e.facts["actor"]) for e in store.events()[-2:]] == [
        ("queue.paused", "cli/ann"),
        ("queue.resumed", "cli/ann"),
    ]


def test_what_runs_when_its_queue_is_paused_goes_on(store: Store) -> None:
    enqueue(store, id="a", queue="mail")
    taken = claim_one(store)

    store.set_paused("mail", is_paused=True, actor="me")

    settle(store, taken, completed())
    assert status_of(store, "a") is TaskStatus.COMPLETED
    assert store.set_paused("never.paused", is_paused=False, actor="me") is False


# -- beside others ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 10])
def test_a_retry_is_looked_at_again_as_often_as_others_take_its_unique_key(
    store: Store, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """What the database says then is that the row is refused."""
    assert isinstance(store, SQLStore)
    register(store, "w1")
    ended(store, "a")
    refusals, carry = [store.database.refused[0]("taken")] * times, commanding.carry_out

    def beaten(*words: Any, **more: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return carry(*words, **more)

    monkeypatch.setattr(commanding, "carry_out", beaten)

    assert carry_out(store, Order.RETRY, "a") == ["a"]
    assert status_of(store, "a") is TaskStatus.PENDING
