"""What is known of a task at the moments of its life: sent, owned, orphaned, looked at."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, overload

from everbeat.model.state import TaskStatus

CrashAction = Literal["retry", "fail", "pending"]
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 100
LARGEST = 10**9
"""No number of a policy is larger: a wait of a billion seconds still fits into the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """How a task wishes to be run, and treated after failures and crashes. Stored with the task, so that whoever
    runs or recovers it needs neither the application nor its code, and a task keeps the rules it was sent with."""

    max_attempts: int = 1
    backoff: Literal["exponential", "fixed"] = "exponential"
    base_seconds: float = 1.0
    max_seconds: float = 3600.0
    jitter: bool = True
    retry_on: tuple[str, ...] | None = None
    """Error codes and full class names ("builtins.ValueError"); None means any exception."""
    has_retry: bool = False
    """A RetryPolicy was given. Without one, `on_crash="retry"` is limited by max_recovery_attempts alone."""
    on_crash: CrashAction | None = None
    max_recovery_attempts: int | None = None
    timeout: float | None = None
    """Seconds that one run may take, from the moment its code begins."""
    isolated: bool = False
    """It has a fresh process to itself."""
    sensitive: bool = False
    """Its arguments and its result are shown to nobody."""
    is_unreadable: bool = False
    """What was stored can not be understood. Nobody knows whether the task may be repeated, so it may not."""

    def dump(self) -> str | None:
        """As stored: only what differs from the defaults; None for a task that asks for nothing."""
        said = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) != getattr(PLAIN, name)}
        return json.dumps(said, separators=(",", ":")) if said else None

    @classmethod
    def load(cls, stored: str | None) -> "TaskPolicy":
        """Never raises: one damaged row must not stop the recovery of the others. Fields of a later version are left
        out."""
        return _loaded(stored) if stored else PLAIN

    def _checked(self) -> "TaskPolicy":
        numbers = (
            self.max_attempts, self.base_seconds, self.max_seconds, self.max_recovery_attempts or 0, self.timeout or 0,
        )  # fmt: skip
        if not all(isinstance(number, int | float) and 0 <= number <= LARGEST for number in numbers):
            raise ValueError("a number is missing, or makes no sense")
        if not all(isinstance(cause, str) for cause in self.retry_on or ()):
            raise ValueError("an error code is not a text")
        return self


PLAIN = TaskPolicy()


@lru_cache(maxsize=1024)
def _loaded(stored: str) -> TaskPolicy:
    """Remembered: all tasks of a name have the same, and it is asked for at every claim and end."""
    try:
        said = json.loads(stored)
        policy = TaskPolicy(**{name: value for name, value in said.items() if name in TaskPolicy.__slots__})
        return replace(policy, retry_on=None if policy.retry_on is None else tuple(policy.retry_on))._checked()
    except (ValueError, TypeError, AttributeError):
        return TaskPolicy(is_unreadable=True)


class TaskKind(NamedTuple):
    """What tasks that are sent together have in common. Times are microseconds UTC."""

    name: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = 1
    policy: str | None = None
    good_until: int | None = None
    """Not started by then, it has expired."""
    exclusive_key: str | None = None
    """Of the tasks of any name that have it, at most one runs."""
    delay_us: int | None = None
    run_at: int | None = None


class NewTask(NamedTuple):
    """A task on its way into the store. A short tuple: they are made by the hundred thousand."""

    id: str
    args: bytes
    kind: TaskKind
    unique_key: str | None = None
    """Of the tasks of one name that have it, at most one has not ended."""
    is_new: bool = False
    """Its id was made for it a moment ago, so that no other task can have it."""


class Enqueued(NamedTuple):
    """What became of one `NewTask`: stored now, there already with the same content, or in conflict with another."""

    id: str
    """That of the task which holds the unique key, if that is another one."""
    created: bool
    conflict: bool = False


