"""Recovery is one thing: find who is gone, decide about what they held, write it under the fence, tell it.

The reaper does it all the time, a starting worker before it claims anything, a person by command. Proofs come first: a
freed lock or another boot is certain and acted on at once. For what a dead worker had marked RUNNING its journal says
whether code began (PROTOCOL 20); where it can not be believed, RUNNING is taken at its word.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from everbeat.clock import Clock, SystemClock
from everbeat.config import RecoveryConfig
from everbeat.decide.batch import FIRST, next_batch
from everbeat.decide.liveness import is_elsewhere, threshold_us
from everbeat.decide.recover import class_of, flaw_of, recovery_for
from everbeat.decide.stop import instead_of_another_run
from everbeat.model.recovery import (
    Cause,
    Leased,
    Orphan,
    OrphanClass,
    Progress,
    RecoveryPolicy,
    RecoveryReport,
    Settled,
    Settlement,
    Undecided,
    Unsettled,
    Verdict,
)
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import Host, WorkerInfo, WorkerStatus
from everbeat.report.log import Reporter
from everbeat.run import leftovers
from everbeat.run.findings import Findings
from everbeat.run.journal import Journal
from everbeat.run.lapsed import lapsed
from everbeat.run.lockfile import Liveness, probe
from everbeat.run.replay import replay_spools
from everbeat.store.interface import Store
from everbeat.store.moments import moment

Tell = Callable[[Progress], None]
Jitter = Callable[[], float]


class Recovery:
    def __init__(
        self,
        store: Store,
        config: RecoveryConfig,
        me: Host,
        *,
        clock: Clock | None = None,
        policy: RecoveryPolicy | None = None,
        jitter: Jitter = random.random,
    ) -> None:
        self._store = store
        self._config = config
        self._policy = policy or config.to_policy()
        self._me = me
        self._clock = clock or SystemClock()
        self._jitter = jitter
        self._seen: dict[str, int] = {}
        """When each worker was last looked at and not proven gone."""
        self._given_up: dict[tuple[int, int], str] = {}
        """What could not be recovered, and why: tried again now and then, told once."""
        self.has_leased = False
        """Something has no owner that counts, and waits for the end of its lease."""

    def now(self) -> datetime:
        return moment(self._clock.wall_us())

    def run(self, *, actor: str, but: str | None = None) -> RecoveryReport | None:
        """One pass by proof, for every worker but `but`; None if there was nothing to do."""
        started_at = self.now()
        findings = Findings(dead=self.bury_proven(self._store.workers(alive_only=True), but=but))
        report = self.finish(findings, started_at, actor=actor)
        self.tidy()
        return report

    def finish(
        self, findings: Findings, started_at: datetime, *, actor: str, try_again: bool = True
    ) -> RecoveryReport | None:
        """Recover whatever has no owner now and was not finished by it, and save the report if anything was done."""
        replay_spools(self._store)
        self.recover_orphans(findings, try_again=try_again)
        if not findings:
            return None
        report = findings.report(started_at, self.now())
        self._store.save_report(report, actor=actor)
        return report

    @property
    def has_given_up(self) -> bool:
        """Whether there is something to try again."""
        return bool(self._given_up)

    def proven_gone(self, workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
        return [worker for worker in workers if self._proof(worker)]

    def bury_proven(self, workers: Iterable[WorkerInfo], *, but: str | None) -> list[WorkerInfo]:
        """Declare dead whom the kernel proves gone."""
        dead: list[WorkerInfo] = []
        now, seen, self._seen = self._clock.mono_us(), self._seen, {}
        for worker in workers:
            reason = None if worker.id == but else self._proof(worker)
            if reason is None:
                self._seen[worker.id] = now
                continue
            unseen = now - seen[worker.id] if worker.id in seen else None
            if self._store.declare_dead(worker.id, reason=reason, cause="proof", unseen_for_us=unseen):
                dead.append(worker)
        return dead

    def undecided(self, workers: Iterable[WorkerInfo]) -> list[Undecided]:
        """Those whose silence has to tell, and when it will have (PROTOCOL 14)."""
        found: list[Undecided] = []
        for worker in workers:
            liveness, reason = self._look_at(worker)
            if liveness is not Liveness.UNKNOWN:
                continue
            allowed = threshold_us(self._config.running_stale_threshold_ms, worker.beat_interval_ms)
            wait = max(allowed - worker.silent_for_us, allowed - self._store.healthy_for_us(), 0)
            until = self.now() + timedelta(microseconds=wait)
            tasks = self._store.count_owned(worker.id)
            found.append(Undecided(worker_id=worker.id, tasks=tasks, until=until, reason=reason))
        return found

    def recover_orphans(self, findings: Findings, *, try_again: bool = True, tell: Tell | None = None) -> None:
        """In batches, each a transaction so short that nobody waits long for it. What could not be recovered is told
        once; `try_again` says whether it is tried this time."""
        self.has_leased = False
        limit, after, total, has_masses = FIRST, None, 0, False
        owners: dict[str, WorkerInfo] = {}
        marks = _Marks(self)
        while found := self._store.orphans(limit=limit, after=after):
            after = found[-1]
            owners = owners or {worker.id: worker for worker in self._store.workers()}
            total = total or (self._store.count_orphans() if tell and len(found) == limit else len(found))
            wanted = [claim for claim in found if self._may_touch(claim)]
            findings.left_alone += len(found) - len(wanted)
            began = self._clock.mono_us()
            self._recover(self._orphans(wanted, owners, marks), findings, try_again=try_again)
            limit = next_batch(limit, self._clock.mono_us() - began)
            if tell:
                _tell(tell, total, findings)
            if findings.is_full and not has_masses:
                has_masses = True
                limit = self._recover_masses(findings, owners, marks, limit, tell and partial(_tell, tell, total))
        self._given_up = dict(findings.unrecovered)
        self._note_degraded()

    def _recover_masses(
        self, findings: Findings, owners: dict[str, WorkerInfo], marks: "_Marks", limit: int,
        tell: Callable[[Findings], None] | None,
    ) -> int:  # fmt: skip
        """Nobody lists these any more: decide about each class of them, and let the store write it (PROTOCOL 39). What
        it can not write so is left for the way task by task; so are owners whose journal tells their tasks apart."""
        for worker_id in self._store.gone_owners():
            owner, after = owners.get(worker_id or ""), 0
            if owner is not None and marks.of(owner) is not None:
                continue
            while found := self._store.orphan_classes(worker_id, after=after, limit=limit):
                after = max(orphans.last for orphans in found)
                began = self._clock.mono_us()
                decided = [
                    (orphans, verdict)
                    for orphans in found
                    if self._may_touch(orphans.claim) and (verdict := self._verdict_on(orphans, owner))
                ]
                written = self._store.recover_classes(decided) if decided else []
                for (orphans, _), is_done in zip(decided, written, strict=True):
                    if is_done:
                        findings.recovered_class(orphans)
                limit = next_batch(limit, self._clock.mono_us() - began)
                if tell:
                    tell(findings)
        return limit

    def _verdict_on(self, orphans: OrphanClass, owner: WorkerInfo | None) -> Verdict | None:
        claim = orphans.claim
        cause = Cause.NEVER_BEGAN if claim.status is TaskStatus.CLAIMED else Cause.LOST
        orphan = Orphan(claim=claim, cause=cause, evidence=_evidence(owner, claim))
        return None if flaw_of(claim) else recovery_for(orphan, self._policy, jitter=self._jitter())

    def would_recover(self, findings: Findings) -> None:
        """Decide as `recover_orphans` does, and write nothing. The dead of these findings are not declared dead yet."""
        owners = {worker.id: worker for worker in self._store.workers()}
        marks = _Marks(self)
        for page in self._pages(findings.dead):
            wanted = [claim for claim in page if self._may_touch(claim)]
            findings.left_alone += len(page) - len(wanted)
            for orphan, verdict in self._decided(self._orphans(wanted, owners, marks), findings, try_again=True):
                findings.recovered(orphan, verdict)

    def take_over(self, workers: Iterable[WorkerInfo], findings: Findings) -> None:
        """Recover the tasks with exclusive keys of workers that count as alive, but have let their lease run out."""
        orphans = lapsed(self._store, workers, healthy_for_us=self._store.healthy_for_us())
        self._recover([orphan for orphan in orphans if self._may_touch(orphan.claim)], findings, try_again=True)

    def tidy(self, reporter: Reporter | None = None) -> None:
        """Remove the files of workers that are gone and own nothing."""
        removed = leftovers.tidy(self._store)
        if removed and reporter is not None:
            reporter.say("files.removed", files=removed)

    def _pages(self, dead: Sequence[WorkerInfo]) -> Iterator[list[Claim]]:
        after = None
        while found := self._store.orphans(limit=FIRST, after=after):
            after = found[-1]
            yield found
        for worker in dead:
            seen = 0
            while owned := self._store.owned_by(worker.id, limit=FIRST, after=seen):
                seen = owned[-1].seq
                yield owned

    def _recover(self, orphans: Sequence[Orphan], findings: Findings, *, try_again: bool) -> None:
        decided = self._decided(orphans, findings, try_again=try_again)
        for (orphan, verdict), settlement in _written(self._store, decided):
            if isinstance(settlement, Settled):
                # its end was asked for after it was read
                findings.recovered(orphan, verdict if settlement.change is None else instead_of_another_run(verdict))
            elif isinstance(settlement, Unsettled):
                self._give_up(orphan.claim, verdict, settlement.error, findings)
            elif isinstance(settlement, Leased):
                self.has_leased = True

    def _decided(
        self, orphans: Sequence[Orphan], findings: Findings, *, try_again: bool
    ) -> list[tuple[Orphan, Verdict]]:
        """Without those that nothing can be decided about, and those that are not to be tried this time."""
        decided: list[tuple[Orphan, Verdict]] = []
        for orphan, verdict in decide(orphans, self._policy, self._jitter):
            claim = orphan.claim
            known = self._given_up.get((claim.seq, claim.fence)) if self._given_up else None
            if isinstance(verdict, str):
                self._give_up(claim, None, verdict, findings)
            elif known is not None and not try_again:
                self._give_up(claim, None, known, findings)
            else:
                decided.append((orphan, verdict))
        return decided

    def _give_up(self, claim: Claim, verdict: Verdict | None, error: str, findings: Findings) -> None:
        findings.failed(claim, verdict, error, is_news=(claim.seq, claim.fence) not in self._given_up)

    def _note_degraded(self) -> None:
        """Said in the store, for health and metrics, whenever it changes."""
        count = len(self._given_up)
        first = next(iter(self._given_up.values()), None)
        tasks = "1 task" if count == 1 else f"{count} tasks"
        self._store.note_degraded(f"{tasks} could not be recovered: {first}" if first else None)

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
        liveness, reason = self._look_at(worker)
        return reason if liveness is Liveness.FREE else None

    def _look_at(self, worker: WorkerInfo) -> tuple[Liveness, str]:
        return probe(worker.lock, worker.id, worker.host, self._me)

    def _orphans(self, claims: Sequence[Claim], owners: dict[str, WorkerInfo], marks: "_Marks") -> list[Orphan]:
        orphans: list[Orphan] = []
        evidence: dict[str | None, str] = {}
        for claim in claims:
            owner = owners.get(claim.worker_id or "")
            begun = marks.of(owner) if owner else None
            cause = Cause.LOST
            if claim.status is TaskStatus.CLAIMED or (begun is not None and (claim.seq, claim.fence) not in begun):
                cause = Cause.NEVER_BEGAN
            is_certain = claim.exclusive_key is None or owner is None or self._proof(owner) is not None
            if cause is Cause.LOST and not is_certain:
                cause = Cause.LEASE_LOST
            if claim.worker_id not in evidence:
                evidence[claim.worker_id] = _evidence(owner, claim)
            seen = evidence[claim.worker_id]
            orphans.append(Orphan(claim=claim, cause=cause, evidence=seen, is_certain=is_certain))
        return orphans

    def begun_under(self, owner: WorkerInfo) -> frozenset[tuple[int, int]] | None:
        """The begin marks of a worker that is proven gone, or has said that it is; None if they can not be believed."""
        if not owner.same_boot:
            return None
        if owner.status is not WorkerStatus.STOPPED and self._proof(owner) is None:
            return None
        facts = Journal.read(Journal.path_of(Path(owner.lock.path).parent, owner.id))
        if facts is None or (facts.worker_id, facts.boot_id) != (owner.id, owner.host.boot_id):
            return None
        return facts.begun


def _tell(tell: Tell, total: int, findings: Findings) -> None:
    tell(Progress(stage="orphans", done=findings.tasks + findings.left_alone, total=total))


class _Marks:
    """The begin marks of each owner, read once per pass."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._known: dict[str, frozenset[tuple[int, int]] | None] = {}

    def of(self, owner: WorkerInfo) -> frozenset[tuple[int, int]] | None:
        if owner.id not in self._known:
            self._known[owner.id] = self._recovery.begun_under(owner)
        return self._known[owner.id]


