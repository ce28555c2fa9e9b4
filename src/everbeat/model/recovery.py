"""What becomes of a task at the end of an ownership.

A `Verdict` is the one value for it: a finished run, a dead process, a vanished worker, a stop, a read-back and a
person's command all end in one, and the store has one guarded write that applies it (PROTOCOL 1, 4, 5).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, overload

from everbeat.model.state import Change
from everbeat.model.task import Claim, TaskError

RECOVERY_ACTOR = "system/recovery"


class Cause(StrEnum):
    """Why an ownership ended without an outcome."""

    NEVER_BEGAN = "never_began"  # handed to no process, or taken back unread
    DISPATCH_DIED = "dispatch_died"  # its bytes reached a process that died before the begin mark
    CRASHED = "crashed"  # its own process died while it was the only begun task in it
    NEIGHBOUR = "neighbour"  # its process died with several begun tasks in it
    LOST = "lost"  # worker, fork server or host went away
    STOPPED = "stopped"  # the worker was told to stop and could not wait
    LEASE_LOST = "lease_lost"  # the worker was silent for too long to keep an exclusive key


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A task whose owner is gone, with every fact that the decision needs."""

    claim: Claim
    cause: Cause
    evidence: str
    """What was seen, for people: "process 4711 killed by SIGSEGV", "worker web-1 lost its lock"."""
    is_certain: bool = False
    """Its code is known not to run any more. Otherwise a task with an exclusive key keeps its lease to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanClass:
    """Tasks of one owner that differ in nothing the decision asks for (PROTOCOL 39)."""

    claim: Claim
    """What they have in common."""
    count: int
    last: int
    """The highest seq among them."""
    seqs: str
    """Which they are, as the store wrote it down and takes it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """The part of RecoveryConfig that decides about tasks."""

    action: str = "retry"
    max_recovery_attempts: int = 3
    max_losses: int = 10
    solo_after_losses: int = 2
    is_forced: bool = False
    """The action goes before what the task itself wishes: a person decides."""


class Verdict(NamedTuple):
    """A short tuple, as `Settled` is: every task that ends makes both."""

    change: Change
    reason: str | None = None
    result: bytes | None = None
    error: TaskError | None = None
    delay_us: int = 0
    billed: bool = True
    crashes: int = 0
    losses: int = 0
    dispatches: int = 0
    solo: bool = False
    quarantined: bool = False

    @property
    def cause(self) -> Cause:
        """Why the ownership ended, as far as the verdict still tells."""
        counted = {Cause.CRASHED: self.crashes, Cause.LOST: self.losses, Cause.DISPATCH_DIED: self.dispatches}
        named = {"WORKER_STOPPED": Cause.STOPPED, "NEIGHBOUR_CRASHED": Cause.NEIGHBOUR}
        cause = next((cause for cause, count in counted.items() if count), None)
        return cause or named.get(self.error.code if self.error else "", Cause.NEVER_BEGAN)

    @property
    def action(self) -> str:
        """The word of the recovery report: retry, pending, failed or cancelled."""
        if self.change is Change.CANCEL:
            return "cancelled"
        if self.change in (Change.ABANDON, Change.FAIL):
            return "failed"
        return "retry" if self.billed else "pending"


class Settled(NamedTuple):
    """The verdict was written."""

    task_id: str
    change: Change | None = None
    """What was made of it, if not what was asked for: a task that somebody had asked to cancel is not run again."""


class AllStored(Sequence[Settled]):
    """What became of many results, all of which were stored: nearly always that. Made of their ids, and not one by
    one."""

    __slots__ = ("ids",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> Settled: ...

    @overload
    def __getitem__(self, at: slice) -> "AllStored": ...

    def __getitem__(self, at: int | slice) -> "Settled | AllStored":
        return AllStored(self.ids[at]) if isinstance(at, slice) else Settled(self.ids[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The owner had been revoked, nobody had claimed the task since: its result counts, no second run happens."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """The ownership had ended before; nothing was changed. An outcome is kept in `late_outcomes`."""

    task_id: str
    status: str
    by: int
    """The task's fence now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """The verdict could not be written, for a reason of this one task; nothing was changed."""

    task_id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """Its code may still run, under a lease that is not over; nothing was changed."""

    task_id: str


Settlement = Settled | Adopted | Superseded | Unsettled | Leased
