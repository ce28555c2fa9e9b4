"""Decide what becomes of a task whose runner has gone.

Pure: facts in, verdict out. Child death, the reaper, start-up and the command line all ask here, so a task is treated
the same whether its process died a millisecond ago or its worker last night.

Never decided here: whether the worker is dead (liveness.py), nor the write itself, which refuses if the task moved.

Keeps PROTOCOL 4 (what is billed), 5 (the counters and their limits), 6 (no delay after the first crash), 23 (innocent
neighbours), 21 (a cancel that was asked for) and the table of actions in the design:

* Only a crash of its own process counts towards the quarantine, and only it is delayed: the loss of a worker says
  little about the task, which then runs alone from the second time on.
* An unbilled end uses no attempt, so a task in its last attempt may be repeated after it; a task that has one attempt
  in all may not: its code began, and nobody said that it may run twice.
"""

from collections.abc import Hashable
from dataclasses import fields
from operator import attrgetter

from everbeat.decide.backoff import backoff_us
from everbeat.decide.stop import instead_of_another_run
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy, Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim, TaskError, TaskPolicy

WORKER_CRASHED = "WORKER_CRASHED"
WORKER_STOPPED = "WORKER_STOPPED"
NEIGHBOUR_CRASHED = "NEIGHBOUR_CRASHED"
LEASE_LOST = "LEASE_LOST"

CODES = {Cause.STOPPED: WORKER_STOPPED, Cause.NEIGHBOUR: NEIGHBOUR_CRASHED, Cause.LEASE_LOST: LEASE_LOST}
UNBILLED = frozenset({Cause.NEVER_BEGAN, Cause.DISPATCH_DIED, Cause.STOPPED, Cause.NEIGHBOUR, Cause.LEASE_LOST})
LOSSES = frozenset({Cause.LOST, Cause.LEASE_LOST})
"""Nobody's fault that we know of, and counted together: what ends so again and again may be the reason of it."""

_NAMES_A_TASK = frozenset({"seq", "id", "name", "queue", "fence", "args", "slot", "exclusive_key"})
_class_of_claim = attrgetter(*(field.name for field in fields(Claim) if field.name not in _NAMES_A_TASK))
_COUNTERS = ("fence", "attempt", "free_attempts", "crash_count", "lost_count", "dispatch_count")
_LARGEST = 1 << 62


def class_of(orphan: Orphan) -> Hashable:
    """Orphans of one class get the same verdict: everything that may matter about them is equal (PROTOCOL 39).
    If nothing can be decided about one of them, that is so for all."""
    claim = orphan.claim
    return orphan.cause, orphan.evidence, type(claim.id), type(claim.fence), _class_of_claim(claim)


def flaw_of(claim: Claim) -> str | None:
    """Why nothing can be decided about this row; None if all is as we write it. Somebody may have written it by hand,
    and SQLite takes any value in any column."""
    for name in _COUNTERS:
        value = getattr(claim, name)
        if type(value) is not int or not 0 <= value < _LARGEST:
            return f"its {name} can not be {str(value)[:50]!r}"
    if not isinstance(claim.id, str):
        return f"its id can not be {str(claim.id)[:50]!r}"
    return None


def recovery_for(orphan: Orphan, recovery: RecoveryPolicy, *, jitter: float) -> Verdict:
    """The verdict on one orphan. `jitter` is a random number in [0, 1). A task that was to be cancelled is not run
    again."""
    verdict = _verdict_on(orphan, recovery, jitter)
    return instead_of_another_run(verdict) if orphan.claim.cancel_requested else verdict


def _verdict_on(orphan: Orphan, recovery: RecoveryPolicy, jitter: float) -> Verdict:
    if orphan.cause is Cause.NEVER_BEGAN:
        reason = f"{orphan.evidence}; its code never began"
        return Verdict(change=Change.RECOVER, reason=reason, billed=False, solo=orphan.claim.solo)
    policy = TaskPolicy.load(orphan.claim.policy)
    refusal = _limit_reached(orphan, policy, recovery)
    if refusal is not None:
        return _abandon(orphan, refusal, quarantined=orphan.cause is Cause.CRASHED)
    action = _action_for(policy, recovery)
    refusal = None if orphan.cause is Cause.DISPATCH_DIED else _refusal(orphan, policy, action)
    if refusal is not None:
        return _abandon(orphan, refusal)
    billed = action != "pending" and orphan.cause not in UNBILLED
    return _run_again(orphan, policy, recovery, billed=billed, jitter=jitter)


