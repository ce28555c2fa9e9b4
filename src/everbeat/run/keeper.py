"""Keeps what ends while the store does not answer (P8, PROTOCOL 30).

A flush that takes longer than a commit ever should is written into the spool, by this loop in a thread of its own; what
ends meanwhile the dispatcher, which goes on, writes there as it hears it. After a flush that failed, what is to be
settled is in the spool before the next one is sent. Only outcomes need that: of a run that has none (its process died),
the begin mark in the journal remains, and whoever recovers it takes it for lost with its worker.
"""

import threading
from collections.abc import Iterable, Sequence

from everbeat.clock import Clock
from everbeat.model.task import Claim, Outcome
from everbeat.run.failure import WORKER_STOPPED
from everbeat.run.spool import Spool
from everbeat.store.messages import Ending

LATE_US = 50_000
LOOK_SECONDS = 0.05
IDLE_SECONDS = 0.25


class Keeper:
    name = "keeper"

    def __init__(self, spool: Spool, clock: Clock) -> None:
        self.spool = spool
        self._clock = clock
        self._turn = threading.Lock()
        """Whoever has it writes into the spool."""
        self._sent: dict[int, tuple[int, Sequence[Ending]]] = {}
        self.is_away = False
        """The last flush failed: what is to be settled is written down as soon as it is known."""

    # The dispatcher's side.

    def begin(self, number: int, endings: Sequence[Ending], now: int) -> None:
        """A flush is sent."""
        if self.is_away:
            self.write_down(endings)
        self._sent[number] = now, endings

    def end(self, number: int, *, is_stored: bool) -> None:
        """It was answered, or given up."""
        self.is_away &= not is_stored
        with self._turn:
            _, endings = self._sent.pop(number)
        if is_stored:
            self.settled(endings)

    def settled(self, endings: Iterable[Ending]) -> None:
        """The store has these."""
        if self.spool.is_used:
            with self._turn:
                self.spool.settle({(ending.claim.seq, ending.claim.fence) for ending in endings})

    @property
    def late_at(self) -> int | None:
        """When what is not sent yet had better be written down: at once while the store is away, whether or not it is
        asked just now, and otherwise when the oldest flush that is under way is late."""
        if self.is_away:
            return 0
        return min((sent_at + LATE_US for sent_at, _ in self._sent.values()), default=None)

    def is_late(self, now: int) -> bool:
        late_at = self.late_at
        return late_at is not None and now >= late_at

    def keep(self, endings: Sequence[Ending]) -> None:
        """These will not be stored by this process any more."""
        self.write_down(endings)
        self.spool.sync(self._clock.mono_us(), at_once=True)

    def write_down(self, endings: Iterable[Ending]) -> None:
        """These may take a while. Done once for each, however often it is said."""
        with self._turn:
            self._write_down(endings)

    # The loop.

    def tick(self) -> float:
        now = self._clock.mono_us()
        for number, (sent_at, _) in list(self._sent.items()):
            if now - sent_at >= LATE_US:
                self._keep_late(number)
        self.spool.sync(now)
        return LOOK_SECONDS if self._sent else IDLE_SECONDS

    def _keep_late(self, number: int) -> None:
        with self._turn:
            if number in self._sent:
                self._write_down(self._sent[number][1])

    # Both.

    def _write_down(self, endings: Iterable[Ending]) -> None:
        for ending in endings:
            if ending.outcome is not None:
                self._keep(ending.claim, ending.outcome, ending.pid)

    def _keep(self, claim: Claim, outcome: Outcome, pid: int | None) -> None:
        if outcome.error is None or outcome.error.code != WORKER_STOPPED:  # that one has not ended by itself
            self.spool.add(claim, outcome, pid)
