"""The end of a worker's work: nothing new, what has not begun goes back, what runs may end, for a while.

When the time is up, what still runs is interrupted; what does not listen is killed. What was interrupted is unbilled.
"""

from collections.abc import Iterator

from everbeat.clock import Clock
from everbeat.model.recovery import Cause
from everbeat.run.books import Books
from everbeat.run.floor import Floor
from everbeat.run.hands import Hands
from everbeat.run.mandate import Mandate
from everbeat.run.processes import Processes
from everbeat.run.slot import SlotState
from everbeat.run.verdicts import give_back
from everbeat.run.wire import InterruptKind

INTERRUPT_GRACE_US = 2_000_000
HOPELESS_US = 10_000_000
STOPS = "its worker stops"


class Drain:
    def __init__(
        self, *, crew: Hands, books: Books, floor: Floor, processes: Processes, mandate: Mandate, clock: Clock
    ) -> None:
        self._crew = crew
        self._books = books
        self._floor = floor
        self._processes = processes
        self._slots = processes.slots
        self._mandate = mandate
        self._clock = clock
        self._give_up_at = 0
        self.has_interrupted = False
        """What still ran was told to stop."""
        self._has_killed = False

    def begin(self, timeout_us: int) -> None:
        """Claim nothing more; give back at once what has not begun. Said again, only the patience may be shorter."""
        give_up_at = self._clock.mono_us() + timeout_us
        if self._mandate.is_draining:
            self._give_up_at = min(self._give_up_at, give_up_at)
            return
        self._mandate.is_draining, self._give_up_at = True, give_up_at
        for slot in self._slots.values():
            if slot.waiting is not None:
                self._books.end(slot.waiting, give_back(slot.waiting, STOPS))
                slot.waiting = None
                self._processes.end(slot)
            self._floor.give_back_unread(slot, self._clock.mono_us(), STOPS)

    def go_on(self, now: int) -> None:
        if not self._mandate.is_draining or now < self._give_up_at:
            return
        if not self.has_interrupted:
            self._interrupt_all()
        elif not self._has_killed and now >= self._give_up_at + INTERRUPT_GRACE_US:
            self._kill_all()

    def _interrupt_all(self) -> None:
        self.has_interrupted = True
        for slot in self._slots.values():
            for flight in slot.queue.values():
                self._crew.interrupt(slot.number, flight.claim, InterruptKind.INTERRUPT)

    def _kill_all(self) -> None:
        self._has_killed = True
        for slot in self._slots.values():
            if slot.queue:
                slot.ends_for = Cause.STOPPED
                self._processes.end(slot)

    @property
    def is_done(self) -> bool:
        if not self._mandate.is_draining:
            return False
        if self._mandate.is_displaced:
            return not any(slot.queue for slot in self._slots.values())
        return self._books.are_clear or self._is_hopeless(self._clock.mono_us())

    def _is_hopeless(self, now: int) -> bool:
        """Everything was killed long ago and the store still can not be told: whoever comes next recovers it."""
        return self._has_killed and now > self._give_up_at + INTERRUPT_GRACE_US + HOPELESS_US

    # -- the last of it ---------------------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """End every process. What one of them had still begun is lost with this worker."""
        self._mandate.is_dismissed = True
        for slot in self._slots.values():
            if slot.state is SlotState.EMPTY:
                continue
            slot.ends_for = slot.ends_for or Cause.LOST
            if slot.queue or slot.state is not SlotState.READY:
                self._processes.end(slot)
            else:
                self._processes.let_go(slot)

    @property
    def is_dismissed(self) -> bool:
        is_told = self._mandate.is_displaced or not self._books.endings
        return is_told and all(slot.state is SlotState.EMPTY for slot in self._slots.values())

    def alarms(self) -> Iterator[int]:
        if self._mandate.is_draining and not self._has_killed:
            yield self._give_up_at + (INTERRUPT_GRACE_US if self.has_interrupted else 0)
