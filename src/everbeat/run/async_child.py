"""The process that runs async tasks, many at once in one event loop.

Takes some tasks in each turn of the loop, begins each of them as an asyncio task, and sends the outcomes of one turn
together: while the supervisor settles those of one turn, the next are being run. A task that blocks the loop
holds up its neighbours; one that kills the process is found by running each alone afterwards (PROTOCOL 23). Both are
the supervisor's business; nothing here watches tasks.
"""

import asyncio
import os
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from everbeat.current import CURRENT, CurrentTask, Ownership
from everbeat.model.task import Outcome
from everbeat.run import calling, failure
from everbeat.run.calling import Calling
from everbeat.run.failure import ARGUMENTS_INVALID, error_of, interruption, unknown_task
from everbeat.run.journal import Journal
from everbeat.run.loading import RunnableApp
from everbeat.run.speech import Mouth
from everbeat.run.telling import Teller
from everbeat.run.tickets import Intake
from everbeat.run.wire import GONE, Inbox, Interrupt, InterruptKind, Job, ToChild, Told

AT_ONCE = 50
"""So many tasks are begun in one turn."""


class _Run(asyncio.Task[None]):
    """Not to be cancelled before its first step, after which it would end without running any of its lines, and nobody
    would be told. Others do it: a task may cancel all that `asyncio.all_tasks()` shows."""

    has_begun = False

    def cancel(self, msg: Any | None = None) -> bool:
        return self.has_begun and super().cancel(msg)


class AsyncChild:
    def __init__(
        self, app: RunnableApp, inbox: Inbox[ToChild], ticket_fd: int, mouth: Mouth, journal: Journal, teller: Teller
    ) -> None:
        self._tasks = app.tasks
        self._around = app.hooks.around
        self._teller = teller
        self.progress = teller.progress
        self.heartbeat = teller.heartbeat
        self._inbox = inbox
        self._intake = Intake(inbox, ticket_fd, self._heed)
        self._mouth = mouth
        self._journal = journal
        self._running: dict[Ownership, _Run] = {}
        self._asked: dict[Ownership, InterruptKind] = {}
        self._told: list[Told] = []
        self._over = False
        self._loop = asyncio.new_event_loop()

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(coroutine)

    def is_cancelled(self, run: Ownership) -> bool:
        return self._asked.get(run) is InterruptKind.CANCEL

    def serve(self) -> None:
        """Run until the supervisor closes the channel."""
        asyncio.set_event_loop(self._loop)
        exit_on_return_after_fork(self._loop)
        self._loop.add_reader(self._intake.fd, self._take)
        self._loop.add_reader(self._inbox.end, self._hear)
        self._tell([])
        while not self._over:  # user code may stop the loop
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:  # from a task that user code left in the background
                self._loop.call_exception_handler({"message": "a background task tried to exit", "exception": error})

    def _take(self) -> None:
        try:
            for job in self._intake.draw(AT_ONCE):
                self._running[job.seq, job.fence] = _Run(self._run(job), loop=self._loop)
        except EOFError:
            self._end()

    def _hear(self) -> None:
        try:
            self._intake.hear()
        except EOFError:
            self._end()

    def _heed(self, interrupt: Interrupt) -> None:
        ownership = interrupt.seq, interrupt.fence
        if ownership not in self._running:
            return
        self._asked[ownership] = interrupt.kind
        self._running[ownership].cancel()

    async def _run(self, job: Job) -> None:
        began_at = time.time_ns() // 1000
        self._journal.begin(job.entry, job.seq, job.fence)
        ownership = job.seq, job.fence
        self._running[ownership].has_begun = True
        current = CurrentTask(
            id=job.id, name=job.name, attempt=job.attempt, fence=job.fence, crash_count=job.crash_count,
            worker_id=self._journal.worker_id, seq=job.seq, line=self,
        )  # fmt: skip
        CURRENT.set(current)
        task = self._tasks.get(job.name)
        result = error = call = None
        try:
            if task is None:
                error = unknown_task(job.name)
            else:
                call = Calling(task, current, self._around)
                result = await self._call(call, job.args, ownership)
        except BaseException as exception:  # noqa: BLE001 - user code
            stage = call.stage if call else ARGUMENTS_INVALID
            secrets = partial(task.secrets_in, job.args) if task else frozenset
            error = error_of(exception, stage, __file__, calling.__file__, secrets=secrets)
        if error is not None:
            failure.say(error, current, is_sensitive=task is not None and task.sensitive)
        del self._running[ownership]
        self._asked.pop(ownership, None)
        self._teller.finish(ownership)
        outcome = Outcome(result=result, error=error, began_at=began_at, ended_at=time.time_ns() // 1000)
        if not self._told:
            self._loop.call_soon(self._flush)
        self._told.append((job.entry, job.seq, job.fence, outcome))

    async def _call(self, call: Calling, raw: bytes, ownership: Ownership) -> bytes:
        if ownership in self._asked:
            raise interruption(self._asked[ownership])
        try:
            return await call.arun(raw)
        except asyncio.CancelledError as cancelled:
            if ownership in self._asked:
                raise interruption(self._asked[ownership]) from cancelled
            raise

    def _flush(self) -> None:
        told, self._told = self._told, []
        self._tell(told)

    def _tell(self, told: list[Told]) -> None:
        try:
            self._mouth.say(told)
        except GONE:
            self._end()

    def _end(self) -> None:
        self._over = True
        self._loop.remove_reader(self._intake.fd)
        self._loop.remove_reader(self._inbox.end)
        self._loop.stop()


def exit_on_return_after_fork(loop: asyncio.AbstractEventLoop) -> None:
    """A process that user code forked inside this loop must never run its other tasks: it leaves as soon as the code
    that forked gives control back. What that code does before, exec or multiprocessing, is its own affair."""

    def leave() -> None:
        if loop.is_running():
            # The public call_soon() would put it behind tasks that are ready, which would then run twice.
            loop._ready.appendleft(asyncio.Handle(os._exit, (0,), loop))  # type: ignore[attr-defined]

    os.register_at_fork(after_in_child=leave)
