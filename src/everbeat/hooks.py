"""What an application wants to run around its tasks, and when a process of a worker begins and ends."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from everbeat.current import CurrentTask

Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
AroundTask = Callable[[CurrentTask], Manager | Iterator[Any] | AsyncIterator[Any]]
ChildHook = Callable[[], Any]
"""A function without arguments, or a coroutine function."""


@dataclass(slots=True)
class Hooks:
    around: list[Callable[[CurrentTask], Manager]] = field(default_factory=list)
    """The first is the outermost."""
    child_start: list[ChildHook] = field(default_factory=list)
    child_stop: list[ChildHook] = field(default_factory=list)


def as_manager(function: AroundTask) -> Callable[[CurrentTask], Any]:
    """A generator function becomes what `contextmanager` makes of it."""
    if not callable(function):
        raise TypeError(f"@app.around_task goes on a function that takes the current task, not on {function!r}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__qualname__} is a coroutine function; @app.around_task needs one with a yield")
    if inspect.isgeneratorfunction(function):
        return contextmanager(function)
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    return function


def require_child_hook(hook: object, decorator: str) -> None:
    """Raises TypeError for what can not be called without arguments."""
    if not callable(hook) or inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        raise TypeError(f"@app.{decorator} goes on a function without arguments, not on {hook!r}")
    try:
        inspect.signature(hook).bind()
    except ValueError:  # it has no signature that Python could read
        return
    except TypeError as error:
        raise TypeError(f"@app.{decorator} calls its function without arguments: {error}") from None
