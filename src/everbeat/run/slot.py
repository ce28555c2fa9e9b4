"""One process slot of a worker, as the dispatcher sees it: what was sent into it and in which order it will begin."""

from dataclasses import dataclass, field
from enum import Enum

from everbeat.model.recovery import Cause
from everbeat.model.task import Claim
from everbeat.run.crew import ChildKind

FRESH_US = 10_000
"""A slot whose head began within this time may be given more."""


class SlotState(Enum):
    STARTING = "starting"
    READY = "ready"
    DYING = "dying"
    EMPTY = "empty"  # no process; the dispatcher waits before it starts another


@dataclass(slots=True, eq=False)
class Flight:
    """A claim in a process: sent, perhaps begun, not ended. `entry` is its place in the journal."""

    claim: Claim
    entry: int
    slot: int


@dataclass(slots=True, eq=False)
class Slot:
    number: int
    kind: ChildKind
    state: SlotState = SlotState.EMPTY
    pid: int | None = None
    queue: dict[tuple[int, int], Flight] = field(default_factory=dict)
    """Flights by (seq, fence), in the order they were sent."""
    head_since: int = 0
    waiting: Claim | None = None
    """A CLAIMED task that this process is being started for."""
    ends_for: Cause | None = None
    """Why we kill it, if we do."""
    short_lives: int = 0
    restart_at: int | None = None
    is_silent: bool = False
    """Its process does not beat."""

    @property
    def head(self) -> Flight | None:
        return next(iter(self.queue.values()), None)

    def takes_more(self, now: int) -> bool:
        """Whether a sync task may be put into this slot's queue."""
        if self.kind is not ChildKind.SYNC or self.state is not SlotState.READY:
            return False
        head = self.head
        return head is None or (now - self.head_since < FRESH_US and not head.claim.solo)

    def add(self, flight: Flight, now: int) -> None:
        if not self.queue:
            self.head_since = now
        self.queue[flight.claim.seq, flight.claim.fence] = flight

    def remove(self, key: tuple[int, int], now: int) -> Flight | None:
        flight = self.queue.pop(key, None)
        if flight is not None:
            self.head_since = now
        return flight
