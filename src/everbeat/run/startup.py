"""What happens before a worker claims anything (P10), and when a person asks for a recovery: the same, in this order.

Integrity (PROTOCOL 38), repair if nobody else is alive (37), the log, the spools of the dead (30), dead workers and
their orphans by proof (14), the report. Each step may be repeated at any time: a recovery that was killed in the
middle, or runs beside another one, is finished by the next. What needs a threshold is told as undecided and left to the
reaper.

A store that is damaged and can not be repaired is left byte for byte as it is: nothing is started on it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everbeat.clock import Clock
from everbeat.config import RecoveryConfig
from everbeat.errors import RecoveryFailed, StoreDamaged
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.integrity import IntegrityResult, Rescue
from everbeat.model.recovery import RecoveryPolicy
from everbeat.model.report import Progress, RecoveryReport
from everbeat.model.worker import Host
from everbeat.report.log import Reporter
from everbeat.run import leftovers
from everbeat.run.cases import Jitter
from everbeat.run.findings import Findings
from everbeat.run.lockfile import workers_in
from everbeat.run.mending import mend_workflows, torn_workflows
from everbeat.run.recovery import Recovery, Tell
from everbeat.run.replay import replay_spools
from everbeat.store.interface import Site, Store
from everbeat.store.transaction import TurnTaken

INTEGRITY_SECONDS = 10.0
LONG_LOG = 64 * 1024 * 1024
TELL_US = 1_000_000
"""A long recovery says how far it is about once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    store: Store
    config: RecoveryConfig
    me: Host
    clock: Clock
    reporter: Reporter
    actor: str
    is_asked_for: bool = False
    """By a person: what was set aside is tried again."""
    on_whole: Callable[[], None] = lambda: None
    """Called once the store is known to be whole, before anything is written to it."""
    on_progress: Tell = lambda progress: None
    policy: RecoveryPolicy | None = None
    """In place of that of the configuration."""
    jitter: Jitter = random.random

    def run(self) -> RecoveryReport:
        recovery = self._recovery()
        findings = Findings(policy=recovery.policy)
        started_at = recovery.now()
        self._see_to_the_store(findings)
        self.on_whole()
        self.store.announce([Event(name=event.RECOVERY_STARTED, facts={"actor": self.actor})])
        self.on_progress(Progress(stage="spools"))
        self._replay(recovery, findings)
        self.on_progress(Progress(stage="workers"))
        self._doubt(findings)
        findings.dead = recovery.bury_proven(self.store.workers(alive_only=True), but=None)
        recovery.recover_orphans(findings, tell=_Teller(self))
        findings.found_torn(mend_workflows(self.store, all_of_them=self.is_asked_for))
        findings.undecided = recovery.undecided(self.store.workers(alive_only=True))
        report = self.store.save_report(findings.report(started_at, recovery.now()), actor=self.actor)
        recovery.tidy(self.reporter)
        self.reporter.recovered(report)
        return report

    def look(self) -> RecoveryReport:
        """What `run` would do now. Changes nothing."""
        recovery = self._recovery()
        findings = Findings(policy=recovery.policy)
        started_at = recovery.now()
        if self.config.integrity_check_on_startup:
            findings.integrity = self._check(findings)
        self._doubt(findings)
        alive = self.store.workers(alive_only=True)
        findings.dead = recovery.proven_gone(alive)
        recovery.would_recover(findings)
        findings.found_torn(torn_workflows(self.store, all_of_them=self.is_asked_for))
        findings.undecided = recovery.undecided(alive)
        report = findings.report(started_at, recovery.now()).ending_at(self.store.now())
        return replace(report, dry_run=True)

    def check_integrity(self) -> IntegrityResult:
        """The check by itself, with the repair if it is needed and nobody else is alive."""
        found = self.store.check_integrity(budget=INTEGRITY_SECONDS)
        if found.passed:
            return found
        self.reporter.warn("store.damaged", store=self.store.location, errors=len(found.errors), first=found.errors[0])
        if self._others():
            return found
        self.on_progress(Progress(stage="repair"))
        return self.store.repair(found)

    # -- the store itself -------------------------------------------------------------------------------------------

    def _see_to_the_store(self, findings: Findings) -> None:
        """Whole, logged as we need it, and its log moved into it."""
        if self.config.integrity_check_on_startup:
            findings.integrity = self._check_and_repair(findings)
        mode = self.store.restore_log()
        if mode is not None:
            findings.warnings.append(f"the journal mode was {mode}; it is a write-ahead log again")
        self.on_progress(Progress(stage="checkpoint"))
        length = self.store.log_bytes()
        if length > LONG_LOG:
            findings.warnings.append(f"the write-ahead log was {length / 1e6:.0f} MB long")
        self._move_the_log(findings)
        if findings.integrity is not None and findings.integrity.repair_succeeded:
            facts = {"errors": findings.integrity.errors[:10]}
            self.store.announce([Event(name=event.STORE_REPAIRED, facts=facts)])

    def _move_the_log(self, findings: Findings) -> None:
        """Nobody has to wait for that: who stands still in the turnstile (PROTOCOL 16) keeps nobody from working."""
        try:
            findings.checkpoint = self.store.checkpoint()
        except TurnTaken as error:
            findings.warnings.append(f"the write-ahead log stays as it is, safely: {error}")
            return
        if not findings.checkpoint.is_complete:
            left = findings.checkpoint.left
            findings.warnings.append(f"{left} frames stay in the write-ahead log, safely: somebody reads the database")

    def _check(self, findings: Findings) -> IntegrityResult:
        self.on_progress(Progress(stage="integrity"))
        found = self.store.check_integrity(budget=INTEGRITY_SECONDS)
        findings.warnings += found.warnings
        return found

    def _check_and_repair(self, findings: Findings) -> IntegrityResult:
        self.on_progress(Progress(stage="integrity"))
        found = self.check_integrity()
        findings.warnings += found.warnings
        if not found.passed:
            raise halted(self.store, found, others=self._others())
        return found

    def _others(self) -> list[int]:
        return [pid for pid, _ in workers_in(self.store.state_directory)]

    # -- its tasks --------------------------------------------------------------------------------------------------

    def _recovery(self) -> Recovery:
        return Recovery(self.store, self.config, self.me, clock=self.clock, policy=self.policy, jitter=self.jitter)

    def _replay(self, recovery: Recovery, findings: Findings) -> None:
        """What workers that are gone had finished, before anybody decides about the tasks they held."""
        replayed = replay_spools(self.store)
        recovery.await_outcomes(replayed)
        for spool in replayed:
            findings.spooled_outcomes += spool.settled + spool.adopted
            if spool.left is not None:
                findings.warnings.append(f"outcomes stay in {spool.path}: {spool.left}")

    def _doubt(self, findings: Findings) -> None:
        breaks_rules = any("CHECK constraint" in warning for warning in findings.warnings)
        if breaks_rules:
            findings.warnings += self.store.contradictions()
        findings.warnings += self.store.oddities(scan=breaks_rules)
        findings.warnings += leftovers.lost_commits(self.store)
        for warning in findings.warnings:
            self.reporter.warn("recovery.warning", warning=warning)


