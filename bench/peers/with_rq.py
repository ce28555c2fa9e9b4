"""RQ on Redis: `rq worker`, which forks for each job, or its SimpleWorker, which does not."""

import sys
import time
from pathlib import Path

import redis
from rq import Queue

from bench.peers import kit

queue = Queue("bench", connection=redis.Redis.from_url(f"{kit.URL}/0"))
WORKER = {"default": "rq.worker.Worker", "fast": "rq.worker.SimpleWorker"}[kit.VARIANT]


def sync_noop(a: int, b: int) -> int:
    kit.began()
    return a + b


def stamp(path: str) -> None:
    kit.stamp(path)


def prepare() -> None: ...


def send(kind: str, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        queue.enqueue(sync_noop, 1, 2)
    return time.perf_counter() - began


def send_bulk(kind: str, count: int) -> float:
    began = time.perf_counter()
    for at in range(0, count, 1000):
        queue.enqueue_many([Queue.prepare_data(sync_noop, (1, 2)) for _ in range(min(1000, count - at))])
    return time.perf_counter() - began


def send_stamp(path: str) -> None:
    queue.enqueue(stamp, path, result_ttl=0)


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "rq"), "worker", "--url", f"{kit.URL}/0", "--worker-class", WORKER,
            "--quiet", "bench"]  # fmt: skip


def finished(count: int) -> int:
    return queue.finished_job_registry.count


def results(count: int) -> list[float]:
    samples = []
    for _ in range(count):
        sent = time.monotonic_ns()
        job = queue.enqueue(sync_noop, 1, 2)
        if job.latest_result(timeout=30) is None:
            raise TimeoutError("no result")
        samples.append((time.monotonic_ns() - sent) / 1e6)
    return samples
