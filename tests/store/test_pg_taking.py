"""What a worker that is called takes in one round trip, and what it leaves to a whole flush."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString

import pytest
from tests.flow_words import begin, graph
from tests.postgres import EmptyDatabase
from tests.store.test_pg_round_trips import round_trips
from tests.words import a_policy, a_room, a_task, claim, completed, register, retried, settle, status_of

from everbeat.decide.room import Room
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import QueueSetting
from everbeat.store.messages import Ending, Flush, Flushed
from everbeat.store.postgres import taking
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.verbs import queueing

HOUR_US = 3_600_000_000


@pytest.fixture
def store(a_database: EmptyDatabase) -> Iterator[PostgresStore]:
    """With the database's own clock."""
    store = PostgresStore(a_database.url(), patience=5.0)
    register(store, "w1")
    yield store
    store.close()


def at_once(store: PostgresStore, room: Room | None = None, **facts: Any) -> Flushed | None:
    return taking.at_once(store.database, Flush(worker_id="w1", room=room or a_room(3), **facts))


def facts_of(claim: Claim) -> dict[str, Any]:
    """What differs between two tasks left out."""
    return {name: getattr(claim, name) for name in claim.__slots__ if name not in ("seq", "id", "slot")}


def test_a_worker_that_is_called_claims_in_one_round_trip(store: PostgresStore, tmp_path: Path) -> None:
    store.enqueue([a_task(id="one"), a_task(id="two")])

    found: list[Flushed] = []
    flush = Flush(worker_id="w1", room=a_room(3), seen_beat=0)
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(store.flush(flush)))

    assert (taken, [one.id for one in found[0].claims]) == (1, ["one", "two"])
    assert len({one.slot for one in found[0].claims}) == 2
    assert {status_of(store, one) for one in ("one", "two")} == {TaskStatus.RUNNING}


def test_that_nothing_is_ready_takes_one_round_trip_to_know(store: PostgresStore, tmp_path: Path) -> None:
    store.enqueue([a_task(delay_us=HOUR_US), a_task(queue="of others")])

    found: list[Flushed] = []
    flush = Flush(worker_id="w1", room=a_room(3, queues={"default"}), seen_beat=0)
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(store.flush(flush)))

    assert (taken, found[0].alive, found[0].claims) == (1, True, [])
    assert HOUR_US * 0.9 < (found[0].next_due_in_us or 0) <= HOUR_US


def test_what_has_become_due_is_claimed_although_nothing_was_ready(store: PostgresStore) -> None:
    store.enqueue([a_task(id="due", delay_us=HOUR_US)])
    by_hand(store, "UPDATE everbeat_tasks SET due_at = 1 WHERE id = 'due'")

    assert [one.id for one in claim(store)] == ["due"]


@pytest.mark.parametrize("seen_beat", [0, 7])
def test_who_is_dead_or_in_an_older_store_learns_it_although_nothing_is_ready(
    store: PostgresStore, seen_beat: int
) -> None:
    a_worker_that_is_dead(store)

    found = store.flush(Flush(worker_id="w1", room=a_room(3), seen_beat=seen_beat))

    assert (found.alive, found.is_older) == (False, seen_beat > 0)


def test_what_is_taken_so_is_what_a_flush_would_have_claimed(store: PostgresStore) -> None:
    store.enqueue([a_task(id="one", policy=a_policy(max_attempts=3, has_retry=True), max_attempts=3)])
    (one,) = (at_once(store) or Flushed(alive=False)).claims
    settle(store, one, completed())
    store.enqueue([a_task(id="two", policy=a_policy(max_attempts=3, has_retry=True), max_attempts=3)])
    store.enqueue([a_task(id="of another kind", name="sub", priority=200)])

    assert at_once(store) is None
    two = claim(store, places=3)[0]

    assert facts_of(one) == facts_of(two)
    settle(store, two, completed())
    assert status_of(store, "two") is TaskStatus.COMPLETED


def test_no_more_is_taken_than_there_is_room_for_and_in_order(store: PostgresStore) -> None:
    store.enqueue([a_task(id="last", priority=50), a_task(id="first", priority=10), a_task(id="second", priority=20)])

    room = a_room(2)
    taken = at_once(store, room)

    assert taken is not None
    assert [one.id for one in taken.claims] == ["first", "second"]
    assert room.is_empty
    assert status_of(store, "last") is TaskStatus.PENDING


