"""Procrastinate: PsycopgConnector, `procrastinate worker`."""

import asyncio
import sys
import time
from pathlib import Path

import procrastinate
import psycopg

from bench.peers import kit

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=kit.URL))
CONCURRENCY = {"default": "1", "fast": "10"}[kit.VARIANT]


@app.task(name="sync")
def sync_noop(a: int, b: int) -> int:
    kit.began()
    return a + b


@app.task(name="async")
async def async_noop(a: int, b: int) -> int:
    kit.began()
    return a + b


@app.task(name="stamp")
async def stamp(path: str) -> None:
    kit.stamp(path)


NOOPS = {"sync": sync_noop, "async": async_noop}


def prepare() -> None:
    async def make() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(make())


def send(kind: str, count: int) -> float:
    async def sending() -> float:
        async with app.open_async():
            began = time.perf_counter()
            for _ in range(count):
                await NOOPS[kind].defer_async(a=1, b=2)
            return time.perf_counter() - began

    return asyncio.run(sending())


def send_bulk(kind: str, count: int) -> float:
    async def sending() -> float:
        calls = [{"a": 1, "b": 2}] * count
        async with app.open_async():
            began = time.perf_counter()
            for at in range(0, count, 1000):
                await NOOPS[kind].batch_defer_async(*calls[at : at + 1000])
            return time.perf_counter() - began

    return asyncio.run(sending())


def send_stamp(path: str) -> None:
    _loop.run_until_complete(_send_stamp(path))


async def _send_stamp(path: str) -> None:
    if not _opened:
        _opened.append(await app.open_async())
    await stamp.defer_async(path=path)


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "procrastinate"), "--app", f"{__name__}.app", "worker", "--concurrency",
            CONCURRENCY]  # fmt: skip


def finished(count: int) -> int:
    if not _connections:
        _connections.append(psycopg.connect(kit.URL, autocommit=True))
    query = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded' AND task_name <> 'stamp'"
    return _connections[0].execute(query).fetchone()[0]


_loop = asyncio.new_event_loop()
_opened: list[object] = []
_connections: list["psycopg.Connection"] = []
