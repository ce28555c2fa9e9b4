"""Group commit: what many threads send at once is one transaction, and everybody gets the own answer."""

import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.words import a_task, enqueue, interrupted_after

from everbeat.errors import StoreUnavailable
from everbeat.model.task import Enqueued
from everbeat.store.messages import TaskFilter
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sql.group import GroupCommit, _Order
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.transaction import RowRefused

AStore = SQLiteStore | PostgresStore


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AStore]:
    store: AStore
    if request.param == "sqlite":
        store = SQLiteStore(tmp_path / "x.db", durability="normal", patience=20)
    else:
        store = PostgresStore(request.getfixturevalue("a_database").url(), patience=20)
    for group in groups_of(store):
        group._quiet_lanes = group._lanes
    yield store
    store.close()


def groups_of(store: AStore) -> list[GroupCommit]:
    return [store._sending, *([store._keyed] if isinstance(store, PostgresStore) else [])]


@pytest.fixture
def commits(store: AStore) -> Callable[[], int]:
    """How many transactions have stored tasks, as the database sees it."""
    if isinstance(store, PostgresStore):
        return lambda: _count_writers(store)
    seen: list[str] = []
    assert isinstance(store, SQLiteStore)
    with store.database.alone() as writer:
        writer.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    return lambda: len(seen)


def _count_writers(store: PostgresStore) -> int:
    with store.database.session() as connection:
        row = connection.execute("SELECT count(DISTINCT xmin::text) FROM everbeat_tasks").fetchone()
    return row[0] if row else 0


def all_at_once(store: AStore, *deeds: Callable[[], object]) -> list[object]:
    """Hold the lead until all of them queue up, then let go. What each returned or raised, in order."""
    results: list[object] = [None] * len(deeds)

    def do(number: int) -> None:
        try:
            results[number] = deeds[number]()
        except (StoreUnavailable, RowRefused, sqlite3.Error, psycopg.Error) as error:
            results[number] = error

    threads = [threading.Thread(target=do, args=(number,)) for number in range(len(deeds))]
    groups = groups_of(store)
    leaders = [(group, _Order([])) for group in groups for _ in range(group._lanes)]
    for group, leader in leaders:
        group._line_up(leader)
    for thread in threads:
        thread.start()
    while sum(len(group._waiting) for group in groups) < len(deeds):
        threading.Event().wait(0.001)
    for group, leader in leaders:
        group._step_back(leader)
    for thread in threads:
        thread.join(30)
    return results


def test_what_queues_up_together_is_committed_together(store: AStore, commits: Callable[[], int]) -> None:
    results = all_at_once(store, *(lambda n=n: store.enqueue([a_task(id=f"task-{n}")]) for n in range(20)))

    assert results == [[Enqueued(id=f"task-{n}", created=True)] for n in range(20)]
    assert commits() <= store._sending._lanes


def test_few_senders_commit_apart_and_a_crowd_in_groups_until_it_is_long_gone() -> None:
    group = GroupCommit(object(), lambda tasks: None, lanes=2, quiet_lanes=3)  # type: ignore[arg-type]

    def come(*orders: _Order) -> list[bool]:
        for order in orders:
            group._line_up(order)
        return [order.leads for order in orders]

    def go(*orders: _Order) -> None:
        for order in orders:
            order.end([])
            group._step_back(order)

    few = [_Order([]) for _ in range(3)]
    assert come(*few) == [True, True, True]
    fourth, fifth = _Order([]), _Order([])
    assert come(fourth, fifth) == [False, False]
    go(few[0])
    assert [fourth.leads, fifth.leads] == [False, False], "two lanes are left, and are enough"
    go(few[1])
    assert [fourth.leads, fifth.leads] == [True, False]
    go(few[2], fourth, fifth)

    few = [_Order([]) for _ in range(3)]
    assert come(*few) == [True, True, False]
    go(*few)
    for _ in range(200):
        come(one := _Order([]))
        go(one)
    assert come(*[_Order([]) for _ in range(3)]) == [True, True, True]


def test_one_sender_alone_pays_for_nobody(store: AStore, commits: Callable[[], int]) -> None:
    for _ in range(5):
        enqueue(store)

    assert commits() == 5


def test_a_row_that_can_not_be_stored_fails_alone(store: AStore) -> None:
    good, bad, strange, last = all_at_once(
        store,
        lambda: store.enqueue([a_task(id="good")]),
        lambda: store.enqueue([a_task(id="bad", run_at=1 << 70)]),
        lambda: store.enqueue([a_task(id="strange", args=object())]),
        lambda: store.enqueue([a_task(id="last")]),
    )

    assert good == [Enqueued(id="good", created=True)]
    assert isinstance(bad, RowRefused)
    assert isinstance(strange, Exception)
    assert last == [Enqueued(id="last", created=True)]
    assert [store.get(one) is not None for one in ("good", "bad", "strange", "last")] == [True, False, False, True]


