"""What a worker measures of itself, in counters that cost next to nothing: one step of a search and two additions.

Written by the main thread, read by whoever shows it. A reader may see a count without its sum; nobody decides by it.
"""

from bisect import bisect_left
from collections.abc import Sequence

SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)


class Distribution:
    """How many observations fell below each bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The last one is of those above every bound."""
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Meter:
    def __init__(self) -> None:
        self.flush_sizes = Distribution(SIZES)
        self.durations: dict[str, Distribution] = {}
        """By the name of the task."""

    def flushed(self, size: int) -> None:
        if size:
            self.flush_sizes.add(size)

    def ran(self, name: str, seconds: float) -> None:
        """By a clock that may step back: a sum that shrinks looks like a worker that was started anew."""
        found = self.durations.get(name)
        if found is None:
            found = self.durations[name] = Distribution(SECONDS)
        found.add(max(0.0, seconds))
