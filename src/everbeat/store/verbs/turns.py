"""Whose turn it is: of the tasks with one exclusive key at most one is ready or owned, and has the turn.

The others stand in line: `waiting_for` is set, so they are in no index that a claim reads. Whatever would make a task
with an exclusive key ready (sent, due, retried, handed back, recovered, revived, requeued) puts it in line instead, and
whatever ends or delays the one that has the turn only lets go of it. At the end of the same transaction `hand_over`
gives the turn to the first in line, by priority and age: it alone decides who is ready (PROTOCOL 25). All keys of a
transaction are handed over together, in one order, so that two can not wait for each other: what comes before the end
of it only says which keys (`let_go`). A task whose
workflow is paused is passed over; the same expression, `IN_LINE`, keeps it from being ready. Who waits in a paused
queue gives way to the first of another queue, also when it has the turn: a pause holds up nobody elsewhere.

The key is locked first, so nobody else hands it over at the same time. The unique index over those who have the turn is
the net. `lost` finds keys whose line nobody serves, which takes somebody else's hand in the store: a deleted row, a
repair.
"""

from collections.abc import Iterable, Sequence

from everbeat.store.transaction import Transaction

AT_ONCE = 1000
"""So many keys are looked at in one go."""
LINE = "exclusive:"
"""`waiting_for` of a task in line, before its key."""
PAUSED = "workflow:"
"""`waiting_for` of a task whose workflow is paused, before that one's id."""
FOR_KEY = f"CASE WHEN exclusive_key IS NOT NULL THEN '{LINE}' || exclusive_key END"
"""`waiting_for` of a task that nothing but another holder of its key keeps from being ready."""
IN_LINE = f"CASE WHEN held = 1 THEN '{PAUSED}' || workflow_id ELSE {FOR_KEY} END"
"""The same, of one that its workflow may hold, too."""

IS_PAUSED = "EXISTS (SELECT 1 FROM everbeat_queues q WHERE q.name = everbeat_tasks.queue AND q.paused = 1)"

# everbeat_tasks_turn. Who has the turn, and whether it only waits in a paused queue.
HOLDER = f"""
SELECT seq, CASE WHEN status = 'PENDING' AND {IS_PAUSED} THEN 1 ELSE 0 END FROM everbeat_tasks
 WHERE exclusive_key IS NOT NULL AND waiting_for IS NULL AND due_at IS NULL
   AND status IN ('PENDING', 'CLAIMED', 'RUNNING') AND exclusive_key = ?"""

# everbeat_tasks_line, in its order
FIRST = """
SELECT seq, queue, name FROM everbeat_tasks
 WHERE exclusive_key IS NOT NULL AND waiting_for IS NOT NULL AND due_at IS NULL AND status = 'PENDING'
   AND exclusive_key = ? AND held = 0 ORDER BY priority, seq LIMIT 1
 /*pg: FOR UPDATE SKIP LOCKED */"""

FIRST_OF_OPEN_QUEUES = FIRST.replace(" ORDER BY", f" AND NOT {IS_PAUSED} ORDER BY")

GIVE = "UPDATE everbeat_tasks SET waiting_for = NULL WHERE seq = ?"
# Not if somebody is about to change it: who claims it has the turn, whoever else does will hand it over.
STEP_BACK = f"""
UPDATE everbeat_tasks SET waiting_for = {IN_LINE}
 WHERE seq = (SELECT seq FROM everbeat_tasks WHERE seq = ? AND status || '' = 'PENDING'
              /*pg: FOR UPDATE SKIP LOCKED */)"""

# everbeat_tasks_line, one step for each key
NEXT_KEY = """
SELECT exclusive_key FROM everbeat_tasks
 WHERE exclusive_key IS NOT NULL AND waiting_for IS NOT NULL AND due_at IS NULL AND status = 'PENDING'
   AND exclusive_key > ? AND held = 0 ORDER BY exclusive_key LIMIT 1"""

KEYS_OF = """
SELECT DISTINCT exclusive_key FROM everbeat_tasks WHERE seq IN ({marks}) AND exclusive_key IS NOT NULL"""


def let_go(tx: Transaction, keys: Iterable[str | None]) -> None:
    """These keys are to be handed over at the end."""
    tx.turns.update(key for key in keys if key is not None)


def hand_over(tx: Transaction, keys: Iterable[str | None] = ()) -> None:
    """Let each of these keys, and of those that were let go, be somebody's turn, if anybody waits for it. Always in the
    same order, also of those that are no text: whoever claims such a task sets it aside."""
    let_go(tx, keys)
    wanted = sorted(tx.turns, key=lambda key: (not isinstance(key, str), key))
    tx.turns.clear()
    for key in wanted:
        tx.lock(f"{LINE}{key}")
        holder = tx.one(HOLDER, (key,))
        if holder is not None and not holder[1]:
            continue
        first = tx.one(FIRST_OF_OPEN_QUEUES, (key,)) or (tx.one(FIRST, (key,)) if holder is None else None)
        if first is None:
            continue
        if holder is not None and not tx.run(STEP_BACK, (holder[0],)):
            continue
        seq, queue, name = first
        tx.run(GIVE, (seq,))
        tx.wakes.add((queue, name))


def make_way(tx: Transaction) -> None:
    """A queue was paused: what waits in it gives its turns to others. Where very many keys have a line, the rest is
    found by those who mend."""
    hand_over(tx, lost(tx, after="", limit=AT_ONCE)[0])


def keys_of(tx: Transaction, seqs: Sequence[int]) -> list[str]:
    return [key for (key,) in tx.among(KEYS_OF, (), seqs)]


def lost(tx: Transaction, *, after: str, limit: int) -> tuple[list[str], str]:
    """Of the next keys that have a line, those that are nobody's turn, or the turn of a task that waits in a paused
    queue; and the last key that was looked at, or "" if there are no more."""
    found: list[str] = []
    for _ in range(limit):
        row = tx.one(NEXT_KEY, (after,))
        if row is None:
            return found, ""
        after = row[0]
        holder = tx.one(HOLDER, (after,))
        if holder is None or (holder[1] and tx.one(FIRST_OF_OPEN_QUEUES, (after,))):
            found.append(after)
    return found, after
