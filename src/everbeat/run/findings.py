"""What one recovery pass found and did, kept small: the first thousand tasks are listed, and workflows, the others
counted."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime

from everbeat.decide.recover import most_attempts
from everbeat.model.integrity import Checkpoint, IntegrityResult
from everbeat.model.recovery import Orphan, OrphanClass, RecoveryPolicy, Verdict
from everbeat.model.report import DeadWorker, RecoveredTask, RecoveryReport, TornWorkflow, Undecided
from everbeat.model.task import Claim, TaskPolicy
from everbeat.model.worker import WorkerInfo
from everbeat.store.messages import Torn

LISTED = 1000


@dataclass(slots=True)
class Findings:
    dead: list[WorkerInfo] = field(default_factory=list)
    listed: list[RecoveredTask] = field(default_factory=list)
    more_recovered: int = 0
    more_failed: int = 0
    by_owner: Counter[str | None] = field(default_factory=Counter)
    """How many tasks each owner left behind."""
    unrecovered: dict[tuple[int, int], str] = field(default_factory=dict)
    """Every task that could not be recovered, also those told of before, and why."""
    left_alone: int = 0
    undecided: list[Undecided] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    integrity: IntegrityResult | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    spooled_outcomes: int = 0
    torn: list[TornWorkflow] = field(default_factory=list)
    more_torn: int = 0
    policy: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    """By which it was decided."""

    def __bool__(self) -> bool:
        return bool(self.dead or self.listed)

    @property
    def is_full(self) -> bool:
        """Whether no more tasks are listed."""
        return len(self.listed) >= LISTED

    @property
    def tasks(self) -> int:
        return len(self.listed) + self.more_recovered + self.more_failed

    def recovered(self, orphan: Orphan, verdict: Verdict) -> None:
        self._tell(orphan.claim, verdict, error=None)

    def recovered_class(self, orphans: OrphanClass) -> None:
        """Counted, not listed."""
        self.by_owner[orphans.claim.worker_id] += orphans.count
        self.more_recovered += orphans.count

    def failed(self, claim: Claim, verdict: Verdict | None, error: str, *, is_news: bool) -> None:
        self.unrecovered[claim.seq, claim.fence] = error
        if is_news:
            self._tell(claim, verdict, error=error)

    def _tell(self, claim: Claim, verdict: Verdict | None, *, error: str | None) -> None:
        self.by_owner[claim.worker_id] += 1
        if not self.is_full:
            self.listed.append(self._told(claim, verdict, error))
        elif error is None:
            self.more_recovered += 1
        else:
            self.more_failed += 1

    def _told(self, claim: Claim, verdict: Verdict | None, error: str | None) -> RecoveredTask:
        return RecoveredTask(
            task_id=str(claim.id),
            action=verdict.action if verdict is not None else "none",
            attempt_count=claim.attempt - claim.free_attempts if verdict is not None else 0,
            max_attempts=most_attempts(TaskPolicy.load(claim.policy), self.policy) if verdict is not None else 0,
            success=error is None,
            error=error,
            previous_worker_id=None if claim.worker_id is None else str(claim.worker_id),
            reason=verdict.reason if verdict is not None else None,
        )

    def found_torn(self, torn: Torn) -> None:
        found = [TornWorkflow(workflow_id=one, success=True, reason=said) for one, said in torn.mended.items()]
        found += [TornWorkflow(workflow_id=one, success=False, reason=said) for one, said in torn.stuck.items()]
        self.torn = found[:LISTED]
        self.more_torn = len(found) - len(self.torn)

    def report(self, started_at: datetime, completed_at: datetime) -> RecoveryReport:
        report = RecoveryReport(
            started_at=started_at,
            completed_at=completed_at,
            wal_frames_checkpointed=self.checkpoint.frames,
            recovered_tasks=self.listed,
            dead_workers=[self._burial(worker) for worker in self.dead],
            more_recovered=self.more_recovered,
            more_failed=self.more_failed,
            left_alone=self.left_alone,
            undecided=self.undecided,
            warnings=self.warnings,
            spooled_outcomes=self.spooled_outcomes,
            torn_workflows=self.torn,
            more_torn=self.more_torn,
        )
        return report if self.integrity is None else _with_integrity(report, self.integrity)

    def _burial(self, worker: WorkerInfo) -> DeadWorker:
        known = [task.task_id for task in self.listed if task.previous_worker_id == worker.id]
        return DeadWorker(
            worker_id=worker.id,
            last_heartbeat=worker.last_beat_at,
            orphaned_tasks=known,
            more_orphaned=self.by_owner[worker.id] - len(known),
        )


def _with_integrity(report: RecoveryReport, integrity: IntegrityResult) -> RecoveryReport:
    note = "repaired by REINDEX" if integrity.repair_succeeded else None
    if integrity.passed and not integrity.complete:
        return replace(report, integrity_note=f"nothing wrong until it was cut after {integrity.duration.seconds}s")
    return replace(report, integrity_check_passed=integrity.passed, integrity_note=note)
