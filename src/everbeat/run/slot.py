"""The process slots of a worker, as its dispatcher sees them: what was sent into each and in which order it begins."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from everbeat.decide.room import ASYNC_SLOT, Room
from everbeat.model.recovery import Cause
from everbeat.model.task import Claim
from everbeat.run.wire import ChildKind

HOPELESS_LIVES = 4
"""A process that did not come up so often in a row will not."""

Ownership = tuple[int, int]
"""Seq and fence."""

ASYNC_FRAMES = 3
"""So many frames of quick async tasks are in the async process or wait for a place there. If all they do is compute,
nobody else can run them for that long."""

LATE_US = 15_000
SURE_US = 5_000
"""What waits for so long, and then for so long again, while nothing ends is read back (PROTOCOL 19)."""

FRESH_US = 10_000
"""A slot whose head began within this time may be given more; one that could take no more is not tried for as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staffing:
    """What a worker runs."""

    processes: int
    async_slots: int
    sync_names: frozenset[str]
    async_names: frozenset[str]
    queues: frozenset[str] | None
    frame_depth: int
    max_tasks: int | None = None
    """A process is replaced after so many tasks."""
    max_memory: int | None = None
    """A process is replaced when it is larger than this between two tasks, in bytes."""

    @property
    def names(self) -> frozenset[str]:
        return self.sync_names | self.async_names


class SlotState(Enum):
    STARTING = "starting"
    READY = "ready"
    DYING = "dying"  # killed by us
    EMPTY = "empty"


@dataclass(slots=True, eq=False)
class Flight:
    """A claim in a process: sent, perhaps begun, not ended. `entry` is its place in the journal."""

    claim: Claim
    entry: int
    share: float = 1.0
    """Of a frame, as far as is known of its name: 1 if it is not quick."""
    is_taken: bool = False
    """Somebody has taken the task from us: its run is to end, and what it says of that is no news."""

    @property
    def key(self) -> Ownership:
        return self.claim.seq, self.claim.fence


@dataclass(slots=True, eq=False)
class Slot:
    number: int
    kind: ChildKind
    state: SlotState = SlotState.EMPTY
    pid: int | None = None
    queue: dict[Ownership, Flight] = field(default_factory=dict)
    """Flights by (seq, fence), in the order they were sent."""
    sent: int = 0
    """Tasks that its process was given."""
    head_since: int = 0
    late_since: int | None = None
    """When it was first seen that nothing had ended there for long."""
    full_until: int = 0
    waiting: Claim | None = None
    """A CLAIMED task that this process is being started for."""
    is_retiring: bool = False
    """Its process takes nothing new, and goes when what it has is done."""
    ends_for: Cause | None = None
    """Why we kill it, if that is what ends the tasks in it."""
    ends_because: str | None = None
    """In words, if its death alone does not explain it."""
    short_lives: int = 0
    restart_at: int | None = 0
    """While it is empty: when a process may be started here. None: it may, and nobody waits to be told."""
    is_silent: bool = False
    """Its process does not beat."""

    @property
    def head(self) -> Flight | None:
        return next(iter(self.queue.values()), None)

    def takes_more(self, now: int) -> bool:
        """Whether a sync task may be put into this slot's queue."""
        if self.kind is not ChildKind.SYNC or not self.is_open or now < self.full_until:
            return False
        head = self.head
        return head is None or (now - self.head_since < FRESH_US and not head.claim.alone)

    def is_in_the_way_of(self, claims: Iterable[Claim]) -> bool:
        """Something stands in its queue, and one of them all must not share it (PROTOCOL 19)."""
        head = self.head if self.kind is ChildKind.SYNC else None
        return head is not None and (head.claim.alone or any(claim.alone for claim in claims))

    @property
    def is_open(self) -> bool:
        return self.state is SlotState.READY and not self.is_retiring

    @property
    def is_coming_up(self) -> bool:
        """It is open, or about to be."""
        return self.state is SlotState.STARTING or self.is_open

    def may_start(self, now: int) -> bool:
        return self.state is SlotState.EMPTY and now >= (self.restart_at or 0)

    def add(self, flights: Iterable[Flight], now: int) -> None:
        if not self.queue:
            self.go_on(now)
        self.queue.update([((flight.claim.seq, flight.claim.fence), flight) for flight in flights])

    def go_on(self, now: int) -> None:
        """Something has ended there, or is the first."""
        self.head_since, self.late_since = now, None

    def is_stuck(self, now: int) -> bool:
        """Nothing ends there. It takes two looks: if the machine stood still so did we, and its process has not had the
        time to say what it has done."""
        if now - self.head_since < LATE_US:
            return False
        if self.late_since is None:
            self.late_since = now
        return now - self.late_since >= SURE_US

    @property
    def stuck_at(self) -> int:
        """When to look whether it is."""
        return self.head_since + LATE_US if self.late_since is None else self.late_since + SURE_US

    def clear(self) -> None:
        """Its process is gone, and what was in it is settled."""
        self.queue.clear()
        self.waiting, self.pid, self.state, self.is_retiring = None, None, SlotState.EMPTY, False
        self.ends_for = self.ends_because = None

    def refuse(self, now: int) -> None:
        """Its process could take no more: that is not asked again at once."""
        self.full_until = now + FRESH_US


