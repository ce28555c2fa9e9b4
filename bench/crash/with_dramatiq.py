"""Dramatiq on Redis, with results, so that one can tell what is done from what is gone. Safe: a dead worker is noticed
after 5 s, and looked for with every command."""

import sys
from pathlib import Path

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.message import Message
from dramatiq.results import ResultFailure, ResultMissing, Results
from dramatiq.results.backends import RedisBackend

from bench.crash import kit

EAGER = {"heartbeat_timeout": 5_000, "maintenance_chance": 1_000_000} if kit.IS_SAFE else {}
broker = RedisBroker(url=f"{kit.URL}/0", **EAGER)
backend = RedisBackend(url=f"{kit.URL}/1")
broker.add_middleware(Results(backend=backend))
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="work", store_results=True)
def work(number: int, seconds: float, deed: str) -> str:
    return kit.body(number, seconds, deed)


def prepare() -> None: ...


def send(number: int, seconds: float, deed: str) -> str:
    message = work.send(number, seconds, deed)
    return message.message_id


def worker() -> list[str]:
    return [str(Path(sys.executable).parent / "dramatiq"), __name__, "--processes", "2", "--threads",
            str(kit.SLOTS // 2)]  # fmt: skip


def states(ids: list[str]) -> dict[str, str]:
    line = redis.Redis.from_url(f"{kit.URL}/0")
    queued = set(line.lrange("dramatiq:work", 0, -1))
    found = {
        Message.decode(message).message_id: "waiting" if key in queued else "held"
        for key, message in line.hgetall("dramatiq:work.msgs").items()
    }
    return found | {key: state for key in ids if (state := _ended(key))}


def _ended(id: str) -> str | None:
    message = Message(queue_name="work", actor_name="work", args=(), kwargs={}, options={}, message_id=id)
    try:
        backend.get_result(message)
    except ResultMissing:
        return None
    except ResultFailure:
        return "failed"
    return "done"
