"""The processes of a worker: started, replaced when they are worn, ended, and started again.

Never here: what runs in them (floor.py), and the processes themselves (the crew).
"""

from collections.abc import Callable, Iterator

from everbeat.model import event
from everbeat.run.books import Books
from everbeat.run.hands import Hands
from everbeat.run.mandate import Mandate
from everbeat.run.news import Died
from everbeat.run.slot import Slot, Slots, SlotState
from everbeat.run.wire import ChildKind

SHORT_LIFE_SECONDS = 1.0
RESTART_US = (0, 100_000, 500_000, 2_000_000, 5_000_000)


class Processes:
    def __init__(
        self, *, crew: Hands, slots: Slots, books: Books, mandate: Mandate, resident: Callable[[int], int]
    ) -> None:
        self.slots = slots
        self._crew = crew
        self._books = books
        self._mandate = mandate
        self._resident = resident

    def start_due(self, now: int) -> bool:
        """Start what is missing. Whether there is a place again for a task that runs alone."""
        if self._mandate.is_closing:
            return False
        has_place = False
        for slot in self.slots.values():
            if slot.restart_at is None or not slot.may_start(now):
                continue
            if not self.slots.needs_another(slot):
                slot.restart_at = None
            elif slot.kind is ChildKind.OWN:
                slot.restart_at, has_place = None, True
            else:
                self.start(slot)
        return has_place

    def start(self, slot: Slot) -> None:
        slot.state, slot.restart_at, slot.sent = SlotState.STARTING, None, 0
        self._crew.spawn(slot.number, slot.kind)

    def end(self, slot: Slot) -> None:
        slot.state = SlotState.DYING
        self._crew.kill(slot.number)

    def let_go(self, slot: Slot) -> None:
        """It has nothing to do, and may do what its application wants done at the end."""
        slot.state = SlotState.DYING
        self._crew.release(slot.number)

    def retire(self, slot: Slot, now: int) -> None:
        """It takes nothing new, and goes when what it has is done. The next async one is started meanwhile."""
        slot.is_retiring = True
        if slot.kind is ChildKind.ASYNC and (twin := self.slots.twin(slot)).state is SlotState.EMPTY:
            twin.restart_at = now

    def has_had_enough(self, slot: Slot) -> bool:
        """It was given as many tasks as it may have."""
        most = self.slots.staffing.max_tasks
        return most is not None and slot.sent >= most and self._is_replaceable(slot)

    def is_too_large(self, slot: Slot) -> bool:
        """A task has left it so."""
        most = self.slots.staffing.max_memory
        return most is not None and self._is_replaceable(slot) and self._resident(slot.pid or 0) > most

    def _is_replaceable(self, slot: Slot) -> bool:
        """Of the async processes, only if another can take over: until then it serves on."""
        if slot.kind is ChildKind.ASYNC and self.slots.twin(slot).state is not SlotState.EMPTY:
            return False
        return slot.is_open and slot.kind is not ChildKind.OWN

    def bury(self, slot: Slot, death: Died, now: int, *, begun: int) -> None:
        """It is gone: empty its slot, and plan the next. `begun` tasks were running in it."""
        is_expected = slot.state is SlotState.DYING or death.overdue
        if not is_expected:
            facts = {"slot": slot.number, "pid": death.pid, "status": death.status, "tasks": begun}
            self._books.tell(event.CHILD_DIED, facts)
        slot.clear()
        has_lived = is_expected or begun or (death.was_ready and death.seconds_alive >= SHORT_LIFE_SECONDS)
        slot.short_lives = 0 if has_lived else slot.short_lives + 1
        pause = RESTART_US[min(slot.short_lives, len(RESTART_US) - 1)]
        slot.restart_at = now + pause if self.slots.needs_another(slot) else None

    def note_unresponsive(self) -> None:
        """One that is alive but silent is busy in C code, or stopped: it is said once, and beaten for."""
        for slot in self.slots.values():
            is_silent = slot.state is SlotState.READY and bool(slot.queue) and not self._crew.responsive(slot.number)
            if is_silent and not slot.is_silent:
                tasks = [flight.claim.id for flight in slot.queue.values()]
                self._books.tell(event.CHILD_UNRESPONSIVE, {"slot": slot.number, "pid": slot.pid, "tasks": tasks[:10]})
            slot.is_silent = is_silent

    def alarms(self) -> Iterator[int]:
        for slot in self.slots.values():
            if slot.state is SlotState.EMPTY and slot.restart_at is not None and not self._mandate.is_closing:
                yield slot.restart_at