def test_a_conflict_is_its_sender_s_alone(store: AStore, commits: Callable[[], int]) -> None:
    enqueue(store, id="a")

    first, second = all_at_once(
        store,
        lambda: store.enqueue([a_task(id="b"), a_task(id="a", args=b"[9]")]),
        lambda: store.enqueue([a_task(id="c")]),
    )

    assert [one.conflict for one in first] == [False, True]  # type: ignore[attr-defined]
    assert second == [Enqueued(id="c", created=True)]
    assert [store.get("b"), commits()] == [None, 2]


def test_those_that_are_there_already_do_not_keep_the_others_waiting(store: AStore, commits: Callable[[], int]) -> None:
    enqueue(store, id="held", unique_key="k")

    results = all_at_once(
        store,
        lambda: store.enqueue([a_task(id="second", unique_key="k")]),
        lambda: store.enqueue([a_task(id="held", unique_key="k")]),
        lambda: store.enqueue([a_task(id="x"), a_task(id="y", queue="other")]),
        lambda: store.enqueue([]),
    )

    assert results == [
        [Enqueued(id="held", created=False)],
        [Enqueued(id="held", created=False)],
        [Enqueued(id="x", created=True), Enqueued(id="y", created=True)],
        [],
    ]


def test_two_who_send_the_same_id_at_once_get_one_task(store: AStore) -> None:
    results = all_at_once(store, *(lambda: store.enqueue([a_task(id="same")]) for _ in range(2)))

    assert sorted(map(repr, results)) == [
        repr([Enqueued(id="same", created=False)]),
        repr([Enqueued(id="same", created=True)]),
    ]


def test_an_outage_is_told_to_each_with_an_error_of_its_own(tmp_path: Path) -> None:
    store, other = SQLiteStore(tmp_path / "x.db", patience=0.2), SQLiteStore(tmp_path / "x.db")
    with other.database.write():
        first, second = all_at_once(
            store, lambda: store.enqueue([a_task(id="a")]), lambda: store.enqueue([a_task(id="b")])
        )
    other.close()

    assert isinstance(first, StoreUnavailable)
    assert isinstance(second, StoreUnavailable)
    assert first is not second
    assert [store.get("a"), store.get("b")] == [None, None]
    assert enqueue(store, id="a") == "a"
    store.close()


