"""Celery on Redis, results in Redis: `celery worker` with prefork processes."""

import sys
import time
from pathlib import Path

import redis
from celery import Celery

from bench.peers import kit

app = Celery("bench", broker=f"{kit.URL}/0", backend=f"{kit.URL}/1")
IS_FAST = kit.VARIANT == "fast"
if IS_FAST:
    app.conf.update(worker_prefetch_multiplier=64)
QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat"] if IS_FAST else []


@app.task(name="sync")
def sync_noop(a: int, b: int) -> int:
    kit.began()
    return a + b


@app.task(name="stamp", ignore_result=True)
def stamp(path: str) -> None:
    kit.stamp(path)


def prepare() -> None: ...


def send(kind: str, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        sync_noop.delay(1, 2)
    return time.perf_counter() - began


def send_stamp(path: str) -> None:
    stamp.delay(path)


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "celery"), "-A", __name__, "worker", "--concurrency", "2", "--loglevel",
            "ERROR", *QUIET]  # fmt: skip


def finished(count: int) -> int:
    """Results that are stored."""
    return int(_backend.dbsize())


def results(count: int) -> list[float]:
    samples = []
    for _ in range(count):
        sent = time.monotonic_ns()
        sync_noop.delay(1, 2).get(timeout=30)
        samples.append((time.monotonic_ns() - sent) / 1e6)
    return samples


_backend = redis.Redis.from_url(f"{kit.URL}/1")
