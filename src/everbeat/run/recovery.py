"""Recovery is one thing: find who is gone, decide about what they held, write it under the fence, tell it.

The reaper does it all the time, a starting worker before it claims anything, a person by command. Proofs come first: a
freed lock or another boot is certain and acted on at once. For what a dead worker had marked RUNNING its journal says
whether code began (PROTOCOL 20); where it can not be believed, RUNNING is taken at its word.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from everbeat.clock import Clock, SystemClock
from everbeat.config import RecoveryConfig
from everbeat.decide.liveness import is_elsewhere
from everbeat.decide.recover import recovery_for
from everbeat.decide.stop import instead_of_another_run
from everbeat.model.recovery import (
    Cause,
    DeadWorker,
    Orphan,
    RecoveredTask,
    RecoveryPolicy,
    RecoveryReport,
    Settled,
    Unsettled,
    Verdict,
)
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, TaskPolicy
from everbeat.model.worker import Host, WorkerInfo, WorkerStatus
from everbeat.run.journal import Journal
from everbeat.run.leftovers import remove_leftovers
from everbeat.run.lockfile import Liveness, WorkerLock, probe
from everbeat.run.replay import has_spool, replay_spools
from everbeat.store.interface import Store
from everbeat.store.moments import moment

BATCH = 1000


@dataclass(slots=True)
class Findings:
    """What one pass did, for its report."""

    dead: list[WorkerInfo] = field(default_factory=list)
    recovered: list[tuple[Claim, RecoveredTask]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.dead or self.recovered)

    def report(self, started_at: datetime, completed_at: datetime) -> RecoveryReport:
        return RecoveryReport(
            started_at=started_at,
            completed_at=completed_at,
            recovered_tasks=[task for _, task in self.recovered],
            dead_workers=[
                DeadWorker(
                    worker_id=worker.id,
                    last_heartbeat=worker.last_beat_at,
                    orphaned_tasks=[task.task_id for claim, task in self.recovered if claim.worker_id == worker.id],
                )
                for worker in self.dead
            ],
        )


class Recovery:
    def __init__(
        self,
        store: Store,
        config: RecoveryConfig,
        me: Host,
        *,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._config = config
        self._policy = config.to_policy()
        self._me = me
        self._clock = clock or SystemClock()
        self._jitter = jitter
        self._given_up: set[tuple[int, int]] = set()

    def run(self, *, actor: str, but: str | None = None) -> RecoveryReport | None:
        """One pass by proof, for every worker but `but`; None if there was nothing to do."""
        started_at = moment(self._clock.wall_us())
        findings = Findings(dead=self.bury_proven(self._store.workers(alive_only=True), but=but))
        report = self.finish(findings, started_at, actor=actor)
        self.tidy()
        return report

    def finish(self, findings: Findings, started_at: datetime, *, actor: str) -> RecoveryReport | None:
        """Recover whatever has no owner now and was not finished by it, and save the report if anything was done."""
        replay_spools(self._store)
        findings.recovered += self.recover_orphans()
        if not findings:
            return None
        report = findings.report(started_at, moment(self._clock.wall_us()))
        self._store.save_report(report, actor=actor)
        return report

    def bury_proven(self, workers: Iterable[WorkerInfo], *, but: str | None) -> list[WorkerInfo]:
        """Declare dead whom the kernel proves gone."""
        dead: list[WorkerInfo] = []
        for worker in workers:
            reason = None if worker.id == but else self._proof(worker)
            if reason and self._store.declare_dead(worker.id, reason=reason, cause="proof"):
                dead.append(worker)
        return dead

    def recover_orphans(self) -> list[tuple[Claim, RecoveredTask]]:
        """In batches, each a short transaction. What could not be recovered is told once, and tried again next time."""
        done: list[tuple[Claim, RecoveredTask]] = []
        owners: dict[str, WorkerInfo] = {}
        after: Claim | None = None
        while found := self._store.orphans(limit=BATCH, after=after):
            after = found[-1]
            owners = owners or {worker.id: worker for worker in self._store.workers()}
            wanted = [claim for claim in found if self._may_touch(claim)]
            done += recover_all(self._store, self._orphans(wanted, owners), self._policy, jitter=self._jitter)
        news = [(claim, told) for claim, told in done if told.success or (claim.seq, claim.fence) not in self._given_up]
        self._given_up = {(claim.seq, claim.fence) for claim, told in done if not told.success}
        return news

    def tidy(self) -> None:
        """Remove the lock and journal of workers that are gone and own nothing, or that never came into the store. The
        journal first: while there is a lock, somebody comes back for the rest. By name and only here: a row that others
        can write must not say what we remove."""
        directory = self._store.state_directory
        for worker in self._store.workers():
            is_done = worker.status is not WorkerStatus.ALIVE and not worker.held and worker.lock.path
            if is_done and self._proof(worker):
                lock = WorkerLock.path_of(directory, worker.id)
                with suppress(OSError, ValueError):  # another user's, or a name that can be no file's
                    if not has_spool(lock):
                        Journal.path_of(directory, worker.id).unlink(missing_ok=True)
                        lock.unlink(missing_ok=True)
        remove_leftovers(directory, self._is_known)

    def _is_known(self, worker_id: str) -> bool:
        return any(worker.id == worker_id for worker in self._store.workers())

    def lives_elsewhere(self, worker: WorkerInfo) -> bool:
        """Whether it seems to run under another kernel: nothing that is known here proves or disproves its death."""
        now = self._clock.wall_us()
        return is_elsewhere(worker, now_us=now, booted_at_us=now - self._clock.mono_us())

    def _may_touch(self, claim: Claim) -> bool:
        if claim.status is TaskStatus.CLAIMED:
            return self._config.auto_requeue_stale_claimed
        return self._config.auto_fail_stale_running

    def _proof(self, worker: WorkerInfo) -> str | None:
        if not worker.same_boot:
            is_over = not self.lives_elsewhere(worker)
            return f"the host was restarted since worker {worker.id} ran on it" if is_over else None
        liveness, reason = probe(worker.lock, worker.id, worker.host, self._me)
        return reason if liveness is Liveness.FREE else None

    def _orphans(self, claims: Sequence[Claim], owners: dict[str, WorkerInfo]) -> list[Orphan]:
        begun: dict[str, frozenset[tuple[int, int]] | None] = {}
        orphans: list[Orphan] = []
        for claim in claims:
            owner = owners.get(claim.worker_id or "")
            if owner is not None and owner.id not in begun:
                begun[owner.id] = self._begun_under(owner)
            marks = begun.get(owner.id) if owner else None
            cause = Cause.LOST
            if claim.status is TaskStatus.CLAIMED or (marks is not None and (claim.seq, claim.fence) not in marks):
                cause = Cause.NEVER_BEGAN
            orphans.append(Orphan(claim=claim, cause=cause, evidence=_evidence(owner, claim)))
        return orphans

    def _begun_under(self, owner: WorkerInfo) -> frozenset[tuple[int, int]] | None:
        """The begin marks of a worker that is proven gone, or has said that it is; None if they can not be believed."""
        if not owner.same_boot:
            return None
        if owner.status is not WorkerStatus.STOPPED and self._proof(owner) is None:
            return None
        facts = Journal.read(Journal.path_of(Path(owner.lock.path).parent, owner.id))
        if facts is None or (facts.worker_id, facts.boot_id) != (owner.id, owner.host.boot_id):
            return None
        return facts.begun


def recover_all(
    store: Store, orphans: Sequence[Orphan], policy: RecoveryPolicy, *, jitter: Callable[[], float] = random.random
) -> list[tuple[Claim, RecoveredTask]]:
    """Decide and write. A row that can not be written is told and left, the others proceed; one that somebody else has
    recovered meanwhile is theirs to tell."""
    decided = [(orphan, recovery_for(orphan, policy, jitter=jitter())) for orphan in orphans]
    settlements = store.recover(decided) if decided else []
    return [
        (orphan.claim, _told(orphan, verdict, settlement))
        for (orphan, verdict), settlement in zip(decided, settlements, strict=True)
        if isinstance(settlement, Settled | Unsettled)
    ]


def _told(orphan: Orphan, verdict: Verdict, settlement: Settled | Unsettled) -> RecoveredTask:
    claim = orphan.claim
    error = settlement.error if isinstance(settlement, Unsettled) else None
    if isinstance(settlement, Settled) and settlement.change is not None:
        verdict = instead_of_another_run(verdict)  # asked for after it was read
    return RecoveredTask(
        task_id=claim.id,
        action=verdict.action,
        attempt_count=claim.attempt - claim.free_attempts,
        max_attempts=TaskPolicy.load(claim.policy).max_attempts,
        success=error is None,
        error=error,
        previous_worker_id=claim.worker_id,
        reason=verdict.reason,
    )


def _evidence(owner: WorkerInfo | None, claim: Claim) -> str:
    if owner is None:
        return f"worker {claim.worker_id or '(none)'} is unknown"
    return owner.end_reason or f"worker {owner.id} on {owner.host.name} {owner.status}"
