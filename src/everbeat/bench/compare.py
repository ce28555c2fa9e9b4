"""Hold a run against an earlier one. Pure.

Only figures of the same measure, subject, variant and store are compared. A difference counts when the samples of the
two runs do not overlap; anything less may be noise, and is said to be "the same".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from everbeat.bench.figures import Figure, Run


class Change(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "the same"
    NEW = "new"
    GONE = "not measured now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    figure: Figure
    """As it is now; if it was not measured now, as it was."""
    before: float | None
    now: float | None
    change: Change

    @property
    def ratio(self) -> float | None:
        """How many times better: 2 is twice the rate, or half the time."""
        if not (self.before and self.now):
            return None
        return self.now / self.before if self.figure.better == "higher" else self.before / self.now


def compared(before: Run, now: Run) -> list[Compared]:
    """In the order of the run that was made now, then what only the earlier one has."""
    earlier = {figure.identity: figure for figure in before.figures}
    found = [_compare(earlier.pop(figure.identity, None), figure) for figure in now.figures]
    gone = [Compared(figure=f, before=f.median, now=None, change=Change.GONE) for f in earlier.values()]
    return found + gone


def _compare(before: Figure | None, now: Figure) -> Compared:
    if before is None:
        return Compared(figure=now, before=None, now=now.median, change=Change.NEW)
    return Compared(figure=now, before=before.median, now=now.median, change=_change(before, now))


def _change(before: Figure, now: Figure) -> Change:
    if _overlap(_middle(before.samples), _middle(now.samples)):
        return Change.SAME
    is_higher = now.median > before.median
    return Change.BETTER if is_higher is (now.better == "higher") else Change.WORSE


def _middle(samples: Sequence[float]) -> tuple[float, float]:
    """Of many samples the middle half, of a few all; a single one is taken to be right within a twentieth."""
    ordered = sorted(samples)
    if len(ordered) == 1:
        return ordered[0] * 0.95, ordered[0] * 1.05
    skip = len(ordered) // 4 if len(ordered) >= 8 else 0
    return ordered[skip], ordered[-1 - skip]


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
