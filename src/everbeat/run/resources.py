"""What a worker and everything below it uses: memory and processor time, read from /proc.

Cheap enough for every half minute: a few files per process. A process that ends between two looks takes its last
seconds of processor time with it; nothing here is exact to the last digit, and nothing is decided by it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from everbeat.clock import Clock

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEMORY = os.sysconf("SC_PHYS_PAGES") * _PAGE
_UTIME, _STIME = 11, 12
"""Fields of /proc/PID/stat, counted from the state, which follows the name in parentheses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    memory_mb: float
    """Resident, of all processes; pages that they share are counted in each."""
    memory_percent: float
    cpu_percent: float
    """Of one processor, since the last look; may be more than 100."""


class Resources:
    """Of this process and its descendants."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at = clock.mono_us()
        self._ticks: dict[int, int] = {}

    def look(self) -> Usage:
        now, pids = self._clock.mono_us(), list(_family(os.getpid()))
        ticks = {pid: used for pid in pids if (used := _ticks_of(pid)) is not None}
        spent = sum(max(0, used - self._ticks.get(pid, 0)) for pid, used in ticks.items()) / _TICKS
        elapsed = (now - self._looked_at) / 1e6
        self._looked_at, self._ticks = now, ticks
        used = sum(map(resident, pids))
        return Usage(
            memory_mb=round(used / (1 << 20), 1),
            memory_percent=round(100 * used / _MEMORY, 2),
            cpu_percent=round(100 * spent / elapsed, 1) if elapsed > 0 else 0.0,
        )


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # it has ended meanwhile
                for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                    yield from _family(int(child))


def _ticks_of(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[_UTIME]) + int(fields[_STIME])


def resident(pid: int) -> int:
    """The memory of one process, in bytes; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0
