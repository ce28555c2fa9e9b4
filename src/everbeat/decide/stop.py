"""Decide when a run that must not go on is told to stop, when its process is drained for it, and when it is killed.

Pure. A run must not go on when its timeout has passed since its code began (PROTOCOL 19), or when somebody has asked
for its end. It is told first, by an exception in its code; what does not listen within a grace dies with its process.
In a process that others share, these are given time to end before that (PROTOCOL 23). The outcome of a run that ends
meanwhile counts; what would be run again is cancelled instead, if that was asked for (PROTOCOL 21).

Moments are microseconds of the monotonic clock.
"""

from enum import Enum

from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import TaskError

TASK_CANCELLED = "TASK_CANCELLED"
TIMEOUT_GRACE_US = 2_000_000
CANCEL_GRACE_US = 500_000
"""Short: whoever cancels a task sees it end within a second, also if it does not listen."""
DRAIN_US = 5_000_000


class Step(Enum):
    WAIT = "wait"
    TELL = "tell"  # raise the exception in its code
    DRAIN = "drain"  # nothing new into its process; the others may end
    KILL = "kill"


def over_at(timeout_us: int, begun_at: int | None, now: int) -> int:
    """When a run is over its time; before that is known, the earliest that it may be."""
    return (now if begun_at is None else begun_at) + timeout_us


def next_step(
    now: int, *, over_at: int, kill_at: int | None, drain_until: int | None, has_neighbours: bool
) -> tuple[Step, int]:
    """What to do now, and when to look again. `kill_at` is set once it was told, `drain_until` once its process takes
    nothing new. `has_neighbours`: others run in its process that are not to be stopped."""
    if kill_at is None:
        return (Step.WAIT, over_at) if now < over_at else (Step.TELL, now + TIMEOUT_GRACE_US)
    if now < kill_at:
        return Step.WAIT, kill_at
    if has_neighbours and drain_until is None:
        return Step.DRAIN, now + DRAIN_US
    if has_neighbours and drain_until is not None and now < drain_until:
        return Step.WAIT, drain_until
    return Step.KILL, now


def instead_of_another_run(verdict: Verdict) -> Verdict:
    """What becomes of a task whose end was asked for, when its ownership ends by this verdict: the end of its code
    counts, but it is neither run again nor failed because its runner has gone."""
    if verdict.change not in (Change.RETRY, Change.HAND_BACK, Change.RECOVER, Change.ABANDON):
        return verdict
    reason = f"its cancellation was asked for; {verdict.reason}"
    return verdict._replace(change=Change.CANCEL, reason=reason, delay_us=0, solo=False, quarantined=False)


def cancelled_unbegun() -> Verdict:
    return Verdict(change=Change.CANCEL, reason="cancelled; its code never began", billed=False)


def cancelled_by_force(where: str) -> Verdict:
    """The verdict on a run that was to end, did not stop when it was told to, and was killed."""
    message = f"cancelled while it ran; it did not stop, so {where} was killed"
    return Verdict(change=Change.CANCEL, reason=message, error=TaskError(code=TASK_CANCELLED, message=message))
