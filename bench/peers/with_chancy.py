"""Chancy: the async executor, `chancy worker start`."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import psycopg
from chancy import Chancy, Queue, job

from bench.peers import kit

T = TypeVar("T")
chancy = Chancy(kit.URL)
QUEUE = Queue("bench", concurrency=100, executor=Chancy.Executor.Async, eager_polling=True)


@job(queue="bench")
async def async_noop(*, a: int, b: int) -> int:
    kit.began()
    return a + b


@job(queue="bench")
async def stamp(*, path: str) -> None:
    kit.stamp(path)


def prepare() -> None:
    async def make() -> None:
        await chancy.migrate()
        await chancy.declare(QUEUE, upsert=True)

    _do(make)


def send(kind: str, count: int) -> float:
    async def sending() -> float:
        began = time.perf_counter()
        for _ in range(count):
            await chancy.push(async_noop.job.with_kwargs(a=1, b=2))
        return time.perf_counter() - began

    return _do(sending)


def send_bulk(kind: str, count: int) -> float:
    async def sending() -> float:
        began = time.perf_counter()
        calls = [async_noop.job.with_kwargs(a=1, b=2) for _ in range(count)]
        async for _ in chancy.push_many(calls):
            pass
        return time.perf_counter() - began

    return _do(sending)


def send_stamp(path: str) -> None:
    _do(lambda: chancy.push(stamp.job.with_kwargs(path=path)))


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "chancy"), "--app", f"{__name__}.chancy", "worker", "start"]


def finished(count: int) -> int:
    if not _connections:
        _connections.append(psycopg.connect(kit.URL, autocommit=True))
    query = "SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded' AND func NOT LIKE '%%stamp'"
    return _connections[0].execute(query).fetchone()[0]


def results(count: int) -> list[float]:
    async def waiting() -> list[float]:
        samples = []
        for _ in range(min(count, 5)):
            sent = time.monotonic_ns()
            await chancy.wait_for_job(await chancy.push(async_noop.job.with_kwargs(a=1, b=2)), timeout=60)
            samples.append((time.monotonic_ns() - sent) / 1e6)
        return samples

    return _do(waiting)


def _do(work: Callable[[], Awaitable[T]]) -> T:
    """In one loop with one pool of connections, opened at the first use."""

    async def doing() -> T:
        if not _opened:
            _opened.append(await chancy.__aenter__())
        return await work()

    return _loop.run_until_complete(doing())


_loop = asyncio.new_event_loop()
_opened: list[Chancy] = []
_connections: list["psycopg.Connection"] = []
