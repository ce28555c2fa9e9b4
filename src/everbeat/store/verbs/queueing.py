"""Queues as people and configurations set them: paused or not, with a limit or without.

Tasks of a paused or full queue are not claimed; what runs goes on. A limit has no permits that could be lost or left
over: what counts is the number of owned tasks itself, read in the transaction that claims (PROTOCOL 25, its second
form). The queue is locked first, so nobody else claims between the count and the claim.
"""

from collections.abc import Iterable

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.worker import QueueSetting
from everbeat.store.messages import QueueInfo
from everbeat.store.transaction import Question, Transaction
from everbeat.store.verbs.records import add_events
from everbeat.store.verbs.turns import make_way

CONFIG = "config"
"""Who has paused a queue, if it was no person."""

QUEUES = "SELECT name, paused, max_concurrency, paused_by FROM everbeat_queues ORDER BY name"

# A handful of rows at most: read by every claim.
LIMITS = """
SELECT name, CASE WHEN paused = 1 THEN 0 ELSE max_concurrency END FROM everbeat_queues
 WHERE paused = 1 OR max_concurrency IS NOT NULL"""

# everbeat_tasks_counted
OWNED = """
SELECT count(*) FROM everbeat_tasks WHERE counted = 1 AND status IN ('CLAIMED', 'RUNNING') AND queue = ?"""

# everbeat_tasks_ready
HAS_READY = """
SELECT 1 FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ?{name} LIMIT 1"""

PAUSE = """
INSERT INTO everbeat_queues (name, paused, paused_by) VALUES (?, 1, ?)
ON CONFLICT (name) DO UPDATE SET paused = 1, paused_by = excluded.paused_by WHERE everbeat_queues.paused = 0"""
RESUME = "UPDATE everbeat_queues SET paused = 0, paused_by = NULL WHERE name = ? AND paused = 1"
RESUME_IF = RESUME + " AND paused_by = ?"

KNOW = "INSERT INTO everbeat_queues (name) VALUES (?) ON CONFLICT (name) DO NOTHING"
LIMIT = """
UPDATE everbeat_queues SET max_concurrency = ?
 WHERE name = ? AND coalesce(max_concurrency, -1) <> ?"""

# everbeat_workers_alive. Who claims holds the row of its worker, and may have read that there is no limit: it is waited
# for, and counted. Who comes after us reads the limit.
NO_CLAIMS = "SELECT 1 FROM everbeat_workers WHERE status = 'alive' ORDER BY id /*pg: FOR UPDATE */"

# everbeat_tasks_owned. What was claimed before there was a limit counts from now on.
COUNT_THEM = """
UPDATE everbeat_tasks SET counted = 1 WHERE status IN ('CLAIMED', 'RUNNING') AND counted = 0 AND queue = ?"""


class Places:
    """How many tasks of each queue may still be claimed. Made for one claim; what is not asked for is not counted."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._limits: dict[str, int] = {name: limit for name, limit in tx.rows(LIMITS) if isinstance(limit, int)}
        self._left: dict[str, int] = {}

    def are_left(self, queue: str) -> bool:
        if queue not in self._limits:
            return True
        if queue not in self._left:
            self._left[queue] = self._limits[queue] and self._counted(queue)
        return self._left[queue] > 0

    def _counted(self, queue: str) -> int:
        self._tx.lock(f"queue:{queue}")
        return self._limits[queue] - _owned(self._tx, queue)

    def take(self, queue: str) -> None:
        """After `are_left`."""
        if queue in self._limits:
            self._left[queue] -= 1

    def is_limited(self, queue: str) -> bool:
        return queue in self._limits

    def offer_in(self, queues: Iterable[str]) -> None:
        """Tasks of these have ended: where one with a limit has places and ready tasks now, others are woken. They may
        have found it full, and be idle."""
        for queue in queues:
            limit = self._limits.get(queue)
            if limit and _owned(self._tx, queue) < limit and is_ready(self._tx, queue):
                self._tx.wakes.add((queue, None))


def is_ready(tx: Transaction, queue: str, name: str | None = None) -> bool:
    """Whether a task of this queue, and name if there is one, could be claimed."""
    return tx.one(*has_ready(queue, name)) is not None


def has_ready(queue: str, name: str | None) -> Question:
    if name is None:
        return HAS_READY.format(name=""), (queue,)
    return HAS_READY.format(name=" AND name = ?"), (queue, name)


def queues(tx: Transaction) -> list[QueueInfo]:
    return [
        QueueInfo(name=str(name), paused=bool(paused), max_concurrency=limit, paused_by=by)
        for name, paused, limit, by in tx.rows(QUEUES)
    ]


def set_paused(tx: Transaction, queue: str, *, is_paused: bool, actor: str) -> bool:
    """False: it was so already."""
    changed = tx.run(PAUSE, (queue, actor)) if is_paused else tx.run(RESUME, (queue,))
    if changed and is_paused:
        make_way(tx)
    if changed:
        name = event.QUEUE_PAUSED if is_paused else event.QUEUE_RESUMED
        add_events(tx, [Event(name=name, facts={"queue": queue, "actor": actor})])
    return changed > 0


def declare(tx: Transaction, settings: Iterable[QueueSetting]) -> None:
    """As the configuration of a starting worker says: the newest one counts. It takes back its own pause, but not a
    person's."""
    for setting in settings:
        tx.run(KNOW, (setting.name,))
        if tx.run(LIMIT, (setting.max_concurrency, setting.name, setting.max_concurrency or -1)):
            tx.all(NO_CLAIMS)
            facts = {"queue": setting.name, "max_concurrency": setting.max_concurrency, "actor": CONFIG}
            add_events(tx, [Event(name=event.QUEUE_LIMITED, facts=facts)])
        if setting.max_concurrency is not None:
            tx.run(COUNT_THEM, (setting.name,))
        if setting.paused:
            set_paused(tx, setting.name, is_paused=True, actor=CONFIG)
        elif tx.run(RESUME_IF, (setting.name, CONFIG)):
            add_events(tx, [Event(name=event.QUEUE_RESUMED, facts={"queue": setting.name, "actor": CONFIG})])


def _owned(tx: Transaction, queue: str) -> int:
    row = tx.one(OWNED, (queue,))
    return row[0] if row else 0
