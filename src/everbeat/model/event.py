"""What happened, as facts. The code announces these; `report.log` alone turns them into words."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact, stored in the transaction that made it true."""

    name: str
    """Subject and past tense: "task.recovered", "worker.dead"."""
    task_id: str | None = None
    worker_id: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventInfo:
    id: int
    at: datetime
    name: str
    task_id: str | None
    worker_id: str | None
    facts: dict[str, Any]


EVERY = "*"
"""In place of a name: all of them."""

WORKER_STARTED = "worker.started"
WORKER_STOPPED = "worker.stopped"
WORKER_DEAD = "worker.dead"
WORKER_FENCED = "worker.fenced"
RECOVERY_STARTED = "recovery.started"
RECOVERY_PROGRESS = "recovery.progress"
RECOVERY_COMPLETED = "recovery.completed"
TASK_RECOVERED = "task.recovered"
TASK_QUARANTINED = "task.quarantined"
TASK_FAILED = "task.failed"
TASK_EXPIRED = "task.expired"
TASKS_PURGED = "tasks.purged"
WORKFLOW_COMPLETED = "workflow.completed"
WORKFLOW_FAILED = "workflow.failed"
WORKFLOW_CANCELLED = "workflow.cancelled"
WORKFLOW_PAUSED = "workflow.paused"
WORKFLOW_RESUMED = "workflow.resumed"
WORKFLOW_RETRIED = "workflow.retried"
WORKFLOW_LOCKED = "workflow.locked"
WORKFLOW_TORN = "workflow.torn"
WORKFLOW_MENDED = "workflow.mended"
WORKFLOW_STUCK = "workflow.stuck"
QUEUE_PAUSED = "queue.paused"
QUEUE_RESUMED = "queue.resumed"
QUEUE_LIMITED = "queue.limited"
OUTCOME_REFUSED = "outcome.refused"
OUTCOME_ADOPTED = "outcome.adopted"
ROW_REFUSED = "row.refused"
SPOOL_FULL = "spool.full"
SPOOL_REPLAYED = "spool.replayed"
FILES_LOST = "files.lost"
CHILD_DIED = "child.died"
CHILD_KILLED = "child.killed"
CHILD_UNRESPONSIVE = "child.unresponsive"
APP_FAILED = "app.failed"
STORE_BLOCKED = "store.blocked"
STORE_RETURNED = "store.returned"
STORE_DEGRADED = "store.degraded"
RETENTION_COMPLETED = "retention.completed"
EVENT_UNDELIVERABLE = "event.undeliverable"
STORE_REPLACED = "store.replaced"
STORE_OUTGROWN = "store.outgrown"
STORE_RECOGNISED = "store.recognised"
STORE_RESTORED = "store.restored"
STORE_REPAIRED = "store.repaired"
STORE_WHOLE = "store.whole"

NAMES = frozenset(value for name, value in list(globals().items()) if name.isupper() and "." in value)
"""All of the above."""
