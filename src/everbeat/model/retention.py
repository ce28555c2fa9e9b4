"""What is kept for a while only, and the pieces in which it is deleted."""

from dataclasses import dataclass
from enum import StrEnum


class Kept(StrEnum):
    """Kinds of records, by the table they are in."""

    HEARTBEATS = "heartbeats"
    WORKER_STATES = "worker_states"
    WORKERS = "workers"
    WORKFLOWS = "workflows"
    TASKS = "tasks"
    ATTEMPTS = "attempts"
    LATE_OUTCOMES = "late_outcomes"
    EVENTS = "events"
    HISTORY = "history"
    REPORTS = "recovery_reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Records of one kind that are older than they need to be; `after` is how far they have been looked through."""

    kept: Kept
    older_than_us: int
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bite:
    """What one short transaction did of a cut."""

    deleted: int
    after: int | None
    """Where the next one goes on; None: there is no more."""
