"""What becomes of a task at the end of an ownership, and the report of a recovery.

A `Verdict` is the one value for it: a finished run, a dead process, a vanished worker, a stop, a read-back and a
person's command all end in one, and the store has one guarded write that applies it (PROTOCOL 1, 4, 5).
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from everbeat.model.state import Change
from everbeat.model.task import Claim, TaskError

RECOVERY_ACTOR = "system/recovery"


class Cause(StrEnum):
    """Why an ownership ended without an outcome."""

    NEVER_BEGAN = "never_began"  # handed to no process, or taken back unread
    DISPATCH_DIED = "dispatch_died"  # its bytes reached a process that died before the begin mark
    CRASHED = "crashed"  # its own process died while it was the only begun task in it
    NEIGHBOUR = "neighbour"  # its process died with several begun tasks in it
    LOST = "lost"  # worker, fork server or host went away
    STOPPED = "stopped"  # the worker was told to stop and could not wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A task whose owner is gone, with every fact that the decision needs."""

    claim: Claim
    cause: Cause
    evidence: str
    """What was seen, for people: "process 4711 killed by SIGSEGV", "worker web-1 lost its lock"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """The part of RecoveryConfig that decides about tasks."""

    action: str = "retry"
    max_recovery_attempts: int = 3
    max_losses: int = 10
    solo_after_losses: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    change: Change
    reason: str | None = None
    result: bytes | None = None
    error: TaskError | None = None
    delay_us: int = 0
    billed: bool = True
    crashes: int = 0
    losses: int = 0
    dispatches: int = 0
    solo: bool = False
    quarantined: bool = False

    @property
    def cause(self) -> Cause:
        """Why the ownership ended, as far as the verdict still tells."""
        counted = {Cause.CRASHED: self.crashes, Cause.LOST: self.losses, Cause.DISPATCH_DIED: self.dispatches}
        named = {"WORKER_STOPPED": Cause.STOPPED, "NEIGHBOUR_CRASHED": Cause.NEIGHBOUR}
        cause = next((cause for cause, count in counted.items() if count), None)
        return cause or named.get(self.error.code if self.error else "", Cause.NEVER_BEGAN)

    @property
    def action(self) -> str:
        """The word of the recovery report: retry, pending, failed or cancelled."""
        if self.change is Change.CANCEL:
            return "cancelled"
        if self.change in (Change.ABANDON, Change.FAIL):
            return "failed"
        return "retry" if self.billed else "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The verdict was written."""

    task_id: str
    change: Change | None = None
    """What was made of it, if not what was asked for: a task that somebody had asked to cancel is not run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The owner had been revoked, nobody had claimed the task since: its result counts, no second run happens."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """The ownership had ended before; nothing was changed. An outcome is kept in `late_outcomes`."""

    task_id: str
    status: str
    by: int
    """The task's fence now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """The verdict could not be written, for a reason of this one task; nothing was changed."""

    task_id: str
    error: str


Settlement = Settled | Adopted | Superseded | Unsettled


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredTask:
    task_id: str
    action: str
    attempt_count: int
    max_attempts: int
    success: bool
    error: str | None
    previous_worker_id: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadWorker:
    worker_id: str
    last_heartbeat: datetime
    orphaned_tasks: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """One recovery pass, as stored, printed and sent."""

    started_at: datetime
    completed_at: datetime
    integrity_check_passed: bool | None = None
    """None: it was not run."""
    wal_frames_checkpointed: int = 0
    recovered_tasks: list[RecoveredTask] = field(default_factory=list)
    dead_workers: list[DeadWorker] = field(default_factory=list)

    @property
    def duration(self) -> timedelta:
        return self.completed_at - self.started_at

    @property
    def orphaned_tasks_found(self) -> int:
        return len(self.recovered_tasks)

    @property
    def successful_recoveries(self) -> int:
        return sum(task.success for task in self.recovered_tasks)

    @property
    def failed_recoveries(self) -> int:
        return self.orphaned_tasks_found - self.successful_recoveries

    def to_report(self) -> str:
        """The layout of the seed."""
        lines = [
            "=== Queue Recovery Report ===",
            f"Started: {_stamp(self.started_at)}",
            f"Duration: {self.duration.total_seconds():.1f}s",
            "",
            f"Integrity Check: {INTEGRITY_WORDS[self.integrity_check_passed]}",
            f"WAL Checkpointed: {self.wal_frames_checkpointed} frames",
            "",
            f"Orphaned Tasks Found: {self.orphaned_tasks_found}",
            *(f"  - {task.task_id}: {_outcome(task)}" for task in self.recovered_tasks),
            "",
            f"Dead Workers: {len(self.dead_workers)}",
            *(
                f"  - {worker.worker_id} (last heartbeat: {_ago(self.completed_at - worker.last_heartbeat)} ago)"
                for worker in self.dead_workers
            ),
            "",
            f"Recovery Complete: {_stamp(self.completed_at)}",
        ]
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        said: dict[str, Any] = asdict(self) | {
            "duration": self.duration.total_seconds(),
            "orphaned_tasks_found": self.orphaned_tasks_found,
            "successful_recoveries": self.successful_recoveries,
            "failed_recoveries": self.failed_recoveries,
        }
        return json.dumps(said, default=_stamp)

    @classmethod
    def from_json(cls, text: str) -> "RecoveryReport":
        said = json.loads(text)
        return cls(
            started_at=datetime.fromisoformat(said["started_at"]),
            completed_at=datetime.fromisoformat(said["completed_at"]),
            integrity_check_passed=said["integrity_check_passed"],
            wal_frames_checkpointed=said["wal_frames_checkpointed"],
            recovered_tasks=[RecoveredTask(**task) for task in said["recovered_tasks"]],
            dead_workers=[
                DeadWorker(**(dead | {"last_heartbeat": datetime.fromisoformat(dead["last_heartbeat"])}))
                for dead in said["dead_workers"]
            ],
        )


INTEGRITY_WORDS = {True: "PASSED", False: "FAILED", None: "NOT RUN"}


def _outcome(task: RecoveredTask) -> str:
    if not task.success:
        return f"FAILED ({task.error})"
    if task.action == "failed":
        return f"failed ({task.reason})"
    return f"{task.action} (attempt {task.attempt_count}/{task.max_attempts})"


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ago(age: timedelta) -> str:
    seconds = max(0.0, age.total_seconds())
    return f"{seconds:.1f}s" if seconds < 60 else f"{seconds / 60:.0f}m"
