"""Time, as everything else sees it. Injected, so that a whole cluster can run under virtual time."""

import time
from functools import cached_property
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def wall_us(self) -> int:
        """Microseconds UTC, for people, run times and retry times. May jump."""

    def mono_us(self) -> int:
        """Microseconds since boot, the same for every process of this kernel; stands still in suspend."""

    @property
    def id(self) -> str:
        """Which boot that is."""


class SystemClock:
    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def mono_us(self) -> int:
        return time.monotonic_ns() // 1000

    @cached_property
    def id(self) -> str:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
