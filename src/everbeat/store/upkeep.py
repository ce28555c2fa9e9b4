"""What is done to a store as a whole, and what comes of it: its tables, backups of it, and what takes its place."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from everbeat.errors import EverbeatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    found: int | None
    """None: the store has none yet."""
    newest: int
    """That this program knows."""

    @property
    def is_current(self) -> bool:
        """There is nothing to do. A newer one is left as it is."""
        return self.found is not None and self.found >= self.newest


class CopyRefused(EverbeatError):
    """A backup or restore that was not made, with what to do instead. The store is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    store: str
    path: str
    bytes: int
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    store: str
    path: str
    """Of the backup."""
    store_id: str
    orphans: int
    """Tasks that were CLAIMED or RUNNING in the backup; the next worker that starts recovers them."""
    kept: str | None
    """Where the replaced store is now."""


class Maintenance(Protocol):
    """Work on a store as a whole, also on one that can not be opened as a store: damaged, or of another version."""

    @property
    def location(self) -> str: ...

    @property
    def state_directory(self) -> Path: ...

    def schema(self) -> Schema:
        """Raises SchemaMismatch if it is one that this program can not use."""

    def migration(self) -> str:
        """The SQL that `migrate` would run now."""

    def migrate(self) -> Schema:
        """Create or upgrade the tables, all or nothing; what was found, and what is there now."""

    def back_up(self, path: Path, *, progress: Callable[[int, int], None]) -> Backup:
        """An online copy under a new name, checked before it gets it; `progress` is told pages left and in all."""

    def check_backup(self, path: Path) -> None:
        """Raises if there is none, or none that can be restored by this program. Its pages are not checked."""

    def restore(self, path: Path, *, actor: str, progress: Callable[[int, int], None]) -> Restored:
        """Put a backup in the place of the store; the caller knows that no live worker uses it."""
