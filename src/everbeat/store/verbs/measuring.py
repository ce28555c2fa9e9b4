"""What metrics show of a store, read at one moment."""

from everbeat.model.worker import WorkerStatus
from everbeat.store.interface import Measures
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import counting, doubting, telling, totals

WORKERS = "SELECT status, count(*) FROM everbeat_workers GROUP BY status"

# everbeat_workers_alive. A worker of another clock is as silent as it can be: since its last beat by the wall clock.
SILENCE = """
SELECT max(CASE WHEN clock_id = ? THEN ? - beat_mono ELSE ? - beat_at END) FROM everbeat_workers
 WHERE status = 'alive'"""


def measure(tx: Transaction) -> Measures:
    counted: dict[str, int] = dict(tx.all(WORKERS))
    silence = tx.one(SILENCE, (tx.clock_id, tx.mono, tx.now))
    return Measures(
        counts=counting.counts(tx),
        quarantined=counting.quarantined(tx),
        workers={status.value: counted.get(status.value, 0) for status in WorkerStatus},
        heartbeat_age=None if silence is None or silence[0] is None else silence[0] / 1e6,
        degraded=doubting.degraded(tx) is not None,
        undelivered=telling.waiting(tx),
        totals=totals.every(tx),
    )
