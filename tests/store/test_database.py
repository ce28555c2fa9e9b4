"""Transactions on the file: whatever goes wrong, nothing is half done and nothing is left locked."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.words import a_task, enqueue, interrupted_after

from everbeat.errors import StoreUnavailable
from everbeat.store.sqlite import connection as module
from everbeat.store.sqlite.connection import SQLiteDatabase
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.transaction import RowRefused

ADD = "INSERT INTO everbeat_recovery_reports (at, actor, report) VALUES (1, 'me', ?)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "x.db", durability="normal", patience=0.3)
    yield store
    store.close()


@pytest.fixture
def database(store: SQLiteStore) -> SQLiteDatabase:
    return store.database


@pytest.fixture
def other(store: SQLiteStore) -> Iterator[SQLiteStore]:
    """Another one on the same file: its writes succeed only if nothing was left locked."""
    other = SQLiteStore(store.database.path, durability="normal", patience=0.3)
    yield other
    other.close()


def count(database: SQLiteDatabase) -> int:
    with database.read() as tx:
        row = tx.one("SELECT count(*) FROM everbeat_recovery_reports")
    assert row is not None
    return int(row[0])


def assert_nothing_is_left(database: SQLiteDatabase, other: SQLiteStore) -> None:
    assert count(database) == 0
    assert not database.turnstile.is_held
    enqueue(other)
    with database.write() as tx:
        tx.run(ADD, ("after",))
    assert count(database) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, sqlite3.IntegrityError, SystemExit])
def test_a_block_that_raises_is_undone(
    database: SQLiteDatabase, other: SQLiteStore, error: type[BaseException]
) -> None:
    def write() -> None:
        with database.write() as tx:
            tx.run(ADD, ("half",))
            raise error("in the middle")

    with pytest.raises(error):
        write()

    assert_nothing_is_left(database, other)


def test_a_statement_that_can_not_work_is_undone_and_told_as_it_is(
    database: SQLiteDatabase, other: SQLiteStore
) -> None:
    with pytest.raises(sqlite3.IntegrityError), database.write() as tx:
        tx.many(ADD, [("half",), (None,)])

    assert_nothing_is_left(database, other)


def test_a_full_disk_is_an_outage_and_not_the_end(store: SQLiteStore, other: SQLiteStore) -> None:
    with store.database.alone() as writer:
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(StoreUnavailable, match="full"):
        store.enqueue([a_task(id="big", args=b"x" * 1_000_000)])
    assert store.get("big") is None

    enqueue(other)
    with store.database.alone() as writer:
        writer.execute("PRAGMA max_page_count = 1000000")
    assert enqueue(store, id="big", args=b"x" * 1_000_000) == "big"


def test_a_commit_that_is_refused_is_undone(database: SQLiteDatabase, other: SQLiteStore) -> None:
    """A deferred constraint fails in COMMIT itself."""
    with database.alone() as writer:
        writer.execute("PRAGMA foreign_keys = 1")
        writer.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        writer.execute("CREATE TABLE children (id REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")

    with pytest.raises(sqlite3.IntegrityError), database.write() as tx:
        tx.run("INSERT INTO children VALUES (7)")

    assert_nothing_is_left(database, other)


def test_an_interrupt_right_after_the_transaction_began_leaves_nothing(
    database: SQLiteDatabase, other: SQLiteStore
) -> None:
    """A signal may arrive at any instruction; the clock is read right after BEGIN."""

    class InterruptingClock:
        def wall_us(self) -> int:
            raise KeyboardInterrupt

        def mono_us(self) -> int:
            return 0

    clock, database.clock = database.clock, InterruptingClock()
    with pytest.raises(KeyboardInterrupt), database.write():
        raise AssertionError("never reached")
    database.clock = clock

    assert_nothing_is_left(database, other)


@pytest.mark.parametrize(
    "deed", [enqueue, lambda store: store.take_role("reaper", "me", lease_us=1)], ids=["send", "write"]
)
def test_an_interrupt_after_any_call_of_a_writer_leaves_no_transaction_open(
    store: SQLiteStore, other: SQLiteStore, deed: Callable[[SQLiteStore], object]
) -> None:
    calls = 1
    while interrupted_after(calls, lambda: deed(store)):
        calls += 1
        assert enqueue(other, id=f"task-{calls}") == f"task-{calls}"
        assert enqueue(store, id=f"task-{calls}") == f"task-{calls}"
    assert calls > 30


def test_an_interrupt_after_any_call_of_a_reader_does_not_stop_its_time(store: SQLiteStore, other: SQLiteStore) -> None:
    calls, first = 1, enqueue(other)
    while interrupted_after(calls, lambda: store.get(first)):
        calls += 1
        assert store.get(enqueue(other, id=f"task-{calls}")) is not None
    assert calls > 30


def test_a_signal_handler_that_writes_in_the_middle_of_a_write_is_refused(
    database: SQLiteDatabase, other: SQLiteStore
) -> None:
    refused: list[BaseException] = []

    def handler(number: int, frame: object) -> None:
        try:
            with database.write() as tx:
                tx.run(ADD, ("from the handler",))
        except RuntimeError as error:
            refused.append(error)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with database.write() as tx:
            tx.run(ADD, ("first",))
            os.kill(os.getpid(), signal.SIGUSR1)
            tx.run("DELETE FROM everbeat_recovery_reports")
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert "being written by this thread already" in str(refused[0])
    assert_nothing_is_left(database, other)


def test_a_part_is_undone_alone(database: SQLiteDatabase) -> None:
    with database.write() as tx:
        tx.run(ADD, ("kept",))
        with pytest.raises(RowRefused), tx.part():
            tx.many(ADD, [("dropped",), (None,)])
        tx.run(ADD, ("kept too",))

    assert count(database) == 2


@pytest.mark.proves("FR-053")
def test_whoever_holds_the_write_lock_is_named(database: SQLiteDatabase, other: SQLiteStore) -> None:
    with (
        other.database.write(),
        pytest.raises(StoreUnavailable, match=rf"store blocked by pid {os.getpid()}; could not") as blocked,
        database.write(),
    ):
        raise AssertionError("never reached")

    assert blocked.value.may_pass
    assert_nothing_is_left(database, other)


def test_reading_goes_on_while_somebody_writes(database: SQLiteDatabase, other: SQLiteStore) -> None:
    with other.database.write() as tx:
        tx.run(ADD, ("not yet",))
        assert count(database) == 0
    assert count(database) == 1


def test_a_steady_look_sees_one_moment(database: SQLiteDatabase, other: SQLiteStore) -> None:
    with database.read(steady=True) as tx:
        first = tx.one("SELECT count(*) FROM everbeat_recovery_reports")
        with other.database.write() as there:
            there.run(ADD, ("meanwhile",))
        assert tx.one("SELECT count(*) FROM everbeat_recovery_reports") == first
    assert count(database) == 1


def test_a_reader_can_not_write(database: SQLiteDatabase) -> None:
    with pytest.raises(StoreUnavailable, match="readonly"), database.read() as tx:
        tx.run(ADD, ("by a reader",))


def test_the_write_ahead_log_does_not_grow_without_end(
    database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_ROWS", 100)
    for _ in range(50):
        with database.write() as tx:
            tx.many(ADD, [("x" * 1_000,)] * 20)

    assert os.stat(f"{database.path}-wal").st_size < 500_000


def test_few_rows_with_large_arguments_do_not_grow_it_either(
    database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG_WAL", 1_000_000)
    monkeypatch.setattr(module, "LONG_WAL_PAUSE", 0.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    for _ in range(10):
        with database.write() as tx:
            tx.run(ADD, ("x" * 900_000,))

    assert os.stat(f"{database.path}-wal").st_size < 3_000_000


def test_the_size_of_the_log_is_not_asked_for_at_every_commit(
    database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    look = os.stat
    monkeypatch.setattr(module, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(module.os, "stat", lambda path: (asked.append(str(path)), look(path))[1])
    for _ in range(20):
        with database.write() as tx:
            tx.run(ADD, ("x",))

    assert sum(path.endswith("-wal") for path in asked) <= 1


def test_a_checkpoint_that_fails_does_not_fail_the_write_before_it(
    database: SQLiteDatabase, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader in the middle of a look keeps the log from being restarted."""
    monkeypatch.setattr(module, "CHECKPOINT_ROWS", 1)
    with other.database.read(steady=True) as tx:
        tx.one("SELECT count(*) FROM everbeat_tasks")
        with database.write() as writing:
            writing.run(ADD, ("kept",))

    assert count(database) == 1


