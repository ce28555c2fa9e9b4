"""What an application wants to run around its tasks, and when a process of a worker begins and ends."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from everbeat.current import CurrentTask
from everbeat.model.event import EVERY, NAMES, EventInfo

Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
AroundTask = Callable[[CurrentTask], Manager | Iterator[Any] | AsyncIterator[Any]]
ChildHook = Callable[[], Any]
"""A function without arguments, or a coroutine function."""
Subscriber = Callable[[EventInfo], Any]
"""A function that takes an event, or a coroutine function."""


@dataclass(slots=True)
class Hooks:
    around: list[Callable[[CurrentTask], Manager]] = field(default_factory=list)
    """The first is the outermost."""
    child_start: list[ChildHook] = field(default_factory=list)
    child_stop: list[ChildHook] = field(default_factory=list)
    subscribers: dict[str, list[Subscriber]] = field(default_factory=dict)
    """By the name of the event; "*" is every event."""


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


def require_event_name(name: object) -> None:
    """Raises ValueError for a name that no event has: its subscriber would never be called."""
    if name == EVERY or (isinstance(name, str) and name in NAMES):
        return
    near = get_close_matches(str(name), NAMES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"there is no event {name!r}{hint}; the events are {', '.join(sorted(NAMES))}, or * for all")


def require_subscriber(function: object) -> None:
    """Raises TypeError for what can not be called with an event."""
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"app.on() takes a function that is called with the event, not {function!r}")
    try:
        inspect.signature(function).bind(None)
    except ValueError:  # it has no signature that Python could read
        return
    except TypeError as error:
        raise TypeError(f"app.on() calls its function with one argument, the event: {error}") from None
