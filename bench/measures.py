"""What is measured. Each measure returns its samples; how they are summarised is the business of `tables.py`.

`scale` shrinks or grows the amount of work: 1 for the committed figures, less for a quick look.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import recovering
from bench.tasks import read
from bench.yard import Yard, family, until, yard


@dataclass(frozen=True)
class Measure:
    name: str
    unit: str
    target: str
    """The figure to reach, in words."""
    run: Callable[[float], list[float]]
    better: str = "higher"


def bulk_enqueue(scale: float) -> list[float]:
    count = round(50_000 * scale)
    with yard() as place:
        place.works.noop.enqueue(0, 0)
        return [_rate(count, lambda: place.works.noop.enqueue_many([(1, 2)] * count)) for _ in range(5)]


def single_enqueue(scale: float) -> list[float]:
    count = round(2_000 * scale)
    with yard() as place:
        place.works.noop.enqueue(0, 0)
        return [_rate(count, lambda: _times(count, place.works.noop.enqueue)) for _ in range(3)]


def threaded_enqueue(scale: float) -> list[float]:
    """Sixteen threads of one process, each waiting for its own commit."""
    count = round(500 * scale)

    def all_threads(place: Yard) -> None:
        threads = [threading.Thread(target=_times, args=(count, place.works.noop.enqueue)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with yard() as place:
        place.works.noop.enqueue(0, 0)
        return [_rate(16 * count, lambda: all_threads(place)) for _ in range(3)]


def drain_one_by_one(scale: float) -> list[float]:
    return _drain(scale, 4_000, "noop", "--processes", "2", "--frame-depth", "1")


def drain_framed(scale: float) -> list[float]:
    return _drain(scale, 30_000, "noop", "--processes", "2")


def drain_async(scale: float) -> list[float]:
    return _drain(scale, 30_000, "async_noop", "--processes", "1", "--async-slots", "100")


def pickup(scale: float) -> list[float]:
    """From the call of enqueue() to the first line of the task's code, on an idle worker."""
    samples = []
    with yard() as place:
        place.worker("--processes", "2")
        for number in range(round(200 * scale)):
            path = place.directory / f"p{number}"
            sent = time.monotonic_ns()
            place.works.stamp.enqueue(str(path))
            ((began, _),) = until(lambda path=path: read(path))
            samples.append((began - sent) / 1e6)
            time.sleep(0.02)
    return samples[5:]


def round_trip(scale: float) -> list[float]:
    """From the call of enqueue() to the return of result()."""
    samples = []
    with yard() as place:
        place.worker("--processes", "2")
        for _ in range(round(200 * scale)):
            sent = time.monotonic_ns()
            place.works.noop.enqueue(1, 2).result(timeout=30)
            samples.append((time.monotonic_ns() - sent) / 1e6)
            time.sleep(0.02)
    return samples[5:]


def child_death(scale: float) -> list[float]:
    """From the death of the task's process to its next begin in another: two begins, the first of which kills."""
    samples = []
    with yard() as place:
        place.worker("--processes", "2")
        for number in range(round(40 * scale)):
            path = place.directory / f"c{number}"
            place.works.stamp_and_die.enqueue(str(path))
            until(lambda path=path: len(read(path)) == 2)
            first, second = read(path)
            samples.append((second[0] - first[0]) / 1e6)
    return samples


def worker_death(scale: float) -> list[float]:
    """kill -9 of a worker's supervisor to the begin of its tasks on a second, idle worker."""
    samples = []
    for round_number in range(round(20 * scale)):
        with yard() as place:
            victim = place.worker("--processes", "2", "--name", "victim")
            paths = [place.directory / f"w{round_number}-{number}" for number in range(2)]
            for path in paths:
                place.works.stamp_and_stay.enqueue(str(path), 60.0)
            until(lambda paths=paths: all(read(path) for path in paths))
            place.worker("--processes", "2", "--name", "heir", "--drain-timeout", "0")
            killed = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            until(lambda paths=paths: all(len(read(path)) == 2 for path in paths))
            samples += [(read(path)[1][0] - killed) / 1e6 for path in paths]
    return samples


def idle_cpu(scale: float) -> list[float]:
    """Percent of one core that an idle worker with two slots uses, all its processes together."""
    with yard() as place:
        worker = place.worker("--processes", "2")
        time.sleep(3)
        seconds = max(3.0, 20 * scale)
        before = _cpu_seconds(worker.pid)
        time.sleep(seconds)
        return [100 * (_cpu_seconds(worker.pid) - before) / seconds]


def idle_memory(scale: float) -> list[float]:
    """Proportional set size of an idle worker with two slots, all its processes together."""
    with yard() as place:
        worker = place.worker("--processes", "2")
        place.works.noop.enqueue(1, 2).result(timeout=30)
        time.sleep(1)
        return [sum(_pss(pid) for pid in family(worker.pid))]


MEASURES = [
    Measure("bulk enqueue, one transaction", "tasks/s", "at least 80,000", bulk_enqueue),
    Measure("single enqueue, one thread", "tasks/s", "", single_enqueue),
    Measure("single enqueue, 16 threads (group commit)", "tasks/s", "", threaded_enqueue),
    Measure("drain, 2 process slots, one at a time", "tasks/s", "at least 2,000", drain_one_by_one),
    Measure("drain, 2 process slots, frames", "tasks/s", "at least 6,000", drain_framed),
    Measure("drain, async", "tasks/s", "at least 12,000", drain_async),
    Measure("pickup by an idle worker", "ms", "p50 under 3", pickup, "lower"),
    Measure("enqueue to result", "ms", "", round_trip, "lower"),
    Measure("child death to restart", "ms", "p95 under 100", child_death, "lower"),
    Measure("kill -9 of a worker to restart elsewhere", "ms", "p95 under 1,000", worker_death, "lower"),
    Measure("10,000 orphans recovered", "s", "under 1", recovering.ten_thousand_orphans, "lower"),
    Measure("1,000,000 orphans recovered", "s", "under 30", recovering.million_orphans, "lower"),
    Measure("longest enqueue while orphans are recovered", "ms", "under 200", recovering.held_up_by_recovery, "lower"),
    Measure("stale workers among 1,000,000 RUNNING tasks", "ms", "p95 under 10", recovering.stale_workers, "lower"),
    Measure("start of a worker, 10,000 tasks, half orphans", "s", "under 2", recovering.start_up, "lower"),
    Measure("integrity check, for each GB", "s", "under 10", recovering.integrity_check, "lower"),
    Measure("heartbeats of 1,000 running tasks", "% of a core", "under 1", recovering.heartbeats, "lower"),
    Measure("idle CPU, 2 slots", "% of a core", "under 1", idle_cpu, "lower"),
    Measure("idle memory (PSS), 2 slots", "MB", "under 80", idle_memory, "lower"),
]


def _drain(scale: float, count: int, name: str, *words: str) -> list[float]:
    samples = []
    for _ in range(3):
        with yard() as place:
            getattr(place.works, name).enqueue_many([(1, 2)] * round(count * scale))
            place.burst(*words)
            samples.append(place.drained_per_second())
    return samples


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def _times(count: int, enqueue: Callable[[int, int], object]) -> None:
    for number in range(count):
        enqueue(number, 2)


def _cpu_seconds(pid: int) -> float:
    ticks = 0
    for member in family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0
