"""Single tasks in one statement, which is its own transaction: one round trip for all that are sent at the same time.

Not for tasks with an exclusive key, whose turn has to be found, nor for those that meet what is stored already: those
go the long way. Ids that were made for these tasks meet nothing, so the server is not asked to look for it in advance,
which costs it a twentieth of what a task takes; should it find something all the same, nothing was stored.
"""

import struct
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import psycopg

from everbeat.crashpoint import crash_point
from everbeat.model.task import Enqueued, NewTask, TaskKind
from everbeat.store.postgres.arrays import KINDS as ARRAYS
from everbeat.store.postgres.arrays import array_of
from everbeat.store.postgres.batch import Statement, numbered
from everbeat.store.postgres.bells import NotifyBells, Said
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.hot import NOW
from everbeat.store.postgres.transaction import Connection
from everbeat.store.verbs.sending import OF_KIND

RUN_AT = "coalesce(%(run_at)s::bigint, c.now + %(delay_us)s::bigint)"
SEND = f"""
INSERT INTO everbeat_tasks (id, args, unique_key, {", ".join(OF_KIND)}, created_at, run_at, due_at)
SELECT {{own}}, %(name)s, %(queue)s, %(priority)s, %(max_attempts)s, %(policy)s, %(good_until)s::bigint, NULL, c.now,
       {RUN_AT}, CASE WHEN {RUN_AT} > c.now THEN {RUN_AT} END
  FROM (SELECT coalesce(%(now)s::bigint, {NOW}) AS now) AS c{{rows}}"""
ROWS = ", unnest(%(id)s::text[], %(args)s::bytea[], %(unique_key)s::text[]) AS u (id, args, unique_key)"
NEW_ONE = SEND.format(own="%(id)s, %(args)s, %(unique_key)s", rows="")
NEW_MANY = SEND.format(own="u.id, u.args, u.unique_key", rows=ROWS)
SEND_ONE = f"{NEW_ONE} ON CONFLICT DO NOTHING"
SEND_MANY = f"{NEW_MANY} ON CONFLICT DO NOTHING RETURNING id"
TEXT, BYTEA, BIGINT, TEXTS, BYTEAS = 25, 17, 20, 1009, 1001
"""What PostgreSQL calls these types."""
OF_BOTH = {
    "name": TEXT, "queue": TEXT, "priority": BIGINT, "max_attempts": BIGINT, "policy": TEXT, "good_until": BIGINT,
    "run_at": BIGINT, "delay_us": BIGINT, "now": BIGINT,
}  # fmt: skip
"""Values of a kind, and the time, in the order in which the statements name them: after what is one task's own, before
what are those of many."""
OF_ONE, OF_MANY = (TEXT, BYTEA, TEXT, *OF_BOTH.values()), (*OF_BOTH.values(), TEXTS, BYTEAS, TEXTS)
KNOWN: dict[str, Statement] = {
    sql: (numbered(sql)[0], types)
    for sql, types in ((NEW_ONE, OF_ONE), (SEND_ONE, OF_ONE), (NEW_MANY, OF_MANY), (SEND_MANY, OF_MANY))
}
COLUMNS = {"id": "text", "args": "bytea", "unique_key": "text"}
_NUMBER = struct.Struct("!q").pack


def send_alike(
    database: PostgresDatabase, bells: NotifyBells, orders: Sequence[Sequence[NewTask]]
) -> list[Sequence[Enqueued] | None]:
    """Those that are one task each, if all of these are of one kind. None: nothing of it was stored."""
    singles = [order[0] if len(order) == 1 else None for order in orders]  # once: columns make another at each look
    tasks = {task.id: task for task in singles if task is not None}
    kind = _kind_of(tasks.values())
    if kind is None or kind.exclusive_key is not None:
        return [None] * len(orders)
    send = partial(_send, database, kind, [*tasks.values()])
    created = bells.ring_with(((kind.queue, kind.name),), send)
    return [_result(task, tasks, created) for task in singles]


