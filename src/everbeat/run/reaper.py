"""Returns orphaned tasks to the queue, or sets them aside, while the worker runs.

Every worker looks at its peers' locks four times a second: that is a few system calls and no transaction, and a death
is acted on by whoever sees it first. What only a threshold can tell is judged by one worker at a time, a lease in the
store (PROTOCOL 3), and only while the judge itself and the store are fit to judge (PROTOCOL 14): one that was held up
between its last looks neither judges nor keeps others from it, and one that has just begun does not wait for its first
interval to end, or workers that live shortly would never judge.

Between the two is the loss of a session (decide/suspect.py): whoever sees it takes what may run again.

It also ends tasks that wait in vain: those that were not started while they were good, and those whose name no worker
has known for too long (PROTOCOL 26). What one worker has ended the others do not find.
"""

from collections.abc import Callable

from everbeat.clock import Clock
from everbeat.config import RecoveryConfig
from everbeat.decide.liveness import is_overdue, threshold_us
from everbeat.errors import StoreUnavailable
from everbeat.model.session import Suspect
from everbeat.model.worker import WorkerInfo
from everbeat.report.log import Reporter
from everbeat.run.findings import Findings
from everbeat.run.recovery import Recovery
from everbeat.run.unblock import Unblocker
from everbeat.store.interface import Store

LOOK_SECONDS = 0.25
LEASE_LOOK_US = 1_000_000
SUSPECT_AGAIN_US = 5_000_000
"""Whoever was taking a suspect's tasks may have died over it."""
LATE_US = 2_000_000
"""Looks further apart than this are not on time. Nobody is judged by a silence of less than 3.5 s."""
GAP_CHECKS = 10
"""Looks for unknown names that may be missed, and it is still one watch: workers are restarted."""
ROLE = "reaper"
ACTOR = "system/reaper"


