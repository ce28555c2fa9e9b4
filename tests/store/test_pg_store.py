"""The store on PostgreSQL where it differs from the one in a file: several writers, forks, sessions."""

import asyncio
import gc
import multiprocessing
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgres import EmptyDatabase
from tests.words import a_task, a_worker, claim, claim_one, completed, enqueue, interrupted_after, register, settle

from everbeat import Everbeat, PostgresConfig
from everbeat.cli import events
from everbeat.errors import TaskConflict
from everbeat.model.event import Event
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, Enqueued, NewTask
from everbeat.model.worker import QueueSetting
from everbeat.store.lots import MOST_LOCKED
from everbeat.store.messages import TaskFilter
from everbeat.store.postgres import bells
from everbeat.store.postgres.connection import MOST_CONNECTIONS
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.postgres.transaction import Connection
from everbeat.store.sql.group import _Order
from everbeat.store.transaction import Locked

CLAIMERS = 8
WAITS_FOR_A_LOCK = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    return a_database.url()


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[[], PostgresStore]]:
    """With the database's own clock."""
    opened: list[PostgresStore] = []

    def open_one() -> PostgresStore:
        opened.append(PostgresStore(url, patience=5.0))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], PostgresStore]) -> PostgresStore:
    return open_store()


def test_who_sends_the_key_of_an_open_transaction_holds_up_nobody_else(store: PostgresStore, url: str) -> None:
    enqueue(store)
    with psycopg.connect(url) as users, ThreadPoolExecutor(8) as senders:
        store.enqueue_on(users, [a_task(id="first", unique_key="daily")])
        waiting = [senders.submit(store.enqueue, [a_task(id=f"w{n}", unique_key="daily")]) for n in range(4)]
        began = time.monotonic()
        for number in range(20):
            enqueue(store, id=f"plain-{number}")
        took = time.monotonic() - began
        another = senders.submit(store.enqueue, [a_task(id="another", unique_key="weekly")])

        assert another.result(30) == [Enqueued(id="another", created=True)]
        assert {type(one.exception(30)) for one in waiting} == {Locked}
        assert took < 1.5  # nobody gets a lock that is held before two seconds are over
        users.rollback()
    assert [store.get("first"), store.get("w0")] == [None, None]


def test_groups_that_want_what_the_other_has_are_stored_all_the_same(store: PostgresStore, url: str) -> None:
    """None of their senders, which have one key each, can know of the others'."""
    enqueue(store)
    groups = [[_keyed(f"1-{key}", key) for key in ("b", "held", "a")], [_keyed(f"2-{key}", key) for key in "ab"]]
    with psycopg.connect(url) as users, ThreadPoolExecutor(2) as leaders:
        store.enqueue_on(users, [a_task(id="held", unique_key="held")])
        ends = []
        for count, (leader, *followers) in enumerate(groups, start=1):
            store._keyed._waiting = followers
            ends.append(leaders.submit(store._keyed._lead, leader))
            _await_locks(store, count)
        users.rollback()
        for end in ends:
            end.result(30)

    assert [order.error for group in groups for order in group] == [None] * 5
    assert len(store.tasks(TaskFilter())) == 4


def test_two_who_send_the_same_keys_in_opposite_orders_are_both_answered(store: PostgresStore, url: str) -> None:
    """Each has one key that the other one wants, once a third lets go of what both wait for."""
    enqueue(store)
    with psycopg.connect(url) as users, ThreadPoolExecutor(2) as senders:
        store.enqueue_on(users, [a_task(id="held", unique_key="held")])
        sent = []
        for count, keys in enumerate((("a", "held", "b"), ("b", "held", "a")), start=1):
            sent.append(senders.submit(store.enqueue, [a_task(id=f"{count}-{key}", unique_key=key) for key in keys]))
            _await_locks(store, count)
        users.rollback()
        first, second = (one.result(30) for one in sent)

    assert [one.created for one in first] == [not one.created for one in second] in ([True] * 3, [False] * 3)
    assert {one.id for one in first} == {one.id for one in second}


