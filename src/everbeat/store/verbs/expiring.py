"""End the tasks that were not started while they were good.

A bite at a time, each a short transaction. `good_until` is wall clock, and a wall clock can be set: after a step of
more than five seconds nothing is ended for a while (PROTOCOL 15), so that a clock which jumps ahead and is set right
again has done no harm. Not even then is such a task started: a claim refuses what is past its time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.state import Change
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_ends
from everbeat.store.verbs.records import Records
from everbeat.store.verbs.turns import hand_over
from everbeat.store.verbs.unsound import LARGEST

BITE = 500
STEP_US = 5_000_000
DRIFT_US = 1_000_000
ALWAYS = -(1 << 62)
ACTOR = "system/expiry"
REASON = "it was not started while it was good"

# everbeat_tasks_good
NEXT = "SELECT min(good_until) FROM everbeat_tasks WHERE status = 'PENDING' AND good_until IS NOT NULL"
# A fence that can not grow was written by hand: such a task is set aside by who would claim it.
OVER = f"""
SELECT seq, workflow_id FROM everbeat_tasks
 WHERE status = 'PENDING' AND good_until IS NOT NULL AND good_until <= ? AND fence BETWEEN 0 AND {LARGEST}
 ORDER BY good_until LIMIT ?"""
# Primary key; a task that somebody has taken meanwhile, or is about to, is left alone.
STILL = f"""
SELECT seq, fence, id, name, attempt, exclusive_key FROM everbeat_tasks
 WHERE status = 'PENDING' AND good_until IS NOT NULL AND good_until <= ? AND fence BETWEEN 0 AND {LARGEST}
   AND seq IN ({{marks}})
 /*pg: FOR UPDATE SKIP LOCKED */"""

EXPIRE = """
UPDATE everbeat_tasks
   SET status = 'EXPIRED', fence = fence + 1, finished_at = ?, due_at = NULL, waiting_for = NULL
 WHERE seq = ? AND fence = ? AND status = 'PENDING'"""

CLOCK = "SELECT wall_offset, steady_since_mono FROM everbeat_clock WHERE id = 1 AND clock_id = ?"
NOTE = """
INSERT INTO everbeat_clock (id, clock_id, wall_offset, steady_since_mono) VALUES (1, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
   SET clock_id = excluded.clock_id, wall_offset = excluded.wall_offset,
       steady_since_mono = excluded.steady_since_mono"""


def is_due(tx: Transaction, *, settle_us: int) -> bool:
    """Whether `expire` has anything to write."""
    first = tx.one(NEXT)
    if first is None or first[0] is None:
        return False
    since, is_news = _steady_since(tx)
    return is_news or (first[0] <= tx.now and tx.mono - since >= settle_us)


class Over(NamedTuple):
    seq: int
    workflow_id: str | None


def over(tx: Transaction, *, settle_us: int) -> list[Over]:
    """At most one bite of what is past its time; nothing, if that can not be told yet."""
    since, is_news = _steady_since(tx)
    if is_news:
        tx.run(NOTE, (tx.clock_id, tx.now - tx.mono, since))
    if tx.mono - since < settle_us:
        return []
    return [Over(*row) for row in tx.all(OVER, (tx.now, BITE))]


def expire(tx: Transaction, over: Sequence[Over]) -> list[str | None]:
    """The id of each that was ended."""
    roots = flow_ends.lock(tx, {one.workflow_id for one in over})
    ended = {row[0]: row for row in tx.among(STILL, (tx.now,), [one.seq for one in over])}
    tx.many(EXPIRE, [(tx.now, seq, fence) for seq, fence, *_ in ended.values()])
    records = Records(tx)
    for _, fence, task_id, name, attempt, _ in ended.values():
        records.history(task_id=task_id, actor=ACTOR, change=Change.EXPIRE, reason=REASON, attempt=attempt, fence=fence)
        records.event(Event(name=event.TASK_EXPIRED, task_id=task_id, facts={"name": name, "attempt": attempt}))
    records.write()
    flow_ends.follow(tx, roots, list(ended))
    hand_over(tx, {row[5] for row in ended.values()})
    return [ended[one.seq][2] if one.seq in ended else None for one in over]


def _steady_since(tx: Transaction) -> tuple[int, bool]:
    """Since when the wall clock has not been set, and whether that is worth noting. A clock that is a little ahead or
    behind what was noted has drifted, or is being slewed."""
    noted = tx.one(CLOCK, (tx.clock_id,))
    if noted is None or not all(isinstance(number, int) for number in noted):
        return ALWAYS, True
    off = abs(tx.now - tx.mono - noted[0])
    return tx.mono if off > STEP_US else noted[1], off > DRIFT_US
