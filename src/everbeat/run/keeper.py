"""Keeps what ends while the store does not answer (P8, PROTOCOL 30).

The dispatcher waits for its flush, and hears nothing meanwhile. If that takes longer than a commit ever should, this
loop, in a thread of its own, hears the processes in its place: it writes what the flush was to settle, and each outcome
that comes, into the spool. The news stay for the dispatcher, in order. After a flush that failed, what is to be settled
is in the spool before the next one is sent. Only outcomes need that: of a run that has none (its process died), the
begin mark in the journal remains, and whoever recovers it takes it for lost with its worker.

The crew and the spool belong to whoever holds the turn: the dispatcher always, but while it waits.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence

from everbeat.clock import Clock
from everbeat.model.task import Claim, Outcome
from everbeat.run.failure import WORKER_STOPPED
from everbeat.run.hands import Hands
from everbeat.run.news import Died, Finished, News
from everbeat.run.slot import Slot
from everbeat.run.spool import Ownership, Spool
from everbeat.run.wire import Told
from everbeat.store.messages import Ending

LATE_US = 50_000
LOOK_SECONDS = 0.05
IDLE_SECONDS = 0.25


class Keeper:
    name = "keeper"

    def __init__(self, crew: Hands, spool: Spool, clock: Clock) -> None:
        self.spool = spool
        self._crew = crew
        self._clock = clock
        self._turn = threading.Lock()
        self._turn.acquire()
        self._sent_at: int | None = None
        self._endings: Sequence[Ending] = ()
        self._held: Mapping[Ownership, tuple[Claim, Slot]] = {}
        self._early: list[News] = []
        self.is_away = False
        """The last flush failed: what is to be settled is written down before the next is sent."""

    # The dispatcher's side.

    @property
    def has_news(self) -> bool:
        """Something was heard in the dispatcher's place, and will not be heard again."""
        return bool(self._early)

    def collect(self) -> list[News]:
        """What has happened to the processes."""
        if not self._early:
            return self._crew.collect()
        early, self._early = self._early, []
        return early + self._crew.collect()

    def begin(self, endings: Sequence[Ending], held: Mapping[Ownership, tuple[Claim, Slot]], now: int) -> None:
        """A flush is sent."""
        self._endings, self._held = endings, held
        if self.is_away:
            self.write_down(endings)
        self._sent_at = now
        self._turn.release()

    def end(self, *, is_stored: bool) -> None:
        """It was answered, or given up."""
        self._turn.acquire()
        self._sent_at = None
        self.is_away &= not is_stored
        if is_stored and self.spool.is_used:
            self.spool.settle({(ending.claim.seq, ending.claim.fence) for ending in self._endings})

    def keep(self, endings: Sequence[Ending]) -> None:
        """These will not be stored by this process any more."""
        self.write_down(endings)
        self.spool.sync(self._clock.mono_us(), at_once=True)

    def write_down(self, endings: Iterable[Ending]) -> None:
        """These may take a while. Done once for each, however often it is said."""
        for ending in endings:
            if ending.outcome is not None:
                self._keep(ending.claim, ending.outcome, ending.pid)

    # The loop.

    def tick(self) -> float:
        now = self._clock.mono_us()
        if self._sent_at is not None and now - self._sent_at >= LATE_US and self._turn.acquire(blocking=False):
            try:
                if self._sent_at is not None:
                    self._hear()
            finally:
                self._turn.release()
        self.spool.sync(now)
        return LOOK_SECONDS if self._held else IDLE_SECONDS

    def _hear(self) -> None:
        self.write_down(self._endings)
        for news in self._crew.collect():
            self._early.append(news)
            if isinstance(news, Finished | Died):
                self._keep_told(news.outcomes)

    def _keep_told(self, outcomes: Iterable[Told]) -> None:
        for _, seq, fence, outcome in outcomes:
            claim, slot = self._held.get((seq, fence), (None, None))
            if claim is not None and slot is not None:
                self._keep(claim, outcome, slot.pid)

    def _keep(self, claim: Claim, outcome: Outcome, pid: int | None) -> None:
        if outcome.error is None or outcome.error.code != WORKER_STOPPED:  # that one has not ended by itself
            self.spool.add(claim, outcome, pid)
