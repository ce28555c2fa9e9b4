"""What is known of a worker: its identity, where it runs, and how it can be proven dead."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class WorkerStatus(StrEnum):
    ALIVE = "alive"
    DEAD = "dead"  # declared by others, never by itself
    STOPPED = "stopped"  # said goodbye


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One kernel, as seen from one process."""

    name: str
    boot_id: str
    pid: int
    pid_started: int
    """Start time of the process in clock ticks since boot: pid and this together are never reused."""
    pid_namespace: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockIdentity:
    """The lock file whose lock ends with its worker (PROTOCOL 10)."""

    path: str
    device: int
    inode: int


NO_LOCK = LockIdentity(path="", device=0, inode=0)
"""Of a worker without a lock file: only its beats speak for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSetting:
    """What a worker's configuration says of a queue."""

    name: str
    max_concurrency: int | None
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    id: str
    name: str
    host: Host
    lock: LockIdentity = NO_LOCK
    queues: tuple[str, ...] | None = None
    """None means every queue."""
    task_names: tuple[str, ...] = ()
    processes: int = 0
    async_slots: int = 0
    beat_interval_ms: int = 30_000
    version: str
    exclusive_lease_ms: int = 30_000
    """After so much silence its tasks with exclusive keys are free: it has stopped them before."""
    settings: tuple[QueueSetting, ...] = ()
    """What its configuration says of queues, which need not be its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker row, with its silence measured by the store's own clock."""

    id: str
    name: str
    status: WorkerStatus
    host: Host
    lock: LockIdentity
    queues: tuple[str, ...] | None
    processes: int
    async_slots: int
    beat_interval_ms: int
    version: str
    started_at: datetime
    last_beat_at: datetime
    silent_for_us: int
    """Age of the last beat by the monotonic clock; a row of another boot is as silent as it can be."""
    same_clock: bool
    ended_at: datetime | None
    end_reason: str | None
    held: int
    """How many tasks it owns now; counted only where people look, not for the reaper's quick look."""
    exclusive_lease_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a worker looks like at one moment; the store adds when, and who it is."""

    tasks_running: int
    tasks_claimed: int
    tasks_completed: int
    """Since it started; so are the two below."""
    tasks_failed: int
    store_errors: int
    memory_usage_mb: float
    memory_percent: float
    cpu_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a store is, and what it knows of one worker."""

    store_id: str
    beat_seq: int | None
    """How often the worker has beaten; None: there is no such worker."""
    is_same_file: bool = True
    is_too_new: bool = False
    """Its tables are, or are about to be, such that this program can not work with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleWorker:
    """A worker that has been silent for too long and still owns tasks."""

    worker_id: str
    last_heartbeat: datetime
    task_ids: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeatStatus:
    """When a worker was last heard of, and what it was running then."""

    worker_id: str
    last_heartbeat: datetime
    current_task_id: str | None
    is_alive: bool
    age: timedelta
    """Since the last beat."""
