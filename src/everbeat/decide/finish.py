"""Decide what becomes of a task whose code has ended: completed, another run, or failed.

Pure. A run that was interrupted because its worker stops has not ended by itself: `recover.py` decides about it.
"""

from everbeat.decide.backoff import backoff_us
from everbeat.decide.stop import TASK_CANCELLED
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim, Outcome, TaskError, TaskPolicy

TASK_TIMEOUT = "TASK_TIMEOUT"
HOPELESS = frozenset({"ARGUMENTS_INVALID", "RESULT_INVALID", "RESULT_TOO_LARGE", "UNKNOWN_TASK"})
"""Codes that another run of the same code on the same arguments can not change; retried only where a policy says so."""


def finish_for(claim: Claim, outcome: Outcome, *, jitter: float) -> Verdict:
    """The verdict on a run that ended by itself. `jitter` is a random number in [0, 1)."""
    if outcome.error is None:
        return completed(outcome)
    error, policy = outcome.error, TaskPolicy.load(claim.policy)
    if error.code == TASK_CANCELLED:
        return Verdict(change=Change.CANCEL, error=error, reason="cancelled while it ran")
    used = claim.attempt - claim.free_attempts
    if used >= policy.max_attempts:
        reason = f"{error.code}: no attempts left ({used}/{policy.max_attempts})"
        return Verdict(change=Change.FAIL, error=error, reason=reason)
    if not is_retryable(error, policy):
        return Verdict(
            change=Change.FAIL, error=error, reason=f"{error.code}: its retry policy does not cover this error"
        )
    return Verdict(
        change=Change.RETRY,
        error=error,
        reason=f"{error.code}: attempt {used} of {policy.max_attempts} failed",
        delay_us=backoff_us(policy, used, jitter),
        solo=claim.solo,
    )


def completed(outcome: Outcome) -> Verdict:
    """A run that came to a result, as nearly all do: asked directly by those who hear of thousands."""
    return Verdict(Change.COMPLETE, None, outcome.result)


def timed_out(claim: Claim, where: str, *, jitter: float) -> Verdict:
    """The verdict on a run that was over its time, did not stop when it was told to, and was killed."""
    message = f"the task ran for longer than its timeout of {claim.timeout:g} s and did not stop; {where} was killed"
    outcome = Outcome(error=TaskError(code=TASK_TIMEOUT, message=message), began_at=0, ended_at=0)
    return finish_for(claim, outcome, jitter=jitter)


def is_retryable(error: TaskError, policy: TaskPolicy) -> bool:
    if policy.retry_on is None:
        return error.code not in HOPELESS
    return error.code in policy.retry_on or not set(error.lineage).isdisjoint(policy.retry_on)
