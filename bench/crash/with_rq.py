"""RQ on Redis: a pool of workers that fork for each job. Safe: three retries, and everything that can be looked at more
often is."""

import sys
from pathlib import Path
from typing import Any

import redis
from rq import Queue, Retry, Worker
from rq.exceptions import NoSuchJobError
from rq.job import Job

from bench.crash import kit

connection = redis.Redis.from_url(f"{kit.URL}/0")
queue = Queue("work", connection=connection)
STATES = {"queued": "waiting", "deferred": "waiting", "scheduled": "waiting", "started": "held", "finished": "done"}


class AttentiveWorker(Worker):
    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(
            *words, **options | {"maintenance_interval": 1, "job_monitoring_interval": 1, "worker_ttl": 20}
        )  # fmt: skip


def work(number: int, seconds: float, deed: str) -> str:
    return kit.body(number, seconds, deed)


def prepare() -> None: ...


def send(number: int, seconds: float, deed: str) -> str:
    return queue.enqueue(work, number, seconds, deed, retry=Retry(max=3) if kit.IS_SAFE else None).id


def worker() -> list[str]:
    kind = f"{__name__}.AttentiveWorker" if kit.IS_SAFE else "rq.worker.Worker"
    return [str(Path(sys.executable).parent / "rq"), "worker-pool", "--url", f"{kit.URL}/0", "--num-workers",
            str(kit.SLOTS), "--worker-class", kind, "--quiet", "work"]  # fmt: skip


def states(ids: list[str]) -> dict[str, str]:
    return {key: _state(key) for key in ids}


def _state(id: str) -> str:
    try:
        status = Job.fetch(id, connection=connection).get_status()
    except NoSuchJobError:
        return "gone"
    return STATES.get(status, "failed")
