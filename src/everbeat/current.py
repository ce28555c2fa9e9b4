"""The task that is running here, for its own code.

Kept in one context variable, so that many async tasks in a process each see their own, and log records made inside a
task can carry its ids. What a task says about itself goes to whoever runs it, over a `Line`; this never touches the
store.
"""

import math
import operator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

LARGEST_NUMBER = 10**18
LONGEST_NOTE = 1000

Ownership = tuple[int, int]
"""(seq, fence): one run of one task."""


class Progress(NamedTuple):
    done: float
    total: float | None
    note: str | None


class Line(Protocol):
    """How a running task reaches whoever runs it. Its methods may be called from any thread, as often as they like."""

    def progress(self, run: Ownership, progress: Progress) -> None: ...

    def heartbeat(self, run: Ownership) -> None: ...

    def is_cancelled(self, run: Ownership) -> bool: ...


class DeadLine:
    """Nobody listens."""

    def progress(self, run: Ownership, progress: Progress) -> None:
        pass

    def heartbeat(self, run: Ownership) -> None:
        pass

    def is_cancelled(self, run: Ownership) -> bool:
        return False


@dataclass(slots=True, kw_only=True, eq=False)
class CurrentTask:
    """The run that this code is part of. Got from `current_task()`, and given to `@app.around_task`."""

    id: str
    name: str
    attempt: int
    fence: int
    """Grows with every change of ownership. Outside resources that check it can not be touched by a superseded run."""
    crash_count: int
    worker_id: str | None = None
    seq: int = field(default=0, repr=False)
    line: Line = field(default=DeadLine(), repr=False)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the task is; the last word is in `handle.info().progress`. Cheap enough for a tight loop: the
        store is told a few times a second at most."""
        done = _plain_number("done must be a number", done)
        if total is not None:
            total = _plain_number("total must be a number or None", total)
        if note is not None:
            if not isinstance(note, str):
                raise TypeError(f"note must be a text or None, not {note!r}")
            note = note[:LONGEST_NOTE]
        self.line.progress((self.seq, self.fence), Progress(done, total, note))

    def heartbeat(self) -> None:
        """Write a heartbeat for this task soon. Its worker beats for it anyway, also while it is busy in C code."""
        self.line.heartbeat((self.seq, self.fence))

    def is_cancelled(self) -> bool:
        """Whether somebody asked for this task to be cancelled. Code that may be interrupted anywhere needs no such
        question: TaskCancelRequested is raised in it. For threads that the task started, which no exception reaches."""
        return self.line.is_cancelled((self.seq, self.fence))


def _plain_number(what: str, given: float) -> float:
    """The same as an int or a float. Fractions, numbers of numpy and subclasses have no JSON form, and what sends it, a
    thread or the process itself, would die of that."""
    if not (hasattr(given, "__index__") or hasattr(given, "__float__")):
        raise TypeError(f"{what}, not {given!r}")
    try:
        number: float = operator.index(given) if hasattr(given, "__index__") else float(given)
    except (ValueError, OverflowError):
        number = math.nan
    if not -LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        raise ValueError(f"{what}, not {given!r}")
    return number


CURRENT: ContextVar[CurrentTask] = ContextVar("everbeat.current_task")


def current_task() -> CurrentTask:
    """The task whose code calls this. Raises RuntimeError outside a task, and in threads without its context."""
    try:
        return CURRENT.get()
    except LookupError:
        raise RuntimeError("current_task() was called outside a task: only code that a worker runs has one") from None
