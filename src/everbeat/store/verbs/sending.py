"""Enqueue: all or none, ids made by the sender, the same id twice is one task."""

from collections.abc import Sequence

from everbeat.model.task import Enqueued, NewTask
from everbeat.store.sqlite.connection import Transaction

LAST = "SELECT coalesce(max(seq), 0) FROM everbeat_tasks"

# The unique index on id makes a repeated enqueue a no-op: an unanswered one may be sent again.
INSERT = """
INSERT INTO everbeat_tasks (id, name, queue, priority, args, max_attempts, policy, created_at, run_at, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING"""

STORED = "SELECT seq, name, args FROM everbeat_tasks WHERE id = ?"
UNDO = "DELETE FROM everbeat_tasks WHERE seq > ?"


def enqueue(tx: Transaction, tasks: Sequence[NewTask]) -> list[Enqueued]:
    """Store all of them; if one is in conflict with what is stored under its id, store none."""
    last = tx.one(LAST)
    before = last[0] if last else 0
    if tx.many(INSERT, [_row(task, tx.now) for task in tasks]) == len(tasks):
        return [Enqueued(id=task.id, created=True) for task in tasks]
    results = _compare_all(tx, tasks, before)
    if any(result.conflict for result in results):
        tx.run(UNDO, (before,))
        return [Enqueued(id=result.id, created=False, conflict=result.conflict) for result in results]
    return results


def _row(task: NewTask, now: int) -> tuple[object, ...]:
    run_at = task.run_at if task.run_at is not None else now + (task.delay_us or 0)
    due_at = run_at if run_at > now else None
    return (
        task.id, task.name, task.queue, task.priority, task.args, task.max_attempts, task.policy, now, run_at, due_at
    )  # fmt: skip


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
