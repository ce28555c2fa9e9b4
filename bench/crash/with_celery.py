"""Celery on Redis, results in Redis, prefork. Safe: what its guide advises for tasks that may be repeated, and a
visibility timeout that is just longer than the longest task, looked at each second."""

import json
import sys
from pathlib import Path

import redis
from celery import Celery

from bench.crash import kit

app = Celery("crash", broker=f"{kit.URL}/0", backend=f"{kit.URL}/1")
if kit.IS_SAFE:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        result_backend_always_retry=True,
        broker_transport_options={
            "visibility_timeout": 20,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
STATES = {"SUCCESS": "done", "FAILURE": "failed"}


@app.task(name="work")
def work(number: int, seconds: float, deed: str) -> str:
    return kit.body(number, seconds, deed)


def prepare() -> None: ...


def send(number: int, seconds: float, deed: str) -> str:
    return work.delay(number, seconds, deed).id


def worker() -> list[str]:
    return [str(Path(sys.executable).parent / "celery"), "-A", __name__, "worker", "--concurrency", str(kit.SLOTS),
            "--hostname", f"{kit.WORKER}@%h", "--loglevel", "ERROR"]  # fmt: skip


def states(ids: list[str]) -> dict[str, str]:
    broker = redis.Redis.from_url(f"{kit.URL}/0")
    found = {_id_of(json.loads(message)): "waiting" for message in broker.lrange("celery", 0, -1)}
    found |= {_id_of(json.loads(entry)[0]): "held" for entry in broker.hvals("unacked")}
    ended = {key: STATES.get(app.AsyncResult(key).state) for key in ids}
    return found | {key: state for key, state in ended.items() if state}


def _id_of(message: dict) -> str:
    return message["headers"]["id"]
