"""What a worker did so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from everbeat.model.recovery import AllStored, Settlement, Superseded, Unsettled
from everbeat.model.state import Change
from everbeat.store.messages import Ending


@dataclass(slots=True)
class Tally:
    """For its log, its state and its tests."""

    completed: int = 0
    failed: int = 0
    refused: int = 0
    store_errors: int = 0
    last_error: str | None = None
    largest_flush: int = 0
    away_since: int | None = None
    """Since when the store takes nothing from us."""
    is_doubted: bool = False
    """Somebody else of this worker has written since then, and the dispatcher has not tried again."""
    fails_alone: bool = False
    """It has, in vain."""

    def failed_to_write(self, error: str, now: int) -> None:
        self.store_errors += 1
        self.away_since = self.away_since or now
        self.last_error = error
        self.fails_alone |= self.is_doubted
        self.is_doubted = False

    def others_wrote(self) -> None:
        """The last try of the dispatcher is no news any more. The next is, also if it fails as well."""
        self.is_doubted = self.away_since is not None

    def store_answered(self) -> None:
        self.away_since, self.is_doubted, self.fails_alone = None, False, False

    def count(self, endings: Sequence[Ending], settlements: Sequence[Settlement]) -> None:
        self.store_answered()
        self.largest_flush = max(self.largest_flush, len(endings))
        if isinstance(settlements, AllStored):
            self.completed += len(endings)
            return
        for ending, settlement in zip(endings, settlements, strict=True):
            change = ending.verdict.change
            if isinstance(settlement, Superseded):
                self.refused += ending.outcome is not None
            elif not isinstance(settlement, Unsettled):
                self.completed += change is Change.COMPLETE
                self.failed += change is Change.FAIL
