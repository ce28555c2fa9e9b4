"""Measures of a worker that has nothing to do."""

import time

from everbeat.bench.machine import cpu_seconds, family, pss_megabytes
from everbeat.bench.place import Ground

SETTLE_SECONDS = 3.0


def cpu(ground: Ground, scale: float) -> list[float]:
    """Percent of one processor that all its processes use together."""
    with ground.place() as place:
        worker = place.worker()
        time.sleep(SETTLE_SECONDS)
        seconds = max(3.0, 20 * scale)
        before = sum(map(cpu_seconds, family(worker.pid)))
        time.sleep(seconds)
        return [100 * (sum(map(cpu_seconds, family(worker.pid))) - before) / seconds]


def memory(ground: Ground, scale: float) -> list[float]:
    """Proportional set size of all its processes together, after one task."""
    with ground.place() as place:
        worker = place.worker()
        place.works.noop.enqueue(1, 2).result(timeout=30)
        time.sleep(1)
        return [sum(map(pss_megabytes, family(worker.pid)))]