def test_closing_twice_is_closing_once(store: SQLiteStore) -> None:
    store.close()
    store.close()

    with pytest.raises(StoreUnavailable, match="was closed"):
        enqueue(store)


def test_many_threads_share_one_store(store: SQLiteStore) -> None:
    store.database.patience = 30

    def work(number: int) -> None:
        for turn in range(10):
            enqueue(store, id=f"{number}-{turn}")
            assert store.get(f"{number}-{turn}") is not None
            store.announce([])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [one.count for one in store.counts()] == [80]


# -- forks ------------------------------------------------------------------------------------------------------------


def in_a_fork(deed: Callable[[], object]) -> int:
    """Its exit code: 0 if the deed did not raise."""
    pid = os.fork()
    if pid == 0:
        try:
            deed()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_store_made_before_a_fork_works_on_both_sides(store: SQLiteStore, other: SQLiteStore) -> None:
    enqueue(store, id="before")

    assert in_a_fork(lambda: enqueue(store, id="child")) == 0
    enqueue(store, id="parent")
    other.close()

    assert [store.get(one) is not None for one in ("before", "child", "parent")] == [True] * 3


def test_a_fork_while_other_threads_write_works_on_both_sides(store: SQLiteStore) -> None:
    store.database.patience = 30
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            enqueue(store)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    codes = [in_a_fork(partial(enqueue, store, id=f"child-{number}")) for number in range(10)]
    done.set()
    for writer in writers:
        writer.join(30)

    assert codes == [0] * 10
    assert all(store.get(f"child-{number}") for number in range(10))


