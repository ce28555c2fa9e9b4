"""Measures of how long something takes: until a task begins, until its result is there, until it runs again after a
death. In milliseconds, on a worker that has nothing else to do."""

import os
import signal
import time

from everbeat.bench.place import Ground, Place, until
from everbeat.bench.tasks import read
from everbeat.store import filling

WARM_UP = 150
"""By then the log of a new SQLite file has been written once, and is written over: that takes half of the time."""
PAUSE_SECONDS = 0.02
STAY_SECONDS = 60.0
SETTLE_SECONDS = 1.0
"""After so long the heir has seen the session of the other one."""


def pickup(ground: Ground, scale: float) -> list[float]:
    """From the call of enqueue() to the first line of the task's code."""
    samples = []
    with ground.place() as place:
        _warm_up(place)
        for number in range(round(200 * scale)):
            path = place.directory / f"p{number}"
            sent = time.monotonic_ns()
            place.works.stamp.enqueue(str(path))
            ((began, _),) = until(lambda path=path: read(path))  # type: ignore[misc]
            samples.append((began - sent) / 1e6)
            time.sleep(PAUSE_SECONDS)
    return samples


def result(ground: Ground, scale: float) -> list[float]:
    """From the call of enqueue() to the return of result()."""
    samples = []
    with ground.place() as place:
        _warm_up(place)
        for _ in range(round(200 * scale)):
            sent = time.monotonic_ns()
            place.works.noop.enqueue(1, 2).result(timeout=30)
            samples.append((time.monotonic_ns() - sent) / 1e6)
            time.sleep(PAUSE_SECONDS)
    return samples


def _warm_up(place: Place) -> None:
    place.worker()
    for _ in range(WARM_UP):
        place.works.noop.enqueue(1, 2).result(timeout=30)


def child_death(ground: Ground, scale: float) -> list[float]:
    """From the death of the task's process to its next begin in another: two begins, the first of which kills."""
    samples = []
    with ground.place() as place:
        place.worker(processes=2)
        for number in range(max(3, round(40 * scale))):
            path = place.directory / f"c{number}"
            place.works.stamp_and_die.enqueue(str(path))
            until(lambda path=path: len(read(path)) == 2)  # type: ignore[misc]
            first, second = read(path)
            samples.append((second[0] - first[0]) / 1e6)
    return samples


def worker_death(ground: Ground, scale: float) -> list[float]:
    """kill -9 of a worker's supervisor to the begin of its tasks on a second, idle worker."""
    return [sample for _ in range(max(1, round(10 * scale))) for sample in _death(ground, is_far=False)]


def host_death(ground: Ground, scale: float) -> list[float]:
    """The same, with a second worker to which the first is one of another machine: nothing of it can be looked at."""
    return [sample for _ in range(max(1, round(8 * scale))) for sample in _death(ground, is_far=True)]


def _death(ground: Ground, *, is_far: bool) -> list[float]:
    with ground.place() as place:
        victim = place.worker("--name", "victim", processes=2)
        if is_far:
            filling.move_away(place.store, "victim")
        paths = [place.directory / f"w{number}" for number in range(2)]
        for path in paths:
            place.works.stamp_and_stay.enqueue(str(path), STAY_SECONDS)
        until(lambda: all(read(path) for path in paths))
        place.worker("--name", "heir", "--drain-timeout", "0", processes=2)
        time.sleep(SETTLE_SECONDS if is_far else 0)
        killed = time.monotonic_ns()
        os.kill(victim.pid, signal.SIGKILL)
        until(lambda: all(len(read(path)) == 2 for path in paths))
        return [(read(path)[1][0] - killed) / 1e6 for path in paths]