class Alike(Sequence[NewTask]):
    """New tasks of one kind, by columns. One by one they are made only for who looks at them: the objects alone would
    cost more than to encode what is in them."""

    __slots__ = ("args", "ids", "keys", "kind")

    def __init__(
        self, kind: TaskKind, ids: Sequence[str], args: Sequence[bytes], keys: Sequence[str | None] | None = None
    ) -> None:
        self.kind = kind
        self.ids = ids
        self.args = args
        self.keys = keys
        """Unique keys, if any has one."""

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> NewTask: ...

    @overload
    def __getitem__(self, at: slice) -> "Alike": ...

    def __getitem__(self, at: int | slice) -> "NewTask | Alike":
        if isinstance(at, slice):
            return Alike(self.kind, self.ids[at], self.args[at], None if self.keys is None else self.keys[at])
        return NewTask(self.ids[at], self.args[at], self.kind, None if self.keys is None else self.keys[at])


class AllCreated(Sequence[Enqueued]):
    """What became of many, all of which were stored now; by columns, as they were sent."""

    __slots__ = ("ids",)

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> Enqueued: ...

    @overload
    def __getitem__(self, at: slice) -> "AllCreated": ...

    def __getitem__(self, at: int | slice) -> "Enqueued | AllCreated":
        return AllCreated(self.ids[at]) if isinstance(at, slice) else Enqueued(self.ids[at], True)


@dataclass(slots=True, eq=False)
class Claim:
    """A task this worker owns: what the store handed out, under one fence. Compared by identity. Those that are made by
    the thousand are made without naming what they are made of, which takes an eighth of the time."""

    seq: int
    id: str
    name: str
    queue: str
    fence: int
    status: TaskStatus
    attempt: int
    free_attempts: int
    crash_count: int
    lost_count: int
    dispatch_count: int
    solo: bool
    policy: str | None
    args: bytes
    worker_id: str | None
    slot: int = -1
    """The slot that `Room` chose for it; -1 when it waits for a process of its own."""
    timeout: float | None = None
    alone: bool = False
    """Nothing may wait behind it in its slot's queue, nor it behind others (PROTOCOL 19)."""
    cancel_requested: bool = False
    """Somebody has asked for its end."""
    counted: bool = False
    """Its queue has a limit."""
    exclusive_key: str | None = None
    workflow_id: str | None = None
    """It is a node of this workflow."""
    node: int | None = None
    refs: str | None = None
    """Where in its arguments the results of other nodes belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """Why a run ended without a result."""

    code: str
    message: str
    exception_type: str | None = None
    lineage: tuple[str, ...] = ()
    """Full names of the exception's class and its bases, for `retry_on`. Not stored."""
    traceback: str | None = None


class Outcome(NamedTuple):
    """How a run ended, as its process told it. Its times are microseconds of its machine's wall clock, of which only
    the difference is used: what is stored of a run is stamped by the store. A tuple travels in a third of the time."""

    began_at: int
    ended_at: int
    result: bytes | None = None
    error: TaskError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    attempt: int
    outcome: str
    error_code: str | None
    error_message: str | None
    worker_id: str | None
    hostname: str | None
    pid: int | None
    started_at: datetime | None
    finished_at: datetime
    will_retry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    at: datetime
    actor: str
    change: str
    old_status: str
    new_status: str
    reason: str | None
    attempt: int
    fence: int
    worker_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateOutcome:
    """An outcome that was refused because its ownership had ended. `task accept` takes a result."""

    at: datetime
    attempt: int
    fence: int
    worker_id: str
    found_status: str
    """Of the task, when the outcome arrived."""
    found_fence: int
    has_result: bool
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A task as people see it."""

    id: str
    name: str
    queue: str
    status: TaskStatus
    priority: int
    attempt: int
    max_attempts: int
    crash_count: int
    lost_count: int
    fence: int
    worker_id: str | None
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    waiting_for: str | None
    quarantined: bool
    attempts: list[AttemptInfo] = field(default_factory=list)
    history: list[HistoryEntry] = field(default_factory=list)
    progress: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a task, as `handle.result()` needs it."""

    status: TaskStatus
    attempt: int
    result: bytes | None
    error: TaskError | None


def attempt_of(attempt: int, most: int) -> str:
    """`2/3`. Runs that are not billed, and losses, may bring a task beyond what its attempts are set against."""
    return f"{attempt}/{most}" if attempt <= most else str(attempt)
