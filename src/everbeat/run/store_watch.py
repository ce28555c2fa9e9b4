"""Watches whether the store is still the one that this worker entered (PROTOCOL 8).

If it is not, nothing more is claimed from it or written to it, what ends is kept in the spool, and that is said: it is
for a person to decide. When the right store is back, work goes on.
"""

from everbeat.decide.standing import doubt
from everbeat.model import event
from everbeat.report.log import Reporter
from everbeat.run.dispatcher import Dispatcher
from everbeat.store.interface import Store


class StoreWatch:
    def __init__(
        self, *, worker_id: str, store: Store, store_id: str, dispatcher: Dispatcher, reporter: Reporter
    ) -> None:
        self.store_id = store_id
        self._worker_id = worker_id
        self._store = store
        self._dispatcher = dispatcher
        self._reporter = reporter
        self._told: str | None = None
        self.is_outgrown = False
        """The store has, or is about to get, tables that this program can not work with (PROTOCOL 37)."""

    def is_same_store(self) -> bool:
        """Asks the store, and says it once if the answer has changed."""
        # Read before the store is asked: that may know of a later beat by then, never of less.
        seen_beat = self._dispatcher.books.seen_beat
        found = self._store.standing(self._worker_id)
        self.is_outgrown = found.is_too_new
        why = doubt(found, store_id=self.store_id, seen_beat=seen_beat)
        self._dispatcher.mandate.is_displaced = why is not None
        if why is not None and self._told is None:
            spool = self._dispatcher.keeper.spool
            advice = "put the right store back, or stop this worker and start it again"
            self._reporter.warn(
                event.STORE_REPLACED, store=self._store.location, reason=why, kept_in=str(spool.path), advice=advice
            )
        elif why is None and self._told is not None:
            self._reporter.say(event.STORE_RECOGNISED, store=self._store.location)
        self._told = why
        return why is None