class Reaper:
    name = "reaper"

    def __init__(self, *, worker_id: str, store: Store, recovery: Recovery, config: RecoveryConfig, clock: Clock,
                 reporter: Reporter, unknown_after_ms: int | None = None,
                 suspects: Callable[[], list[Suspect]] = list) -> None:  # fmt: skip
        self._worker_id = worker_id
        self._store = store
        self._recovery = recovery
        self._config = config
        self._clock = clock
        self._reporter = reporter
        self._peers: list[WorkerInfo] = []
        self._version = -1
        self._judged_at: int | None = None
        self._is_mending = False
        """Not the first time: the start-up of this worker has just looked at all workflows."""
        self._looked_at = clock.mono_us()
        self._on_time = 0
        self._unknown_after_ms = unknown_after_ms
        self._saw_leases_at = 0
        self._suspects = suspects
        self._suspected: dict[str, int] = {}
        """When those who are suspected were last seen to."""
        self._mended = ""
        """The last exclusive key that was looked at."""
        self._mended_workflow = ""
        self._unblocker = Unblocker(store, config, clock, reporter)

    def tick(self) -> float:
        try:
            self._look()
        except StoreUnavailable:
            self._unblocker.look()
            raise
        if self._unblocker.is_blocked:
            self._unblocker.look()  # most turns only read; that one went well says nothing about the write lock
        return LOOK_SECONDS

    def _look(self) -> None:
        started_at = self._recovery.now()
        version = self._store.data_version()
        changed = version != self._version
        if changed:
            self._peers = self._store.workers(alive_only=True)
        dead = self._recovery.bury_proven(self._peers, but=self._worker_id)
        findings = Findings(dead=dead, policy=self._recovery.policy)
        self._see_to_suspects(findings)
        is_judge = self._is_time_to_judge()
        if is_judge:
            findings.dead += self._judge()
        is_time_for_leases = self._is_time_for_leases()
        if is_time_for_leases:
            others = [worker for worker in self._store.workers(alive_only=True) if worker.id != self._worker_id]
            self._recovery.take_over(others, findings)
        is_waiting = (is_judge and self._recovery.has_given_up) or (is_time_for_leases and self._recovery.has_leased)
        if changed or findings or is_waiting:
            report = self._recovery.finish(findings, started_at, actor=ACTOR, try_again=is_judge)
            self._peers = self._store.workers(alive_only=True)
            if report is not None:
                self._reporter.recovered(report)
        self._end_expired()
        if is_judge:
            self._mended = self._store.mend_turns(self._mended)
            if self._is_mending:
                self._mended_workflow = self._store.mend_workflows(after=self._mended_workflow).after
            self._refuse_unknown()
            self._recovery.tidy(self._reporter)
        self._version = version

    def _end_expired(self) -> None:
        while self._store.expire(settle_us=self._config.check_interval_ms * 1000):
            continue

    def _refuse_unknown(self) -> None:
        if self._unknown_after_ms is None:
            return
        after_us, gap_us = self._unknown_after_ms * 1000, GAP_CHECKS * self._config.check_interval_ms * 1000
        while self._store.refuse_unknown(after_us=after_us, gap_us=gap_us):
            continue

    def _see_to_suspects(self, findings: Findings) -> None:
        """Those whom the kernel proved gone are dead by now; those whom it shows alive are no suspects."""
        suspects, now = self._suspects(), self._clock.mono_us()
        self._suspected = {one.worker_id: at for one in suspects if (at := self._suspected.get(one.worker_id))}
        due = [
            one for one in suspects if now - self._suspected.get(one.worker_id, -SUSPECT_AGAIN_US) >= SUSPECT_AGAIN_US
        ]
        workers = {worker.id: worker for worker in self._store.workers(alive_only=True)} if due else {}
        for suspect in due:
            self._suspected[suspect.worker_id] = now
            if suspect.worker_id in workers:
                self._recovery.take_from(workers[suspect.worker_id], suspect, findings)

    def _is_time_to_judge(self) -> bool:
        now, interval = self._clock.mono_us(), self._config.check_interval_ms * 1000
        self._on_time = self._on_time + 1 if now - self._looked_at < LATE_US else 0
        self._looked_at = now
        if self._on_time < 2 or (self._judged_at is not None and now - self._judged_at < interval):
            return False
        self._is_mending = self._judged_at is not None
        self._judged_at = now
        return self._store.take_role(ROLE, self._worker_id, lease_us=max(3 * interval, 5_000_000))

    def _is_time_for_leases(self) -> bool:
        """Leases are shorter than other thresholds, and anybody may look: the write tests the silence again."""
        now = self._clock.mono_us()
        if self._on_time < 2 or now - self._saw_leases_at < LEASE_LOOK_US:
            return False
        self._saw_leases_at = now
        return True

    def _judge(self) -> list[WorkerInfo]:
        """The last resort: silence."""
        config, healthy = self._config, self._store.healthy_for_us()
        dead: list[WorkerInfo] = []
        for worker in self._store.workers(alive_only=True):
            if worker.id == self._worker_id or self._recovery.witness.lives_elsewhere(worker):
                continue
            if is_overdue(worker, config.running_stale_threshold_ms, store_healthy_for_us=healthy):
                allowed = threshold_us(config.running_stale_threshold_ms, worker.beat_interval_ms)
                reason = f"worker {worker.id} on {worker.host.name} silent for {worker.silent_for_us / 1e6:.0f}s"
                if self._store.declare_dead(worker.id, reason=reason, cause="silence", silent_for_us=allowed):
                    dead.append(worker)
            elif config.auto_requeue_stale_claimed and is_overdue(
                worker, config.claimed_stale_threshold_ms, store_healthy_for_us=healthy
            ):
                reason = f"worker {worker.id} silent for {worker.silent_for_us / 1e6:.0f}s; its code never began"
                self._store.requeue_silent_claims(
                    threshold_us(config.claimed_stale_threshold_ms, worker.beat_interval_ms), reason=reason
                )
        return dead
