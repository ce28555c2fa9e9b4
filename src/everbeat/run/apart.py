"""What ended in workflows that somebody has locked, apart from all else: nothing else waits with it (PROTOCOL 35).

A person who left a transaction open may hold a workflow for as long as a lunch takes. A flush that meets such a lock
changes nothing. It is repeated at once without the endings of workflows; these are tried by themselves, one workflow at
a time, with little patience and growing pauses. Until they are settled they stay in the books: held, beaten for, kept
in the spool. Meanwhile no more tasks of such a workflow are claimed: what they come to would have to wait here, too.

Things that do not work: FOR UPDATE SKIP LOCKED. It takes everyone who is about to commit for somebody who will not let
go, and does not see a lock on anything but the root.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from everbeat.store.messages import Ending

PAUSES_US = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)


@dataclass(slots=True)
class _Wait:
    due_at: int
    tries: int = 0
    endings: list[Ending] = field(default_factory=list)


class Apart:
    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    def __bool__(self) -> bool:
        return bool(self._waits)

    @property
    def workflows(self) -> frozenset[str]:
        return frozenset(self._waits)

    @property
    def endings(self) -> list[Ending]:
        return [ending for wait in self._waits.values() for ending in wait.endings]

    @property
    def due_at(self) -> int | None:
        """When the next of them is to be tried."""
        return min((wait.due_at for wait in self._waits.values()), default=None)

    def due(self, now: int) -> str | None:
        """The workflow that has waited the longest of those that are to be tried now."""
        first = min(self._waits, key=lambda workflow_id: self._waits[workflow_id].due_at, default=None)
        return first if first is not None and self._waits[first].due_at <= now else None

    def admits(self, ending: Ending) -> bool:
        """Whether it waits here from now on: its workflow does."""
        wait = self._waits.get(ending.claim.workflow_id or "")
        if wait is not None:
            wait.endings.append(ending)
        return wait is not None

    def take(self, endings: Sequence[Ending], now: int) -> list[Ending]:
        """Those of workflows wait here; the others are returned."""
        for ending in endings:
            if ending.claim.workflow_id is not None:
                self._waits.setdefault(ending.claim.workflow_id, _Wait(now))
        return [ending for ending in endings if not self.admits(ending)]

    def of(self, workflow_id: str) -> list[Ending]:
        return self._waits[workflow_id].endings

    def postpone(self, workflow_id: str, now: int) -> bool:
        """It is still locked. Whether that is news."""
        wait = self._waits[workflow_id]
        wait.due_at = now + PAUSES_US[min(wait.tries, len(PAUSES_US) - 1)]
        wait.tries += 1
        return wait.tries == 1

    def let_go(self, workflow_id: str) -> list[Ending]:
        return self._waits.pop(workflow_id).endings
