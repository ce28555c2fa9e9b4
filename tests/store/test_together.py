"""Many rows in one statement: the same as one statement for each."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.words import enqueue

from everbeat.clock import SystemClock
from everbeat.decide.room import Room
from everbeat.model.state import TaskStatus
from everbeat.store import filling
from everbeat.store.messages import TaskFilter
from everbeat.store.sqlite import together
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.verbs import claiming, settling, unsound
from everbeat.store.verbs.queueing import Places

WORKER, NOW = "w", 7


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = SQLiteStore(tmp_path / "q.db", clock=SystemClock())
    filling.fill_ready(made, 12, name="add")
    with made.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET fence = 4 WHERE seq > 8")
    yield made
    made.close()


def launched(store: SQLiteStore) -> list[tuple[int, int]]:
    """Seq and fence of all, which are running now."""
    with store.database.write() as tx:
        found = tx.all("SELECT seq, fence FROM everbeat_tasks ORDER BY seq")
        assert tx.many(claiming.LAUNCH, [(WORKER, 0, NOW, seq, fence) for seq, fence in found]) == len(found)
    return [(seq, fence + 1) for seq, fence in found]


def results(store: SQLiteStore) -> list[Any]:
    with store.database.read() as tx:
        return [result for (result,) in tx.all("SELECT result FROM everbeat_tasks ORDER BY seq")]


@pytest.mark.parametrize(
    "given",
    [
        [b"null"] * 12,
        [b"x" * length for length in range(12)],
        [None if number % 2 else b"%d" % number for number in range(12)],
        ["\u00e9\0".encode() * number for number in range(12)],
    ],
    ids=["all alike", "of all lengths", "some have none", "not ASCII"],
)
def test_each_row_gets_its_own_result(store: SQLiteStore, given: list[bytes | None]) -> None:
    rows = [(result, NOW, seq, fence, WORKER) for result, (seq, fence) in zip(given, launched(store), strict=True)]

    with store.database.write() as tx:
        assert tx.many(settling.COMPLETE, rows) == len(rows)

    assert results(store) == given


def test_a_row_whose_fence_has_moved_is_left_alone_and_not_counted(store: SQLiteStore) -> None:
    rows = [(b"1", NOW, seq, fence + (seq == 3), WORKER) for seq, fence in launched(store)]

    with store.database.write() as tx:
        assert tx.many(settling.COMPLETE, rows) == len(rows) - 1

    assert [seq for seq, result in enumerate(results(store), 1) if result is None] == [3]


def test_rows_that_differ_in_their_fence_only_are_a_statement_for_each_fence() -> None:
    rows = [(WORKER, 0, NOW, seq, 0 if seq < 9 else 4) for seq in range(12)]

    said = together.in_few(claiming.LAUNCH, rows)

    assert said is not None
    assert [tuple(values[3:5]) for _, values in said] == [(0, 8), (9, 11)]


@pytest.mark.parametrize("given", [[b"1"] * 8, [b"%d" % number for number in range(8)]], ids=["alike", "different"])
@pytest.mark.parametrize("left_out", [None, 3], ids=["all", "all but one"])
def test_rows_in_a_row_are_changed_by_their_ends_and_no_others(
    store: SQLiteStore, given: list[bytes], left_out: int | None
) -> None:
    launched(store)
    rows = [(result, NOW, seq, 1, WORKER) for seq, result in enumerate(given, 1) if seq != left_out]

    (said,) = together.in_few(settling.COMPLETE, rows) or []
    assert ("BETWEEN" in said[0]) is (left_out is None)
    with store.database.write() as tx:
        assert tx.many(settling.COMPLETE, rows) == len(rows)

    assert results(store)[:8] == [None if seq == left_out else result for seq, result in enumerate(given, 1)]


def test_rows_that_have_little_in_common_are_changed_one_by_one() -> None:
    assert together.in_few(claiming.LAUNCH, [(WORKER, 0, NOW, seq, seq) for seq in range(12)]) is None


def test_a_text_that_is_not_utf_8_keeps_nobody_from_reading_the_rows_around_it(store: SQLiteStore) -> None:
    with store.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET id = CAST(x'ff41' AS TEXT) WHERE seq = 5")
        found = [row for some in tx.ahead(claiming.READY, ("default", "add"), 3) for row in some]

    assert [row[1] for row in found] == list(range(1, 13))
    assert found[4][2] == "\ufffdA"


def test_reading_ahead_leaves_the_connection_as_it_was(store: SQLiteStore) -> None:
    with store.database.write() as tx:
        connection: sqlite3.Connection = tx._connection
        before = connection.text_factory
        next(tx.ahead(claiming.READY, ("default", "add"), 3))
        assert connection.text_factory is before


def test_no_mark_has_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 before 3.12.4 warns of every value that is bound to one that has, which is an error to those whose
    tests take warnings for errors."""
    said: list[str] = []

    def connect(*given: Any, **named: Any) -> Any:
        class Overheard(named.pop("factory", sqlite3.Connection)):  # type: ignore[misc]
            def execute(self, sql: str, *values: Any) -> Any:
                said.append(sql)
                return super().execute(sql, *values)

        return sqlite3_connect(*given, factory=Overheard, **named)

    sqlite3_connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    store = SQLiteStore(tmp_path / "other.db", clock=SystemClock())
    filling.fill_ready(store, 40, name="add")
    enqueue(store, id="alone")
    running = launched(store)
    with store.database.write() as tx:
        rows = [(str(seq).encode(), NOW, seq, fence, WORKER) for seq, fence in running]
        tx.many(settling.COMPLETE, [row for row in rows[:20] if row is not rows[7]])
        tx.many(settling.COMPLETE, rows[20:])
    store.close()

    assert any("json_each" in sql for sql in said)
    assert any("seq BETWEEN" in sql for sql in said)
    assert any(sql.startswith("INSERT INTO everbeat_tasks") for sql in said)
    assert [sql for sql in said if re.search(r"\?\d", sql)] == []


