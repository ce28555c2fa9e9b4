"""How many tasks a worker took at once, for measurements: what the store says, and not what anybody guesses.

All that a transaction starts gets the same moment, to the microsecond.
"""

from typing import Any, cast

from everbeat.store.interface import Store

# everbeat_tasks_ended
STARTED = """
SELECT count(*), count(DISTINCT started_at) FROM everbeat_tasks
 WHERE queue = 'default' AND status = 'COMPLETED' AND finished_at >= ?"""


def started(store: Store, *, since_us: int) -> tuple[int, int]:
    """How many tasks of the queue "default" have completed since then, and how many transactions started them."""
    with cast(Any, store).database.read() as tx:
        tasks, transactions = tx.one(STARTED, (since_us,))
        return int(tasks), int(transactions)