def test_a_key_that_is_held_is_tried_once_for_all_who_send_it(store: PostgresStore, url: str) -> None:
    asked = [*(("held", f"h{number}") for number in range(30)), ("free", "f")]

    assert _tries_beside(store, url, ["held"], asked) == (2, {"f"})


def test_and_not_many_keys_that_are_held_are_tried(store: PostgresStore, url: str) -> None:
    held = [f"held {number}" for number in range(MOST_LOCKED + 5)]

    assert _tries_beside(store, url, held, [(key, f"to {key}") for key in held]) == (MOST_LOCKED, set())


def _tries_beside(
    store: PostgresStore, url: str, held: list[str], asked: list[tuple[str, str]]
) -> tuple[int, set[str]]:
    """How often a group that sends these keys and ids tries one of them alone, and which ids it stores, while somebody
    else holds some of the keys."""
    group = [_keyed(task_id, key) for key, task_id in asked]
    tried: list[object] = []
    surely = store._keyed._surely

    def count(orders: Sequence[Sequence[NewTask]], *, hurries: bool) -> list[Sequence[Enqueued] | None]:
        tried.append(orders)
        return surely(orders, hurries=hurries)

    store._keyed._in_a_hurry = [partial(count, hurries=True)]
    store._keyed._waiting = group[1:]
    with psycopg.connect(url) as users:
        store.enqueue_on(users, [a_task(id=f"of {key}", unique_key=key) for key in held])
        store._keyed._lead(group[0])
        users.rollback()
    stored = [order for order in group if order.result]
    assert {type(order.error) for order in group if order not in stored} == {Locked}
    return len(tried), {order.tasks[0].id for order in stored}


def _keyed(task_id: str, key: str) -> _Order:
    return _Order([a_task(id=task_id, unique_key=key)])


def _await_locks(store: PostgresStore, count: int) -> None:
    """Until so many sessions wait for one."""
    with store.database.session() as connection:
        while len(connection.execute(WAITS_FOR_A_LOCK).fetchall()) < count:
            select.select([], [], [], 0.01)


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "deed",
    [enqueue, PostgresStore.now, lambda store: store.take_role("r", "w", lease_us=1)],
    ids=["send", "look", "write"],
)
def test_an_interrupt_after_any_call_takes_no_connection_with_it(
    store: PostgresStore, deed: Callable[[PostgresStore], object]
) -> None:
    others = idle_sessions(store)  # an earlier test may have left one that listens
    calls = 1
    while interrupted_after(calls, lambda: deed(store)):
        calls += 1
        assert store.database._places.qsize() == MOST_CONNECTIONS

    assert calls > 30
    assert idle_sessions(store) <= others + 1


def idle_sessions(store: PostgresStore) -> int:
    with store.database.session() as connection:
        ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
        (count,) = connection.execute(ours).fetchone() or (0,)
        return int(count)


def test_a_store_that_is_closed_while_a_connection_comes_back_keeps_none_open(store: PostgresStore) -> None:
    class ClosedMeanwhile(list[Connection]):
        def append(self, connection: Connection) -> None:
            store.close()
            super().append(connection)

    store.database._idle = ClosedMeanwhile()
    with store.database.session() as connection:
        pass

    assert connection.closed


def test_an_interrupt_after_any_call_keeps_nobody_from_telling_workers(store: PostgresStore) -> None:
    ringer, calls = bells.Ringer(store.database, "a channel"), 1
    with ThreadPoolExecutor(1) as another:
        while interrupted_after(calls, lambda: ringer.ring([bells.TO_ALL], 0.01)):
            calls += 1
            another.submit(ringer.ring, [bells.TO_ALL], 0.01).result(10)
            give_up = time.monotonic() + 10
            while ringer._words and time.monotonic() < give_up:
                select.select([], [], [], 0.001)
            assert not ringer._words

    assert calls > 10