def test_plain_rows_are_read_short_until_one_is_not_plain(store: SQLiteStore) -> None:
    with store.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET crash_count = 1 WHERE seq = 8")
        found = list(tx.ahead(claiming.READY, ("default", "add"), 10))
        wholes = [unsound.whole(row, ("default", "add")) for some in found for row in some]
        assert wholes == tx.all(f"{claiming.READY} ORDER BY priority, seq", ("default", "add"))

    assert [(len(some), len(some[0])) for some in found] == [(10, len(unsound.COLUMNS)), (2, len(unsound.COLUMNS))]
    with store.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET crash_count = 0 WHERE seq = 8")
        found = list(tx.ahead(claiming.READY, ("default", "add"), 5))
    assert [(len(some), len(some[0])) for some in found] == [
        (5, unsound.SHORT + 1),
        (5, unsound.SHORT + 1),
        (2, unsound.SHORT + 1),
    ]


@pytest.mark.parametrize("few", [1, 2])
@pytest.mark.parametrize("special", ["crash_count = 0", "crash_count = 1"])
def test_no_more_are_read_than_are_wanted(store: SQLiteStore, few: int, special: str) -> None:
    with store.database.write() as tx:
        tx.run(f"UPDATE everbeat_tasks SET {special} WHERE seq = 1")
        found = tx.ahead(claiming.READY, ("default", "add"), few)
        assert [len(next(found)), len(next(found))] == [few, few]


@pytest.mark.parametrize(
    "special",
    [
        "solo = 1",
        "exclusive_key = 'k'",
        "good_until = 1",
        "free_attempts = 'x'",
        "solo = x'30'",
        "lost_count = 0.5",
        "dispatch_count = -1",
    ],
)
def test_a_row_that_is_not_plain_is_not_read_short(store: SQLiteStore, special: str) -> None:
    with store.database.write() as tx:
        tx.run(f"UPDATE everbeat_tasks SET {special} WHERE seq = 1")
        assert len(next(tx.ahead(claiming.READY, ("default", "add"), 1))[0]) == len(unsound.COLUMNS)


def test_nodes_of_workflows_are_read_short_too(store: SQLiteStore) -> None:
    with store.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET workflow_id = 'w', node = seq, refs = '[[5,0]]' WHERE seq <= 2")
        (found,) = tx.ahead(claiming.READY, ("default", "add"), 100)
        assert [unsound.whole(row, ("default", "add")) for row in found] == tx.all(
            f"{claiming.READY} ORDER BY priority, seq", ("default", "add")
        )

    assert {len(row) for row in found} == {unsound.SHORT + 1}
    assert unsound.are_plain(found)


@pytest.mark.parametrize("wrong", ["node = ''", "workflow_id = x'37'", "refs = x'31'"])
def test_a_short_row_that_makes_no_sense_as_a_node_is_set_aside(store: SQLiteStore, wrong: str) -> None:
    with store.database.write() as tx:
        tx.run(f"UPDATE everbeat_tasks SET {wrong} WHERE seq = 1")
        (found,) = tx.ahead(claiming.READY, ("default", "add"), 100)
    assert not unsound.are_plain(found)

    with store.database.write() as tx:
        room = Room(frozenset({"add"}), frozenset(), None, slots={1: 0}, depths={"add": 100})
        claims = claiming.claim_into(tx, WORKER, room, Places(tx))

    assert [claim.seq for claim in claims] == [*range(2, 13)]
    (aside,) = store.tasks(TaskFilter(limit=100, statuses=(TaskStatus.FAILED,)))
    assert (aside.error_code, aside.quarantined) == (unsound.ROW_UNREADABLE, True)


@pytest.mark.parametrize(
    ("wanted", "statements"),
    [
        ([3, 4, 5, 6], ["seq BETWEEN ? AND ?"]),
        ([3], ["seq IN (?)"]),
        ([6, 5, 4, 3], ["seq IN (?, ?, ?, ?)"]),
        ([3, 3, 5, 6], ["seq IN (?, ?, ?, ?)"]),
        ([3, 4, 6, 7], ["seq IN (?, ?, ?, ?)"]),
        ([3.0, 4, 5, 6], ["seq IN (?, ?, ?, ?)"]),
        ([], []),
    ],
)
def test_keys_without_a_gap_are_named_by_the_first_and_the_last(
    store: SQLiteStore, wanted: list[float], statements: list[str]
) -> None:
    said: list[str] = []
    with store.database.write() as tx:
        tx._connection.set_trace_callback(said.append)
        found = tx.among("SELECT seq FROM everbeat_tasks WHERE seq IN ({marks})", (), wanted)
        tx._connection.set_trace_callback(None)

    assert [row[0] for row in found] == sorted({int(seq) for seq in wanted})
    assert len(said) == len(statements)
    assert all("BETWEEN" in one for one in said) == all("BETWEEN" in one for one in statements)
