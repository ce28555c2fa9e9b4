"""What the hot statements cost on SQLite: their plans, and their steps on a store full of what must not matter."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.words import a_room, a_task, register

from everbeat.config import RecoveryConfig
from everbeat.model.worker import QueueSetting
from everbeat.run.manual import ByHand
from everbeat.store.messages import Flush
from everbeat.store.sqlite import together
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.verbs import (
    claiming,
    classes,
    commanding,
    counting,
    doubting,
    expiring,
    kinds,
    living,
    looking,
    measuring,
    owning,
    queueing,
    recovering,
    retaining,
    sending,
    settling,
    stopping,
    turns,
)

READY, DUE, OWNED = "everbeat_tasks_ready", "everbeat_tasks_due", "everbeat_tasks_owned"
BY_SEQ = "SEARCH everbeat_tasks USING INTEGER PRIMARY KEY (rowid=?)"
BETWEEN_SEQS = "SEARCH everbeat_tasks USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
EACH_SEQ = "SCAN json_each VIRTUAL TABLE INDEX 1:"
BY_ID = "SEARCH everbeat_tasks USING INDEX sqlite_autoindex_everbeat_tasks_1 (id=?)"

IS_PAUSED = ["CORRELATED SCALAR SUBQUERY 1", "SEARCH q USING PRIMARY KEY (name=?)"]
PLANS = {
    claiming.READY: [f"SEARCH everbeat_tasks USING INDEX {READY} (queue=? AND name=?)"],
    f"{claiming.SHORT_READY} ORDER BY priority, seq LIMIT -1 OFFSET ?": [
        f"SEARCH everbeat_tasks USING INDEX {READY} (queue=? AND name=?)"
    ],
    kinds.NEXT_QUEUE: [f"SEARCH everbeat_tasks USING INDEX {READY} (queue>?)"],
    kinds.NEXT_NAME: [f"SEARCH everbeat_tasks USING INDEX {READY} (queue=? AND name>?)"],
    claiming.NEXT_DUE: [f"SEARCH everbeat_tasks USING INDEX {DUE} (due_at>?)"],
    claiming.RIPE: [f"SEARCH everbeat_tasks USING INDEX {DUE} (due_at>? AND due_at<?)"],
    settling.COMPLETE: [BY_SEQ],
    claiming.START: [BY_SEQ],
    claiming.LAUNCH: [BY_SEQ],
    **{
        together.said(sql, place, is_range=is_range)[0]: [BETWEEN_SEQS] if is_range else [EACH_SEQ, BY_SEQ]
        for sql in together.KEYS
        for place in (None, together.BYTES.get(sql))
        for is_range in (False, True)
    },
    claiming.CLAIM: [BY_SEQ],
    settling.ADOPT: [BY_SEQ],
    settling.NOW: [BY_SEQ],
    settling.EACH_NOW.format(marks="?, ?"): [BY_SEQ],
    claiming.RECOVERED.format(marks="?, ?"): ["SEARCH everbeat_history USING INDEX everbeat_history_task (task_id=?)"],
    **{ending: [BY_SEQ] for ending in settling.ENDINGS.values()},
    owning.STANDING: ["SEARCH everbeat_workers USING PRIMARY KEY (id=?)"],
    recovering.NEXT_OWNER: [f"SEARCH everbeat_tasks USING INDEX {OWNED} (worker_id>?)"],
    recovering.OWNED_BY: [f"SEARCH t USING INDEX {OWNED} (worker_id=? AND rowid>?)"],
    **{
        statement: [BY_SEQ, "LIST SUBQUERY 1", EACH_SEQ]
        for end in classes.END.values()
        for statement in (end, together.recorded(classes.ADD_HISTORY, end))
    },
    recovering.OWNED_IDS: [f"SEARCH everbeat_tasks USING INDEX {OWNED} (worker_id=?)"],
    recovering.COUNT_OWNED: [f"SEARCH everbeat_tasks USING INDEX {OWNED} (worker_id=?)"],
    doubting.FAR_FUTURE: [f"SEARCH everbeat_tasks USING INDEX {DUE} (due_at>?)"],
    recovering.CLAIMED_BY: [f"SEARCH t USING INDEX {OWNED} (worker_id=?)"],
    stopping.OWNED_BY: [f"SEARCH everbeat_tasks USING INDEX {OWNED} (worker_id=?)"],
    recovering.IS_GONE: ["SEARCH everbeat_workers USING PRIMARY KEY (id=?)"],
    living.BEAT: ["SEARCH everbeat_workers USING PRIMARY KEY (id=?)"],
    living.BEATS: ["SCAN everbeat_workers USING INDEX everbeat_workers_alive"],
    living.SERVED: ["SCAN everbeat_workers USING INDEX everbeat_workers_alive"],
    living.WORKERS_ALIVE: ["SCAN w USING INDEX everbeat_workers_alive"],
    expiring.NEXT: ["SEARCH everbeat_tasks USING INDEX everbeat_tasks_good (good_until>?)"],
    expiring.OVER: ["SEARCH everbeat_tasks USING INDEX everbeat_tasks_good (good_until>? AND good_until<?)"],
    expiring.EXPIRE: [BY_SEQ],
    sending.STORED.format(marks="?, ?"): [BY_ID],
    sending.HOLDERS.format(marks="?, ?"): [
        "SEARCH everbeat_tasks USING INDEX everbeat_tasks_unique (name=? AND unique_key=?)"
    ],
    looking.FINISHED: [BY_ID],
    looking.ATTEMPTS: ["SEARCH everbeat_attempts USING INDEX everbeat_attempts_task (task_id=?)"],
    looking.HISTORY: ["SEARCH everbeat_history USING INDEX everbeat_history_task (task_id=?)"],
    looking.EVENTS.format(more=""): ["SEARCH everbeat_events USING INTEGER PRIMARY KEY (rowid>?)"],
    looking.EVENTS.format(more=" AND task_id = ?"): [
        "SEARCH everbeat_events USING INDEX everbeat_events_task (task_id=? AND rowid>?)"
    ],
    looking.LATE: [
        "SEARCH everbeat_late_outcomes USING INDEX everbeat_late_outcomes_task (task_id=?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH t USING INDEX sqlite_autoindex_everbeat_tasks_1 (id=?)",
    ],
    settling.REQUEUED: ["SEARCH everbeat_history USING INDEX everbeat_history_task (task_id=?)"],
    counting.ENDED: ["SCAN everbeat_tasks USING COVERING INDEX everbeat_tasks_ended"],
    counting.READY: [f"SCAN everbeat_tasks USING INDEX {READY}"],
    counting.OVERDUE: [
        f"SEARCH everbeat_tasks USING INDEX {DUE} (due_at>? AND due_at<?)",
        "USE TEMP B-TREE FOR GROUP BY",
    ],
    counting.DUE: [f"SEARCH everbeat_tasks USING INDEX {DUE} (due_at>?)", "USE TEMP B-TREE FOR GROUP BY"],
    counting.WAITING: ["SCAN everbeat_tasks USING INDEX everbeat_tasks_waiting"],
    counting.OWNED: [f"SCAN everbeat_tasks USING INDEX {OWNED}", "USE TEMP B-TREE FOR GROUP BY"],
    counting.NEXT_ENDED_QUEUE: ["SEARCH everbeat_tasks USING COVERING INDEX everbeat_tasks_ended (queue>?)"],
    retaining.ENDED: [
        "SEARCH everbeat_tasks USING INDEX everbeat_tasks_ended (queue=? AND status=?"
        " AND finished_at>? AND finished_at<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH w USING COVERING INDEX sqlite_autoindex_everbeat_workflows_1 (id=?)",
    ],
    counting.NEXT_NAME: [f"SEARCH everbeat_tasks USING INDEX {READY} (queue=? AND name>?)"],
    counting.NEXT_PRIORITY: [f"SEARCH everbeat_tasks USING INDEX {READY} (queue=? AND name=? AND priority>?)"],
    counting.OLDEST: [
        "CO-ROUTINE first",
        f"SEARCH everbeat_tasks USING INDEX {READY} (queue=? AND name=? AND priority=?)",
        "SEARCH first",
    ],
    measuring.ENDED_WORKFLOWS: [
        "SEARCH everbeat_workflows USING COVERING INDEX everbeat_workflows_ended (finished_at>?)",
        "USE TEMP B-TREE FOR GROUP BY",
    ],
    measuring.LIVE_WORKFLOWS: [
        "SCAN everbeat_workflows USING INDEX everbeat_workflows_live",
        "USE TEMP B-TREE FOR GROUP BY",
    ],
    measuring.HALTED_WORKFLOWS: ["SCAN everbeat_workflows USING INDEX everbeat_workflows_halted"],
    counting.QUARANTINED: ["SCAN everbeat_tasks USING INDEX everbeat_tasks_quarantined"],
    queueing.LIMITS: ["SCAN everbeat_queues"],
    queueing.OWNED: ["SEARCH everbeat_tasks USING INDEX everbeat_tasks_counted (queue=?)"],
    queueing.HAS_READY.format(name=""): [f"SEARCH everbeat_tasks USING INDEX {READY} (queue=?)"],
    queueing.HAS_READY.format(name=" AND name = ?"): [
        f"SEARCH everbeat_tasks USING INDEX {READY} (queue=? AND name=?)"
    ],
    turns.HOLDER: ["SEARCH everbeat_tasks USING INDEX everbeat_tasks_turn (exclusive_key=?)", *IS_PAUSED],
    turns.FIRST_OF_OPEN_QUEUES: ["SEARCH everbeat_tasks USING INDEX everbeat_tasks_line (exclusive_key=?)", *IS_PAUSED],
    turns.FIRST: ["SEARCH everbeat_tasks USING INDEX everbeat_tasks_line (exclusive_key=?)"],
    turns.GIVE: [BY_SEQ],
    turns.NEXT_KEY: ["SEARCH everbeat_tasks USING INDEX everbeat_tasks_line (exclusive_key>?)"],
    queueing.COUNT_THEM: [f"SCAN everbeat_tasks USING INDEX {OWNED}"],
    commanding.FIND: [BY_ID],
    commanding.NEWEST_RESULT: ["SEARCH everbeat_late_outcomes USING INDEX everbeat_late_outcomes_task (task_id=?)"],
    commanding.ACCEPT: [BY_SEQ],
    **{
        statement.format(marks="?, ?"): [BY_SEQ]
        for statement in (commanding.CANCEL, commanding.REQUEUE, commanding.GIVE_UP)
    },
    commanding.REVIVE.format(marks="?, ?"): [
        BY_SEQ,
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH n USING PRIMARY KEY (workflow_id=? AND node=?)",
        "CORRELATED SCALAR SUBQUERY 2",
        "SEARCH n USING PRIMARY KEY (workflow_id=? AND node=?)",
    ],
}

LOTS = 20_000
FEW = 5
"""Hundreds of instructions: what a handful of rows cost, and far from what reading the crowd would."""

FILL = f"""
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {LOTS})
INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, due_at, worker_id)
SELECT :prefix || n, :name, :queue, 100, x'5b5d', :status, 1, 1, :due_at, :worker_id FROM numbers"""

CROWD: dict[str, dict[str, object]] = {
    "backlog": {},
    "terminal": {"status": "COMPLETED"},
    "unknown": {"name": "nobody.knows"},
    "elsewhere": {"queue": "aaa"},
    "delayed": {"due_at": 1 << 60},
    "running": {"status": "RUNNING", "worker_id": "busy"},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "plans.db", durability="normal")
    yield store
    store.close()


@pytest.fixture
def crowded(store: SQLiteStore) -> SQLiteStore:
    for number in range(100):
        store.retire(register(store, f"old-{number}"))
    register(store, "w1")
    register(store, "busy")
    plain = {"name": "add", "queue": "default", "status": "PENDING", "due_at": None, "worker_id": None}
    with store.database.write() as tx:
        for prefix, facts in CROWD.items():
            tx.run(FILL, plain | facts | {"prefix": prefix})
    return store


def explain(connection: sqlite3.Connection, sql: str) -> list[str]:
    spoken = re.sub(r"/\*.*?\*/", "", sql)
    names = set(re.findall(r":(\w+)", spoken))
    numbers = [int(number) for number in re.findall(r"\?(\d+)", spoken)]
    values = dict.fromkeys(names) if names else [None] * (max(numbers) if numbers else spoken.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
def test_the_hot_statements_keep_their_plans(crowded: SQLiteStore, analyzed: bool) -> None:
    with crowded.database.alone() as connection:
        if analyzed:
            connection.execute("ANALYZE")
        found = {sql: explain(connection, sql) for sql in PLANS}

    assert found == PLANS


def steps(store: SQLiteStore, deed: Callable[[], object]) -> int:
    """How many hundreds of instructions SQLite needs for it."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with store.database.alone() as writer, store.database.read():
        connections = [writer, store.database._reader]
    for connection in connections:
        assert connection is not None
        connection.set_progress_handler(count, 100)
    deed()
    for connection in connections:
        assert connection is not None
        connection.set_progress_handler(None, 100)
    return counted


