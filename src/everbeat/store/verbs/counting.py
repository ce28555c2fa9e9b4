"""How many tasks of which queue are in which state, without reading the tasks.

Every number comes from an index that holds exactly those tasks: the ready, the due, the waiting, the owned, the ended.
A million ended tasks are a walk through a million small index entries; arguments and results are never read.
"""

from collections import Counter
from collections.abc import Collection, Iterator

from everbeat.model.state import TaskStatus
from everbeat.store.messages import QueueCount
from everbeat.store.moments import moment_or_none
from everbeat.store.transaction import Transaction

# everbeat_tasks_ended, which has all that is asked for.
ENDED = "SELECT queue, status, count(*) FROM everbeat_tasks WHERE finished_at IS NOT NULL GROUP BY queue, status"

# everbeat_tasks_ended, one step for each queue.
NEXT_ENDED_QUEUE = """
SELECT queue FROM everbeat_tasks WHERE finished_at IS NOT NULL AND queue > ? ORDER BY queue LIMIT 1"""

# everbeat_tasks_ready
READY = """
SELECT queue, 'PENDING', count(*) FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL GROUP BY queue"""

# everbeat_tasks_due, which has the queue as well.
DUE = """
SELECT queue, 'PENDING', count(*) FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NOT NULL GROUP BY queue"""

# everbeat_tasks_waiting
WAITING = """
SELECT queue, 'PENDING', count(*) FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND length(waiting_for) > 0 GROUP BY queue"""

# everbeat_tasks_owned
OWNED = """
SELECT queue, status, count(*) FROM everbeat_tasks WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY queue, status"""

# everbeat_tasks_ready, one step for each name and priority of a queue.
NEXT_NAME = """
SELECT name, priority FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name > ?
 ORDER BY name, priority LIMIT 1"""
NEXT_PRIORITY = """
SELECT name, priority FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name = ? AND priority > ?
 ORDER BY priority LIMIT 1"""

# everbeat_tasks_ready. Tasks of one kind stand in the order they were sent, so the one that waits longest is among the
# first; not always the very first, because a retry whose time has come keeps its place.
OLDEST = """
SELECT min(run_at) FROM
    (SELECT run_at FROM everbeat_tasks
      WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name = ? AND priority = ?
      ORDER BY seq LIMIT 1000) AS first"""

# everbeat_tasks_due. Those whose time has come: the next worker with room makes them ready, and there may be none.
OVERDUE = """
SELECT queue, min(due_at) FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NOT NULL AND due_at <= ? GROUP BY queue"""

KNOWN = frozenset(TaskStatus)

QUARANTINED = "SELECT count(*) FROM everbeat_tasks WHERE quarantined = 1"


def counts(tx: Transaction) -> list[QueueCount]:
    """By queue and status, in that order; what does not occur is left out."""
    found: Counter[tuple[str, TaskStatus]] = Counter()
    for sql in (ENDED, READY, DUE, WAITING, OWNED):
        for queue, status, count in tx.rows(sql):
            if status in KNOWN:  # others were written by hand: `db check` tells of them
                found[str(queue), TaskStatus(status)] += count
    overdue: dict[str, int] = dict(tx.rows(OVERDUE, (tx.now,)))
    return [
        QueueCount(
            queue=queue,
            status=status,
            count=count,
            oldest_run_at=moment_or_none(
                _oldest(tx, queue, overdue.get(queue)) if status is TaskStatus.PENDING else None
            ),
        )
        for (queue, status), count in sorted(found.items())
    ]


def later(tx: Transaction, queues: Collection[str] | None) -> int:
    return sum(count for queue, _, count in tx.rows(DUE) if queues is None or queue in queues)


def quarantined(tx: Transaction) -> int:
    row = tx.one(QUARANTINED)
    return row[0] if row else 0


def _oldest(tx: Transaction, queue: str, overdue: int | None) -> int | None:
    found = (tx.one(OLDEST, (queue, name, priority)) for name, priority in _kinds(tx, queue))
    times = [overdue, *(row[0] for row in found if row)]
    return min((time for time in times if isinstance(time, int)), default=None)


def _kinds(tx: Transaction, queue: str) -> Iterator[tuple[str, int]]:
    kind = tx.one(NEXT_NAME, (queue, ""))
    while kind is not None:
        yield kind[0], kind[1]
        kind = tx.one(NEXT_PRIORITY, (queue, *kind)) or tx.one(NEXT_NAME, (queue, kind[0]))
