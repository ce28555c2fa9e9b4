"""Dramatiq on Redis: `dramatiq` with processes and threads."""

import sys
import time
from pathlib import Path

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.peers import kit

broker = RedisBroker(url=f"{kit.URL}/0")
broker.add_middleware(Results(backend=RedisBackend(url=f"{kit.URL}/1")))
dramatiq.set_broker(broker)
PROCESSES, THREADS = {"default": ("2", "8"), "fast": ("2", "16")}[kit.VARIANT]


@dramatiq.actor(queue_name="bench")
def sync_noop(a: int, b: int) -> None:
    kit.began()


@dramatiq.actor(queue_name="results", store_results=True)
def add(a: int, b: int) -> int:
    return a + b


@dramatiq.actor(queue_name="stamps")
def stamp(path: str) -> None:
    kit.stamp(path)


def prepare() -> None: ...


def send(kind: str, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        sync_noop.send(1, 2)
    return time.perf_counter() - began


def send_stamp(path: str) -> None:
    stamp.send(path)


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "dramatiq"), __name__, "--processes", PROCESSES, "--threads", THREADS]


def finished(count: int) -> int:
    """Messages that were acknowledged, which is all that is stored: they are gone."""
    return count - int(_redis.hlen("dramatiq:bench.msgs"))


def results(count: int) -> list[float]:
    samples = []
    for _ in range(count):
        sent = time.monotonic_ns()
        add.send(1, 2).get_result(block=True, timeout=30_000)
        samples.append((time.monotonic_ns() - sent) / 1e6)
    return samples


_redis = redis.Redis.from_url(f"{kit.URL}/0")
