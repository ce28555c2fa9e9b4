"""Decide how long a task waits before its next run."""

from everbeat.model.task import TaskPolicy

JITTER = 0.25


def backoff_us(policy: TaskPolicy, failures: int, jitter: float) -> int:
    """The wait after the `failures`-th failure, in microseconds. `jitter` is a random number in [0, 1)."""
    seconds = policy.base_seconds
    if policy.backoff == "exponential":
        seconds *= 2.0 ** min(max(failures, 1) - 1, 64)
    if policy.jitter:
        seconds *= 1.0 - JITTER + 2 * JITTER * jitter
    return round(min(seconds, policy.max_seconds) * 1_000_000)
