"""Decide how many rows the next transaction may write, so that no other writer waits long for it."""

AIM_US = 50_000
"""Four of these is what anybody may be held up for."""
LEAST, FIRST, MOST = 50, 500, 5_000


def next_batch(size: int, took_us: int) -> int:
    """By how long the last one took. It grows by no more than a factor of two: the first are often in the cache."""
    fitting = 2 * size if took_us <= 0 else size * AIM_US // took_us
    return max(LEAST, min(MOST, 2 * size, fitting))
