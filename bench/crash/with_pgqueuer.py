"""PgQueuer: asyncpg, `pgq run`. Safe: a dead worker is noticed after 5 s, and a manager that failed is restarted."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.crash import kit

EAGER = ["--heartbeat-timeout", "5", "--dequeue-timeout", "1", "--restart-on-failure", "--restart-delay", "1"]
STATES = {"queued": "waiting", "picked": "held", "successful": "done"}


@asynccontextmanager
async def worker_of(*words: object) -> AsyncIterator[PgQueuer]:
    """What `pgq run` asks for."""
    connection = await asyncpg.connect(kit.URL)
    manager = PgQueuer(AsyncpgDriver(connection))

    @manager.entrypoint("work")
    async def work(job: Job) -> None:
        await kit.async_body(**json.loads(job.payload or b"{}"))

    yield manager
    await connection.close()


def prepare() -> None:
    _do(_queries().install())


def send(number: int, seconds: float, deed: str) -> str:
    call = json.dumps({"number": number, "seconds": seconds, "deed": deed}).encode()
    (job,) = _do(_queries().enqueue("work", call))
    return str(job)


def worker() -> list[str]:
    return [str(Path(sys.executable).parent / "pgq"), "run", "--max-concurrent-tasks", str(kit.SLOTS),
            "--batch-size", str(kit.SLOTS // 2), "--log-level", "ERROR", *(EAGER if kit.IS_SAFE else []),
            f"{__name__}:worker_of"]  # fmt: skip


def states(ids: list[str]) -> dict[str, str]:
    """Its queue, and its log of what has left it."""
    rows = _do(_connected().fetch("SELECT job_id, status::text FROM pgqueuer_log ORDER BY id"))
    rows += _do(_connected().fetch("SELECT id, status::text FROM pgqueuer"))
    return {str(key): STATES.get(status, "failed") for key, status in rows}


def _queries() -> Queries:
    return Queries(AsyncpgDriver(_connected()))


_loop = asyncio.new_event_loop()
_do = _loop.run_until_complete
_kept: list[asyncpg.Connection] = []


def _connected() -> asyncpg.Connection:
    if not _kept:
        _kept.append(_do(asyncpg.connect(kit.URL)))
    return _kept[0]
