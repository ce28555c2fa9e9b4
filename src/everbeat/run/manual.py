"""Recovery by hand: the same facts, decisions and guarded writes as the reaper, at a person's request.

Silence is judged by the person's threshold, but never below two beats of the worker in question: a shorter one would
declare the living dead. (The reaper, whom nobody watches, waits for three and a half and asks how healthy the store
was, PROTOCOL 14. A person who gives a threshold has looked, and wants it to be used.) Death is still one
compare-and-set that tests the silence again (PROTOCOL 2).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from everbeat import __version__
from everbeat.clock import SystemClock
from everbeat.config import RecoveryConfig
from everbeat.decide.recover import WORKER_CRASHED
from everbeat.model.integrity import IntegrityResult
from everbeat.model.recovery import Cause, Orphan, Settled, Verdict
from everbeat.model.report import RecoveryReport
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim, CrashAction, TaskError
from everbeat.model.worker import NO_LOCK, NewWorker, StaleWorker, WorkerHeartbeatStatus, WorkerInfo, WorkerStatus
from everbeat.report.log import Reporter
from everbeat.run.lockfile import GONE, probe, this_host
from everbeat.run.mending import mend_workflows
from everbeat.run.recovery import Tell
from everbeat.run.startup import Startup
from everbeat.store.interface import Store
from everbeat.store.messages import Held

ACTOR = "user/manual"
BATCH = 10_000
LISTED = 1_000
"""So many tasks of a stale worker are named: the look stays cheap, however many it holds."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """One store, by the thresholds and rules of one configuration."""

    store: Store
    config: RecoveryConfig

    def get_stale_tasks(self, *, stale_threshold_ms: int) -> list[dict[str, Any]]:
        return [asdict(task) for task in self.store.stale_tasks(TaskStatus.RUNNING, stale_threshold_ms * 1000)]

    def mark_stale_tasks_as_failed(self, *, stale_threshold_ms: int) -> int:
        _declare_silent_dead(self.store, stale_threshold_ms)
        return sum(
            _settled(self.store, [(_orphan(claim, Cause.LOST), _failed(claim)) for claim in stale])
            for stale in _orphaned(self.store, TaskStatus.RUNNING)
        )

    def requeue_stale_claimed(self, *, stale_threshold_ms: int) -> int:
        reason = f"claimed by a worker that was silent for {stale_threshold_ms / 1000:.0f}s; its code never began"
        requeued = self.store.requeue_silent_claims(stale_threshold_ms * 1000, reason=reason)
        verdict = Verdict(change=Change.RECOVER, reason=reason, billed=False)
        return requeued + sum(
            _settled(self.store, [(_orphan(claim, Cause.NEVER_BEGAN), verdict) for claim in stale])
            for stale in _orphaned(self.store, TaskStatus.CLAIMED)
        )

    def recover(
        self,
        *,
        dry_run: bool = False,
        action: CrashAction | None = None,
        actor: str = ACTOR,
        on_progress: Tell = lambda progress: None,
    ) -> RecoveryReport:
        """The whole start-up sequence at a person's request. `action` is used in place of the tasks' own and the
        configured one; `on_crash="fail"` stays, and so do limits and counters."""
        policy = None if action is None else replace(self.config.to_policy(), action=action, is_forced=True)
        startup = Startup(
            store=self.store, config=self.config, me=this_host(), clock=SystemClock(), reporter=Reporter(),
            actor=actor, is_asked_for=True, on_progress=on_progress, policy=policy,
        )  # fmt: skip
        return startup.look() if dry_run else startup.run()

    def check_integrity(self) -> IntegrityResult:
        """With the repair, if it is needed and no worker is alive."""
        return Startup(
            store=self.store, config=self.config, me=this_host(), clock=SystemClock(), reporter=Reporter(), actor=ACTOR
        ).check_integrity()

    def recover_stuck_workflows(self) -> int:
        return len(mend_workflows(self.store, all_of_them=True).mended)

    def send_heartbeat(self, worker_id: str, task_id: str | None) -> bool:
        held: list[Held] = []
        task = self.store.get(task_id, full=False) if task_id is not None else None
        if task is not None:
            role = "runner" if task.status is TaskStatus.RUNNING else "claimer"
            held.append(Held(task_id=task.id, fence=task.fence, role=role, pid=this_host().pid))
        if self._find(worker_id) is None:
            self.store.register(_foreign_worker(worker_id, self.config))
        return self.store.beat(worker_id, held).alive

    def is_worker_alive(self, worker_id: str) -> bool:
        worker = self._find(worker_id)
        return worker is not None and self._is_alive(worker)

    def detect_stale_workers(self) -> list[StaleWorker]:
        return [
            StaleWorker(
                worker_id=worker.id,
                last_heartbeat=worker.last_beat_at,
                task_ids=self.store.owned_ids(worker.id, limit=LISTED),
            )
            for worker in self.store.workers(alive_only=True)
            if not self._is_alive(worker)
        ]

    def mark_worker_dead(self, worker_id: str) -> bool:
        reason = f"worker {worker_id} was declared dead by a person"
        return self.store.declare_dead(worker_id, reason=reason, cause="manual")

    def get_worker_status(self) -> list[WorkerHeartbeatStatus]:
        return [
            WorkerHeartbeatStatus(
                worker_id=worker.id,
                last_heartbeat=worker.last_beat_at,
                current_task_id=_current(self.store, worker),
                is_alive=self._is_alive(worker),
                age=timedelta(microseconds=worker.silent_for_us),
            )
            for worker in self.store.workers()
        ]

    def _find(self, worker_id: str) -> WorkerInfo | None:
        return next((worker for worker in self.store.workers() if worker.id == worker_id), None)

    def _is_alive(self, worker: WorkerInfo) -> bool:
        """Registered, not silent for too long, and not proven gone."""
        if worker.status is not WorkerStatus.ALIVE or not worker.same_clock:
            return False
        if worker.silent_for_us > _allowed_us(worker, self.config.running_stale_threshold_ms):
            return False
        return probe(worker.lock, worker.id, worker.host, this_host())[0] not in GONE


def _current(store: Store, worker: WorkerInfo) -> str | None:
    """One of somebody's own making claims nothing: its beats say what it works on."""
    held = store.owned_ids(worker.id, limit=1)
    if held or worker.lock != NO_LOCK:
        return next(iter(held), None)
    return store.beaten_for(worker.id)


