"""Which queues and names have ready tasks, found by leaps: where a statement costs little, one for each step.

What is stored and what is asked for are leapt through together, so the cost is the smaller of the two numbers: neither
a thousand task names of the application nor a hundred thousand names that nobody knows slow a claim.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from everbeat.store.transaction import Row, Transaction

# everbeat_tasks_ready, one step per queue and per name in it. (A row value, (queue, name) > (?, ?), would walk all
# tasks of the queue: SQLite seeks by the first column only.)
NEXT_QUEUE = """
SELECT queue FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue > ? ORDER BY queue LIMIT 1"""
NEXT_NAME = """
SELECT name FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name >= ?
 ORDER BY name LIMIT 1"""


def leap(tx: Transaction, queues: Collection[str] | None, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`names` in order."""
    for queue in _queues(tx, queues):
        at = 0
        while at < len(names) and (found := tx.one(NEXT_NAME, (queue, names[at]))) and isinstance(found[0], str):
            at = bisect_left(names, found[0], at)
            if at < len(names) and names[at] == found[0]:
                yield queue, names[at]
                at += 1


def _queues(tx: Transaction, queues: Collection[str] | None) -> Iterator[str]:
    if queues is not None:
        yield from sorted(queues)
        return
    queue: Row | None = ("",)
    while (queue := tx.one(NEXT_QUEUE, queue)) and isinstance(queue[0], str):  # bytes come after every text
        yield queue[0]
