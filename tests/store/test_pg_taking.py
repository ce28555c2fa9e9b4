"""What a worker settles and takes in one round trip, and what it leaves to a whole flush."""

import select
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from tests.flow_words import begin, graph
from tests.postgres import EmptyDatabase
from tests.store.test_pg_round_trips import round_trips
from tests.store_pg.test_limits import WAITING
from tests.words import a_policy, a_room, a_task, claim, completed, register, retried, settle, status_of

from everbeat.decide.pace import Pace
from everbeat.decide.room import Room
from everbeat.model.event import Event
from everbeat.model.recovery import Settled, Superseded
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, NewTask
from everbeat.model.worker import QueueSetting
from everbeat.run.slot import Slots, SlotState, Staffing
from everbeat.store.messages import Ending, Flush, Flushed
from everbeat.store.postgres import taking
from everbeat.store.postgres.store import WHOLES, PostgresStore
from everbeat.store.postgres.taking import Turned
from everbeat.store.verbs import queueing

HOUR_US = 3_600_000_000


@pytest.fixture
def store(a_database: EmptyDatabase) -> Iterator[PostgresStore]:
    """With the database's own clock."""
    store = PostgresStore(a_database.url(), patience=5.0)
    register(store, "w1")
    yield store
    store.close()


def turn(store: PostgresStore, *ended: Claim, room: Room | None = None, **facts: Any) -> Turned | None:
    said: dict[str, Any] = {
        "endings": [Ending(claim=one, verdict=completed()) for one in ended],
        "room": room or a_room(3),
    } | facts
    return taking.at_once(store.database, store.bells, Flush(worker_id="w1", **said))


def at_once(store: PostgresStore, room: Room | None = None, **facts: Any) -> Flushed | None:
    """None: it takes a whole flush."""
    turned = turn(store, room=room, **facts)
    return None if turned is None or turned.left is not None else turned.flushed


def flush(store: PostgresStore, *ended: Claim, places: int = 3) -> Flushed:
    endings = [Ending(claim=one, verdict=completed()) for one in ended]
    return store.flush(Flush(worker_id="w1", endings=endings, room=a_room(places), seen_beat=0))


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


