"""Whether a worker lives and whether it can work, for those who ask over HTTP.

Alive: its dispatcher turns, also while the store is away; and as long as it has not begun to. Ready: it has recovered
what others left, is not stopping, has not been without its store for longer than half a minute, and that store is the
one it was.
"""

from dataclasses import dataclass
from typing import Protocol

from everbeat.clock import Clock
from everbeat.report.log import Reporter
from everbeat.run.mandate import Mandate

HUNG_US = 10_000_000
AWAY_SECONDS = 30.0


class Turning(Protocol):
    """What is asked of a dispatcher."""

    turns: int
    mandate: Mandate

    @property
    def store_away_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Answer:
    is_good: bool
    says: str


class Health:
    def __init__(self, clock: Clock, reporter: Reporter) -> None:
        self._clock = clock
        self._reporter = reporter
        self._dispatcher: Turning | None = None
        self._turns = -1
        self._turned_at = 0

    def begin(self, dispatcher: Turning) -> None:
        """A life is ready to work."""
        self._dispatcher, self._turns = dispatcher, -1

    def end(self) -> None:
        """It is over; another one may follow."""
        self._dispatcher = None

    def live(self) -> Answer:
        dispatcher, now = self._dispatcher, self._clock.mono_us()
        if dispatcher is None:
            return Answer(True, "starting")
        if dispatcher.turns != self._turns:
            self._turns, self._turned_at = dispatcher.turns, now
        if now - self._turned_at < HUNG_US:
            return Answer(True, "alive")
        return Answer(False, f"the dispatcher has not turned for {(now - self._turned_at) / 1e6:.0f}s")

    def ready(self) -> Answer:
        dispatcher, away = self._dispatcher, self.store_away_for
        if dispatcher is None:
            return Answer(False, "not ready: starting or recovering")
        if dispatcher.mandate.is_draining:
            return Answer(False, "not ready: stopping")
        if dispatcher.mandate.is_displaced:
            return Answer(False, "not ready: the store is not the one it was; see the log")
        if away > AWAY_SECONDS:
            return Answer(False, f"not ready: the store has been away for {away:.0f}s")
        return Answer(True, "ready")

    @property
    def store_away_for(self) -> float:
        """Seconds; 0 if it is there."""
        away_us = self._dispatcher.store_away_us if self._dispatcher else 0
        return max(self._reporter.store_away_for, away_us / 1e6)
