"""The health of a store as start-up finds it: what the integrity check said, what the log held, and what to go back to.

Values only. Each kind of store fills them by its own means.
"""

from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityResult:
    """What a check of the store found, and whether it was repaired."""

    passed: bool
    """No damage was found, or it was repaired."""
    errors: list[str] = field(default_factory=list)
    """Damage that was found, also if it is repaired now."""
    warnings: list[str] = field(default_factory=list)
    """What does not keep anybody from working: rows that break a rule of their table, a check that was cut short."""
    notes: list[str] = field(default_factory=list)
    """What could be looked at besides. Said to who asks for a check, not at every start."""
    duration: timedelta = timedelta()
    repair_attempted: bool = False
    repair_succeeded: bool = False
    complete: bool = True
    """False: its time was up before it had seen everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How much of the write-ahead log was moved into the database."""

    frames: int = 0
    left: int = 0
    """Frames that somebody who reads, or a long write, kept in the log."""

    @property
    def is_complete(self) -> bool:
        return self.left == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """What a person needs who stands before a store that can not be repaired."""

    recovery_point: str
    """The last moment that is known to be good, in words."""
    backup_command: str
    steps: tuple[str, ...] = ()
    """What to do, in order."""
