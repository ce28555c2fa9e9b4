"""What becomes of a task when its run, or its process, has ended: asks decide/ with what the dispatcher knows."""

from collections.abc import Callable

from everbeat.decide.finish import finish_for, timed_out
from everbeat.decide.recover import WORKER_STOPPED, recovery_for
from everbeat.decide.stop import cancelled_by_force
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy, Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim, Outcome, TaskError
from everbeat.run.deadline import HeldLease
from everbeat.run.failure import RESULT_INVALID
from everbeat.run.news import Died
from everbeat.run.slot import Slot
from everbeat.run.stops import Watched
from everbeat.run.wire import InterruptKind
from everbeat.run.words import how_it_died


class Verdicts:
    def __init__(
        self, *, worker_id: str, hostname: str, policy: RecoveryPolicy, lease: HeldLease, jitter: Callable[[], float]
    ) -> None:
        self._worker_id = worker_id
        self._hostname = hostname
        self._policy = policy
        self._lease = lease
        self._jitter = jitter

    def on_outcome(self, claim: Claim, outcome: Outcome, pid: int | None, *, was_told: bool) -> Verdict:
        """`was_told`: the worker has told its tasks to stop; without that, a task has raised it by itself."""
        if was_told and outcome.error is not None and outcome.error.code == WORKER_STOPPED:
            evidence = f"interrupted: worker {self._worker_id} on {self._hostname} stopped (process {pid})"
            return self.on_end(claim, Cause.STOPPED, evidence)
        return finish_for(claim, outcome, jitter=self._jitter())

    def on_end(self, claim: Claim, cause: Cause, evidence: str) -> Verdict:
        """Its process is gone, or was never there."""
        return recovery_for(Orphan(claim=claim, cause=cause, evidence=evidence), self._policy, jitter=self._jitter())

    def on_kill(self, watched: Watched, pid: int) -> Verdict:
        """Its process was killed because of it."""
        where = self._where(pid)
        if watched.why is InterruptKind.CANCEL:
            return cancelled_by_force(where)
        return timed_out(watched.flight.claim, where, jitter=self._jitter())

    # -- in words ---------------------------------------------------------------------------------------------------

    def evidence(self, slot: Slot, death: Died) -> str:
        """Why the process in this slot is gone."""
        if death.overdue:
            return self.lease_is_over(death.pid)
        return slot.ends_because or f"{how_it_died(death.pid, death.status)} on {self._hostname}"

    def killed_for(self, claim: Claim, pid: int | None) -> str:
        return f"{self._where(pid)} was killed because task {claim.id} in it did not stop"

    def lease_is_over(self, pid: int | None) -> str:
        times = self._lease.lease
        silent = (times.stop_us - self._lease.left_us()) / 1e6
        return (
            f"{self._where(pid)} was stopped: worker {self._worker_id} has had no answer from the store "
            f"for {silent:.1f}s, and others may have its exclusive keys after {times.lease_us / 1e6:.0f}s"
        )

    def _where(self, pid: int | None) -> str:
        return f"process {pid} on {self._hostname}"


def give_back(claim: Claim, reason: str) -> Verdict:
    return Verdict(change=Change.HAND_BACK, reason=reason, billed=False, solo=claim.solo)


def unstorable(claim: Claim, why: str) -> Verdict:
    error = TaskError(code=RESULT_INVALID, message=f"its outcome could not be stored: {why}")
    return Verdict(change=Change.FAIL, reason=error.message, error=error, solo=claim.solo)


def cause_of(slot: Slot, death: Died, has_begun: bool, begun: int) -> Cause:
    ends_for = Cause.LEASE_LOST if death.overdue else slot.ends_for
    if ends_for is not None:
        return ends_for if has_begun else Cause.NEVER_BEGAN
    if death.status is None:
        return Cause.LOST if has_begun else Cause.NEVER_BEGAN
    if has_begun:
        return Cause.CRASHED if begun == 1 else Cause.NEIGHBOUR
    return Cause.NEVER_BEGAN if begun else Cause.DISPATCH_DIED
