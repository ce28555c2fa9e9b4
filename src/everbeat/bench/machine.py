"""The machine a run was made on, and how busy it was with other things."""

import os
import platform
import resource
import sqlite3
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def facts() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(pages / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


class Watch:
    """Counts the processors that others use. Processes that were ended and waited for are ours; so are those in `also`,
    with all below them, which go on all the time."""

    def __init__(self, also: Iterable[int] = ()) -> None:
        self._also = list(also)
        self._began = time.monotonic()
        self._all, self._own = _all_seconds(), self._own_seconds()

    def foreign_cores(self) -> float | None:
        """None where the kernel does not say."""
        passed = time.monotonic() - self._began
        if self._all is None or passed <= 0:
            return None
        used = (_all_seconds() or 0.0) - self._all
        own = self._own_seconds() - self._own
        return round(max(0.0, used - own) / passed, 2)

    def _own_seconds(self) -> float:
        mine, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        own = mine.ru_utime + mine.ru_stime + ended.ru_utime + ended.ru_stime
        return own + sum(cpu_seconds(pid) for root in self._also for pid in family(root))


def _all_seconds() -> float | None:
    """Processor time that all processes together have used."""
    if sys.platform != "linux":
        return None
    user, nice, system, _, _, irq, softirq = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    return sum(map(int, (user, nice, system, irq, softirq))) / TICKS


def family(pid: int) -> list[int]:
    """A process and all below it. Any of them may end while we look."""
    found = [pid]
    for member in found:  # which grows meanwhile
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with suppress(OSError):
                    children = Path(f"/proc/{member}/task/{thread}/children").read_text()
                    found += [int(child) for child in children.split()]
    return found


def cpu_seconds(pid: int) -> float:
    """Of one process and of those below it that have ended; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def pss_megabytes(pid: int) -> float:
    """Memory of a process, with its share of what it has in common with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)