def test_a_leader_that_is_interrupted_leaves_the_work_of_the_others_to_them(
    store: AStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted: list[str] = []
    commit = store._sending._commit

    def interrupt_once(group: object) -> None:
        if not interrupted:
            interrupted.append(threading.current_thread().name)
            raise KeyboardInterrupt
        commit(group)  # type: ignore[arg-type]

    def send(task_id: str) -> object:
        try:
            return store.enqueue([a_task(id=task_id)])
        except KeyboardInterrupt:
            return "interrupted"

    monkeypatch.setattr(store._sending, "_commit", interrupt_once)
    results = all_at_once(store, *(lambda n=n: send(f"task-{n}") for n in range(5)))

    assert results.count("interrupted") == 1
    stored = [f"task-{n}" for n, result in enumerate(results) if result != "interrupted"]
    assert all(store.get(task_id) for task_id in stored)


def test_senders_that_come_and_go_all_get_their_answer(store: AStore, commits: Callable[[], int]) -> None:
    def send(thread: int) -> None:
        for number in range(200):
            enqueue(store, id=f"{thread}-{number}")

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sum(count.count for count in store.counts()) == 1600
    assert commits() < 1600
    assert enqueue(store, id="later") == "later"


def test_a_sender_that_is_interrupted_while_it_waits_holds_nobody_up(store: AStore) -> None:
    leader, waiter = _Order([]), _Order([a_task(id="given up")])
    store._sending._line_up(leader)
    store._sending._line_up(waiter)
    store._sending._step_back(leader)  # the waiter leads now, and is interrupted before it knows
    store._sending._step_back(waiter)

    assert enqueue(store, id="next") == "next"
    assert store.get("given up") is None


def test_one_who_is_interrupted_after_his_work_was_done_still_wakes_whoever_is_behind_him(store: AStore) -> None:
    leader, first, second = (_Order([a_task(id=name)]) for name in ("leader", "first", "second"))
    for lane in range(store._sending._lanes - 1):
        store._sending._line_up(_Order([a_task(id=f"lane {lane}")]))
    for order in (leader, first, second):
        store._sending._line_up(order)
    store._sending._lead(leader)
    store._sending._step_back(leader)

    assert [first.is_done, second.is_done, second.wake.locked()] == [True, True, True]
    store._sending._step_back(first)  # an interrupt came before it was awake
    assert not second.wake.locked()


def test_one_who_was_interrupted_while_others_did_his_work_is_not_waited_for(store: AStore) -> None:
    leader, first, second = (_Order([a_task(id=name)]) for name in ("leader", "first", "second"))
    for lane in range(store._sending._lanes - 1):
        store._sending._line_up(_Order([a_task(id=f"lane {lane}")]))
    for order in (leader, first, second):
        store._sending._line_up(order)
    commit = store._sending._commit

    def interrupt_the_first(group: object) -> None:
        commit(group)  # type: ignore[arg-type]
        store._sending._step_back(first)

    store._sending._commit = interrupt_the_first  # type: ignore[method-assign, assignment]
    store._sending._lead(leader)
    store._sending._step_back(leader)

    assert not second.wake.locked()


@pytest.mark.parametrize("has_company", [False, True], ids=["alone", "with another"])
def test_an_interrupt_after_any_call_of_a_sender_takes_nothing_with_it(store: AStore, has_company: bool) -> None:
    """As a signal handler that raises: after a call, or as the first thing within one."""
    sending = store._sending
    line_up, calls, is_over = sending._line_up, 0, False
    for lane in range(sending._lanes - 1):
        line_up(_Order([a_task(id=f"lane {lane}")]))
    while not is_over:
        calls, came = calls + 1, False
        another = _Order([a_task(id=f"another {calls}")])

        def line_up_with_another(order: _Order) -> None:
            nonlocal came
            line_up(order)
            if has_company:
                sending._waiting += [another]  # noqa: B023
                came = True

        sending._line_up = line_up_with_another  # type: ignore[method-assign]
        is_over = not interrupted_after(calls, lambda: enqueue(store, id=f"sent {calls}"))  # noqa: B023

        assert (another.is_done or another.leads, not another.wake.locked()) == (came, came)
        sending._step_back(another)
        assert (sending._lanes - sending._leading, sending._waiting) == (1, [])
    assert calls > 100


@pytest.mark.timeout(60)
def test_a_signal_handler_may_send_after_any_call_of_a_sender_and_is_always_answered(
    store: AStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbeat.store.sql.group.UNTIL_LOOK", 0.001)
    sending = store._sending
    sending._leading = sending._lanes - 1
    left, came, answers = 0, False, []

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal left, came
        left -= event in ("call", "c_return")
        if left == 0:
            sys.setprofile(None)
            came = True
            try:
                answers.append(enqueue(store, id=f"nested {calls}"))
            except RuntimeError as error:
                answers.append(str(error))

    calls, is_over = 0, False
    while not is_over:
        calls, came = calls + 1, False
        left = calls
        sys.setprofile(count)
        try:
            stored = enqueue(store, id=f"sent {calls}")
        finally:
            sys.setprofile(None)
        is_over = not came

        assert stored == f"sent {calls}"
        assert (sending._lanes - sending._leading, sending._waiting, sending._here) == (1, [], 0)

    assert calls > 50
    assert len(answers) == calls - 1
    refused = [answer for answer in answers if not answer.startswith("nested")]
    assert all("is being written by this thread already" in answer for answer in refused)
    assert bool(refused) == isinstance(store, SQLiteStore)
    sent = {task.id for task in store.tasks(TaskFilter(limit=10_000))}
    assert sent == {f"sent {number}" for number in range(1, calls + 1)} | {*answers} - {*refused}


@pytest.mark.timeout(60)
def test_a_signal_handler_may_send_while_its_thread_waits_for_another(store: AStore) -> None:
    sending, answers = store._sending, []
    leaders = [_Order([]) for _ in range(sending._lanes)]
    for leader in leaders:
        sending._line_up(leader)

    def interrupt() -> None:
        """Once it waits; then let it lead, once the handler waits or is done."""
        _until(lambda: len(sending._waiting) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        _until(lambda: len(sending._waiting) == 2 or bool(answers))
        for leader in leaders:
            sending._step_back(leader)

    before = signal.signal(signal.SIGUSR1, lambda *_: answers.append(enqueue(store, id="nested")))
    another = threading.Thread(target=interrupt)
    another.start()
    try:
        assert enqueue(store, id="sent") == "sent"
    finally:
        signal.signal(signal.SIGUSR1, before)
        another.join(30)

    assert answers == ["nested"]
    assert {task.id for task in store.tasks(TaskFilter())} == {"nested", "sent"}


def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        threading.Event().wait(0.001)