class _Teller:
    """Passes progress on, and stores and logs it about once a second."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._told_at = startup.clock.mono_us()

    def __call__(self, progress: Progress) -> None:
        startup, now = self._startup, self._startup.clock.mono_us()
        startup.on_progress(progress)
        if now - self._told_at >= TELL_US:
            self._told_at = now
            facts = {"stage": progress.stage, "done": progress.done, "total": progress.total}
            startup.store.announce([Event(name=event.RECOVERY_PROGRESS, facts={"actor": startup.actor, **facts})])


def halted(site: Site, found: IntegrityResult | StoreDamaged, *, others: Sequence[int] = ()) -> RecoveryFailed:
    """The store is damaged, and stays as it is. It may be so damaged that it could not even be opened."""
    rescue = site.rescue()
    if isinstance(found, StoreDamaged):
        found = IntegrityResult(passed=False, errors=[str(found.__cause__ or found)])
    return RecoveryFailed(
        _words(site.location, found, rescue, others),
        errors=found.errors,
        recovery_point=rescue.recovery_point,
        backup_command=rescue.backup_command,
    )


def _words(location: str, found: IntegrityResult, rescue: Rescue, others: Sequence[int]) -> str:
    if others:
        pids = ", ".join(map(str, others))
        why = f"was not repaired, because workers use it (pid {pids}): stop them and start again"
    else:
        why = "could not be repaired" if found.repair_attempted else "can not be read"
    more = f" ({len(found.errors)} problems in all)" if len(found.errors) > 1 else ""
    return "\n".join(
        [
            f"{location} is damaged and {why}. Nothing was started and the file was not changed.",
            f"  found: {found.errors[0] if found.errors else 'unknown'}{more}",
            f"  recovery point: {rescue.recovery_point}",
            *(f"  {number}. {step}" for number, step in enumerate(rescue.steps, start=1)),
        ]
    )
