"""Enqueue: all or none, ids made by the sender, the same id twice is one task.

The unique index on id makes a repeated enqueue a no-op: an unanswered one may be sent again.

A task whose unique key is held by another one that has not ended is not stored: the unique index decides, and a
statement of its own reads who holds it (PROTOCOL 28).
"""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from everbeat.errors import StoreUnavailable
from everbeat.model.task import Enqueued, NewTask, TaskKind
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs.turns import LINE, hand_over

OF_KIND = ("name", "queue", "priority", "max_attempts", "policy", "unique_key", "good_until", "exclusive_key")
"""The first fields of `TaskKind`, stored as they are."""

TRIES = 5

ID, ARGS, KIND = attrgetter("id"), attrgetter("args"), attrgetter("kind")

STORED = "SELECT name, args FROM everbeat_tasks WHERE id = ?"

# everbeat_tasks_unique
HOLDER = """
SELECT id FROM everbeat_tasks
 WHERE unique_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING') AND name = ? AND unique_key = ?"""


class _NotAll(Exception):
    """Some were there already, or their keys are held: nothing was added."""


def enqueue_all(tx: Transaction, orders: Sequence[Sequence[NewTask]]) -> list[list[Enqueued]]:
    """Several enqueues in one transaction, each of them all or nothing. Mostly none meets what is stored already."""
    tasks = [task for order in orders for task in order]
    if len(tasks) == 1:  # nothing that would have to be undone
        return [[Enqueued(tasks[0].id, True)] if _insert_all(tx, tasks) else enqueue(tx, tasks)]
    try:
        with tx.part():
            if _insert_all(tx, tasks) < len(tasks):
                raise _NotAll
    except _NotAll:
        return [enqueue(tx, order) for order in orders]
    return [[Enqueued(task.id, True) for task in order] for order in orders]


def enqueue(tx: Transaction, tasks: Sequence[NewTask]) -> list[Enqueued]:
    """Store all of them; if one is in conflict with what is stored under its id, store none."""
    known = _stored(tx, tasks)
    results: list[Enqueued] = []
    try:
        with tx.part():
            _insert_all(tx, tasks)
            results = _compare_all(tx, tasks, known)
            if any(result.conflict for result in results):
                raise _NotAll
    except _NotAll:
        return [Enqueued(id=result.id, created=False, conflict=result.conflict) for result in results]
    return results


def _stored(tx: Transaction, tasks: Sequence[NewTask]) -> set[str]:
    """Those that are there before anything is added."""
    return {task.id for task in tasks if tx.one(STORED, (task.id,))}


def _insert_all(tx: Transaction, tasks: Sequence[NewTask]) -> int:
    added = sum(_insert(tx, kind, list(alike)) for kind, alike in groupby(tasks, KIND))
    hand_over(tx, {task.kind.exclusive_key for task in tasks})
    return added


def _insert(tx: Transaction, kind: TaskKind, tasks: list[NewTask]) -> int:
    columns = {"id": list(map(ID, tasks)), "args": list(map(ARGS, tasks))}
    return tx.insert("everbeat_tasks", _shared(kind, tx.now), columns)


def _shared(kind: TaskKind, now: int) -> dict[str, Any]:
    run_at = kind.run_at if kind.run_at is not None else now + (kind.delay_us or 0)
    due_at = run_at if run_at > now else None
    line = f"{LINE}{kind.exclusive_key}" if kind.exclusive_key is not None and due_at is None else None
    times = {"created_at": now, "run_at": run_at, "due_at": due_at, "waiting_for": line}
    return dict(zip(OF_KIND, kind, strict=False)) | times


def _compare_all(tx: Transaction, tasks: Sequence[NewTask], known: set[str]) -> list[Enqueued]:
    """Of one id twice in the same call the first was created, the second found it."""
    results: list[Enqueued] = []
    seen = set(known)
    for task in tasks:
        stored, holder = _find(tx, task)
        if holder is not None:
            results.append(Enqueued(id=holder, created=False))
            continue
        is_same = stored == (task.kind.name, task.args)
        results.append(Enqueued(id=task.id, created=is_same and task.id not in seen, conflict=not is_same))
        seen.add(task.id)
    return results


def _find(tx: Transaction, task: NewTask) -> tuple[Row | None, str | None]:
    """What is stored under its id, or who holds its unique key. A holder may end between the two statements."""
    for _ in range(TRIES):
        stored = tx.one(STORED, (task.id,))
        holder = None if stored else tx.one(HOLDER, (task.kind.name, task.kind.unique_key))
        if stored or holder:
            return stored, holder[0] if holder else None
        _insert_all(tx, [task])
    raise StoreUnavailable(f"others send and end tasks with the unique key {task.kind.unique_key} all the time")
