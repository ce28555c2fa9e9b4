"""Procrastinate: PsycopgConnector, `procrastinate worker`. Safe: the periodic task that its documentation gives for
jobs of dead workers, every other second, with heartbeats each second, noticed after 5 s."""

import asyncio
import sys
from pathlib import Path

import procrastinate
import psycopg

from bench.crash import kit

EAGER = {"update_heartbeat_interval": 1.0, "stalled_worker_timeout": 5.0}
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=kit.URL), worker_defaults=EAGER if kit.IS_SAFE else {}
)
STATES = {"todo": "waiting", "doing": "held", "succeeded": "done"}


@app.task(name="work")
async def work(number: int, seconds: float, deed: str) -> str:
    return await kit.async_body(number, seconds, deed)


if kit.IS_SAFE:

    @app.periodic(cron="* * * * * */2")
    @app.task(name="rescue", queueing_lock="rescue", pass_context=True)
    async def rescue(context: procrastinate.JobContext, timestamp: int) -> None:
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=5):
            await app.job_manager.retry_job(job)


def prepare() -> None:
    async def make() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(make())


def send(number: int, seconds: float, deed: str) -> str:
    async def sending() -> int:
        if not _opened:
            _opened.append(await app.open_async())
        return await work.defer_async(number=number, seconds=seconds, deed=deed)

    return str(_loop.run_until_complete(sending()))


def worker() -> list[str]:
    return [str(Path(sys.executable).parent / "procrastinate"), "--app", f"{__name__}.app", "worker", "--concurrency",
            str(kit.SLOTS)]  # fmt: skip


def states(ids: list[str]) -> dict[str, str]:
    with psycopg.connect(kit.URL) as connection:
        rows = connection.execute("SELECT id, status::text FROM procrastinate_jobs WHERE task_name = 'work'").fetchall()
    return {str(key): STATES.get(status, "failed") for key, status in rows}


_loop = asyncio.new_event_loop()
_opened: list[object] = []
