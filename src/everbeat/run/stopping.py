"""Ends runs that must not go on: over their time, cancelled, taken from us, or no longer covered by a lease.

They are told to stop, and killed with their process if they do not (stops.py); a process that others share is drained
first. A task with an exclusive key runs while its lease is renewed by the store's answers, and is stopped when it is
not (PROTOCOL 24). The fork server sees to that as well, whatever becomes of us.
"""

from collections.abc import Iterator

from everbeat.clock import Clock
from everbeat.decide.stop import Step
from everbeat.errors import StoreUnavailable
from everbeat.model import event
from everbeat.model.recovery import Cause
from everbeat.run.books import Books
from everbeat.run.deadline import HeldLease
from everbeat.run.floor import Floor
from everbeat.run.mandate import Mandate
from everbeat.run.processes import Processes
from everbeat.run.slot import Ownership, Slot, SlotState
from everbeat.run.stops import Stops, Watched
from everbeat.run.verdicts import Verdicts
from everbeat.run.wire import InterruptKind
from everbeat.store.interface import Store

HEED_AGAIN_US = 500_000


class Stopping:
    def __init__(
        self, *, store: Store, books: Books, floor: Floor, processes: Processes, stops: Stops, verdicts: Verdicts,
        lease: HeldLease, mandate: Mandate, clock: Clock,
    ) -> None:  # fmt: skip
        self._store = store
        self._books = books
        self._floor = floor
        self._processes = processes
        self._stops = stops
        self._verdicts = verdicts
        self._lease = lease
        self._mandate = mandate
        self._clock = clock
        self._heed_at: int | None = None
        """When to read what is still ours, and what of it somebody wants to end."""

    def heed(self) -> None:
        """Somebody may want one of our runs to end."""
        self._heed_at = self._clock.mono_us()

    def go_on(self, now: int) -> None:
        if self._heed_at is not None and now >= self._heed_at:
            self._heed_requests(now)
        if self._stops.look_at is not None and now >= self._stops.look_at:
            self._stop_runs(now)
        if self._lease.left_us() <= 0:
            self._stop_leased()

    def _heed_requests(self, now: int) -> None:
        """What somebody wants to end, or has taken from us: if it has not begun it is taken back, otherwise told to
        stop. A worker that was declared dead owns nothing, and ends as a whole."""
        self._heed_at = None
        if not self._books.holdings:
            return
        try:
            ours = self._store.ours(self._books.worker_id, seen_beat=self._books.seen_beat)
        except StoreUnavailable:
            self._heed_at = now + HEED_AGAIN_US
            return
        if ours.is_older or not ours.alive:
            self._mandate.is_displaced |= ours.is_older
            self._mandate.is_fenced |= not ours.is_older
            return
        unwanted = {key: key not in ours.owned for key in self._books.holdings if ours.owned.get(key) is not False}
        for key, is_taken in unwanted.items():  # all of them first: what is read back for one may be another
            self._mark(key, is_taken=is_taken)
        for key in unwanted:
            self._stop(key, now)

    def _mark(self, key: Ownership, *, is_taken: bool) -> None:
        claim, slot = self._books.holdings[key]
        claim.cancel_requested = not is_taken
        if key in slot.queue:
            slot.queue[key].is_taken = is_taken

    def _stop(self, key: Ownership, now: int) -> None:
        _, slot = self._books.holdings[key]
        if key in slot.queue and not self._floor.has_begun(slot.queue[key]):
            self._floor.give_back_unread(slot, now, "a task before it was not to run")
        if key in slot.queue:
            self._stops.cancel(slot, slot.queue[key], now)

    def _stop_runs(self, now: int) -> None:
        for step, watched in self._stops.step(now):
            if step is Step.DRAIN and not watched.slot.is_retiring:
                self._floor.replace(watched.slot, now)
            elif step is Step.KILL and watched.slot.state is SlotState.READY:
                self._kill_for(watched)

    def _kill_for(self, watched: Watched) -> None:
        """End a process for the sake of a run in it. The others did nothing wrong."""
        slot, claim = watched.slot, watched.flight.claim
        slot.ends_for = Cause.NEIGHBOUR
        slot.ends_because = self._verdicts.killed_for(claim, slot.pid)
        reason = f"{_why(watched)} and it did not stop"
        facts = {"slot": slot.number, "pid": slot.pid, "name": claim.name, "reason": reason}
        self._books.tell(event.CHILD_KILLED, facts, task_id=claim.id)
        self._processes.end(slot)

    def _stop_leased(self) -> None:
        for slot in list(self._running_leased()):
            slot.ends_for, slot.ends_because = Cause.LEASE_LOST, self._verdicts.lease_is_over(slot.pid)
            self._processes.end(slot)

    def _running_leased(self) -> Iterator[Slot]:
        """Slots that run a task with an exclusive key, and are not being ended."""
        return (slot for slot in self._books.running_leased() if slot.state is SlotState.READY)

    def alarms(self) -> Iterator[int]:
        if self._heed_at is not None:
            yield self._heed_at
        if self._stops.look_at is not None:
            yield self._stops.look_at
        if any(self._running_leased()):
            yield self._clock.mono_us() + max(0, self._lease.left_us())


def _why(watched: Watched) -> str:
    if watched.flight.is_taken:
        return "it was taken from its worker"
    if watched.why is InterruptKind.CANCEL:
        return "it was cancelled"
    return f"its timeout of {watched.flight.claim.timeout:g} s is over"