def _kind_of(tasks: Iterable[NewTask]) -> TaskKind | None:
    """None: there are none, or of several kinds."""
    kind: TaskKind | None = None
    for task in tasks:
        if kind is None:
            kind = task.kind
        elif task.kind is not kind and task.kind != kind:
            return None
    return kind


def _send(
    database: PostgresDatabase, kind: TaskKind, tasks: Sequence[NewTask], then: Sequence[Said]
) -> Collection[str]:
    """The ids of those that were stored."""
    are_new = not [task for task in tasks if not task.is_new or task.unique_key is not None]
    with database.session() as connection:
        crash_point("enqueue.before_commit")
        try:
            created = None if then else _send_known(database, connection, kind, tasks, are_new=are_new)
            if created is None:
                created = _send_alone(database, connection, kind, tasks, then, are_new=are_new)
        except psycopg.errors.UniqueViolation:
            if not are_new:
                raise
            return ()
        crash_point("enqueue.after_commit")
    return created


def _send_known(
    database: PostgresDatabase, connection: Connection, kind: TaskKind, tasks: Sequence[NewTask], *, are_new: bool
) -> Collection[str] | None:
    """None: the session does not know the statement, nothing was sent."""
    shared = _as_bytes(kind, database.moment)
    if len(tasks) == 1:
        (task,) = tasks
        own: tuple[bytes | None, ...] = (task.id.encode(), task.args, _encoded(task.unique_key))
        answer = database.at_once(connection, KNOWN[NEW_ONE if are_new else SEND_ONE], (*own, *shared))
        if answer is None:
            return None
        return (task.id,) if answer.command_tuples else ()
    ids = array_of(TEXT, [task.id.encode() for task in tasks])
    keys = array_of(TEXT, [_encoded(task.unique_key) for task in tasks])
    own = (ids, array_of(BYTEA, [task.args for task in tasks]), keys)
    answer = database.at_once(connection, KNOWN[NEW_MANY if are_new else SEND_MANY], (*shared, *own))
    if answer is None:
        return None
    if are_new or answer.ntuples == len(tasks):
        return {task.id for task in tasks}
    return {(answer.get_value(row, 0) or b"").decode() for row in range(answer.ntuples)}


def _send_alone(
    database: PostgresDatabase, connection: Connection, kind: TaskKind, tasks: Sequence[NewTask],
    then: Sequence[Said], *, are_new: bool,
) -> Collection[str]:  # fmt: skip
    values = _values(kind, database.moment)
    if len(tasks) == 1:
        values |= {"id": tasks[0].id, "args": tasks[0].args, "unique_key": tasks[0].unique_key}
        added = database.alone(connection, NEW_ONE if are_new else SEND_ONE, values, then=then)
        return [tasks[0].id] if added.rowcount else []
    columns = {name: ARRAYS[kind_of]([getattr(task, name) for task in tasks]) for name, kind_of in COLUMNS.items()}
    added = database.alone(connection, NEW_MANY if are_new else SEND_MANY, values | columns, then=then)
    return {task.id for task in tasks} if are_new else {task_id for (task_id,) in added.fetchall()}


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@lru_cache(maxsize=256)
def _as_bytes(kind: TaskKind, now: int | None) -> tuple[bytes | None, ...]:
    """Its values as they travel."""
    values = _values(kind, now)
    return tuple(
        None if values[name] is None else values[name].encode() if kind_of == TEXT else _NUMBER(values[name])
        for name, kind_of in OF_BOTH.items()
    )


def _values(kind: TaskKind, now: int | None) -> dict[str, Any]:
    """`now` is None where the server tells the time."""
    return kind._asdict() | {"delay_us": kind.delay_us or 0, "now": now}


def _result(task: NewTask | None, tasks: dict[str, NewTask], created: Collection[str]) -> Sequence[Enqueued] | None:
    """Of one id twice the last was sent."""
    if task is None or task.id not in created or tasks[task.id] is not task:
        return None
    return [Enqueued(task.id, True)]