def _allowed_us(worker: WorkerInfo, threshold_ms: int) -> int:
    return max(threshold_ms, 2 * worker.beat_interval_ms) * 1000


def _declare_silent_dead(store: Store, threshold_ms: int) -> None:
    for worker in store.workers(alive_only=True):
        allowed = _allowed_us(worker, threshold_ms)
        if worker.silent_for_us > allowed:
            reason = f"worker {worker.id} on {worker.host.name} silent for {worker.silent_for_us / 1e6:.0f}s"
            store.declare_dead(worker.id, reason=reason, cause="silence", silent_for_us=allowed)


def _orphaned(store: Store, status: TaskStatus) -> Iterator[list[Claim]]:
    """Batch by batch; those of another status are passed over."""
    after: Claim | None = None
    while found := store.orphans(limit=BATCH, after=after):
        after = found[-1]
        yield [claim for claim in found if claim.status is status]


def _orphan(claim: Claim, cause: Cause) -> Orphan:
    return Orphan(claim=claim, cause=cause, evidence="found by a person")


def _failed(claim: Claim) -> Verdict:
    reason = f"worker {claim.worker_id} is gone; failed by a person"
    return Verdict(change=Change.ABANDON, reason=reason, error=TaskError(code=WORKER_CRASHED, message=reason), losses=1)


def _settled(store: Store, verdicts: list[tuple[Orphan, Verdict]]) -> int:
    return (
        sum(isinstance(settlement, Settled) for settlement in store.recover(verdicts, actor=ACTOR)) if verdicts else 0
    )


def _foreign_worker(worker_id: str, recovery: RecoveryConfig) -> NewWorker:
    """A worker of somebody's own making: it has no lock file, so only its beats speak for it."""
    interval = min(recovery.runner_heartbeat_interval_ms, recovery.claimer_heartbeat_interval_ms)
    return NewWorker(
        id=worker_id, name=worker_id, host=this_host(), queues=(), beat_interval_ms=interval, version=__version__
    )
