"""Rows by the million, for measurements: as if so many tasks had been sent, started or run; and what became of them.

For `everbeat bench` only, on stores that it has made itself. In bites, each a transaction of its own, so that no
statement takes long.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from everbeat.store.interface import Store
from everbeat.store.transaction import Transaction

BITE = 50_000
TIDY = "VACUUM ANALYZE everbeat_tasks"
"""On PostgreSQL: what it would do by itself some time after a table was filled."""
POLICY = '{"max_attempts":3,"has_retry":true}'
ARGS = b'{"a":1,"b":2}'
SPREAD = 7
"""Long ago, and not all at the same moment."""

NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last - 1)"

READY = f"""
INSERT INTO everbeat_tasks (id, name, queue, priority, args, created_at, run_at, max_attempts, policy)
{NUMBERS}
SELECT 'ready-' || CAST(100000000 + n AS TEXT), :name, 'default', 100, :args, n * {SPREAD}, n * {SPREAD}, 3, :policy
  FROM numbers"""

RUNNING = f"""
INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, started_at, fence, worker_id,
                            attempt, max_attempts, policy)
{NUMBERS}
SELECT 'running-' || CAST(100000000 + n AS TEXT), :name, 'default', 100, :args, 'RUNNING', n * {SPREAD}, n * {SPREAD},
       n * {SPREAD}, 1, :owner || '-' || CAST(n * :owners / :count AS TEXT), 1, 3, :policy
  FROM numbers"""

ENDED = f"""
INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, started_at, finished_at, fence,
                            attempt, result)
{NUMBERS}
SELECT 'ended-' || CAST(100000000 + n AS TEXT), :name, 'default', 100, :args, 'COMPLETED', n * {SPREAD}, n * {SPREAD},
       n * {SPREAD}, n * {SPREAD}, 1, 1, :result
  FROM numbers"""

MOVE_AWAY = "UPDATE everbeat_workers SET boot_id = 'another kernel', hostname = 'elsewhere' WHERE name = ?"
SILENCE = "UPDATE everbeat_workers SET beat_mono = 0 WHERE id = ?"

# everbeat_tasks_ended; `DRAINED` and `STARTED` read the rows, too.
DONE = """
SELECT count(*) FROM everbeat_tasks WHERE queue = 'default' AND status = 'COMPLETED' AND finished_at >= ?"""
DRAINED = """
SELECT count(*), min(started_at), max(finished_at)
  FROM (SELECT started_at, finished_at FROM everbeat_tasks
         WHERE queue = 'default' AND status = 'COMPLETED' AND finished_at >= ? ORDER BY finished_at LIMIT ?) AS ended"""
# All that a transaction starts gets the same moment, to the microsecond.
STARTED = """
SELECT count(*), count(DISTINCT started_at) FROM everbeat_tasks
 WHERE queue = 'default' AND status = 'COMPLETED' AND finished_at >= ?"""
ALL = 1 << 60


class _Database(Protocol):
    def write(self) -> AbstractContextManager[Transaction]: ...

    def read(self) -> AbstractContextManager[Transaction]: ...


def fill_ready(store: Store, count: int, *, name: str, policy: str | None = POLICY) -> None:
    _fill(store, READY, count, name=name, policy=policy)


def fill_running(store: Store, count: int, *, name: str, owner: str, owners: int) -> None:
    """Of the workers owner-0, owner-1 and so on, each with as many as the others."""
    _fill(store, RUNNING, count, name=name, policy=POLICY, owner=owner, owners=owners, count=count)


def fill_ended(store: Store, count: int, *, name: str, args: bytes = ARGS, result: bytes = b"3") -> None:
    _fill(store, ENDED, count, name=name, args=args, result=result)


def silence(store: Store, worker_id: str) -> None:
    """As if it had not beaten for very long."""
    with _database(store).write() as tx:
        tx.run(SILENCE, (worker_id,))


def move_away(store: Store, name: str) -> None:
    """As if this worker had registered on another machine."""
    with _database(store).write() as tx:
        tx.run(MOVE_AWAY, (name,))


def done(store: Store, *, since_us: int) -> int:
    """How many tasks of the queue "default" have completed since then. Asked beside the worker that is measured."""
    with _database(store).read() as tx:
        (count,) = tx.one(DONE, (since_us,)) or (0,)
        return int(count)


def drained(store: Store, *, since_us: int, most: int = ALL) -> tuple[int, int, int]:
    """Of the tasks of the queue "default" that have completed since then, the first so many: their number, the first
    start and the last end."""
    with _database(store).read() as tx:
        count, first, last = tx.one(DRAINED, (since_us, most)) or (0, None, None)
        return count, first or 0, last or 0


def started(store: Store, *, since_us: int) -> tuple[int, int]:
    """How many tasks of the queue "default" have completed since then, and how many transactions started them."""
    with _database(store).read() as tx:
        tasks, transactions = tx.one(STARTED, (since_us,)) or (0, 0)
        return int(tasks), int(transactions)


def _fill(store: Store, sql: str, rows: int, **values: Any) -> None:
    for first in range(0, rows, BITE):
        bite = {"args": ARGS, "first": first, "last": min(first + BITE, rows)} | values
        with _database(store).write() as tx:
            tx.run(sql, bite)


def _database(store: Store) -> _Database:
    return cast(_Database, cast(Any, store).database)
