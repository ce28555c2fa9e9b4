"""Measures of sending: tasks accepted per second, each call returning after a durable commit."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

from everbeat.bench.place import Failed, Ground, Place

THREADS = 16
SENDERS = 4
SENDER = """
import sys, time
from everbeat.bench.tasks import build
noop = build(sys.argv[1]).noop
noop.enqueue(0, 0)
print("open", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    noop.enqueue(number, 2)
"""


def bulk(ground: Ground, scale: float) -> list[float]:
    """enqueue_many(), all in one transaction."""
    count = max(1_000, round(50_000 * scale))
    with ground.place() as place:
        place.works.noop.enqueue(0, 0)
        calls = [(1, 2)] * count
        return [_rate(count, lambda: place.works.noop.enqueue_many(calls)) for _ in range(5)]


def single(ground: Ground, scale: float) -> list[float]:
    """enqueue() again and again in one thread."""
    count = max(50, round(2_000 * scale))
    with ground.place() as place:
        place.works.noop.enqueue(0, 0)
        return [_rate(count, lambda: _times(count, place.works.noop.enqueue)) for _ in range(5)]


def threads(ground: Ground, scale: float) -> list[float]:
    """Sixteen threads of one process, each waiting for its own commit."""
    count = max(10, round(500 * scale))
    with ground.place() as place:
        place.works.noop.enqueue(0, 0)
        return [_rate(THREADS * count, lambda: _all_threads(place, count)) for _ in range(5)]


def processes(ground: Ground, scale: float) -> list[float]:
    """Four processes, each sending one task after the other."""
    count = max(20, round(1_000 * scale))
    with ground.place() as place:
        place.works.noop.enqueue(0, 0)
        return [_all_processes(place, count) for _ in range(3)]


def _all_threads(place: Place, count: int) -> None:
    senders = [threading.Thread(target=_times, args=(count, place.works.noop.enqueue)) for _ in range(THREADS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def _all_processes(place: Place, count: int) -> float:
    command = [sys.executable, "-c", SENDER, place.url, str(count)]
    senders = [
        subprocess.Popen(command, cwd=place.directory, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(SENDERS)
    ]
    try:
        for sender in senders:
            assert sender.stdout is not None
            sender.stdout.readline()
        return _rate(SENDERS * count, lambda: _let_go(senders))
    finally:
        for sender in senders:
            sender.kill()
            sender.communicate()


def _let_go(senders: "list[subprocess.Popen[str]]") -> None:
    for sender in senders:
        assert sender.stdin is not None
        sender.stdin.write("go\n")
        sender.stdin.flush()
    if any(sender.wait() for sender in senders):
        raise Failed("a sender failed")


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def _times(count: int, enqueue: Callable[[int, int], object]) -> None:
    for number in range(count):
        enqueue(number, 2)
