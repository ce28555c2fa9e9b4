"""The task that is running here, for its own code.

Kept in a context variable, so that many async tasks in one process each see their own. Never reaches the store.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTask:
    id: str
    name: str
    attempt: int
    fence: int
    """Grows with every change of ownership. Outside resources that check it can not be touched by a superseded run."""
    crash_count: int


CURRENT: ContextVar[CurrentTask] = ContextVar("everbeat.current_task")


def current_task() -> CurrentTask:
    """The task whose code calls this. Raises RuntimeError outside a task, and in threads without its context."""
    try:
        return CURRENT.get()
    except LookupError:
        raise RuntimeError("current_task() was called outside a task: only code that a worker runs has one") from None
