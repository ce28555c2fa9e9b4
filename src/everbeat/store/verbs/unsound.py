"""Rows that can not be what they say: somebody has written them by hand, and SQLite takes any value in any column.

They are found where they would be claimed, because there they would stop every worker that reads them. Such a task is
set aside at once: FAILED and in the quarantine, with what was found in it. Values that make no sense are put right, so
that it can be looked at and released.
"""

from collections.abc import Sequence
from typing import Any

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.state import Change, TaskStatus
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs.records import Records
from everbeat.store.verbs.turns import hand_over

ROW_UNREADABLE = "ROW_UNREADABLE"
ACTOR = "system/claim"
BITE = 200
"""About so many of a queue and name are set aside in one go."""
LARGEST = 1 << 62
"""A power of two: no counter reaches it unless a bit from there on is set."""

COLUMNS = (
    "priority", "seq", "id", "name", "queue", "fence", "attempt", "free_attempts", "crash_count", "lost_count",
    "dispatch_count", "solo", "policy", "args", "good_until", "exclusive_key", "workflow_id", "node", "refs",
)  # fmt: skip
"""Of a row that is to be claimed, in its order."""
SHAPE = (int, int, str, str, str, int, int, int, int, int, int, int)
PLAIN = ((0, int), (1, int), (2, str), (3, str), (4, str), (5, int), (6, int), (13, bytes))
"""What is left to be looked at in rows that have no counters, no times and no others."""
NOTHING = type(None)

# Primary key
SET_ASIDE = """
UPDATE everbeat_tasks
   SET status = 'FAILED', quarantined = 1, fence = :fence + 1, finished_at = :now, id = :id, priority = :priority,
       attempt = :attempt, free_attempts = :free_attempts, crash_count = :crash_count, lost_count = :lost_count,
       dispatch_count = :dispatch_count, solo = :solo, args = :args, good_until = :good_until,
       exclusive_key = :exclusive_key, workflow_id = :workflow_id, node = :node, refs = :refs, error_code = :code,
       error_message = :message, error = NULL
 WHERE seq = :seq AND status = 'PENDING'"""


def are_plain(rows: Sequence[Row]) -> bool:
    """Whether all of them are sound, have neither failed in any way nor wait for anything nor belong to a workflow, as
    nearly all do: asked by columns, which costs a fraction of a look at each row."""
    columns, count = list(zip(*rows, strict=True)), len(rows)
    return (
        all(columns[at].count(0) == count for at in (7, 8, 9, 10, 11))
        and all(columns[at].count(None) == count for at in (14, 15, 16, 17, 18))
        and all(set(map(type, columns[at])) == {kind} for at, kind in PLAIN)
        and min(columns[5]) >= 0 <= min(columns[6])
        and max(columns[5]) < LARGEST > max(columns[6])
    )


def sound(rows: Sequence[Row], flawed: list[Row]) -> list[Row]:
    """Those that can be claimed; the others are added to `flawed`."""
    good = [row for row in rows if is_sound(row)]
    if len(good) < len(rows):
        flawed += [row for row in rows if not is_sound(row)]
    return good


def is_sound(row: Row) -> bool:
    """Asked of every row that is claimed: one look at the types of all its values, one at the bits of its counters."""
    types = tuple(map(type, row))
    if types not in _KNOWN:
        if not _is_shape(types):
            return False
        _KNOWN.add(types)
    return bool(0 <= row[5] | row[6] | row[7] | row[8] | row[9] | row[10] < LARGEST)


_KNOWN: set[tuple[type, ...]] = set()
"""Shapes that make sense: a handful."""


def _is_shape(types: tuple[type, ...]) -> bool:
    texts, numbers = {*types[15:17], types[18]}, {types[14], types[17]}
    return types[:12] == SHAPE and types[13] is bytes and numbers <= {int, NOTHING} and texts <= {str, NOTHING}


def set_aside(tx: Transaction, rows: Sequence[Row]) -> None:
    records = Records(tx)
    for row in rows:
        task = dict(zip(COLUMNS, row, strict=True))
        right = {column: _right(column, value, task["seq"]) for column, value in task.items()}
        wrong = [column for column in COLUMNS if right[column] is not task[column]]
        reason = "; ".join(f"its {column} can not be {str(task[column])[:50]!r}" for column in wrong)
        tx.run(SET_ASIDE, {**right, "now": tx.now, "code": ROW_UNREADABLE, "message": reason})
        records.history(
            task_id=right["id"], actor=ACTOR, change=Change.GIVE_UP, old=TaskStatus.PENDING, new=TaskStatus.FAILED,
            reason=reason, attempt=right["attempt"], fence=right["fence"], worker_id=None,
        )  # fmt: skip
        facts = {"name": right["name"], "attempt": right["attempt"], "action": "failed", "reason": reason,
                 "code": ROW_UNREADABLE}  # fmt: skip
        records.event(Event(name=event.TASK_QUARANTINED, task_id=right["id"], facts=facts))
    records.write()
    hand_over(tx, {row[15] for row in rows if isinstance(row[15], str)})


def _right(column: str, value: Any, seq: int) -> Any:
    """The value itself, or one that makes sense in its place."""
    match column:
        case "id":
            return value if isinstance(value, str) else f"unreadable-{seq}"
        case "args":
            return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
        case "exclusive_key" | "refs" | "workflow_id":
            return value if type(value) in (str, NOTHING) else None
        case "good_until" | "node":
            return value if type(value) in (int, NOTHING) else None
        case "policy" | "name" | "queue" | "seq":
            return value
        case "priority" | "solo":
            return value if type(value) is int else 0
    return value if type(value) is int and 0 <= value < LARGEST else 0
