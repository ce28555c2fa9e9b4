"""What is said to a store, and what it answers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from everbeat.decide.room import Room
from everbeat.model.event import Event
from everbeat.model.recovery import Settlement, Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim, Enqueued, Outcome
from everbeat.model.total import Total

CHANGE = attrgetter("verdict.change")


class Ending(NamedTuple):
    """The end of one ownership: which claim, what was decided, and the run it came from, if there was one."""

    claim: Claim
    verdict: Verdict
    outcome: Outcome | None = None
    pid: int | None = None
    entry: int | None = None
    """Its place in the journal of its worker, which is free when this is settled."""


def are_results(endings: Sequence[Ending]) -> bool:
    """Nearly always."""
    return {*map(CHANGE, endings)} <= {Change.COMPLETE}


class Torn(NamedTuple):
    """Some workflows that something tore, each with what is wrong with it."""

    mended: dict[str, str]
    """They go on; if it was only looked at, they would."""
    stuck: dict[str, str]
    """They can not be mended, and why."""
    after: str
    """The last that was looked at; "" if there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a running task says of itself: how far it is, as JSON, or only that it lives."""

    claim: Claim
    pid: int
    progress: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """One turn of a dispatcher: settle what ended, start what is ready, claim what fits."""

    worker_id: str
    endings: Sequence[Ending] = ()
    starts: Sequence[Claim] = ()
    room: Room | None = None
    events: Sequence[Event] = ()
    reports: Sequence[Report] = ()
    seen_beat: int | None = None
    """The last beat of this worker that was acknowledged: a store that knows less is not written to (PROTOCOL 8)."""
    row_by_row: bool = False
    """After `RowRefused`: whatever can not be written is left out, the rest is done (PROTOCOL 7)."""
    hurries: bool = False
    """It does not wait long for what somebody else has locked: `Locked`, and nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A row that the store will never take, and why."""

    task_id: str | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    alive: bool
    """False: this worker was declared dead. Nothing was started or claimed."""
    is_older: bool = False
    """The store knows less than it did. Nothing was written."""
    settlements: Sequence[Settlement] = field(default_factory=list)
    """One for each ending, in order."""
    started: list[Claim] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    next_due_in_us: int | None = None
    """Until the next delayed task of any queue becomes ready."""
    refused: list[Refused] = field(default_factory=list)
    """Row by row: what was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A claim as a heartbeat names it."""

    task_id: str
    fence: int
    role: str
    """"claimer" or "runner"."""
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    alive: bool
    seq: int = 0
    """How many there were, with this one."""
    is_older: bool = False
    """The store knows nothing of this worker, or less than it acknowledged. Nothing was written (PROTOCOL 8)."""
    strangers: list[Claim] = field(default_factory=list)
    """Tasks the store shows as this worker's that were not in its set (PROTOCOL 9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What the store shows as a worker's own."""

    alive: bool
    is_older: bool = False
    """The store knows nothing of this worker, or less than it acknowledged (PROTOCOL 8)."""
    owned: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    """(seq, fence) of its tasks, and whether somebody wants the task to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCount:
    queue: str
    status: TaskStatus
    count: int
    oldest_run_at: datetime | None
    """Of PENDING: since when the oldest of those that could run now waits. None for other states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue that somebody has set something for."""

    name: str
    paused: bool
    max_concurrency: int | None
    paused_by: str | None = None
    """A person, or "config"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What metrics show of the store."""

    now: datetime
    """When it was so, by the clock that writes the times of tasks."""
    counts: list[QueueCount]
    quarantined: int
    workers: dict[str, int]
    """By status, also those that do not occur."""
    workflows: dict[str, int]
    """By status, also those that do not occur. Nested ones are part of the one around them."""
    halted_workflows: dict[str, int]
    """Those that a person has to look at, also nested ones: paused by an `error`, or `torn` and not to be mended."""
    heartbeat_age: float | None
    """Seconds since the last beat of the living worker that has been silent the longest; None if none lives."""
    degraded: bool
    undelivered: int
    totals: list[Total]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleTask:
    id: str
    task_name: str
    queue: str
    status: str
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    last_heartbeat: datetime | None
    started_at: datetime | None
    seq: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    ids: Collection[str] = ()
    statuses: Collection[TaskStatus] = ()
    names: Collection[str] = ()
    queues: Collection[str] = ()
    error_codes: Collection[str] = ()
    since: datetime | None = None
    """Created at or after."""
    older_than: datetime | None = None
    """Ended before; of those that have not ended, created before."""
    quarantined: bool | None = None
    force: bool = False
    """For orders: also what holds an exclusive key and may be running while another one begins."""
    limit: int = 50


class Sent(NamedTuple):
    """What was added to a transaction of the user's own."""

    tasks: Sequence[Enqueued]
    is_open: Callable[[], bool]
    """Whether that transaction has not ended yet. May ask the database."""