def _action_for(policy: TaskPolicy, recovery: RecoveryPolicy) -> str:
    """The task's own, else the configured one. A person's comes before both, but no order about all orphans runs a
    task again whose author said that a crash ends it."""
    if recovery.is_forced and policy.on_crash != "fail":
        return recovery.action
    return policy.on_crash or recovery.action


def _limit_reached(orphan: Orphan, policy: TaskPolicy, recovery: RecoveryPolicy) -> str | None:
    """Whatever the action: enough is enough."""
    claim, limit = orphan.claim, policy.max_recovery_attempts or recovery.max_recovery_attempts
    if orphan.cause is Cause.CRASHED and claim.crash_count + 1 >= limit:
        return f"max recovery attempts exceeded ({claim.crash_count + 1}/{limit}): {orphan.evidence}"
    if orphan.cause is Cause.DISPATCH_DIED and claim.dispatch_count + 1 >= limit:
        return f"its process died before its code began, {claim.dispatch_count + 1} times: {orphan.evidence}"
    if orphan.cause in LOSSES and claim.lost_count + 1 > recovery.max_losses:
        return f"lost with its worker {claim.lost_count + 1} times: {orphan.evidence}"
    return None


def _refusal(orphan: Orphan, policy: TaskPolicy, action: str) -> str | None:
    """Why the task may not run again; None if it may."""
    if policy.is_unreadable:
        return f"{orphan.evidence}; its stored policy can not be read, so it is not run again"
    if action == "pending":
        return None
    if action == "fail":
        return f"{orphan.evidence}; its crash action is fail"
    if policy.on_crash == "retry" and not policy.has_retry:
        return None
    used = orphan.claim.attempt - orphan.claim.free_attempts
    spent = used - (orphan.cause in UNBILLED)
    if policy.max_attempts <= 1 or spent >= policy.max_attempts:
        return f"{orphan.evidence}; no attempts left ({used}/{policy.max_attempts})"
    if policy.retry_on is not None and not {WORKER_CRASHED, _code(orphan)}.intersection(policy.retry_on):
        return f"{orphan.evidence}; its retry policy does not list {WORKER_CRASHED}"
    return None


def most_attempts(policy: TaskPolicy, recovery: RecoveryPolicy) -> int:
    """How often a task may run after crashes, for people: what its attempts are to be set against."""
    if policy.on_crash == "retry" and not policy.has_retry:
        return policy.max_recovery_attempts or recovery.max_recovery_attempts
    return policy.max_attempts


def _run_again(orphan: Orphan, policy: TaskPolicy, recovery: RecoveryPolicy, *, billed: bool, jitter: float) -> Verdict:
    claim, cause = orphan.claim, orphan.cause
    earlier = {Cause.CRASHED: claim.crash_count, Cause.DISPATCH_DIED: claim.dispatch_count}.get(cause, 0)
    too_often_lost = cause is Cause.LOST and claim.lost_count + 1 >= recovery.solo_after_losses
    return Verdict(
        change=Change.RECOVER,
        reason=orphan.evidence,
        error=TaskError(code=_code(orphan), message=orphan.evidence),
        billed=billed,
        crashes=int(cause is Cause.CRASHED),
        losses=int(cause in LOSSES),
        dispatches=int(cause is Cause.DISPATCH_DIED),
        delay_us=backoff_us(policy, earlier, jitter) if earlier else 0,
        solo=claim.solo or too_often_lost or cause in (Cause.CRASHED, Cause.DISPATCH_DIED, Cause.NEIGHBOUR),
    )


def _abandon(orphan: Orphan, reason: str, *, quarantined: bool = False) -> Verdict:
    return Verdict(
        change=Change.ABANDON,
        reason=reason,
        error=TaskError(code=_code(orphan), message=reason),
        billed=orphan.cause not in UNBILLED,
        crashes=int(orphan.cause is Cause.CRASHED),
        losses=int(orphan.cause in LOSSES),
        dispatches=int(orphan.cause is Cause.DISPATCH_DIED),
        quarantined=quarantined,
    )


def _code(orphan: Orphan) -> str:
    return CODES.get(orphan.cause, WORKER_CRASHED)
