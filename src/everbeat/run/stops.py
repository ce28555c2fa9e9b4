"""Watches the runs that may have to be stopped, and tells them to: those with a timeout, and those that were cancelled.

Other runs are not known here and cost nothing. What is done when is decided in decide/stop.py; the dispatcher drains
and kills the processes that this names, and settles what was in them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from everbeat.decide.stop import CANCEL_GRACE_US, Step, next_step, over_at
from everbeat.run.hands import Hands
from everbeat.run.journal import Journal
from everbeat.run.slot import Flight, Ownership, Slot, SlotState
from everbeat.run.wire import ChildKind, InterruptKind

TELL_AGAIN_US = 50_000


@dataclass(slots=True, eq=False)
class Watched:
    """A run under watch, and how far it has come with it."""

    slot: Slot
    flight: Flight
    timeout_us: int
    look_at: int
    why: InterruptKind = InterruptKind.TIMEOUT
    is_told: bool = False
    kill_at: int | None = None
    drain_until: int | None = None
    was_killed: bool = False
    """Its process was killed because of it."""

    def has_not_listened(self, now: int) -> bool:
        return self.kill_at is not None and now >= self.kill_at


class Stops:
    def __init__(self, crew: Hands, journal: Journal) -> None:
        self._crew = crew
        self._journal = journal
        self.watched: dict[Ownership, Watched] = {}
        self.look_at: int | None = None
        """Before this moment there is nothing to do."""

    def watch(self, slot: Slot, flight: Flight, now: int) -> None:
        """A run with a timeout was sent to a process."""
        timeout_us = round((flight.claim.timeout or 0) * 1_000_000)
        self.watched[flight.key] = Watched(slot, flight, timeout_us, look_at=now + timeout_us)
        self._look_by(now + timeout_us)

    def cancel(self, slot: Slot, flight: Flight, now: int) -> None:
        """Somebody has asked for the end of a run. Asked again, nothing more is done."""
        watched = self.watched.setdefault(flight.key, Watched(slot, flight, 0, look_at=now))
        if watched.why is InterruptKind.CANCEL:
            return
        watched.why, watched.is_told = InterruptKind.CANCEL, False
        watched.kill_at = (
            now + CANCEL_GRACE_US if watched.kill_at is None else min(watched.kill_at, now + CANCEL_GRACE_US)
        )
        watched.look_at = watched.kill_at
        self._tell(watched, now)
        self._look_by(watched.look_at)

    def forget(self, slot: Slot, key: Ownership, now: int) -> Watched | None:
        """A run has left its process. Whoever waits for that process to be empty is looked at again."""
        left = self.watched.pop(key, None)
        if slot.is_retiring:
            for watched in self.watched.values():
                if watched.slot is slot:
                    watched.look_at = now
                    self._look_by(now)
        return left

    def step(self, now: int) -> Iterator[tuple[Step, Watched]]:
        """Tell what is over its time; name what did not listen and whose process is to be drained or killed for it."""
        for key, watched in list(self.watched.items()):
            is_here = self.watched.get(key) is watched  # a step for another may have taken it back
            if is_here and now >= watched.look_at and watched.slot.state is SlotState.READY:
                step = self._step(watched, now)
                if step in (Step.DRAIN, Step.KILL):
                    yield step, watched
        alive = (watched.look_at for watched in self.watched.values() if watched.slot.state is SlotState.READY)
        self.look_at = min(alive, default=None)

    def _step(self, watched: Watched, now: int) -> Step:
        step, watched.look_at = next_step(
            now,
            over_at=over_at(watched.timeout_us, self._begun_at(watched.flight), now),
            kill_at=watched.kill_at,
            drain_until=watched.drain_until,
            has_neighbours=self._has_neighbours(watched.slot, now),
        )
        match step:
            case Step.TELL:
                watched.kill_at = watched.look_at
            case Step.DRAIN:
                watched.drain_until = watched.look_at
            case Step.KILL:
                self._blame(watched.slot, now)
        if watched.kill_at is not None and not watched.is_told:
            self._tell(watched, now)
        return step

    def _tell(self, watched: Watched, now: int) -> None:
        claim = watched.flight.claim
        watched.is_told = self._crew.interrupt(watched.slot.number, claim, watched.why)
        if not watched.is_told:
            watched.look_at = min(watched.look_at, now + TELL_AGAIN_US)

    def _begun_at(self, flight: Flight) -> int | None:
        begun_ns = self._journal.begun_ns(flight.entry, *flight.key)
        return None if begun_ns is None else begun_ns // 1000

    def _has_neighbours(self, slot: Slot, now: int) -> bool:
        """A sync process runs one task at a time; what waits behind it is read back."""
        return slot.kind is ChildKind.ASYNC and len(self._deaf(slot, now)) < len(slot.queue)

    def _blame(self, slot: Slot, now: int) -> None:
        """All that did not listen are the reason of this death, not only the first."""
        for watched in self._deaf(slot, now):
            watched.was_killed = True

    def _deaf(self, slot: Slot, now: int) -> list[Watched]:
        return [w for key in slot.queue if (w := self.watched.get(key)) is not None and w.has_not_listened(now)]

    def _look_by(self, moment: int) -> None:
        self.look_at = moment if self.look_at is None else min(self.look_at, moment)