def test_nothing_that_was_taken_is_lost_if_it_turns_out_slow_meanwhile(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher hears its processes while a scribe takes."""
    store.enqueue([a_task(id=f"task-{number}") for number in range(4)])
    names = frozenset({a_task().kind.name})
    staffing = Staffing(
        processes=1, async_slots=0, sync_names=names, async_names=frozenset(), queues=None, frame_depth=64
    )
    slots = Slots(staffing)
    slots[1].state = SlotState.READY
    pace = Pace()
    pace.saw(*names, 1_000)
    room = slots.room(pace.depths, now=0)
    monkeypatch.setattr(taking, "crash_point", lambda _: pace.saw(*names, 1e6))

    taken = at_once(store, room)

    assert taken is not None
    running = [f"task-{number}" for number in range(4) if status_of(store, f"task-{number}") is TaskStatus.RUNNING]
    assert [one.id for one in taken.claims] == running
    assert len(running) == 4


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


@pytest.mark.parametrize("beside", [[], [a_task(id="plain")]], ids=["nothing else", "a plain task"])
def test_a_task_that_needs_its_own_process_is_claimed_although_no_place_of_its_kind_is_free(
    store: PostgresStore, beside: list[NewTask]
) -> None:
    store.enqueue([a_task(id="own", name="later", policy=a_policy(isolated=True)), *beside])

    flushed = store.flush(Flush(worker_id="w1", room=a_room(1, own=1)))

    assert {one.id for one in flushed.claims} == {"own", *(one.id for one in beside)}


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


def test_results_are_settled_and_tasks_claimed_in_one_round_trip(store: PostgresStore, tmp_path: Path) -> None:
    store.enqueue([a_task(id="one"), a_task(id="two")])
    held = flush(store).claims
    store.enqueue([a_task(id="three")])

    found: list[Flushed] = []
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(flush(store, *held)))

    assert taken == 1
    assert (found[0].settlements, [one.id for one in found[0].claims]) == ([Settled("one"), Settled("two")], ["three"])
    assert [status_of(store, one) for one in ("one", "three")] == [TaskStatus.COMPLETED, TaskStatus.RUNNING]
    assert (store.finished("one") or pytest.fail("it has not ended")).result == completed().result


def test_results_are_settled_in_one_round_trip_without_room(store: PostgresStore, tmp_path: Path) -> None:
    store.enqueue([a_task(id="one"), a_task(id="two"), a_task(id="three")])
    held = flush(store, places=2).claims

    taken = round_trips(store, tmp_path / "trace", lambda: flush(store, *held, places=0))

    assert taken == 1
    assert [status_of(store, one) for one in ("one", "two")] == [TaskStatus.COMPLETED] * 2
    assert status_of(store, "three") is TaskStatus.PENDING


def test_whoever_waits_is_told_what_was_settled_at_once(store: PostgresStore) -> None:
    """The first with the commit, the second when it is time again."""
    store.enqueue([a_task(id="one"), a_task(id="two")])
    held = {one.id: one for one in flush(store).claims}
    for task_id in ("one", "two"):
        bell = store.bells.for_waiter(task_id)
        flush(store, held[task_id])
        assert select.select([bell], [], [], 5)[0]
        bell.close()


def with_one_held(store: PostgresStore) -> Claim:
    store.enqueue([a_task(id="held")])
    (held,) = flush(store).claims
    store.enqueue([a_task(id="plain")])
    return held


@pytest.mark.parametrize(
    "make_special", [two_kinds, a_limit, a_paused_queue, one_that_is_due, a_worker_that_is_dead],
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_beside_what_is_special_nothing_is_settled_at_once(
    store: PostgresStore, make_special: Callable[[PostgresStore], None]
) -> None:
    held = with_one_held(store)
    make_special(store)

    turned = turn(store, held)

    assert turned is not None
    assert turned.left is not None
    assert len(turned.left.endings) == 1
    assert (status_of(store, "held"), status_of(store, "plain")) == (TaskStatus.RUNNING, TaskStatus.PENDING)
    assert flush(store, held).settlements == [Settled("held")]
    assert status_of(store, "held") is TaskStatus.COMPLETED


@pytest.mark.parametrize(
    "make_special", [a_time_limit, an_isolated_task, an_exclusive_key, a_good_until, a_workflow],
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_beside_a_task_that_is_special_results_are_stored_and_the_rest_is_flushed(
    store: PostgresStore, make_special: Callable[[PostgresStore], None]
) -> None:
    held = with_one_held(store)
    make_special(store)

    flushed = flush(store, held)

    assert flushed.settlements == [Settled("held")]
    assert "plain" in [one.id for one in flushed.claims]
    assert status_of(store, "held") is TaskStatus.COMPLETED


def test_after_one_in_vain_it_is_not_tried_for_a_while(store: PostgresStore, tmp_path: Path) -> None:
    two_kinds(store)
    store.enqueue([a_task()])
    flush(store, places=0)
    flush(store)

    assert round_trips(store, tmp_path / "trace", lambda: flush(store)) > 1
    for _ in range(WHOLES):
        flush(store)
    assert round_trips(store, tmp_path / "trace", lambda: flush(store)) == 1


def test_a_look_for_special_tasks_that_finds_none_was_not_in_vain(store: PostgresStore, tmp_path: Path) -> None:
    """All async places are taken, and a process could still be started for a task that needs one of its own."""
    store.enqueue([a_task(id="plain", name="later")])
    assert store.flush(Flush(worker_id="w1", room=a_room(1, own=1))).claims == []

    found: list[Flushed] = []
    wanted = Flush(worker_id="w1", room=replace(a_room(1, own=1), async_free=1))
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(store.flush(wanted)))

    assert (taken, [one.id for one in found[0].claims]) == (1, ["plain"])


def test_a_result_of_who_was_superseded_is_not_stored_at_once(store: PostgresStore) -> None:
    store.enqueue([a_task(id="mine"), a_task(id="theirs")])
    mine, theirs = flush(store).claims
    by_hand(store, "UPDATE everbeat_tasks SET fence = fence + 2, worker_id = 'w2' WHERE id = 'theirs'")
    store.enqueue([a_task(id="next")])

    turned = turn(store, mine, theirs)

    assert turned is not None
    assert turned.left is not None
    assert [one.claim for one in turned.left.endings] == [theirs]
    assert (turned.flushed.claims, status_of(store, "next")) == ([], TaskStatus.PENDING)
    assert (status_of(store, "mine"), status_of(store, "theirs")) == (TaskStatus.COMPLETED, TaskStatus.RUNNING)


@pytest.mark.parametrize(
    "moved",
    ["fence = fence + 1", "worker_id = 'w2'", "status = 'FAILED', finished_at = 1"],
    ids=["fence", "worker", "status"],
)
def test_of_several_results_one_was_superseded_and_each_is_told(store: PostgresStore, moved: LiteralString) -> None:
    store.enqueue([a_task(id="mine"), a_task(id="theirs")])
    mine, theirs = flush(store).claims
    by_hand(store, f"UPDATE everbeat_tasks SET {moved} WHERE id = 'theirs'")
    store.enqueue([a_task(id="next")])

    flushed = flush(store, theirs, mine)

    assert [type(one) for one in flushed.settlements] == [Superseded, Settled]
    assert [one.id for one in flushed.claims] == ["next"]
    assert store.finished("mine") is not None
    assert status_of(store, "theirs") is not TaskStatus.COMPLETED


def test_who_waits_for_a_task_that_ends_holds_none_that_is_ready(store: PostgresStore) -> None:
    """Who cancels or requeues many locks them in one order, the first of which may be the one that ends."""
    held = with_one_held(store)
    with (
        psycopg.connect(store.database._url) as person,
        psycopg.connect(store.database._url, autocommit=True) as watch,
        ThreadPoolExecutor(1) as thread,
    ):
        person.execute("SELECT 1 FROM everbeat_tasks WHERE id = 'held' FOR UPDATE")
        flushing = thread.submit(flush, store, held)
        while not watch.execute(WAITING).fetchall():
            assert not flushing.done()
        free = person.execute("SELECT id FROM everbeat_tasks WHERE id = 'plain' FOR UPDATE SKIP LOCKED").fetchall()
        person.execute("UPDATE everbeat_tasks SET cancel_requested_at = 1 WHERE id = 'held'")
        person.commit()
        flushed = flushing.result()

    assert (free, flushed.settlements) == ([("plain",)], [Settled("held")])
    assert status_of(store, "held") is TaskStatus.COMPLETED


def test_what_another_has_its_hand_on_is_neither_taken_nor_waited_for(store: PostgresStore) -> None:
    store.enqueue([a_task(id=name) for name in ("first", "second", "third")])
    with (
        psycopg.connect(store.database._url) as other,
        psycopg.connect(store.database._url, autocommit=True) as watch,
        ThreadPoolExecutor(1) as thread,
    ):
        other.execute("UPDATE everbeat_tasks SET status = 'RUNNING', fence = 1, attempt = 1 WHERE id = 'first'")
        taking = thread.submit(flush, store, places=2)
        while not (is_held_up := bool(watch.execute(WAITING).fetchall())) and not taking.done():
            continue
        other.commit()

        assert not is_held_up
        assert [one.id for one in taking.result().claims] == ["second", "third"]


def test_what_is_not_a_plain_result_flushes(store: PostgresStore) -> None:
    store.enqueue([a_task(), a_task()])
    (one,) = claim(store)

    assert turn(store, endings=[Ending(claim=one, verdict=retried())]) is None
    assert turn(store, events=[Event(name="x")]) is None
    assert turn(store, replace(one, worker_id="w0")) is None
    assert turn(store, replace(one, workflow_id="flow")) is None
    assert turn(store, replace(one, exclusive_key="db")) is None
    assert turn(store, room=Room(frozenset({"add"}), frozenset(), None)) is None
