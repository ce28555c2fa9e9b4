"""Chancy: its process executor, `chancy worker start`. Safe: heartbeats each second, dead after 3 s, looked for each
second by a leader that is replaced after 3 s, three attempts."""

import asyncio
import sys

import psycopg
from chancy import Chancy, Queue, Worker, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery

from bench.crash import kit

EAGER = [Leadership(poll_interval=1, timeout=3), Recovery(poll_interval=1)]
BEATS = {"heartbeat_poll_interval": 1, "heartbeat_timeout": 3}
STATES = {"pending": "waiting", "retrying": "waiting", "running": "held", "succeeded": "done"}
chancy = Chancy(kit.URL, plugins=EAGER if kit.IS_SAFE else [])


@job(queue="work", max_attempts=3 if kit.IS_SAFE else 1)
def work(*, number: int, seconds: float, deed: str) -> None:
    kit.body(number, seconds, deed)


def prepare() -> None:
    async def make() -> None:
        async with Chancy(kit.URL) as opened:
            await opened.migrate()
            await opened.declare(Queue("work", concurrency=kit.SLOTS, eager_polling=True), upsert=True)

    asyncio.run(make())


def send(number: int, seconds: float, deed: str) -> str:
    async def sending() -> str:
        if not _opened:
            _opened.append(await chancy.__aenter__())
        reference = await chancy.push(work.job.with_kwargs(number=number, seconds=seconds, deed=deed))
        return str(reference.identifier)

    return _loop.run_until_complete(sending())


def worker() -> list[str]:
    return [sys.executable, "-m", __name__]


def states(ids: list[str]) -> dict[str, str]:
    with psycopg.connect(kit.URL) as connection:
        rows = connection.execute("SELECT id::text, state FROM chancy_jobs").fetchall()
    return {key: STATES.get(state, "failed") for key, state in rows}


_loop = asyncio.new_event_loop()
_opened: list[Chancy] = []


async def main() -> None:
    async with chancy, Worker(chancy, **(BEATS if kit.IS_SAFE else {})) as running:
        await running.wait_for_shutdown()


if __name__ == "__main__":
    asyncio.run(main())