def decide(orphans: Iterable[Orphan], policy: RecoveryPolicy, jitter: Jitter) -> Iterator[tuple[Orphan, Verdict | str]]:
    """Once for each class of them (PROTOCOL 39). In place of a verdict: why there can be none."""
    known: dict[object, Verdict | str] = {}
    for orphan in orphans:
        kind = class_of(orphan)
        if kind not in known:
            known[kind] = flaw_of(orphan.claim) or recovery_for(orphan, policy, jitter=jitter())
        yield orphan, known[kind]


def recover_all(
    store: Store, orphans: Sequence[Orphan], policy: RecoveryPolicy, *, jitter: Jitter = random.random
) -> None:
    """Decide and write. A row that nothing can be decided about, or that can not be written, is left."""
    decided = [(orphan, verdict) for orphan, verdict in decide(orphans, policy, jitter) if isinstance(verdict, Verdict)]
    if decided:
        store.recover(decided)


def _written(
    store: Store, decided: list[tuple[Orphan, Verdict]]
) -> Iterator[tuple[tuple[Orphan, Verdict], Settlement]]:
    """What somebody else has recovered meanwhile is theirs to tell."""
    return zip(decided, store.recover(decided) if decided else (), strict=True)


def _evidence(owner: WorkerInfo | None, claim: Claim) -> str:
    if owner is None:
        return f"worker {claim.worker_id or '(none)'} is unknown"
    return owner.end_reason or f"worker {owner.id} on {owner.host.name} {owner.status}"
