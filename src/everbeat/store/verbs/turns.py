"""Whose turn it is: of the tasks with one exclusive key at most one is ready or owned, and has the turn.

The others stand in line: `waiting_for` is set, so they are in no index that a claim reads. Whatever would make a task
with an exclusive key ready (sent, due, retried, handed back, recovered, revived, requeued) puts it in line instead, and
whatever ends or delays the one that has the turn only lets go of it. At the end of the same transaction `hand_over`
gives the turn to the first in line, by priority and age: it alone decides who is ready (PROTOCOL 25). A task whose
workflow is paused is passed over; the same expression, `IN_LINE`, keeps it from being ready.

Writers of one SQLite file take turns, so nobody hands over the same key at the same time; a database with several
writers locks the key first. The unique index over those who have the turn is the net. `lost` finds keys whose line
nobody serves, which takes somebody else's hand in the store: a deleted row, a repair.
"""

from collections.abc import Iterable, Sequence

from everbeat.store.transaction import Transaction

LINE = "exclusive:"
"""`waiting_for` of a task in line, before its key."""
PAUSED = "workflow:"
"""`waiting_for` of a task whose workflow is paused, before that one's id."""
IN_LINE = f"""CASE WHEN held = 1 THEN '{PAUSED}' || workflow_id
            WHEN exclusive_key IS NOT NULL THEN '{LINE}' || exclusive_key END"""
"""`waiting_for` of a task that nothing but its workflow or another holder of its key keeps from being ready."""

# everbeat_tasks_turn
HAS_TURN = """
SELECT 1 FROM everbeat_tasks
 WHERE exclusive_key IS NOT NULL AND waiting_for IS NULL AND due_at IS NULL
   AND status IN ('PENDING', 'CLAIMED', 'RUNNING') AND exclusive_key = ?"""

# everbeat_tasks_line, in its order
FIRST = """
SELECT seq, queue, name FROM everbeat_tasks
 WHERE exclusive_key IS NOT NULL AND waiting_for IS NOT NULL AND due_at IS NULL AND status = 'PENDING'
   AND exclusive_key = ? AND held = 0 ORDER BY priority, seq LIMIT 1"""

GIVE = "UPDATE everbeat_tasks SET waiting_for = NULL WHERE seq = ?"

# everbeat_tasks_line, one step for each key
NEXT_KEY = """
SELECT exclusive_key FROM everbeat_tasks
 WHERE exclusive_key IS NOT NULL AND waiting_for IS NOT NULL AND due_at IS NULL AND status = 'PENDING'
   AND exclusive_key > ? AND held = 0 ORDER BY exclusive_key LIMIT 1"""

KEYS_OF = """
SELECT DISTINCT exclusive_key FROM everbeat_tasks WHERE seq IN ({seqs}) AND exclusive_key IS NOT NULL"""


def hand_over(tx: Transaction, keys: Iterable[str | None]) -> None:
    """Let each of these keys be somebody's turn, if anybody waits for it."""
    for key in keys:
        if key is None or tx.one(HAS_TURN, (key,)):
            continue
        first = tx.one(FIRST, (key,))
        if first is not None:
            seq, queue, name = first
            tx.run(GIVE, (seq,))
            tx.wakes.add((queue, name))


def keys_of(tx: Transaction, seqs: Sequence[int]) -> list[str]:
    return [key for (key,) in tx.rows(KEYS_OF.format(seqs=", ".join("?" * len(seqs))), seqs)]


def lost(tx: Transaction, *, after: str, limit: int) -> tuple[list[str], str]:
    """Of the next keys that have a line, those that are nobody's turn; and the last key that was looked at, or "" if
    there are no more."""
    found: list[str] = []
    for _ in range(limit):
        row = tx.one(NEXT_KEY, (after,))
        if row is None:
            return found, ""
        after = row[0]
        if not tx.one(HAS_TURN, (after,)):
            found.append(after)
    return found, after