class Slots(dict[int, Slot]):
    """By number: 0 is the async process, then the sync slots, then those for tasks that run alone, then the slot of the
    next async process, which takes over when the one before it may take nothing new."""

    def __init__(self, staffing: Staffing) -> None:
        super().__init__((slot.number, slot) for slot in _slots(staffing))
        self.staffing = staffing

    def of(self, kind: ChildKind) -> list[Slot]:
        return [slot for slot in self.values() if slot.kind is kind]

    def room(self, depths: Mapping[str, int], now: int) -> Room:
        """What they could take now. It stays so, whatever is learned of the tasks while somebody claims into it: the
        store takes as many as it says first, and asks it afterwards where they go."""
        staffing = self.staffing
        open_slots = [slot for slot in self.of(ChildKind.SYNC) if slot.takes_more(now)]
        return Room(
            staffing.sync_names,
            staffing.async_names,
            staffing.queues,
            slots={slot.number: len(slot.queue) for slot in open_slots},
            depths=dict(depths),
            limits={} if staffing.max_tasks is None else _limits(open_slots, staffing.max_tasks),
            async_free=self._async_free(now),
            async_frames=self._async_frames(now),
            own_free=sum(slot.may_start(now) for slot in self.of(ChildKind.OWN)),
        )

    def _async_free(self, now: int) -> int:
        shared, staffing = self.shared, self.staffing
        if shared is None or now < shared.full_until:
            return 0
        free = max(0, staffing.async_slots - sum(len(slot.queue) for slot in self.of(ChildKind.ASYNC)))
        left = free if staffing.max_tasks is None else staffing.max_tasks - shared.sent
        return min(free, left) if left > 0 else free  # one that can not be replaced yet serves on

    def _async_frames(self, now: int) -> float:
        """While its tasks end one after the other, and as far as its places are not taken by slow ones, the async
        process has more waiting than it has places: it does not stand still for the store."""
        shared, staffing = self.shared, self.staffing
        if shared is None or staffing.max_tasks is not None or self.twin(shared).queue:
            return 0.0
        if now < shared.full_until or (shared.queue and now - shared.head_since >= FRESH_US):
            return 0.0
        quick = [flight.share for flight in shared.queue.values() if flight.share < 1]
        left = staffing.async_slots - (len(shared.queue) - len(quick))
        return max(0.0, ASYNC_FRAMES * left / staffing.async_slots - sum(quick))

    def has_waiting(self, slot: Slot) -> bool:
        """Something stands behind what runs in it."""
        places = {ChildKind.SYNC: 1, ChildKind.ASYNC: self.staffing.async_slots}.get(slot.kind)
        return places is not None and len(slot.queue) > places

    @property
    def shared(self) -> Slot | None:
        """The async process that takes tasks."""
        return next((slot for slot in self.of(ChildKind.ASYNC) if slot.is_open), None)

    def needs_another(self, slot: Slot) -> bool:
        """Whether a process in this empty slot is wanted: of the two async ones, one is enough."""
        return slot.kind is not ChildKind.ASYNC or not any(other.is_coming_up for other in self.of(ChildKind.ASYNC))

    def twin(self, slot: Slot) -> Slot:
        """The other async slot."""
        return next(other for other in self.of(ChildKind.ASYNC) if other is not slot)

    def idle(self, now: int) -> Slot | None:
        """A sync slot with nothing to do."""
        return next((slot for slot in self.of(ChildKind.SYNC) if not slot.queue and slot.takes_more(now)), None)

    def to_start(self) -> list[Claim]:
        """CLAIMED tasks whose process is ready."""
        return [slot.waiting for slot in self.values() if slot.waiting is not None and slot.state is SlotState.READY]

    @property
    def will_not_open(self) -> bool:
        """Some are missing, and each of these was tried often enough."""
        missing = [slot for slot in self.values() if self._is_missing(slot)]
        return bool(missing) and all(slot.short_lives >= HOPELESS_LIVES for slot in missing)

    def _is_missing(self, slot: Slot) -> bool:
        match slot.kind:
            case ChildKind.SYNC:
                return not slot.is_open
            case ChildKind.ASYNC:
                return self.shared is None and slot.restart_at is not None
            case _:  # up only while a task needs it
                return slot.short_lives >= HOPELESS_LIVES and not slot.is_open

    @property
    def any_open(self) -> bool:
        return any(slot.is_open for slot in self.values())

    def are_open(self, now: int) -> bool:
        """All are up, and those for tasks that run alone are free: whatever is ready finds a place."""
        own = all(slot.may_start(now) for slot in self.of(ChildKind.OWN))
        shared = self.of(ChildKind.ASYNC)
        return own and (not shared or self.shared is not None) and all(slot.is_open for slot in self.of(ChildKind.SYNC))


def _limits(slots: Iterable[Slot], most: int) -> dict[int, int]:
    return {slot.number: len(slot.queue) + most - slot.sent for slot in slots}


def _slots(staffing: Staffing) -> Iterator[Slot]:
    """A process of its own is for isolated tasks, and for async ones that are suspects: a sync one has its slot's
    process to itself. No more of them than there are sync slots."""
    for number in range(1, staffing.processes + 1):
        yield Slot(number, ChildKind.SYNC)
    if staffing.async_slots:
        yield Slot(ASYNC_SLOT, ChildKind.ASYNC)
    for number in range(staffing.processes + 1, 2 * staffing.processes + 1):
        yield Slot(number, ChildKind.OWN)
    if staffing.async_slots:
        yield Slot(2 * staffing.processes + 1, ChildKind.ASYNC, restart_at=None)
