"""Rows that can not be what they say: somebody has written them by hand, and SQLite takes any value in any column.

They are found where they would be claimed, because there they would stop every worker that reads them. Such a task is
set aside at once: FAILED and in the quarantine, with what was found in it. Values that make no sense are put right, so
that it can be looked at and released.
"""

from collections.abc import Sequence
from typing import Any

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.state import Change
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
    "priority", "seq", "id", "fence", "attempt", "policy", "args", "workflow_id", "node", "refs", "name", "queue",
    "free_attempts", "crash_count", "lost_count", "dispatch_count", "solo", "good_until", "exclusive_key",
)  # fmt: skip
"""Of a row that is to be claimed, in its order."""
SHORT = 10
"""Plain rows of one kind differ only in the first so many columns. Such a row may be given short: those columns, and a
last one that says whether it is plain."""
COUNTERS, WAITS = range(12, 17), range(17, 19)
"""Where nothing has failed, these are 0; where nothing is waited for, those are NULL."""
IS_PLAIN = f"""coalesce({" AND ".join(f"{COLUMNS[at]} = 0" for at in COUNTERS)}
       AND {" AND ".join(f"{COLUMNS[at]} IS NULL" for at in WAITS)}, 0)"""
PLAIN_REST = (*(0 for _ in COUNTERS), *(None for _ in WAITS))
SHAPE = (int, int, str, int, int), bytes, (str, str, int, int, int, int, int)
TYPES = ((0, int), (1, int), (2, str), (3, int), (4, int), (6, bytes))
"""What is left to be looked at in plain rows. Their queue and name are what was asked for."""
NOTHING = type(None)
OF_NODES = ((7, {str, NOTHING}), (8, {int, NOTHING}), (9, {str, NOTHING}))
"""What tells nodes of workflows from other tasks. They are plain, too."""

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
    """Whether all of them are sound, and have neither failed in any way nor wait for anything, as nearly all do: asked
    by columns, which costs a fraction of a look at each row."""
    columns, count = list(zip(*rows, strict=True)), len(rows)
    if len(columns) == len(COLUMNS):
        is_plain = all(columns[at].count(0) == count for at in COUNTERS) and all(
            columns[at].count(None) == count for at in WAITS
        )
    else:
        is_plain = columns[SHORT].count(1) == count
    return (
        is_plain
        and all(set(map(type, columns[at])) == {kind} for at, kind in TYPES)
        and all(columns[at].count(None) == count or set(map(type, columns[at])) <= kinds for at, kinds in OF_NODES)
        and min(columns[3]) >= 0 <= min(columns[4])
        and max(columns[3]) < LARGEST > max(columns[4])
    )


def whole(row: Row, kind: tuple[str, str]) -> Row:
    """A row of this queue and name that may have been given short."""
    return row if len(row) == len(COLUMNS) else (*row[:SHORT], kind[1], kind[0], *PLAIN_REST)


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
    return bool(0 <= row[3] | row[4] | row[12] | row[13] | row[14] | row[15] < LARGEST)


_KNOWN: set[tuple[type, ...]] = set()
"""Shapes that make sense: a handful."""


def _is_shape(types: tuple[type, ...]) -> bool:
    texts, numbers = {types[7], types[9], types[18]}, {types[8], types[17]}
    shape = types[:5], types[6], types[10:17]
    return shape == SHAPE and numbers <= {int, NOTHING} and texts <= {str, NOTHING}


def set_aside(tx: Transaction, rows: Sequence[Row]) -> None:
    records = Records(tx)
    for row in rows:
        task = dict(zip(COLUMNS, row, strict=True))
        right = {column: _right(column, value, task["seq"]) for column, value in task.items()}
        wrong = [column for column in COLUMNS if right[column] is not task[column]]
        reason = "; ".join(f"its {column} can not be {str(task[column])[:50]!r}" for column in wrong)
        tx.run(SET_ASIDE, {**right, "now": tx.now, "code": ROW_UNREADABLE, "message": reason})
        records.history(
            task_id=right["id"], actor=ACTOR, change=Change.GIVE_UP, reason=reason, attempt=right["attempt"],
            fence=right["fence"],
        )  # fmt: skip
        facts = {"name": right["name"], "attempt": right["attempt"], "action": "failed", "reason": reason,
                 "code": ROW_UNREADABLE}  # fmt: skip
        records.event(Event(name=event.TASK_QUARANTINED, task_id=right["id"], facts=facts))
    records.write()
    hand_over(tx, {row[18] for row in rows if isinstance(row[18], str)})


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
