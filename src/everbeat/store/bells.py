"""What the store asks of wake-ups, whichever way they travel.

A bell may ring for nothing and may be missed: who listens also polls, slowly. Ringing never fails, because it comes
after a commit that must not be reported as failed.
"""

from collections.abc import Collection
from typing import Protocol

from everbeat.store.interface import Bell
from everbeat.store.transaction import Kind
from everbeat.store.verbs.living import Served


def can_run(served: Served | None, kinds: set[Kind] | None) -> bool:
    """Nothing known, or nothing said: perhaps."""
    return served is None or kinds is None or any(served.covers(*kind) for kind in kinds)


class WaitingBell(Bell, Protocol):
    def wait(self, timeout: float) -> None: ...


class Bells(Protocol):
    @property
    def are_light(self) -> bool:
        """A bell costs less now than a look at the store."""

    def for_worker(self, worker_id: str) -> Bell:
        """Rings when something may be ready for this worker, or a run of it is to end."""

    def for_waiter(self, task_id: str) -> WaitingBell:
        """Rings when this task may have ended."""

    def ring_workers(self, kinds: set[Kind] | None) -> None:
        """Wake every worker that can run one of the kinds (None: any)."""

    def ring_owners(self, workers: Collection[str]) -> None:
        """Tell these that somebody wants a run of theirs to end."""

    def ring_waiters(self, tasks: Collection[str]) -> None:
        """These have ended."""

    def close(self) -> None: ...