def test_a_claim_costs_the_same_however_much_waits_has_ended_or_is_not_for_us(
    store: SQLiteStore, request: pytest.FixtureRequest
) -> None:
    def flush() -> None:
        assert len(store.flush(Flush(worker_id="w0", room=a_room(10, queues=["default"]))).claims) == 10

    register(store, "w0")
    store.enqueue([a_task() for _ in range(20)])
    alone = steps(store, flush)
    request.getfixturevalue("crowded")

    assert steps(store, flush) <= alone + 2


def test_a_worker_that_finds_nothing_pays_nothing(crowded: SQLiteStore) -> None:
    def flush() -> None:
        assert crowded.flush(Flush(worker_id="w1", room=a_room(10, queues=["empty"]))).claims == []

    assert steps(crowded, flush) <= FEW


def test_names_that_nobody_serves_are_leapt_over(store: SQLiteStore) -> None:
    register(store, "w1")
    store.enqueue([a_task(name=f"unknown.{number}") for number in range(LOTS)])
    store.enqueue([a_task(id="mine", name="sub")])

    def flush() -> None:
        assert [claim.id for claim in store.flush(Flush(worker_id="w1", room=a_room(10))).claims] == ["mine"]

    assert steps(store, flush) <= FEW


@pytest.mark.parametrize(
    "setting", [{"max_concurrency": 5, "paused": False}, {"max_concurrency": None, "paused": True}]
)
def test_a_full_or_paused_queue_does_not_slow_the_claims_of_others(store: SQLiteStore, setting: dict[str, Any]) -> None:
    register(store, "w1", settings=(QueueSetting(name="aaa", **setting),))
    store.enqueue([a_task(queue="aaa") for _ in range(LOTS)])
    store.flush(Flush(worker_id="w1", room=a_room(10)))
    store.enqueue([a_task(id="mine")])

    def flush() -> None:
        assert [claim.id for claim in store.flush(Flush(worker_id="w1", room=a_room(10))).claims] == ["mine"]

    assert steps(store, flush) <= FEW


