"""Enqueue: all or none, ids made by the sender, the same id twice is one task."""

from collections.abc import Sequence
from itertools import chain

from everbeat.model.task import Enqueued, NewTask
from everbeat.store.transaction import Transaction

LAST = "SELECT coalesce(max(seq), 0) FROM everbeat_tasks"

# The unique index on id makes a repeated enqueue a no-op: an unanswered one may be sent again. Fifty rows in one
# statement take half the time of fifty statements.
WIDE = 50
COLUMNS = "id, name, args, queue, priority, max_attempts, policy, created_at, run_at, due_at"
INSERT = f"INSERT INTO everbeat_tasks ({COLUMNS}) VALUES {{rows}} ON CONFLICT (id) DO NOTHING"
ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_ONE = INSERT.format(rows=ROW)
INSERT_WIDE = INSERT.format(rows=", ".join([ROW] * WIDE))

STORED = "SELECT seq, name, args FROM everbeat_tasks WHERE id = ?"
UNDO = "DELETE FROM everbeat_tasks WHERE seq > ?"


def enqueue(tx: Transaction, tasks: Sequence[NewTask]) -> list[Enqueued]:
    """Store all of them; if one is in conflict with what is stored under its id, store none."""
    last = tx.one(LAST)
    before = last[0] if last else 0
    if _insert(tx, [_row(task, tx.now) for task in tasks]) == len(tasks):
        return [Enqueued(id=task.id, created=True) for task in tasks]
    results = _compare_all(tx, tasks, before)
    if any(result.conflict for result in results):
        tx.run(UNDO, (before,))
        return [Enqueued(id=result.id, created=False, conflict=result.conflict) for result in results]
    return results


def _insert(tx: Transaction, rows: list[tuple[object, ...]]) -> int:
    whole = len(rows) - len(rows) % WIDE
    added = sum(
        tx.run(INSERT_WIDE, list(chain.from_iterable(rows[start : start + WIDE]))) for start in range(0, whole, WIDE)
    )
    return added + tx.many(INSERT_ONE, rows[whole:])


def _row(task: NewTask, now: int) -> tuple[object, ...]:
    if task.run_at is None and not task.delay_us:
        return (*task[:7], now, now, None)
    run_at = task.run_at if task.run_at is not None else now + (task.delay_us or 0)
    return (*task[:7], now, run_at, run_at if run_at > now else None)


def _compare_all(tx: Transaction, tasks: Sequence[NewTask], before: int) -> list[Enqueued]:
    """Of one id twice in the same call the first was created, the second found it."""
    results: list[Enqueued] = []
    created: set[str] = set()
    for task in tasks:
        stored = tx.one(STORED, (task.id,))
        is_same = stored is not None and stored[1:] == (task.name, task.args)
        is_new = is_same and stored is not None and stored[0] > before and task.id not in created
        created.add(task.id)
        results.append(Enqueued(id=task.id, created=is_new, conflict=not is_same))
    return results
