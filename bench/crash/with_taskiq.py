"""Taskiq with taskiq-postgres: AsyncpgBroker, results in PostgreSQL, acknowledged when the result is saved, which is
its default. There is no setting that gives out again what was not acknowledged."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import asyncpg
from taskiq_pg.asyncpg import AsyncpgBroker, AsyncpgResultBackend

from bench.crash import kit

T = TypeVar("T")
POOL = {"min_size": 1, "max_size": kit.SLOTS}
"""Else two workers take more connections than a stock server has."""
broker = AsyncpgBroker(dsn=kit.URL, write_kwargs=POOL).with_result_backend(AsyncpgResultBackend(dsn=kit.URL, **POOL))
STATES = {"pending": "waiting", "processing": "held"}


@broker.task(task_name="work")
async def work(number: int, seconds: float, deed: str) -> str:
    return await kit.async_body(number, seconds, deed)


def prepare() -> None:
    async def nothing() -> None: ...

    _do(nothing)


def send(number: int, seconds: float, deed: str) -> str:
    return _do(lambda: work.kiq(number, seconds, deed)).task_id


def worker() -> list[str]:
    return [str(Path(sys.executable).parent / "taskiq"), "worker", f"{__name__}:broker", "--workers", "2",
            "--max-async-tasks", str(kit.SLOTS // 2), "--log-level", "ERROR"]  # fmt: skip


def states(ids: list[str]) -> dict[str, str]:
    async def looking() -> dict[str, str]:
        connection = await asyncpg.connect(kit.URL)
        try:
            messages = await connection.fetch("SELECT task_id, status FROM taskiq_messages")
            results = await connection.fetch("SELECT task_id FROM taskiq_results")
        finally:
            await connection.close()
        found = {row["task_id"]: STATES.get(row["status"], "failed") for row in messages}
        return found | {row["task_id"]: "done" for row in results}

    return _loop.run_until_complete(looking())


def _do(work: Callable[[], Awaitable[T]]) -> T:
    async def doing() -> T:
        if not _started:
            _started.append(True)
            await broker.startup()
        return await work()

    return _loop.run_until_complete(doing())


_loop = asyncio.new_event_loop()
_started: list[bool] = []
