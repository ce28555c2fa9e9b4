"""Short looks for ready tasks, which no dead rows make longer, and what they may miss for a second (PROTOCOL 27)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.postgres import EmptyDatabase
from tests.words import a_policy, a_room, a_task, completed, register, retried, settle

from everbeat.model.task import Claim
from everbeat.store.messages import Ending, Flush
from everbeat.store.postgres import past, taking
from everbeat.store.postgres.connection import LIMITS
from everbeat.store.postgres.hot import FRESH, FRESH_KINDS, KINDS
from everbeat.store.postgres.past import Look, Past, Seen
from everbeat.store.postgres.statements import page_from
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.verbs import claiming

ADD = ("default", "add")
OLD = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM everbeat_tasks"


class Watch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


# -- when a look is short ---------------------------------------------------------------------------------------------


@pytest.fixture
def slow(watch: Watch) -> Past:
    """After whole looks that took long, the last of which left some tasks of a kind."""
    seen = Past(watch)
    for _ in range(past.SLOW_LOOKS):
        look = seen.look()
        seen.took(look, past.SLOW_US)
    seen.saw(look, Seen(7, {ADD: (100, 3)}))
    watch.now += past.BEFORE_SECONDS
    return seen


def test_looks_are_whole_as_long_as_none_takes_long(watch: Watch) -> None:
    seen = Past(watch)
    for newest in range(5):
        look = seen.look()
        assert look.is_whole
        seen.took(look, past.SLOW_US - 1)
        seen.saw(look, Seen(newest, {}))
        watch.now += past.BEFORE_SECONDS

    assert seen.whole_in_us() is None


def test_one_slow_look_is_no_reason(watch: Watch) -> None:
    seen = Past(watch)
    for walked_us in (past.SLOW_US, past.SLOW_US - 1, past.SLOW_US):
        look = seen.look()
        seen.took(look, walked_us)
        seen.saw(look, Seen(7, {}))
        watch.now += past.BEFORE_SECONDS

    assert seen.look().is_whole


def test_after_slow_ones_only_what_is_new_and_what_was_left_is_looked_for(slow: Past) -> None:
    assert slow.look() == Look(8, {ADD: (100, 3)}, 0)


def test_what_has_got_its_number_just_before_a_look_may_come_after_it(slow: Past, watch: Watch) -> None:
    look = slow.look()
    slow.saw(look, Seen(20, {}))
    watch.now += past.BEFORE_SECONDS / 2

    assert slow.look() == Look(8, {}, 0)
    watch.now += past.BEFORE_SECONDS / 2
    assert slow.look() == Look(21, {}, 0)


def test_who_looks_short_is_to_come_again_and_then_looks_at_everything(slow: Past, watch: Watch) -> None:
    assert slow.whole_in_us() is None
    assert not slow.look().is_whole
    in_us = slow.whole_in_us()
    assert in_us is not None
    assert 0 < in_us <= past.WHOLE_SECONDS * 1_000_000

    watch.now += in_us / 1_000_000

    assert slow.whole_in_us() == 0
    assert slow.look().is_whole


def test_what_is_new_comes_before_a_whole_look_that_is_due(slow: Past, watch: Watch) -> None:
    watch.now += 60

    first = slow.look()
    assert not first.is_whole
    assert slow.whole_in_us() == 0
    slow.saw(first, Seen(9, {}))
    second = slow.look()
    assert second.is_whole
    slow.saw(second, Seen(9, {}))

    assert slow.whole_in_us() is None


def test_once_something_is_ready_again_the_next_look_is_whole(slow: Past) -> None:
    under_way = slow.look()

    slow.forget()

    assert slow.look().is_whole
    slow.saw(under_way, Seen(9, {}))  # it began before
    assert slow.look().is_whole


def test_a_whole_look_that_is_quick_again_ends_it(slow: Past, watch: Watch) -> None:
    look = slow.look(whole=True)
    slow.took(look, past.SLOW_US - 1)
    slow.saw(look, Seen(9, {}))
    watch.now += past.BEFORE_SECONDS

    assert slow.look().is_whole


@pytest.mark.parametrize(
    "seen", [None, Seen(9, {("default", str(number)): (1, 1) for number in range(past.MOST_KINDS + 1)})]
)
def test_what_is_not_to_be_remembered_is_a_whole_look_all_the_same(slow: Past, watch: Watch, seen: Seen | None) -> None:
    slow.look()
    watch.now += 60
    assert slow.whole_in_us() == 0

    slow.saw(slow.look(), seen)

    assert slow.whole_in_us() is None  # nobody comes again and again for another one
    assert slow.look() == Look(8, {ADD: (100, 3)}, 0)


# -- what they find ---------------------------------------------------------------------------------------------------


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    return a_database.url()


@pytest.fixture
def store(url: str, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    """Every whole look takes it for slow, and each is long after the one before."""
    monkeypatch.setattr(past, "SLOW_US", -1)
    monkeypatch.setattr(past, "SLOW_LOOKS", 1)
    monkeypatch.setattr(past, "BEFORE_SECONDS", 0.0)
    store = PostgresStore(url, patience=5.0)
    store.database.past._clock = watch
    register(store, "w1")
    yield store
    store.close()


FlushOf = Callable[..., list[str]]


@pytest.fixture(params=["in one round trip", "as a whole flush"])
def taken(request: pytest.FixtureRequest, store: PostgresStore) -> FlushOf:
    """What a look takes with so many places. What it took is ended with the next."""
    held: list[Claim] = []

    def taken(places: int = 9) -> list[str]:
        store._wholes = 0 if request.param == "in one round trip" else 100
        store.database.past._slow |= store._wholes > 0  # which it does not measure
        endings = [Ending(claim=one, verdict=completed()) for one in held]
        room = replace(a_room(places), async_names=frozenset())
        held[:] = store.flush(Flush(worker_id="w1", endings=endings, room=room)).claims
        return [claim.id for claim in held]

    return taken


def send(store: PostgresStore, *ids: str, **facts: Any) -> None:
    for task_id in ids:
        store.enqueue([a_task(id=task_id, is_new=True, **facts)])


def is_short(store: PostgresStore) -> bool:
    return store.database.past.whole_in_us() is not None


def test_what_is_new_is_taken_in_the_order_of_claims(store: PostgresStore, taken: FlushOf) -> None:
    send(store, "a1", "a2", "a3")
    assert taken(1) == ["a1"]
    send(store, "s1", name="sub", priority=300)
    send(store, "urgent", priority=1)
    send(store, "a4")

    assert [taken(1), taken(2), taken(9), taken(9)] == [["urgent"], ["a2", "a3"], ["a4", "s1"], []]
    assert is_short(store)


def test_what_there_was_no_room_for_is_taken_later(store: PostgresStore, taken: FlushOf) -> None:
    send(store, "a1", "a2")
    send(store, "s1", "s2", name="sub")

    assert [taken(1) for _ in range(5)] == [["a1"], ["a2"], ["s1"], ["s2"], []]
    assert is_short(store)


def test_a_commit_that_comes_late_is_found_by_the_next_whole_look(
    store: PostgresStore, taken: FlushOf, watch: Watch, url: str
) -> None:
    send(store, "before")
    assert taken() == ["before"]
    with psycopg.connect(url) as user:
        user.execute("INSERT INTO everbeat_tasks (id, name, queue, priority, created_at, run_at, args)"
                     " VALUES ('late', 'add', 'default', 100, 1, 1, '[1,2]')")  # fmt: skip
        send(store, "after")
        assert taken() == ["after"]
        assert taken() == []
    assert taken() == []
    assert is_short(store)

    watch.now += 1.0

    assert taken() + taken() == ["late"]


@pytest.mark.parametrize("by", ["this process", "another"])
def test_what_becomes_ready_again_is_found_at_once(store: PostgresStore, taken: FlushOf, url: str, by: str) -> None:
    bell = store.listen("w1")
    send(store, "again", policy=a_policy(max_attempts=3, has_retry=True), max_attempts=3)
    (again,) = store.flush(Flush(worker_id="w1", room=a_room(1))).claims
    send(store, "other")
    assert taken() == ["other"]
    assert taken() == []
    before = store.database.past._epoch
    other = store if by == "this process" else PostgresStore(url, patience=5.0)

    settle(other, again, retried())

    for _ in range(10):  # it also rings for what was sent
        if store.database.past._epoch == before:
            bell.wait(1)
    assert taken() == ["again"]
    bell.close()
    if other is not store:
        other.close()


def test_what_is_due_is_found_at_once(store: PostgresStore, taken: FlushOf, url: str) -> None:
    send(store, "due", delay_us=3_600_000_000)
    send(store, "now")
    assert taken() == ["now"]
    assert taken() == []
    with psycopg.connect(url) as user:
        user.execute("UPDATE everbeat_tasks SET due_at = 1 WHERE id = 'due'")

    assert taken() == ["due"]


def test_who_has_no_room_settles_at_once_and_has_looked_at_nothing(
    store: PostgresStore, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, "a1", "a2", "a3")
    rooms = [replace(a_room(places), async_names=frozenset()) for places in (1, 1, 0)]
    held = [store.flush(Flush(worker_id="w1", room=room)).claims[0] for room in rooms[:2]]
    assert is_short(store)
    monkeypatch.setattr(past, "SLOW_US", 1 << 60)  # a look for nothing is quick
    watch.now += 60  # and a whole look is due

    no_room = Flush(worker_id="w1", endings=[Ending(claim=held[0], verdict=completed())], room=rooms[2])
    turned = taking.at_once(store.database, store.bells, no_room)

    assert turned is not None
    assert turned.left is None
    assert store.database.past.whole_in_us() == 0  # still
    assert store.database.past._slow > 0


# -- what they read ---------------------------------------------------------------------------------------------------


def test_dead_rows_that_an_old_transaction_keeps_make_no_short_look_longer(store: PostgresStore, url: str) -> None:
    names = ["add", "sub"]
    place = 0
    costs: list[tuple[int, int, int]] = []
    with psycopg.connect(url) as forgotten, psycopg.connect(url, autocommit=True) as looker:
        forgotten.execute(OLD)
        for name, value in LIMITS.items():
            looker.execute("SELECT set_config(%s, %s, false)", (name, value))
        for _ in range(2):
            store.enqueue([a_task() for _ in range(2_000)])
            for _ in range(20):
                claims = store.flush(Flush(worker_id="w1", room=a_room(100))).claims
                place = claims[-1].seq
            whole = blocks(looker, KINDS, [names])
            short = blocks(looker, FRESH_KINDS.format(fresh=FRESH), [place, names])
            onward = blocks(looker, page_from(claiming.READY), ["default", "add", 100, place, 10])
            costs.append((whole, short, onward))

    (few, few_short, few_onward), (many, many_short, many_onward) = costs
    assert many > few + 40
    assert many_short <= few_short + 5
    assert many_onward <= few_onward + 5


def blocks(connection: psycopg.Connection, sql: str, values: list[Any]) -> int:
    """That are looked at while it is run."""
    (found,) = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}".encode(), values).fetchone() or ([],)
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
