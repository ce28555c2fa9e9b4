"""Recovery is one thing: find who is gone, decide about what they held, write it under the fence, tell it.

The reaper does it all the time, a starting worker before it claims anything, a person by command. Who is gone is proven
by `witness`, what is known of their tasks is in `cases`, what was done in `findings`.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from everbeat.clock import Clock, SystemClock
from everbeat.config import RecoveryConfig
from everbeat.decide.batch import FIRST, next_batch
from everbeat.decide.liveness import threshold_us
from everbeat.decide.recover import flaw_of, recovery_for
from everbeat.decide.stop import instead_of_another_run
from everbeat.model.recovery import Leased, Orphan, OrphanClass, RecoveryPolicy, Settled, Settlement, Unsettled, Verdict
from everbeat.model.report import Progress, RecoveryReport, Undecided
from everbeat.model.session import Suspect
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import Host, WorkerInfo
from everbeat.report.log import Reporter
from everbeat.run import leftovers
from everbeat.run.cases import Cases, Jitter, decide, doubtful, lapsed
from everbeat.run.findings import Findings
from everbeat.run.lockfile import Liveness
from everbeat.run.replay import Replayed, replay_spools
from everbeat.run.slot import Ownership
from everbeat.run.witness import Witness
from everbeat.store.interface import Store
from everbeat.store.moments import moment

Tell = Callable[[Progress], None]


class Recovery:
    def __init__(
        self, store: Store, config: RecoveryConfig, me: Host, *, clock: Clock | None = None,
        policy: RecoveryPolicy | None = None, jitter: Jitter = random.random,
    ) -> None:  # fmt: skip
        self._store = store
        self._config = config
        self.policy = policy or config.to_policy()
        self._clock = clock or SystemClock()
        self._jitter = jitter
        self.witness = Witness(me, self._clock)
        self._seen: dict[str, int] = {}
        """When each worker was last looked at and not proven gone."""
        self._given_up: dict[Ownership, str] = {}
        """What could not be recovered, and why: tried again now and then, told once."""
        self._ended: frozenset[Ownership] = frozenset()
        """What waits in a spool."""
        self.has_leased = False
        """Something has no owner that counts, and waits for the end of its lease."""

    def now(self) -> datetime:
        """By the clock of this machine. A report has the times of the store once it is saved."""
        return moment(self._clock.wall_us())

    def run(self, *, actor: str, but: str | None = None) -> RecoveryReport | None:
        """One pass by proof, for every worker but `but`; None if there was nothing to do."""
        started_at = self.now()
        findings = Findings(dead=self.bury_proven(self._store.workers(alive_only=True), but=but), policy=self.policy)
        report = self.finish(findings, started_at, actor=actor)
        self.tidy()
        return report

    def finish(
        self, findings: Findings, started_at: datetime, *, actor: str, try_again: bool = True
    ) -> RecoveryReport | None:
        """Recover whatever has no owner now and was not finished by it, and save the report if anything was done."""
        self.await_outcomes(replay_spools(self._store))
        self.recover_orphans(findings, try_again=try_again)
        if not findings:
            return None
        return self._store.save_report(findings.report(started_at, self.now()), actor=actor)

    def await_outcomes(self, replayed: Sequence[Replayed]) -> None:
        """Leave alone what is known to have ended, and could not be told yet."""
        self._ended = frozenset[Ownership]().union(*(spool.waiting for spool in replayed))

    @property
    def has_given_up(self) -> bool:
        """Whether there is something to try again."""
        return bool(self._given_up)

    # -- who is gone ------------------------------------------------------------------------------------------------

    def proven_gone(self, workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
        return [worker for worker in workers if self.witness.proof(worker)]

    def bury_proven(self, workers: Iterable[WorkerInfo], *, but: str | None) -> list[WorkerInfo]:
        """Declare dead whom the kernel proves gone."""
        dead: list[WorkerInfo] = []
        now, seen, self._seen = self._clock.mono_us(), self._seen, {}
        for worker in workers:
            reason = None if worker.id == but else self.witness.proof(worker)
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
            liveness, reason = self.witness.look_at(worker)
            if liveness is not Liveness.UNKNOWN:
                continue
            allowed = threshold_us(self._config.running_stale_threshold_ms, worker.beat_interval_ms)
            wait = max(allowed - worker.silent_for_us, allowed - self._store.healthy_for_us(), 0)
            until = self.now() + timedelta(microseconds=wait)
            tasks = self._store.count_owned(worker.id)
            found.append(Undecided(worker_id=worker.id, tasks=tasks, until=until, reason=reason))
        return found

    # -- what they held ---------------------------------------------------------------------------------------------

    def recover_orphans(self, findings: Findings, *, try_again: bool = True, tell: Tell | None = None) -> None:
        """In batches, each a transaction so short that nobody waits long for it. What could not be recovered is told
        once; `try_again` says whether it is tried this time."""
        self.has_leased = False
        limit, after, total, has_masses = FIRST, None, 0, False
        cases = Cases(self._store, self.witness)
        while found := self._store.orphans(limit=limit, after=after):
            after = found[-1]
            total = total or (self._store.count_orphans() if tell and len(found) == limit else len(found))
            wanted = [claim for claim in found if self._may_touch(claim)]
            findings.left_alone += len(found) - len(wanted)
            began = self._clock.mono_us()
            self._recover(cases.orphans(wanted), findings, try_again=try_again)
            limit = next_batch(limit, self._clock.mono_us() - began)
            if tell:
                _tell(tell, total, findings)
            if findings.is_full and not has_masses:
                has_masses = True
                limit = self._recover_masses(findings, cases, limit, tell and partial(_tell, tell, total))
        self._given_up = dict(findings.unrecovered)
        self._note_degraded()

    def _recover_masses(
        self, findings: Findings, cases: Cases, limit: int, tell: Callable[[Findings], None] | None
    ) -> int:
        """Nobody lists these any more: decide about each class of them, and let the store write it (PROTOCOL 39). What
        it can not write so is left for the way task by task; so are owners whose journal tells their tasks apart."""
        for worker_id in self._store.gone_owners() if not self._ended else ():
            if cases.has_marks(worker_id):
                continue
            after = 0
            while found := self._store.orphan_classes(worker_id, after=after, limit=limit):
                after = max(orphans.last for orphans in found)
                began = self._clock.mono_us()
                self._recover_classes([orphans for orphans in found if self._may_touch(orphans.claim)], findings, cases)
                limit = next_batch(limit, self._clock.mono_us() - began)
                if tell:
                    tell(findings)
        return limit

    def _recover_classes(self, classes: Sequence[OrphanClass], findings: Findings, cases: Cases) -> None:
        decided = [(one, verdict) for one in classes if (verdict := self._verdict_on(one, cases)) is not None]
        written = self._store.recover_classes(decided) if decided else []
        for (one, _), is_done in zip(decided, written, strict=True):
            if is_done:
                findings.recovered_class(one)

    def _verdict_on(self, orphans: OrphanClass, cases: Cases) -> Verdict | None:
        if flaw_of(orphans.claim):
            return None
        return recovery_for(cases.orphan_of(orphans), self.policy, jitter=self._jitter())

    def would_recover(self, findings: Findings) -> None:
        """Decide as `recover_orphans` does, and write nothing. The dead of these findings are not declared dead yet."""
        cases = Cases(self._store, self.witness)
        for page in self._pages(findings.dead):
            wanted = [claim for claim in page if self._may_touch(claim)]
            findings.left_alone += len(page) - len(wanted)
            for orphan, verdict in self._decided(cases.orphans(wanted), findings, try_again=True):
                findings.recovered(orphan, verdict)

    def take_over(self, workers: Iterable[WorkerInfo], findings: Findings) -> None:
        """Recover the tasks with exclusive keys of workers that count as alive, but have let their lease run out."""
        orphans = lapsed(self._store, workers, healthy_for_us=self._store.healthy_for_us())
        self._recover([orphan for orphan in orphans if self._may_touch(orphan.claim)], findings, try_again=True)

    def take_from(self, worker: WorkerInfo, suspect: Suspect, findings: Findings) -> None:
        """Recover what may run again of a worker that has lost its session (PROTOCOL 12). Nothing is failed on
        suspicion (PROTOCOL 13), and what has an exclusive key waits for its lease."""
        liveness, _ = self.witness.look_at(worker)
        if liveness in (Liveness.HELD, Liveness.SEIZED):
            return
        for owned in self._owned_by(worker):
            orphans = [orphan for orphan in doubtful(worker, suspect, owned) if self._may_touch(orphan.claim)]
            decided = [
                (orphan, verdict)
                for orphan, verdict in self._decided(orphans, findings, try_again=False)
                if verdict.change is Change.RECOVER
            ]
            settlements = self._store.recover_suspected(suspect, decided) if decided else []
            if settlements is None:
                return
            self._note(zip(decided, settlements, strict=True), findings)

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
            yield from self._owned_by(worker)

    def _owned_by(self, worker: WorkerInfo) -> Iterator[list[Claim]]:
        seen = 0
        while owned := self._store.owned_by(worker.id, limit=FIRST, after=seen):
            seen = owned[-1].seq
            yield owned

    def _recover(self, orphans: Sequence[Orphan], findings: Findings, *, try_again: bool) -> None:
        decided = self._decided(orphans, findings, try_again=try_again)
        self._note(_written(self._store, decided), findings)

    def _note(self, written: Iterable[tuple[tuple[Orphan, Verdict], Settlement]], findings: Findings) -> None:
        for (orphan, verdict), settlement in written:
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
        for orphan, verdict in decide(orphans, self.policy, self._jitter):
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

    def _may_touch(self, claim: Claim) -> bool:
        if (claim.seq, claim.fence) in self._ended:
            return False
        if claim.status is TaskStatus.CLAIMED:
            return self._config.auto_requeue_stale_claimed
        return self._config.auto_fail_stale_running


def _tell(tell: Tell, total: int, findings: Findings) -> None:
    tell(Progress(stage="orphans", done=findings.tasks + findings.left_alone, total=total))


def _written(
    store: Store, decided: list[tuple[Orphan, Verdict]]
) -> Iterator[tuple[tuple[Orphan, Verdict], Settlement]]:
    """What somebody else has recovered meanwhile is theirs to tell."""
    return zip(decided, store.recover(decided) if decided else (), strict=True)
