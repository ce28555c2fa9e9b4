"""Which process has which task: sends what was started, and reads back what has not begun.

RUNNING is committed before the bytes of a task reach a process (P4): `launch` is called after the flush that did. Of
the tasks that wait behind a slow one in a slot's queue, what has not begun is read back (PROTOCOL 19).
"""

from collections.abc import Iterable, Iterator, Sequence

from everbeat.clock import Clock
from everbeat.crashpoint import crash_point
from everbeat.decide.pace import Pace
from everbeat.decide.room import ASYNC_SLOT, OWN_PROCESS, Promise, Room
from everbeat.decide.stop import cancelled_unbegun
from everbeat.model.task import Claim
from everbeat.run.books import Books
from everbeat.run.deadline import HeldLease
from everbeat.run.hands import Hands
from everbeat.run.journal import Journal
from everbeat.run.mandate import Mandate
from everbeat.run.processes import Processes
from everbeat.run.slot import Flight, Slot, SlotState
from everbeat.run.stops import Stops
from everbeat.run.verdicts import give_back
from everbeat.run.wire import ChildKind


class Floor:
    def __init__(
        self, *, crew: Hands, journal: Journal, processes: Processes, books: Books, stops: Stops, pace: Pace,
        lease: HeldLease, mandate: Mandate, clock: Clock,
    ) -> None:  # fmt: skip
        self.slots = processes.slots
        self._crew = crew
        self._journal = journal
        self._processes = processes
        self._books = books
        self._stops = stops
        self._pace = pace
        self._lease = lease
        self._mandate = mandate
        self._clock = clock

    def room(self, now: int, promised: Iterable[Promise] = ()) -> Room:
        """What could be taken now, if all that was promised is."""
        if not self._mandate.starts_tasks:
            return Room(frozenset(), frozenset(), None)
        room = self.slots.room(self._pace.depths, now)
        for promise in promised:
            room.keep(promise)
        room.take_turns(self.slots.staffing.processes)
        room.shunned = self._books.apart.workflows
        return room

    @property
    def is_busy(self) -> bool:
        """Some process has a task, and may say something of it."""
        return any(slot.queue for slot in self.slots.values())

    @property
    def has_backlog(self) -> bool:
        """Some async tasks wait for others to end."""
        return any(self.slots.has_waiting(slot) for slot in self.slots.of(ChildKind.ASYNC))

    def has_begun(self, flight: Flight) -> bool:
        return self._journal.begun_ns(flight.entry, flight.claim.seq, flight.claim.fence) is not None

    def ends_at_once(self) -> bool:
        """Every task that is still in a process is the last one there, and shorter than a commit."""
        busy = [slot for slot in self.slots.values() if slot.queue]
        return bool(busy) and all(
            len(slot.queue) == 1 and self._pace.is_short(flight.claim.name)
            for slot in busy
            for flight in slot.queue.values()
        )

    # -- handing out ------------------------------------------------------------------------------------------------

    def launch(self, starts: Sequence[Claim], started: Sequence[Claim], claims: Sequence[Claim]) -> None:
        """A flush that wanted these `starts` was committed, and these were `started` and claimed."""
        if starts:
            crash_point("start.after_commit")
        if claims:
            crash_point("claim.after_commit")
        now = self._clock.mono_us()
        for slot in self.slots.values():
            if slot.waiting is not None and slot.waiting in starts:
                self._start_own(slot, slot.waiting, started, now)
        by_slot: dict[int, list[Claim]] = {}
        for claim in claims:
            if claim.slot == OWN_PROCESS:
                self._give_own_process(claim, now)
            else:
                by_slot.setdefault(claim.slot, []).append(claim)
        for number, batch in by_slot.items():
            shared = self.slots.shared if number == ASYNC_SLOT else None
            self._hand_out(shared or self.slots[number], batch, now)

    def _start_own(self, slot: Slot, claim: Claim, started: Sequence[Claim], now: int) -> None:
        slot.waiting = None
        if claim not in started or not self._send(slot, [claim], now):
            self._books.end(claim, give_back(claim, "it could not be started"))
            self._processes.end(slot)

    def _give_own_process(self, claim: Claim, now: int) -> None:
        slots = self.slots.of(ChildKind.OWN)
        slot = next((slot for slot in slots if slot.may_start(now)), None)
        if slot is None or not self._mandate.starts_tasks:
            self._give_back(slots[0], claim)
            return
        slot.waiting = claim
        self._books.hold([claim], slot)
        self._processes.start(slot)

    def _hand_out(self, slot: Slot, claims: Sequence[Claim], now: int) -> None:
        """What it was when they were claimed it may be no longer."""
        takes = self._mandate.starts_tasks and slot.is_open and not slot.is_in_the_way_of(claims)
        if not (takes and self._send(slot, claims, now)):
            for claim in claims:
                self._give_back(slot, claim)

    def _give_back(self, slot: Slot, claim: Claim) -> None:
        self._books.hold([claim], slot)
        self._books.end(claim, give_back(claim, "its process could take no more"))

    def _send(self, slot: Slot, claims: Sequence[Claim], now: int) -> bool:
        is_exclusive = claims[0].exclusive_key is not None  # then it is the only one
        if is_exclusive and self._lease.left_us() <= 0:
            return False
        depths, entries = self._pace.depths, self._journal.allocate_many(len(claims))
        if not self._crew.send(slot.number, list(zip(entries, claims, strict=True))):
            self._journal.release(*entries)
            slot.refuse(now)
            return False
        crash_point("start.sent")
        shares = {name: 1 / depths.get(name, 1) for name in {claim.name for claim in claims}}
        flights = [Flight(claim, entry, shares[claim.name]) for claim, entry in zip(claims, entries, strict=True)]
        slot.add(flights, now)
        self._books.hold(claims, slot)
        for flight in flights:
            if flight.claim.timeout is not None:
                self._stops.watch(slot, flight, now)
        if is_exclusive:
            self._books.lease(claims[0], slot)
        slot.sent += len(flights)
        if self._processes.has_had_enough(slot):
            self._processes.retire(slot, now)
        return True

    # -- taking back ------------------------------------------------------------------------------------------------

    def take_back_late(self, now: int) -> None:
        """What waits behind a task that turned out slow goes to another slot, or back to the queue."""
        for slot in self.slots.values():
            if not self.slots.has_waiting(slot) or not slot.is_stuck(now):
                continue
            head = slot.head
            if head is not None:
                self._pace.saw(head.claim.name, now - slot.head_since)
            self.give_back_unread(slot, now, "it waited behind a slow task")

    def replace(self, slot: Slot, now: int) -> None:
        """What its process has begun may end there; what it has not taken goes elsewhere."""
        self._processes.retire(slot, now)
        self.give_back_unread(slot, now, "its process is to be replaced")

    def give_back_unread(self, slot: Slot, now: int, reason: str) -> None:
        if not slot.queue:
            return
        for key in self._crew.take_back(slot.number):
            flight = slot.queue.pop(key, None)
            if flight is None:
                continue
            slot.sent -= 1
            self._stops.forget(slot, key, now)
            self._place(flight, slot, now, reason)
            self._journal.release(flight.entry)
        if slot.is_retiring and not slot.queue and slot.state is SlotState.READY:
            self._processes.let_go(slot)

    def _place(self, flight: Flight, slot: Slot, now: int, reason: str) -> None:
        """It was read back from this slot."""
        claim = flight.claim
        if claim.cancel_requested:
            self._books.end(claim, cancelled_unbegun())
            return
        may_move = self._mandate.starts_tasks and slot.kind is ChildKind.SYNC and not flight.is_taken
        other = self.slots.idle(now) if may_move else None
        if other is None or not self._send(other, [claim], now):
            self._books.end(claim, give_back(claim, reason))

    def alarms(self) -> Iterator[int]:
        for slot in self.slots.values():
            if self.slots.has_waiting(slot):
                yield slot.stuck_at
