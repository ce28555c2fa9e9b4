"""PgQueuer: asyncpg, `pgq run`."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers import kit

BATCH = {"default": "10", "fast": "100", "batch 500": "500"}[kit.VARIANT]
ARGS = json.dumps({"a": 1, "b": 2}).encode()


@asynccontextmanager
async def worker_of(*words: object) -> AsyncIterator[PgQueuer]:
    """What `pgq run` asks for."""
    connection = await asyncpg.connect(kit.URL)
    manager = PgQueuer(AsyncpgDriver(connection))

    @manager.entrypoint("async")
    async def async_noop(job: Job) -> None:
        kit.began()
        args = json.loads(job.payload or b"{}")
        _ = args["a"] + args["b"]

    @manager.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        kit.stamp((job.payload or b"").decode())

    yield manager
    await connection.close()


def prepare() -> None:
    _do(_queries().install())


def send(kind: str, count: int) -> float:
    queries = _queries()

    async def sending() -> float:
        began = time.perf_counter()
        for _ in range(count):
            await queries.enqueue(kind, ARGS)
        return time.perf_counter() - began

    return _do(sending())


def send_bulk(kind: str, count: int) -> float:
    queries = _queries()

    async def sending() -> float:
        began = time.perf_counter()
        for at in range(0, count, 1000):
            some = min(1000, count - at)
            await queries.enqueue([kind] * some, [ARGS] * some, [0] * some)
        return time.perf_counter() - began

    return _do(sending())


def send_stamp(path: str) -> None:
    _do(_queries().enqueue("stamp", path.encode()))


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "pgq"), "run", "--batch-size", BATCH, "--log-level", "ERROR",
            f"{__name__}:worker_of"]  # fmt: skip


def finished(count: int) -> int:
    """In its log; the rows themselves are deleted."""
    query = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful' AND entrypoint <> 'stamp'"
    return int(_do(_connected().fetchval(query)))


def results(count: int) -> list[float]:
    queries = _queries()

    async def waiting() -> list[float]:
        samples = []
        async with CompletionWatcher(queries.driver, queries=queries) as watcher:
            for _ in range(count):
                sent = time.monotonic_ns()
                (job,) = await queries.enqueue("async", ARGS)
                await watcher.wait_for(job)
                samples.append((time.monotonic_ns() - sent) / 1e6)
        return samples

    return _do(waiting())


def _queries() -> Queries:
    return Queries(AsyncpgDriver(_connected()))


_loop = asyncio.new_event_loop()
_do = _loop.run_until_complete
_kept: list[asyncpg.Connection] = []


def _connected() -> asyncpg.Connection:
    """The sender's connection."""
    if not _kept:
        _kept.append(_do(asyncpg.connect(kit.URL)))
    return _kept[0]
