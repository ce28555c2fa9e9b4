"""Enqueue: all or none, ids made by the sender, the same id twice is one task.

A task whose unique key is held by another one that has not ended is not stored: the unique index decides, and a
statement of its own reads who holds it (PROTOCOL 28).
"""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from everbeat.model.task import Enqueued, NewTask, TaskKind
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.turns import LINE, hand_over

LAST = "SELECT coalesce(max(seq), 0) FROM everbeat_tasks"

# The unique index on id makes a repeated enqueue a no-op: an unanswered one may be sent again. Many rows in one
# statement that share the values of their kind take a third of the time of a statement for each.
OF_KIND = ("name", "queue", "priority", "max_attempts", "policy", "unique_key", "good_until", "exclusive_key")
"""The first fields of `TaskKind`, stored as they are."""
COLUMNS = (*OF_KIND, "created_at", "run_at", "due_at", "waiting_for")
SHARED = ", ".join(f"?{number + 1}" for number in range(len(COLUMNS)))
INSERT = f"INSERT INTO everbeat_tasks ({', '.join(COLUMNS)}, id, args) VALUES {{rows}} ON CONFLICT DO NOTHING"
INSERTS = {
    width: INSERT.format(
        rows=", ".join(f"({SHARED}, ?{at + 1}, ?{at + 2})" for at in range(len(COLUMNS), len(COLUMNS) + 2 * width, 2))
    )
    for width in (128, 16, 1)
}

ID, ARGS, KIND = attrgetter("id"), attrgetter("args"), attrgetter("kind")

STORED = "SELECT seq, name, args FROM everbeat_tasks WHERE id = ?"

# everbeat_tasks_unique
HOLDER = """
SELECT id, seq FROM everbeat_tasks
 WHERE unique_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING') AND name = ? AND unique_key = ?"""

UNDO = "DELETE FROM everbeat_tasks WHERE seq > ?"


def enqueue_all(tx: Transaction, orders: Sequence[Sequence[NewTask]]) -> list[list[Enqueued]]:
    """Several enqueues in one transaction, each of them all or nothing. Mostly none meets what is stored already."""
    tasks = [task for order in orders for task in order]
    before = _last(tx)
    if _insert_all(tx, tasks) == len(tasks):
        return [[Enqueued(task.id, True) for task in order] for order in orders]
    tx.run(UNDO, (before,))
    return [enqueue(tx, order) for order in orders]


def enqueue(tx: Transaction, tasks: Sequence[NewTask]) -> list[Enqueued]:
    """Store all of them; if one is in conflict with what is stored under its id, store none."""
    before = _last(tx)
    _insert_all(tx, tasks)
    results = _compare_all(tx, tasks, before)
    if any(result.conflict for result in results):
        tx.run(UNDO, (before,))
        return [Enqueued(id=result.id, created=False, conflict=result.conflict) for result in results]
    return results


def _last(tx: Transaction) -> int:
    last = tx.one(LAST)
    return last[0] if last else 0


def _insert_all(tx: Transaction, tasks: Sequence[NewTask]) -> int:
    return sum(_insert(tx, kind, list(alike)) for kind, alike in groupby(tasks, KIND))


def _insert(tx: Transaction, kind: TaskKind, tasks: list[NewTask]) -> int:
    shared = _shared(kind, tx.now)
    varying: list[str | bytes] = [b""] * (2 * len(tasks))
    varying[::2] = map(ID, tasks)
    varying[1::2] = map(ARGS, tasks)
    added = at = 0
    for width, insert in INSERTS.items():
        while at + 2 * width <= len(varying):
            added += tx.run(insert, shared + varying[at : at + 2 * width])
            at += 2 * width
    if kind.exclusive_key is not None:
        hand_over(tx, (kind.exclusive_key,))
    return added


def _shared(kind: TaskKind, now: int) -> list[Any]:
    run_at = kind.run_at if kind.run_at is not None else now + (kind.delay_us or 0)
    due_at = run_at if run_at > now else None
    line = f"{LINE}{kind.exclusive_key}" if kind.exclusive_key is not None and due_at is None else None
    return [*kind[: len(OF_KIND)], now, run_at, due_at, line]


def _compare_all(tx: Transaction, tasks: Sequence[NewTask], before: int) -> list[Enqueued]:
    """Of one id twice in the same call the first was created, the second found it."""
    results: list[Enqueued] = []
    created: set[str] = set()
    for task in tasks:
        stored = tx.one(STORED, (task.id,))
        holder = None if stored else tx.one(HOLDER, (task.kind.name, task.kind.unique_key))
        if holder is not None:
            results.append(Enqueued(id=holder[0], created=False))
            continue
        is_same = stored is not None and stored[1:] == (task.kind.name, task.args)
        is_new = is_same and stored is not None and stored[0] > before and task.id not in created
        created.add(task.id)
        results.append(Enqueued(id=task.id, created=is_new, conflict=not is_same))
    return results
