"""The part of a SQL store that waits for the end of a task: woken by a bell, with a slow poll under it."""

import asyncio
import time

from everbeat.model.task import Finished
from everbeat.store.interface import Bell
from everbeat.store.sql.looking import Looking

POLL_SECONDS = 0.5
"""How often a waiter looks without having been woken."""


class Waiting(Looking):
    def listen(self, worker_id: str) -> Bell:
        return self.bells.for_worker(worker_id)

    def wait(self, task_id: str, timeout: float | None) -> Finished | None:
        end = self.finished(task_id)
        if end is not None or timeout == 0:
            return end
        give_up = None if timeout is None else time.monotonic() + timeout
        bell = self.bells.for_waiter(task_id)
        try:
            while (end := self.finished(task_id)) is None:
                left = POLL_SECONDS if give_up is None else min(POLL_SECONDS, give_up - time.monotonic())
                if left <= 0:
                    return None
                bell.wait(left)
            return end
        finally:
            bell.close()

    async def await_(self, task_id: str, timeout: float | None) -> Finished | None:
        end = await asyncio.to_thread(self.finished, task_id)
        if end is not None or timeout == 0:
            return end
        loop = asyncio.get_running_loop()
        give_up = None if timeout is None else loop.time() + timeout
        bell, rung = await asyncio.to_thread(self.bells.for_waiter, task_id), asyncio.Event()

        def ring() -> None:
            bell.clear()
            rung.set()

        loop.add_reader(bell.fileno(), ring)
        try:
            while (end := await asyncio.to_thread(self.finished, task_id)) is None:
                left = POLL_SECONDS if give_up is None else min(POLL_SECONDS, give_up - loop.time())
                if left <= 0:
                    return None
                await _wait_for(rung, left)
                rung.clear()
            return end
        finally:
            loop.remove_reader(bell.fileno())
            bell.close()


async def _wait_for(rung: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(rung.wait(), seconds)
    except TimeoutError:
        return
