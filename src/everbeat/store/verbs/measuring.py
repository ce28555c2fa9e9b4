"""What metrics show of a store, read at one moment."""

from everbeat.model.worker import WorkerStatus
from everbeat.store.messages import Measures
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import counting, doubting, telling, totals

WORKERS = "SELECT status, count(*) FROM everbeat_workers GROUP BY status"

# everbeat_workers_alive. A worker of another clock is as silent as it can be: since its last beat by the wall clock.
FIRST_BEATS = """
SELECT min(CASE WHEN clock_id = ? THEN beat_mono END), min(CASE WHEN clock_id <> ? THEN beat_at END)
  FROM everbeat_workers WHERE status = 'alive'"""


def measure(tx: Transaction) -> Measures:
    counted: dict[str, int] = dict(tx.all(WORKERS))
    return Measures(
        counts=counting.counts(tx),
        quarantined=counting.quarantined(tx),
        workers={status.value: counted.get(status.value, 0) for status in WorkerStatus},
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
