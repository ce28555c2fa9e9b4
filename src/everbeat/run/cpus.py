"""How many processors this process may really use: its affinity, and the quota of every control group above it.

In a container `os.cpu_count()` tells of the machine. A worker that starts sixteen processes on a quota of one starves
its own heartbeat.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """At least one. A quota of one and a half counts as two: the half is better used than left."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), quota(_text(MEMBERSHIP), CGROUPS))))


def quota(membership: str, root: Path) -> float:
    """The smallest quota among the groups named in the text of /proc/self/cgroup; infinite if there is none."""
    return min(_quotas(membership, root), default=math.inf)


def _quotas(membership: str, root: Path) -> Iterator[float]:
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2: one hierarchy for all controllers
            for group in _upwards(root, path):
                yield from _ratio(*_text(group / "cpu.max").split()[:2])
        elif "cpu" in controllers.split(","):
            for group in _upwards(root / "cpu", path):
                yield from _ratio(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """The group and those above it. Inside a container the path may be the host's: then only the root is there."""
    group = root / path.strip("/")
    while group != root:
        yield group
        group = group.parent
    yield root


def _ratio(*words: str) -> Iterator[float]:
    try:
        allowed, period = map(int, words)
    except ValueError:  # "max 100000", or no such file
        return
    if allowed > 0 and period > 0:  # version 1 says -1 for no limit
        yield allowed / period


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
