"""Measures of sending: tasks accepted per second, each call returning after a durable commit."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

from everbeat.bench.place import Failed, Ground, Place

SENDERS = 4
WARM_UP = 20
"""So many are sent by each before anything is measured: connections are open, statements known."""
SENDER = """
import sys, time
from everbeat.bench.tasks import build
noop = build(sys.argv[1]).noop
for number in range(int(sys.argv[2])):
    noop.enqueue(number, 2)
print("open", flush=True)
for line in sys.stdin:
    began = time.monotonic_ns()
    for number in range(int(line)):
        noop.enqueue(number, 2)
    print(began, time.monotonic_ns(), flush=True)
"""


def bulk(ground: Ground, scale: float) -> list[float]:
    """enqueue_many(), all in one transaction."""
    count = max(10_000, round(50_000 * scale))
    with ground.place() as place:
        calls = [(1, 2)] * count
        place.works.noop.enqueue_many(calls[:1000])
        return [_rate(count, lambda: place.works.noop.enqueue_many(calls)) for _ in range(5)]


def unique(ground: Ground, scale: float) -> list[float]:
    """The same, each with a unique key of its own."""
    count, samples = max(5_000, round(25_000 * scale)), []
    with ground.place() as place:
        noop = place.works.noop
        noop.enqueue_many([(1, 2)] * 1000)
        for sample in range(5):
            calls = [noop.options(unique_key=f"{sample}/{number}").args(1, 2) for number in range(count)]
            samples.append(_rate(count, lambda calls=calls: noop.enqueue_many(calls)))  # type: ignore[misc]
    return samples


def single(ground: Ground, scale: float) -> list[float]:
    """enqueue() again and again in one thread."""
    return _by_threads(ground, scale, 1)


def four_threads(ground: Ground, scale: float) -> list[float]:
    """Four threads of one process, each waiting for its own commit."""
    return _by_threads(ground, scale, 4)


def eight_threads(ground: Ground, scale: float) -> list[float]:
    return _by_threads(ground, scale, 8)


def sixteen_threads(ground: Ground, scale: float) -> list[float]:
    return _by_threads(ground, scale, 16)


def processes(ground: Ground, scale: float) -> list[float]:
    """Four processes, each sending one task after the other; from the first begin to the last end."""
    count = max(250, round(1_000 * scale))
    with ground.place() as place:
        place.works.noop.enqueue(0, 0)
        command = [sys.executable, "-c", SENDER, place.url, str(WARM_UP)]
        senders = [
            subprocess.Popen(command, cwd=place.directory, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(SENDERS)
        ]
        try:
            for sender in senders:
                _answer(sender)
            return [_all_processes(senders, count) for _ in range(3)]
        finally:
            for sender in senders:
                sender.kill()
                sender.communicate()


def _by_threads(ground: Ground, scale: float, threads: int) -> list[float]:
    count = max(500, round(2_000 * scale)) if threads == 1 else max(1_600, round(8_000 * scale)) // threads
    with ground.place() as place:
        _all_threads(place, threads, WARM_UP)
        return [_rate(threads * count, lambda: _all_threads(place, threads, count)) for _ in range(5)]


def _all_threads(place: Place, threads: int, count: int) -> None:
    senders = [threading.Thread(target=_times, args=(count, place.works.noop.enqueue)) for _ in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def _all_processes(senders: "list[subprocess.Popen[str]]", count: int) -> float:
    for sender in senders:
        assert sender.stdin is not None
        sender.stdin.write(f"{count}\n")
        sender.stdin.flush()
    times = [[int(word) for word in _answer(sender).split()] for sender in senders]
    began, ended = min(began for began, _ in times), max(ended for _, ended in times)
    return SENDERS * count / ((ended - began) / 1e9)


def _answer(sender: "subprocess.Popen[str]") -> str:
    assert sender.stdout is not None
    said = sender.stdout.readline()
    if not said:
        raise Failed(f"a sender ended with exit code {sender.wait()}")
    return said


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def _times(count: int, enqueue: Callable[[int, int], object]) -> None:
    for number in range(count):
        enqueue(number, 2)
