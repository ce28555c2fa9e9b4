"""One run of a task's code: arguments, what is around it, the function, its result.

Every way to run a task comes here, so a test sees what a worker would see. `stage` is the error code of the step that
is being done. The result is encoded inside the context managers: one that can not be stored rolls back what they do.

A context manager sees the exceptions of the task but can not swallow them: forgetting a `raise` would turn failures
into successes, and an interrupt into a task that can not be stopped.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any

from everbeat.current import CurrentTask
from everbeat.run.failure import ARGUMENTS_INVALID, RESULT_INVALID, UNHANDLED_EXCEPTION
from everbeat.run.loading import RunnableTask

Around = Sequence[Callable[[CurrentTask], Any]]


class Calling:
    __slots__ = ("_around", "_current", "_task", "stage")

    def __init__(self, task: RunnableTask, current: CurrentTask, around: Around) -> None:
        self._task = task
        self._current = current
        self._around = around
        self.stage = ARGUMENTS_INVALID

    def run(self, raw: bytes) -> bytes:
        """A sync task. Managers that are only asynchronous are not entered: there is no loop to run them in."""
        args, kwargs = self._task.decode_args(raw)
        self.stage = UNHANDLED_EXCEPTION
        if not self._around:
            return self._encode(self._task.function(*args, **kwargs))
        with ExitStack() as stack:
            for around in self._around:
                manager = around(self._current)
                if hasattr(manager, "__enter__") or not hasattr(manager, "__aenter__"):
                    _enter(stack, manager)
            return self._encode(self._task.function(*args, **kwargs))

    async def arun(self, raw: bytes) -> bytes:
        """An async task. A manager that is both is entered asynchronously."""
        args, kwargs = self._task.decode_args(raw)
        self.stage = UNHANDLED_EXCEPTION
        if not self._around:
            return self._encode(await self._task.function(*args, **kwargs))
        async with AsyncExitStack() as stack:
            for around in self._around:
                manager = around(self._current)
                if hasattr(manager, "__aenter__"):
                    await _aenter(stack, manager)
                else:
                    _enter(stack, manager)
            return self._encode(await self._task.function(*args, **kwargs))

    def _encode(self, value: Any) -> bytes:
        self.stage = RESULT_INVALID
        raw = self._task.encode_result(value)
        self.stage = UNHANDLED_EXCEPTION
        return raw


def _enter(stack: ExitStack | AsyncExitStack, manager: Any) -> None:
    kind = type(manager)
    if not hasattr(kind, "__enter__"):
        raise TypeError(f"@app.around_task needs a context manager, not {manager!r}")
    kind.__enter__(manager)

    def leave(cls: Any, error: BaseException | None, traceback: TracebackType | None) -> bool:
        kind.__exit__(manager, cls, error, traceback)
        return _goes_on(error, traceback)

    stack.push(leave)


async def _aenter(stack: AsyncExitStack, manager: Any) -> None:
    kind = type(manager)
    await kind.__aenter__(manager)

    async def leave(cls: Any, error: BaseException | None, traceback: TracebackType | None) -> bool:
        await kind.__aexit__(manager, cls, error, traceback)
        return _goes_on(error, traceback)

    stack.push_async_exit(leave)


def _goes_on(error: BaseException | None, traceback: TracebackType | None) -> bool:
    """Nothing is swallowed; and a generator that caught the error leaves no line of its own in it."""
    if error is not None:
        error.__traceback__ = traceback
    return False