def test_a_look_for_orphans_does_not_read_what_the_living_own(crowded: SQLiteStore) -> None:
    def look() -> None:
        assert crowded.orphans(limit=100) == []

    assert steps(crowded, look) <= FEW


@pytest.mark.proves("NFR-004")
def test_a_look_for_silent_workers_does_not_read_the_tasks_of_the_living(crowded: SQLiteStore) -> None:
    def look() -> None:
        assert ByHand(crowded, RecoveryConfig()).detect_stale_workers() == []

    assert steps(crowded, look) <= FEW


@pytest.mark.proves("NFR-001")
def test_each_of_many_orphans_costs_the_same_few_steps(crowded: SQLiteStore) -> None:
    """20,000 of one class: the share of each in what SQLite has to do."""
    crowded.declare_dead("busy", reason="its lock is free", cause="proof")

    def recover() -> None:
        ByHand(crowded, RecoveryConfig(integrity_check_on_startup=False)).recover()

    assert steps(crowded, recover) * 100 / LOTS <= 1_000
    assert crowded.orphans(limit=1) == []


def test_a_look_at_the_living_workers_does_not_read_the_dead(store: SQLiteStore) -> None:
    for number in range(500):
        store.retire(register(store, f"old-{number}"))

    assert steps(store, lambda: store.workers(alive_only=True)) <= FEW


def test_no_check_has_a_list_that_is_made_into_a_table_for_every_row_written(store: SQLiteStore) -> None:
    with store.database.read() as tx:
        tables = [sql for (sql,) in tx.all("SELECT sql FROM sqlite_master WHERE type = 'table' AND sql LIKE '%CHECK%'")]

    assert sum(sql.count("CHECK (status = '") for sql in tables) == 4
    assert [sql for sql in tables if re.search(r"CHECK \([^)]*\bIN\b", sql)] == []
