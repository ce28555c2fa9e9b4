"""Queues as people set them: paused or not. Tasks of a paused queue are not claimed; what runs goes on."""

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.store.interface import QueueInfo
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.records import add_events

QUEUES = "SELECT name, paused, max_concurrency FROM everbeat_queues ORDER BY name"

# A handful of rows at most: read by every claim.
PAUSED = "SELECT name FROM everbeat_queues WHERE paused = 1"

PAUSE = """
INSERT INTO everbeat_queues (name, paused) VALUES (?, 1)
ON CONFLICT (name) DO UPDATE SET paused = 1 WHERE paused = 0"""
RESUME = "UPDATE everbeat_queues SET paused = 0 WHERE name = ? AND paused = 1"


def queues(tx: Transaction) -> list[QueueInfo]:
    return [QueueInfo(name=row[0], paused=bool(row[1]), max_concurrency=row[2]) for row in tx.rows(QUEUES)]


def paused(tx: Transaction) -> frozenset[str]:
    return frozenset(name for (name,) in tx.rows(PAUSED))


def set_paused(tx: Transaction, queue: str, *, is_paused: bool, actor: str) -> bool:
    """False: it was so already."""
    changed = tx.run(PAUSE if is_paused else RESUME, (queue,)) > 0
    if changed:
        name = event.QUEUE_PAUSED if is_paused else event.QUEUE_RESUMED
        add_events(tx, [Event(name=name, facts={"queue": queue, "actor": actor})])
    return changed
