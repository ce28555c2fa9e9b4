"""Group commit: what many threads send at once is one transaction, and everybody gets the own answer."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.words import a_task, enqueue

from everbeat.errors import StoreUnavailable
from everbeat.model.task import Enqueued
from everbeat.store.sql.group import _Order
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.transaction import RowRefused


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "x.db", durability="normal", patience=20)
    yield store
    store.close()


@pytest.fixture
def commits(store: SQLiteStore) -> list[str]:
    """Every COMMIT of the store, as SQLite sees it."""
    seen: list[str] = []
    with store.database.alone() as writer:
        writer.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    return seen


def all_at_once(store: SQLiteStore, *deeds: Callable[[], object]) -> list[object]:
    """Hold the lead until all of them queue up, then let go. What each returned or raised, in order."""
    results: list[object] = [None] * len(deeds)

    def do(number: int) -> None:
        try:
            results[number] = deeds[number]()
        except (StoreUnavailable, RowRefused, sqlite3.Error) as error:
            results[number] = error

    threads = [threading.Thread(target=do, args=(number,)) for number in range(len(deeds))]
    leader = _Order([])
    store._sending._line_up(leader)
    for thread in threads:
        thread.start()
    while len(store._sending._waiting) < 1 + len(deeds):
        threading.Event().wait(0.001)
    store._sending._step_back(leader)
    for thread in threads:
        thread.join(30)
    return results


def test_what_queues_up_together_is_committed_together(store: SQLiteStore, commits: list[str]) -> None:
    results = all_at_once(store, *(lambda n=n: store.enqueue([a_task(id=f"task-{n}")]) for n in range(20)))

    assert results == [[Enqueued(id=f"task-{n}", created=True)] for n in range(20)]
    assert len(commits) == 1


def test_one_sender_alone_pays_for_nobody(store: SQLiteStore, commits: list[str]) -> None:
    for _ in range(5):
        enqueue(store)

    assert len(commits) == 5


def test_a_row_that_can_not_be_stored_fails_alone(store: SQLiteStore) -> None:
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


def test_a_conflict_is_its_sender_s_alone(store: SQLiteStore, commits: list[str]) -> None:
    enqueue(store, id="a")

    first, second = all_at_once(
        store,
        lambda: store.enqueue([a_task(id="b"), a_task(id="a", args=b"[9]")]),
        lambda: store.enqueue([a_task(id="c")]),
    )

    assert [one.conflict for one in first] == [False, True]  # type: ignore[attr-defined]
    assert second == [Enqueued(id="c", created=True)]
    assert [store.get("b"), len(commits)] == [None, 2]


def test_two_who_send_the_same_id_at_once_get_one_task(store: SQLiteStore) -> None:
    results = all_at_once(store, *(lambda: store.enqueue([a_task(id="same")]) for _ in range(2)))

    assert sorted(map(repr, results)) == [
        repr([Enqueued(id="same", created=False)]),
        repr([Enqueued(id="same", created=True)]),
    ]


def test_an_outage_is_told_to_each_with_an_error_of_its_own(store: SQLiteStore) -> None:
    store.database.patience = 0.2
    other = SQLiteStore(store.database.path)
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


def test_a_leader_that_is_interrupted_leaves_the_work_of_the_others_to_them(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
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


def test_senders_that_come_and_go_all_get_their_answer(store: SQLiteStore, commits: list[str]) -> None:
    def send(thread: int) -> None:
        for number in range(200):
            enqueue(store, id=f"{thread}-{number}")

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sum(count.count for count in store.counts()) == 1600
    assert len(commits) < 1600
    assert enqueue(store, id="later") == "later"


def test_a_sender_that_is_interrupted_while_it_waits_holds_nobody_up(store: SQLiteStore) -> None:
    leader, waiter = _Order([]), _Order([a_task(id="given up")])
    store._sending._line_up(leader)
    store._sending._line_up(waiter)
    store._sending._step_back(leader)  # the waiter leads now, and is interrupted before it knows
    store._sending._step_back(waiter)

    assert enqueue(store, id="next") == "next"
    assert store.get("given up") is None
