"""What metrics show of a store, read at one moment."""

from everbeat.model.flow import WorkflowStatus
from everbeat.model.worker import WorkerStatus
from everbeat.store.messages import Measures
from everbeat.store.moments import moment
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import counting, doubting, telling, totals

WORKERS = "SELECT status, count(*) FROM everbeat_workers GROUP BY status"

# everbeat_workflows_ended, which has all that is asked for.
ENDED_WORKFLOWS = """
SELECT status, count(*) FROM everbeat_workflows WHERE parent_id IS NULL AND finished_at IS NOT NULL GROUP BY status"""

# everbeat_workflows_live
LIVE_WORKFLOWS = """
SELECT status, count(*) FROM everbeat_workflows
 WHERE parent_id IS NULL AND (nodes_left > 0 OR finished_at IS NULL) AND finished_at IS NULL GROUP BY status"""

# everbeat_workflows_halted
HALTED_WORKFLOWS = """
SELECT sum(CASE WHEN status = 'PAUSED' AND paused_by = 'error' THEN 1 ELSE 0 END),
       sum(CASE WHEN stuck IS NOT NULL AND (nodes_left > 0 OR finished_at IS NULL) THEN 1 ELSE 0 END)
  FROM everbeat_workflows WHERE status = 'PAUSED' OR stuck IS NOT NULL"""

# everbeat_workers_alive. A worker of another clock is as silent as it can be: since its last beat by the wall clock.
FIRST_BEATS = """
SELECT min(CASE WHEN clock_id = ? THEN beat_mono END), min(CASE WHEN clock_id <> ? THEN beat_at END)
  FROM everbeat_workers WHERE status = 'alive'"""


def measure(tx: Transaction) -> Measures:
    counted: dict[str, int] = dict(tx.all(WORKERS))
    flows: dict[str, int] = {**dict(tx.all(ENDED_WORKFLOWS)), **dict(tx.all(LIVE_WORKFLOWS))}
    paused, torn = tx.one(HALTED_WORKFLOWS) or (0, 0)
    return Measures(
        now=moment(tx.now),
        counts=counting.counts(tx),
        quarantined=counting.quarantined(tx),
        workers={status.value: counted.get(status.value, 0) for status in WorkerStatus},
        workflows={status.value: flows.get(status.value, 0) for status in WorkflowStatus},
        halted_workflows={"error": paused or 0, "torn": torn or 0},
        heartbeat_age=_oldest_beat(tx),
        degraded=doubting.degraded(tx) is not None,
        undelivered=telling.waiting(tx),
        totals=totals.every(tx),
    )


def _oldest_beat(tx: Transaction) -> float | None:
    """How long ago it was, in seconds."""
    beats = tx.one(FIRST_BEATS, (tx.clock_id, tx.clock_id)) or ()
    ages = [now - beat for now, beat in zip((tx.mono, tx.now), beats, strict=False) if isinstance(beat, int)]
    return max(ages) / 1e6 if ages else None
