"""Taskiq with taskiq-postgres: AsyncpgBroker, results in PostgreSQL, `taskiq worker`.

It takes only what is sent while a worker listens, so a drain is sent to a working worker.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import asyncpg
from taskiq_pg.asyncpg import AsyncpgBroker, AsyncpgResultBackend

from bench.peers import kit

T = TypeVar("T")
LISTENS_ONLY = True
AT_ONCE = 50
broker = AsyncpgBroker(dsn=kit.URL).with_result_backend(AsyncpgResultBackend(dsn=kit.URL))


@broker.task(task_name="async")
async def async_noop(a: int, b: int) -> int:
    kit.began()
    return a + b


@broker.task(task_name="stamp")
async def stamp(path: str) -> None:
    kit.stamp(path)


def prepare() -> None:
    async def nothing() -> None: ...

    _do(nothing)


def send(kind: str, count: int) -> float:
    async def sending() -> float:
        began = time.perf_counter()
        for _ in range(count):
            await async_noop.kiq(1, 2)
        return time.perf_counter() - began

    return _do(sending)


def send_many(kind: str, count: int) -> float:
    """Several at the same time: the sender must not be what a drain waits for."""

    async def sending() -> float:
        began = time.perf_counter()
        for at in range(0, count, AT_ONCE):
            await asyncio.gather(*(async_noop.kiq(1, 2) for _ in range(min(AT_ONCE, count - at))))
        return time.perf_counter() - began

    return _do(sending)


def send_stamp(path: str) -> None:
    _do(lambda: stamp.kiq(path))


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "taskiq"), "worker", f"{__name__}:broker", "--workers", "2",
            "--log-level", "ERROR"]  # fmt: skip


def finished(count: int) -> int:
    """Results that are stored, also those of stamps."""

    async def counting() -> int:
        if not _connections:
            _connections.append(await asyncpg.connect(kit.URL))
        return int(await _connections[0].fetchval("SELECT count(*) FROM taskiq_results"))

    return _do(counting)


def results(count: int) -> list[float]:
    async def waiting() -> list[float]:
        samples = []
        for _ in range(count):
            sent = time.monotonic_ns()
            task = await async_noop.kiq(1, 2)
            await task.wait_result(check_interval=0.005, timeout=30)
            samples.append((time.monotonic_ns() - sent) / 1e6)
        return samples

    return _do(waiting)


def _do(work: Callable[[], Awaitable[T]]) -> T:
    """In one loop with one broker, started at the first use."""

    async def doing() -> T:
        if not _started:
            _started.append(True)
            await broker.startup()
        return await work()

    return _loop.run_until_complete(doing())


_loop = asyncio.new_event_loop()
_started: list[bool] = []
_connections: list[asyncpg.Connection] = []
