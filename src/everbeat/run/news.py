"""What happens to the processes of a worker, as its crew tells it."""

from dataclasses import dataclass

from everbeat.run.wire import Told


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    store_url: str
    config_json: str
    """What the application says about itself, as JSON."""
    sync_names: tuple[str, ...]
    async_names: tuple[str, ...]
    fork_reason: str | None
    """Why children are new interpreters; None if they are forked."""


@dataclass(frozen=True, slots=True)
class AppReady:
    facts: AppFacts


@dataclass(frozen=True, slots=True)
class AppFailed:
    """The fork server is of no use; another try follows. "missing": no such module or attribute; "raised": the import
    failed, or what a child was to do first, with its traceback; "died": the process ended, while importing or later."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ChildReady:
    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class Finished:
    slot: int
    outcomes: list[Told]
    """Entry, seq, fence and outcome of each."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What running tasks say of themselves: seq, fence, and progress as JSON; None is a heartbeat."""

    slot: int
    reports: list[tuple[int, int, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    slot: int
    pid: int
    """0 if it never came to life."""
    status: int | None
    """Exit code, or minus the signal; None when the fork server was gone and nobody could tell."""
    was_ready: bool
    outcomes: list[Told]
    """Sent before it died, not yet collected. They count."""
    unread: list[tuple[int, int]]
    """(seq, fence) of what it never took: not begun."""
    seconds_alive: float
    overdue: bool = False
    """The fork server has ended it: the lease of its exclusive task was over."""


News = AppReady | AppFailed | ChildReady | Finished | Reported | Died