def test_only_queues_that_are_served_are_taken_from(store: PostgresStore) -> None:
    store.enqueue([a_task(id="theirs"), a_task(id="ours", queue="mail")])

    taken = at_once(store, a_room(2, queues={"mail", "post"}))

    assert taken is not None
    assert [one.id for one in taken.claims] == ["ours"]


def test_the_next_that_is_due_is_told(store: PostgresStore) -> None:
    store.enqueue([a_task(), a_task(delay_us=HOUR_US)])

    taken = at_once(store)

    assert taken is not None
    assert HOUR_US * 0.9 < (taken.next_due_in_us or 0) <= HOUR_US


def by_hand(store: PostgresStore, statement: LiteralString) -> None:
    with store.database.session() as connection:
        connection.execute(statement)


def two_kinds(store: PostgresStore) -> None:
    store.enqueue([a_task(name="sub")])


def a_limit(store: PostgresStore) -> None:
    with store.database.write() as tx:
        queueing.declare(tx, [QueueSetting(name="default", max_concurrency=1, paused=False)])


def a_paused_queue(store: PostgresStore) -> None:
    store.set_paused("default", is_paused=True, actor="me")


def a_time_limit(store: PostgresStore) -> None:
    store.enqueue([a_task(policy=a_policy(timeout=5.0))])


def an_isolated_task(store: PostgresStore) -> None:
    store.enqueue([a_task(policy=a_policy(isolated=True))])


def an_exclusive_key(store: PostgresStore) -> None:
    store.enqueue([a_task(exclusive_key="db")])


def a_good_until(store: PostgresStore) -> None:
    store.enqueue([a_task(good_until=1 << 60)])


def a_workflow(store: PostgresStore) -> None:
    begin(store, graph(a=""))


def one_that_is_due(store: PostgresStore) -> None:
    store.enqueue([a_task(id="due", delay_us=HOUR_US)])
    by_hand(store, "UPDATE everbeat_tasks SET due_at = 1 WHERE id = 'due'")


def a_worker_that_is_dead(store: PostgresStore) -> None:
    by_hand(store, "UPDATE everbeat_workers SET status = 'dead', ended_at = 1")


SPECIAL = [
    two_kinds, a_limit, a_paused_queue, a_time_limit, an_isolated_task, an_exclusive_key, a_good_until, a_workflow,
    one_that_is_due, a_worker_that_is_dead,
]  # fmt: skip


@pytest.mark.parametrize("make_special", SPECIAL, ids=lambda one: one.__name__)
def test_whatever_is_special_is_left_to_a_whole_flush(
    store: PostgresStore, make_special: Callable[[PostgresStore], None]
) -> None:
    store.enqueue([a_task(id="plain")])
    make_special(store)

    assert at_once(store) is None
    assert status_of(store, "plain") is TaskStatus.PENDING


def test_one_that_was_claimed_before_is_left_to_a_whole_flush(store: PostgresStore) -> None:
    store.enqueue([a_task(id="again", policy=a_policy(max_attempts=3, has_retry=True), max_attempts=3)])
    (first,) = claim(store)
    settle(store, first, retried())

    assert at_once(store) is None
    (second,) = claim(store)
    assert (second.attempt, second.fence) == (2, first.fence + 2)


def test_a_store_that_knows_less_than_it_did_gives_nothing(store: PostgresStore) -> None:
    store.enqueue([a_task(id="plain")])

    assert at_once(store, seen_beat=7) is None
    assert store.flush(Flush(worker_id="w1", room=a_room(1), seen_beat=7)).is_older
    assert status_of(store, "plain") is TaskStatus.PENDING


def test_who_has_something_to_tell_flushes(store: PostgresStore) -> None:
    store.enqueue([a_task(), a_task()])
    (one,) = claim(store)

    assert at_once(store, endings=[Ending(claim=one, verdict=completed())]) is None
    assert at_once(store, Room(frozenset({"add"}), frozenset(), None)) is None
