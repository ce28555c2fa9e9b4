"""The part of a SQL store that waits for the end of a task or workflow: woken by a bell, with a slow poll under it."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from everbeat.aside import in_thread
from everbeat.model.task import Finished
from everbeat.store.bells import Bells, WaitingBell
from everbeat.store.interface import Bell
from everbeat.store.sql.looking import Looking

if TYPE_CHECKING:
    from asyncio import Event

T = TypeVar("T")
POLL_SECONDS = 0.5
"""How often a waiter looks without having been woken."""


class Waiting(Looking):
    def listen(self, worker_id: str) -> Bell:
        return self.bells.for_worker(worker_id)

    def wait(self, task_id: str, timeout: float | None) -> Finished | None:
        return self._wait(task_id, self.finished, timeout)

    async def await_(self, task_id: str, timeout: float | None) -> Finished | None:
        return await self._await(task_id, self.finished, timeout)

    def _wait(self, sought: str, find: Callable[[str], T | None], timeout: float | None) -> T | None:
        if timeout == 0 or not self.bells.are_light:
            end = find(sought)
            if end is not None or timeout == 0:
                return end
        give_up = None if timeout is None else time.monotonic() + timeout
        bell = self.bells.for_waiter(sought)
        try:
            while (end := find(sought)) is None:
                left = POLL_SECONDS if give_up is None else min(POLL_SECONDS, give_up - time.monotonic())
                if left <= 0:
                    return None
                bell.wait(left)
            return end
        finally:
            bell.close()

    async def _await(self, sought: str, find: Callable[[str], T | None], timeout: float | None) -> T | None:
        import asyncio

        if timeout == 0 or not self.bells.are_light:
            end = await in_thread(find, sought)
            if end is not None or timeout == 0:
                return end
        loop = asyncio.get_running_loop()
        give_up = None if timeout is None else loop.time() + timeout
        hanging, rung = _Hanging(), asyncio.Event()
        try:
            bell = await in_thread(hanging.hang, self.bells, sought)

            def ring() -> None:
                bell.clear()
                rung.set()

            loop.add_reader(bell.fileno(), ring)
            try:
                while (end := await in_thread(find, sought)) is None:
                    left = POLL_SECONDS if give_up is None else min(POLL_SECONDS, give_up - loop.time())
                    if left <= 0:
                        return None
                    await _wait_for(rung, left)
                    rung.clear()
                return end
            finally:
                loop.remove_reader(bell.fileno())
        finally:
            hanging.end()


class _Hanging:
    """A bell that a thread hangs, taken down also if whoever waits for it is cancelled before the thread is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bell: WaitingBell | None = None
        self._is_over = False

    def hang(self, bells: Bells, sought: str) -> WaitingBell:
        bell = bells.for_waiter(sought)
        with self._lock:
            self._bell = bell
            is_over = self._is_over
        if is_over:
            self.end()
        return bell

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()


async def _wait_for(rung: "Event", seconds: float) -> None:
    from asyncio import wait_for

    try:
        await wait_for(rung.wait(), seconds)
    except TimeoutError:
        return
