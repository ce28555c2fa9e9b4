"""Decide whether the rules of a task make sense together, for `everbeat check`.

Pure: policy in, words out. A problem is a rule that can never have the effect that its author must have wanted.
"""

import difflib
from collections.abc import Iterator

from everbeat.decide.finish import TASK_TIMEOUT
from everbeat.decide.recover import NEIGHBOUR_CRASHED, WORKER_CRASHED, WORKER_STOPPED, recovery_for
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy, Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim, TaskPolicy

CRASH_CODES = frozenset({WORKER_CRASHED, WORKER_STOPPED, NEIGHBOUR_CRASHED, "LEASE_LOST"})
CODES = CRASH_CODES | {
    TASK_TIMEOUT, "UNHANDLED_EXCEPTION", "ARGUMENTS_INVALID", "RESULT_INVALID", "RESULT_TOO_LARGE", "UNKNOWN_TASK",
}  # fmt: skip
"""What a run may fail with and a `retry_on` may name."""


def after_a_crash(policy: TaskPolicy, recovery: RecoveryPolicy) -> Verdict:
    """What becomes of such a task when its process dies under it for the first time."""
    claim = Claim(
        seq=0, id="", name="", queue="", fence=1, status=TaskStatus.RUNNING, attempt=1, free_attempts=0, crash_count=0,
        lost_count=0, dispatch_count=0, solo=False, policy=policy.dump(), args=b"", worker_id=None,
    )  # fmt: skip
    return recovery_for(Orphan(claim=claim, cause=Cause.CRASHED, evidence="its process died"), recovery, jitter=0.5)


def problems_of(policy: TaskPolicy, recovery: RecoveryPolicy) -> Iterator[str]:
    """What can not work."""
    for cause in policy.retry_on or ():
        if "." not in cause and cause not in CODES:
            yield f"retry_on names {cause!r}, which is no error code{_nearest(cause)}"
    if policy.retry_on == ():
        yield "retry_on is empty, so nothing is ever retried; leave it out to retry after any exception"
    if policy.on_crash == "retry" and after_a_crash(policy, recovery).change is not Change.RECOVER:
        yield f"on_crash='retry' has no effect: {_why_never(policy, recovery)}"
    if policy.on_crash == "fail" and WORKER_CRASHED in (policy.retry_on or ()):
        yield "on_crash='fail' and WORKER_CRASHED in retry_on contradict each other; on_crash wins"
    if policy.max_attempts == 1 and policy.retry_on:
        yield "retry_on has no effect: max_attempts is 1"


def doubts_about(policy: TaskPolicy, recovery: RecoveryPolicy, *, timeout: float | None) -> Iterator[str]:
    """What works, and may not be what was meant."""
    named = policy.retry_on or ()
    if TASK_TIMEOUT in named and timeout is None:
        yield "retry_on names TASK_TIMEOUT, and the task has no timeout"
    if named and policy.on_crash is None and WORKER_CRASHED not in named and recovery.action == "retry":
        yield "a crash is not retried: retry_on does not name WORKER_CRASHED"


def _why_never(policy: TaskPolicy, recovery: RecoveryPolicy) -> str:
    limit = policy.max_recovery_attempts or recovery.max_recovery_attempts
    if limit <= 1:
        return f"max_recovery_attempts is {limit}, so the first crash is the last"
    if policy.has_retry and policy.max_attempts <= 1:
        return "its RetryPolicy has max_attempts=1; leave retry= out to be limited by max_recovery_attempts alone"
    return "its retry_on does not name WORKER_CRASHED"


def _nearest(word: str) -> str:
    (*near,) = difflib.get_close_matches(word, CODES, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; the codes are {', '.join(sorted(CODES))}"
