"""Decide how many tasks of a name may wait in one slot's queue.

Short tasks go to a process several at a time, so that it never waits for the store; a frame holds about five
milliseconds of work. A name that was never seen, or is slow, is given out one at a time.
"""

from dataclasses import dataclass, field

FRAME_US = 5_000
DEEPEST = 1024
"""A flush costs as much as some fifty tasks of it, so quick tasks are given out by the hundred."""
SHORT_US = 300
WEIGHT = 0.2


@dataclass(slots=True)
class Pace:
    """Measured run times by task name, as a moving average in microseconds."""

    deepest: int = DEEPEST
    mean_us: dict[str, float] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)

    def saw(self, name: str, took_us: float, runs: int = 1) -> None:
        """A run, or the mean of several."""
        before = self.mean_us.get(name)
        took_us = max(0.0, took_us)  # a wall clock may step back
        mean = took_us if before is None else before + (1 - (1 - WEIGHT) ** runs) * (took_us - before)
        self.mean_us[name] = mean
        self.depths[name] = max(1, min(self.deepest, int(FRAME_US / max(mean, 1.0))))

    def is_short(self, name: str) -> bool:
        """It takes less than a commit does."""
        return self.mean_us.get(name, SHORT_US) < SHORT_US
