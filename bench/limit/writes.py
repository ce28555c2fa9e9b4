"""What is written, and the connection that writes it, for both databases."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from everbeat.ids import new_id

NAME, QUEUE, PRIORITY, MAX_ATTEMPTS = "bench.noop", "default", 100, 1
ARGS = '{"a":1,"b":2}'
RESULT = "3"
WORKER = "floor-0123abcd"

NEW = ("id", "args", "name", "queue", "priority", "max_attempts", "created_at", "run_at")
"""The columns of a new row that are not NULL or what the table says; a unique key comes behind them."""
START = f"status = 'RUNNING', fence = fence + 1, worker_id = '{WORKER}', counted = 0, attempt = attempt + 1, started_at"
SETTLE = "status = 'COMPLETED', error_code = NULL, error_message = NULL, error = NULL, finished_at"
READY = """
SELECT seq FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = 'default' AND name = 'bench.noop'
 ORDER BY priority, seq LIMIT"""


class Writer(Protocol):
    """One connection to a store."""

    def insert(self, ids: Sequence[str], keys: Sequence[str] = ()) -> None:
        """New tasks, with unique keys if there are any, in one durable transaction."""

    def turn(self, ended: Sequence[int], limit: int) -> list[int]:
        """Settle these, and start so many more, in one durable transaction; the seqs of the latter."""

    def close(self) -> None: ...


Opening = Callable[[], Writer]
"""Opens one more connection to the same store."""


def now_us() -> int:
    return time.time_ns() // 1000


def ids(count: int) -> list[str]:
    """As Everbeat makes them: they sort by time."""
    return new_id.many(count)