def test_an_interrupt_while_a_bell_is_being_hung_leaves_none_behind(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        assert board._bells
        raise KeyboardInterrupt

    enqueue(store, id="a")
    gc.collect()  # what earlier tests have left is not closed meanwhile
    board, files = store.bells._board, os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(board, "_run", lambda: None)
        patch.setattr(board._listens, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.wait("a", 30)

    assert (board._bells, board._by_word, len(os.listdir("/proc/self/fd"))) == (set(), {}, len(files))


# -- sending ----------------------------------------------------------------------------------------------------------


def test_one_task_is_sent_in_one_statement_and_is_like_any_other(store: PostgresStore) -> None:
    (stored,) = store.enqueue([a_task(id="a", queue="mail", priority=7, delay_us=60_000_000)])

    info = store.get("a")

    assert stored == Enqueued(id="a", created=True)
    assert info is not None
    assert (info.queue, info.priority, info.status) == ("mail", 7, TaskStatus.PENDING)
    assert (info.run_at - info.created_at).total_seconds() == 60
    assert store.enqueue([a_task(id="a", queue="mail", priority=7)]) == [Enqueued(id="a", created=False)]


def test_whoever_sends_one_task_is_told_that_it_was_stored_however_it_is_sent(url: str) -> None:
    app = Everbeat(PostgresConfig(url))

    @app.task
    def add(a: int) -> int: ...

    once = add.options(unique_key="invoice 17")
    with app:
        stored = [asyncio.run(add.aenqueue(1)), asyncio.run(once.aenqueue(2)), *add.enqueue_many([(3,)])]
        stored += add.enqueue_many([(4,), (5,)], batch_size=1)
        again = asyncio.run(once.aenqueue(6))

    assert [handle.created for handle in stored] == [True] * 5
    assert (again.id, again.created) == (stored[1].id, False)


def test_a_unique_key_holds_for_tasks_that_are_sent_one_by_one(store: PostgresStore) -> None:
    first = store.enqueue([a_task(id="a", unique_key="invoice 17")])
    second = store.enqueue([a_task(id="b", unique_key="invoice 17")])

    assert (first, second) == ([Enqueued(id="a", created=True)], [Enqueued(id="a", created=False)])


def test_many_that_send_one_unique_key_at_once_send_one_task(open_store: Callable[[], PostgresStore]) -> None:
    stores = [open_store() for _ in range(CLAIMERS)]

    def send(number: int) -> list[str]:
        store = stores[number]
        return [store.enqueue([a_task(unique_key=f"key {key}")])[0].id for key in range(20)]

    with ThreadPoolExecutor(CLAIMERS) as pool:
        found = list(pool.map(send, range(CLAIMERS)))

    assert all(ids == found[0] for ids in found)
    assert len(stores[0].tasks(TaskFilter(limit=1000))) == 20


# -- several writers --------------------------------------------------------------------------------------------------


def at_once(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLAIMERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_eight_claimers_take_each_task_once(open_store: Callable[[], PostgresStore]) -> None:
    stores = [open_store() for _ in range(CLAIMERS)]
    stores[0].enqueue([a_task() for _ in range(400)])
    taken: list[str] = []

    def work(number: int) -> None:
        while claims := claim(stores[number], f"w{number}", 7):
            taken.extend(one.id for one in claims)
            for one in claims:
                settle(stores[number], one, completed())

    for number, store in enumerate(stores):
        register(store, f"w{number}")
    at_once(work)

    assert len(taken) == len(set(taken)) == 400


def test_eight_claimers_stay_below_the_limit_of_a_queue(open_store: Callable[[], PostgresStore]) -> None:
    stores = [open_store() for _ in range(CLAIMERS)]
    stores[0].enqueue([a_task(queue="narrow") for _ in range(120)])
    for number, store in enumerate(stores):
        setting = QueueSetting(name="narrow", max_concurrency=5, paused=False)
        store.register(a_worker(f"w{number}", settings=(setting,)))
    watching, most = threading.Lock(), 0
    owned: set[str] = set()

    def work(number: int) -> None:
        nonlocal most
        while len(done) < 120:
            claims = claim(stores[number], f"w{number}", 4)
            with watching:
                owned.update(one.id for one in claims)
                most = max(most, len(owned))
            for one in claims:
                with watching:
                    owned.discard(one.id)
                settle(stores[number], one, completed())
                done.append(one.id)

    done: list[str] = []
    at_once(work)

    assert len(done) == len(set(done)) == 120
    assert 0 < most <= 5


def test_eight_claimers_never_own_two_tasks_of_one_exclusive_key(open_store: Callable[[], PostgresStore]) -> None:
    stores = [open_store() for _ in range(CLAIMERS)]
    keys = [f"key {number % 4}" for number in range(80)]
    for key in keys:
        enqueue(stores[0], exclusive_key=key)
    for number, store in enumerate(stores):
        register(store, f"w{number}")
    watching = threading.Lock()
    owned: list[str | None] = []
    overlaps: list[Claim] = []
    done: list[str] = []

    def work(number: int) -> None:
        while len(done) < len(keys):
            for one in claim(stores[number], f"w{number}", 2):
                with watching:
                    if one.exclusive_key in owned:
                        overlaps.append(one)
                    owned.append(one.exclusive_key)
                with watching:
                    owned.remove(one.exclusive_key)
                settle(stores[number], one, completed())
                done.append(one.id)

    at_once(work)

    assert overlaps == []
    assert len(set(done)) == len(keys)


# -- sessions ---------------------------------------------------------------------------------------------------------


def in_a_child(work: Callable[[], None]) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(30)
    return child.exitcode


def test_a_store_made_before_a_fork_works_after_it_on_both_sides(store: PostgresStore) -> None:
    enqueue(store, id="before")

    def in_child() -> None:
        enqueue(store, id="in the child")

    code = in_a_child(in_child)
    enqueue(store, id="after")

    assert code == 0
    assert {info.id for info in store.tasks(TaskFilter(limit=10))} == {"before", "in the child", "after"}


def test_sessions_that_the_server_has_ended_are_replaced_before_anybody_meets_them(
    store: PostgresStore, url: str
) -> None:
    enqueue(store, id="a")
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND application_name LIKE 'everbeat%'"
        )
        others = (  # not the server's own, that clean up after other tests
            "SELECT application_name, state, query FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        give_up = time.monotonic() + 30
        while left := other.execute(others).fetchall():
            assert time.monotonic() < give_up, left

    assert enqueue(store, id="b") == "b"


def test_two_spellings_of_one_url_are_one_store(store: PostgresStore, url: str) -> None:
    other = PostgresStore(f"{url}?connect_timeout=7")

    assert (other.store_id, other.database.scope) == (store.store_id, store.database.scope)
    other.close()


def test_of_several_hosts_the_one_that_answers_is_the_store(store: PostgresStore, url: str) -> None:
    host = urlsplit(url).netloc.rpartition("@")[2]
    several = PostgresConfig(url.replace(host, f"127.0.0.1:1,{host}"))

    with closing(PostgresStore(several.url)) as other:
        assert other.store_id == store.store_id


def test_a_schema_of_its_own_is_a_store_of_its_own(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url, schema="jobs")
    enqueue(other, id="a")

    assert store.get("a") is None
    assert other.store_id != store.store_id
    assert (store.location, other.location) == (url, f"{url}, schema jobs")
    assert PostgresConfig(url, schema="jobs").location == other.location
    other.close()


def test_a_schema_with_capitals_is_a_schema_like_any_other(url: str) -> None:
    with closing(PostgresStore(url, schema="Jobs_1")) as store:
        enqueue(store, id="a")

        assert store.check_integrity(budget=10).passed
        assert store.get("a") is not None


def test_a_schema_that_somebody_else_makes_at_the_same_moment_is_used(url: str) -> None:
    opened: list[PostgresStore] = []
    second = threading.Thread(target=lambda: opened.append(PostgresStore(url, schema="at_once")))
    with psycopg.connect(url) as first, psycopg.connect(url, autocommit=True) as looker:
        first.execute("CREATE SCHEMA at_once")
        second.start()
        while not looker.execute(WAITS_FOR_A_LOCK).fetchall():
            assert second.is_alive()
    second.join(30)

    (store,) = opened
    assert store.get("a") is None
    store.close()


def test_stores_in_one_database_share_no_locks_and_no_bells(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url, schema="jobs")
    bell = other.bells.for_waiter("a")

    with store.database.write() as ours, other.database.write() as theirs:
        ours.lock("turn of a key")
        was_free = theirs.try_lock("turn of a key")
    store.bells.ring_waiters(["a"])
    heard, _, _ = select.select([bell], [], [], 0.3)

    assert (was_free, heard) == (True, [])
    bell.close()
    other.close()


def test_bells_are_hung_up_and_taken_down_while_they_ring(open_store: Callable[[], PostgresStore]) -> None:
    """Each end rings a bell that is taken down at that very moment; an exception in the listening thread fails the
    test."""
    waiting, sending = open_store(), open_store()
    stop = threading.Event()

    def ring() -> None:
        while not stop.is_set():
            sending.bells.ring_waiters(["a"])

    ringer = threading.Thread(target=ring)
    ringer.start()
    for _ in range(300):
        bell = waiting.bells.for_waiter("a")
        bell.wait(0.002)
        bell.close()
    stop.set()
    ringer.join()

    assert waiting.bells.for_waiter("a").clear() is False


def test_a_worker_hears_of_each_task_however_soon_it_follows_the_last(open_store: Callable[[], PostgresStore]) -> None:
    sender, listener = open_store(), open_store()
    bell = listener.listen("w")
    heard = select.poll()
    heard.register(bell.fileno(), select.POLLIN)
    for number in range(4):
        enqueue(sender, id=f"t{number}")

        assert heard.poll(10_000), f"task {number} was not heard of"
        bell.clear()
    bell.close()


def test_a_worker_hears_of_a_task_at_once_if_its_sender_waits_for_it(
    open_store: Callable[[], PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon it follows the last one: nobody gathers words while somebody waits."""
    sender, listener = open_store(), open_store()
    bell = listener.listen("w")
    monkeypatch.setattr(bells, "PAUSE", 3600.0)
    sender.bells.ring_workers({("default", "other")})
    bell.wait(10)

    enqueue(sender, id="a")
    was_gathered = not select.select([bell], [], [], 0.1)[0]
    waiting = sender.bells.for_waiter("a")
    heard = bool(select.select([bell], [], [], 10)[0])

    assert (was_gathered, heard) == (True, True)
    waiting.close()
    bell.close()


def test_a_queue_whose_name_fits_into_no_message_rings_every_worker(open_store: Callable[[], PostgresStore]) -> None:
    sender, listener = open_store(), open_store()
    bell = listener.listen("w")

    sender.bells.ring_workers({("default", "first"), ("q" * 10_000, "second"), ("default", "third")})
    heard = bool(select.select([bell], [], [], 10)[0])

    assert heard
    bell.close()


def test_the_end_of_few_tasks_is_told_at_once_and_that_of_many_is_gathered(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "PAUSE", 3600.0)
    monkeypatch.setattr(bells, "SHORT_PAUSE", 0.0)
    few, many = ([str(number) for number in range(count)] for count in (bells.FEW, bells.FEW + 1))
    first = store.bells.words_for_waiters(few)

    assert [bool(said) for said in (first, store.bells.words_for_waiters(few))] == [True, True]
    assert store.bells.words_for_waiters(many) == []


def test_who_asks_for_what_has_ended_listens_to_nobody(store: PostgresStore) -> None:
    register(store, "w1")
    enqueue(store, id="a")
    settle(store, claim_one(store), completed())

    assert store.wait("a", 10) is not None
    assert not store.bells.are_light


def test_who_waits_often_looks_once_before_it_sleeps(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue(store, id="a")
    store.wait("a", 0.01)  # from now on it listens
    looks: list[str] = []
    finished = store.finished
    monkeypatch.setattr(store, "finished", lambda task_id: looks.append(task_id) or finished(task_id))

    store.wait("a", 0.01)

    assert looks == ["a", "a"]  # and once after it


def test_who_follows_events_is_told_of_one_that_is_committed_behind_later_ones(store: PostgresStore, url: str) -> None:
    following = events._follow(store, datetime.now(UTC) - timedelta(minutes=1), None)
    with psycopg.connect(url) as slow:
        slow.execute(
            "INSERT INTO everbeat_events (at, name, facts) "
            "VALUES ((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 'slow', '{}')"
        )
        store.announce([Event(name="quick")])
        first = next(following)
    second = next(following)

    assert (first.name, second.name) == ("quick", "slow")
    assert first.id > second.id


# -- the user's own transaction ---------------------------------------------------------------------------------------


def test_a_task_sent_in_the_users_transaction_is_there_when_it_commits(store: PostgresStore, url: str) -> None:
    with psycopg.connect(url) as connection:
        with connection.transaction():
            assert store.enqueue_on(connection, [a_task(id="a")]).tasks == [Enqueued(id="a", created=True)]
            assert store.get("a") is None
        assert store.get("a") is not None
        store.enqueue_on(connection, [a_task(id="b")])
        connection.rollback()

    assert store.get("b") is None


def test_a_connection_that_does_not_say_what_its_texts_are_in_can_send(url: str) -> None:
    with (
        closing(PostgresStore(url, schema="ascii_texts")) as store,
        psycopg.connect(url, client_encoding="sql_ascii") as connection,
    ):
        (first,) = store.enqueue_on(connection, [a_task(id="a", unique_key="schlüssel")]).tasks
        (second,) = store.enqueue_on(connection, [a_task(id="b", unique_key="schlüssel")]).tasks
        connection.commit()

        assert (first, second) == (Enqueued(id="a", created=True), Enqueued(id="a", created=False))
        assert store.get("a") is not None


def test_a_conflict_in_the_users_transaction_leaves_it_usable(store: PostgresStore, url: str) -> None:
    enqueue(store, id="a", args=b"[1]")
    with psycopg.connect(url) as connection, connection.transaction():
        with pytest.raises(TaskConflict):
            store.enqueue_on(connection, [a_task(id="b"), a_task(id="a", args=b"[2]")])
        store.enqueue_on(connection, [a_task(id="c")])

    assert [store.get(task_id) is not None for task_id in ("b", "c")] == [False, True]


def test_who_waits_is_woken_by_the_users_commit(store: PostgresStore, url: str) -> None:
    register(store, "w1")
    bell = store.listen("w1")
    with psycopg.connect(url) as connection, connection.transaction():
        store.enqueue_on(connection, [a_task(id="a")])
    bell.wait(10)

    assert [one.id for one in claim(store, "w1", 1)] == ["a"]
    bell.close()


def test_a_connection_without_a_transaction_or_to_another_database_is_refused(store: PostgresStore, url: str) -> None:
    with (
        psycopg.connect(url, autocommit=True) as connection,
        pytest.raises(ValueError, match="no transaction is open"),
    ):
        store.enqueue_on(connection, [a_task()])
    elsewhere = url.rpartition("/")[0] + "/postgres"
    with psycopg.connect(elsewhere) as connection, pytest.raises(ValueError, match="not to the store"):
        store.enqueue_on(connection, [a_task()])
    with pytest.raises(ValueError, match="takes a psycopg connection"):
        store.enqueue_on(object(), [a_task()])
