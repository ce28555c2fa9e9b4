"""Decide how long a task waits before its next run."""

from everbeat.model.task import TaskPolicy

JITTER = 0.25


def backoff_us(policy: TaskPolicy, failures: int, jitter: float) -> int:
    """The wait after the `failures`-th failure, in microseconds. `jitter` is a random number in [0, 1): it spreads the
    wait by a quarter to both sides, and below the limit where that is reached, so that what failed together does not
    come back together."""
    seconds = policy.base_seconds
    if policy.backoff == "exponential":
        seconds *= 2.0 ** min(max(failures, 1) - 1, 64)
    if policy.jitter:
        shortest = (1.0 - JITTER) * min(seconds, policy.max_seconds)
        longest = min((1.0 + JITTER) * seconds, policy.max_seconds)
        seconds = shortest + (longest - shortest) * jitter
    return round(min(seconds, policy.max_seconds) * 1_000_000)