def test_a_child_that_forgets_the_store_leaves_the_parent_s_alone(store: SQLiteStore) -> None:
    enqueue(store, id="a")

    assert in_a_fork(store.forget) == 0

    enqueue(store, id="b")
    assert store.get("b") is not None


def test_a_child_that_outlives_its_parent_keeps_what_it_writes(tmp_path: Path) -> None:
    """The parent used the store, forked and ended, as a daemon does. The child's connection must hold locks of its own:
    otherwise the next process to close takes the write-ahead log away under it."""
    code = """
import os, sys
from everbeat.model.task import NewTask, TaskKind
from everbeat.store.sqlite.store import SQLiteStore
store = SQLiteStore(sys.argv[1])
store.enqueue([NewTask("parent", b"[]", TaskKind("add"))])
if os.fork():
    os._exit(0)
store.enqueue([NewTask("child", b"[]", TaskKind("add"))])
print("written", flush=True)
sys.stdin.readline()
store.enqueue([NewTask("later", b"[]", TaskKind("add"))])
print("written again", flush=True)
sys.stdin.readline()
"""
    path = tmp_path / "daemon.db"
    daemon = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert daemon.stdout is not None
    assert daemon.stdin is not None
    assert daemon.stdout.readline() == "written\n"
    SQLiteStore(path).close()  # opens and closes: the last one would remove the log
    daemon.stdin.write("go on\n")
    assert daemon.stdout.readline() == "written again\n"

    reader = SQLiteStore(path)
    assert [reader.get(one) is not None for one in ("parent", "child", "later")] == [True] * 3
    reader.close()
    daemon.communicate("end\n")


def test_a_fork_in_the_middle_of_a_transaction_gives_the_child_a_clear_error(store: SQLiteStore) -> None:
    def use() -> None:
        with pytest.raises(StoreUnavailable, match="forked in the middle of a transaction"):
            SQLiteStore(store.database.path).enqueue([])

    with store.database.write() as tx:
        tx.run(ADD, ("kept",))
        assert in_a_fork(use) == 0

    assert count(store.database) == 1
