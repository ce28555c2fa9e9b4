"""Enqueue: all or none, ids made by the sender, the same id twice is one task.

The unique index on id makes a repeated enqueue a no-op: an unanswered one may be sent again.

A task whose unique key is held by another one that has not ended is not stored: the unique index decides, and a
statement of its own reads who holds it (PROTOCOL 28).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from everbeat.errors import StoreUnavailable
from everbeat.model.task import Alike, AllCreated, Enqueued, NewTask, TaskKind
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs.turns import LINE, hand_over

OF_KIND = ("name", "queue", "priority", "max_attempts", "policy", "good_until", "exclusive_key")
"""The first fields of `TaskKind`, stored as they are."""

TABLE = "everbeat_tasks"
TRIES = 5
WIDTHS = (1, 16, 256)
"""How many are looked for at once: few numbers, because each is a statement of its own."""

KIND = attrgetter("kind")

STORED = "SELECT id, name, args FROM everbeat_tasks WHERE id IN ({marks})"

# everbeat_tasks_unique
HOLDERS = """
SELECT unique_key, id FROM everbeat_tasks
 WHERE unique_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING')
   AND name = ? AND unique_key IN ({marks})"""


class NotAll(Exception):
    """Some were there already, or their keys are held."""


def add_all(tx: Transaction, orders: Sequence[Sequence[NewTask]]) -> list[Sequence[Enqueued]]:
    """Several enqueues in one transaction, none of which meets what is stored already: mostly they do not. NotAll if
    one does; the transaction is not to be committed then."""
    tasks = all_of(orders)
    for alike in _alike(tasks):
        if not tx.insert_new(TABLE, *_as_rows(tx, alike)):
            raise NotAll
    _hand_over(tx, tasks)
    return [AllCreated(o.ids) if type(o) is Alike else [Enqueued(task.id, True) for task in o] for o in orders]


def enqueue_all(tx: Transaction, orders: Sequence[Sequence[NewTask]]) -> list[Sequence[Enqueued]]:
    """Several enqueues in one transaction."""
    results: list[Sequence[Enqueued]] = [_enqueue(tx, order) for order in orders]
    _hand_over(tx, all_of(orders))
    return results


def enqueue(tx: Transaction, tasks: Sequence[NewTask]) -> Sequence[Enqueued]:
    """Store all of them; if one is in conflict with what is stored under its id, store none."""
    return enqueue_all(tx, [tasks])[0]


def _enqueue(tx: Transaction, tasks: Sequence[NewTask]) -> list[Enqueued]:
    results: list[Enqueued] = []
    try:
        with tx.part():
            for some in _parts(tasks):
                known = _stored(tx, some)
                _insert_all(tx, some)
                results += _compare_all(tx, some, known.keys())
            if any(result.conflict for result in results):
                raise NotAll
    except NotAll:
        return [Enqueued(id=result.id, created=False, conflict=result.conflict) for result in results]
    return results


def _parts(tasks: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
    """What can be stored and compared at once. An id that comes again as something else, after a key under which it may
    not have been stored, begins another part: what it finds is known only then."""
    begin = 0
    said: dict[str, tuple[str, bytes, str | None]] = {}
    for at, task in enumerate(tasks):
        says = (task.kind.name, task.args, task.unique_key)
        before = said.setdefault(task.id, says)
        if before != says and before[-1] is not None:
            yield tasks[begin:at]
            begin, said = at, {task.id: says}
    yield tasks[begin:]


def _stored(tx: Transaction, tasks: Sequence[NewTask]) -> dict[str, tuple[str, bytes]]:
    """Name and arguments of what is stored under their ids."""
    return {row[0]: (row[1], row[2]) for row in _each_of(tx, STORED, (), [task.id for task in tasks])}


def _holders(tx: Transaction, tasks: Sequence[NewTask]) -> dict[tuple[str, str | None], str]:
    """Who holds their unique keys, by name and key."""
    keys: dict[str, list[str]] = {}
    for task in tasks:
        if task.unique_key is not None:
            keys.setdefault(task.kind.name, []).append(task.unique_key)
    return {(name, key): task_id for name in keys for key, task_id in _each_of(tx, HOLDERS, (name,), keys[name])}


def _each_of(tx: Transaction, sql: str, values: tuple[str, ...], sought: Sequence[str]) -> Iterator[Row]:
    most = WIDTHS[-1]
    for at in range(0, len(sought), most):
        some = sought[at : at + most]
        width = next(width for width in WIDTHS if width >= len(some))
        padded = [*some, *[some[0]] * (width - len(some))]
        yield from tx.all(sql.format(marks=", ".join("?" * width)), (*values, *padded))


def _insert_all(tx: Transaction, tasks: Sequence[NewTask]) -> int:
    return sum(tx.insert(TABLE, *_as_rows(tx, alike)) for alike in _alike(tasks))


def _alike(tasks: Sequence[NewTask]) -> Iterator[Alike]:
    """Those beside each other that are of one kind."""
    if type(tasks) is Alike:
        yield tasks
        return
    for kind, some in groupby(tasks, KIND):
        ids, args, _, keys, _ = zip(*some, strict=True)
        yield Alike(kind, ids, args, keys if keys.count(None) < len(keys) else None)


def _hand_over(tx: Transaction, tasks: Sequence[NewTask]) -> None:
    """Last of all: who has locked an exclusive key must not wait for a sender of its unique key, who may want it."""
    keys = {kind.exclusive_key for kind in kinds_of(tasks)} - {None}
    if keys:
        hand_over(tx, keys)


def all_of(orders: Sequence[Sequence[NewTask]]) -> Sequence[NewTask]:
    return orders[0] if len(orders) == 1 else [task for order in orders for task in order]


def kinds_of(tasks: Sequence[NewTask]) -> Iterable[TaskKind]:
    """Each at least once."""
    return (tasks.kind,) if type(tasks) is Alike else (kind for kind, _ in groupby(tasks, KIND))


def have_keys(tasks: Sequence[NewTask]) -> bool:
    """Whether one of them is unique, or exclusive."""
    if len(tasks) == 1 and type(tasks) is not Alike:  # nearly all that are sent for somebody who waits
        return tasks[0].unique_key is not None or tasks[0].kind.exclusive_key is not None
    if any(kind.exclusive_key is not None for kind in kinds_of(tasks)):
        return True
    if type(tasks) is Alike:
        return tasks.keys is not None
    return any(task.unique_key is not None for task in tasks)


def _as_rows(tx: Transaction, alike: Alike) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """What they have in common, and what each has of its own."""
    columns: dict[str, Sequence[Any]] = {"id": alike.ids, "args": alike.args}
    if alike.keys is not None:
        columns["unique_key"] = alike.keys
    return _shared(alike.kind, tx.now), columns


def _shared(kind: TaskKind, now: int) -> dict[str, Any]:
    run_at = kind.run_at if kind.run_at is not None else now + (kind.delay_us or 0)
    due_at = run_at if run_at > now else None
    line = f"{LINE}{kind.exclusive_key}" if kind.exclusive_key is not None and due_at is None else None
    times = {"created_at": now, "run_at": run_at, "due_at": due_at, "waiting_for": line}
    return dict(zip(OF_KIND, kind, strict=False)) | times


def _compare_all(tx: Transaction, tasks: Sequence[NewTask], known: Collection[str]) -> list[Enqueued]:
    """Of one id twice in the same call the first was created, the second found it."""
    results: list[Enqueued] = []
    seen = set(known)
    stored = _stored(tx, tasks)
    holders = _holders(tx, [task for task in tasks if task.id not in stored])
    for task in tasks:
        found, holder = stored.get(task.id), holders.get((task.kind.name, task.unique_key))
        if found is None and holder is None:
            found, holder = _find(tx, task)
        if found is None:
            results.append(Enqueued(id=holder or "", created=False))
            continue
        is_same = found == (task.kind.name, task.args)
        results.append(Enqueued(id=task.id, created=is_same and task.id not in seen, conflict=not is_same))
        seen.add(task.id)
    return results


def _find(tx: Transaction, task: NewTask) -> tuple[tuple[str, bytes] | None, str | None]:
    """What is stored under its id now, or who holds its unique key: the holder has ended between the two statements."""
    for _ in range(TRIES):
        _insert_all(tx, [task])
        found = _stored(tx, [task]).get(task.id)
        holder = None if found else _holders(tx, [task]).get((task.kind.name, task.unique_key))
        if found or holder:
            return found, holder
    raise StoreUnavailable(f"others send and end tasks with the unique key {task.unique_key} all the time")
