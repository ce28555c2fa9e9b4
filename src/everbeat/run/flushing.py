"""One transaction per turn: settle what ended, start what is ready, claim what fits; then hand it out.

A store that can not be written changes nothing here: outcomes stay, processes go on, the flush is tried again (P8). A
row that it refuses is left out the second time, and so is what ended in a workflow if somebody's lock is in the way:
that is tried apart (PROTOCOL 35). After a flush that may have been committed without an answer, the store is asked what
is ours before anything is claimed (PROTOCOL 7).
"""

from dataclasses import replace

from everbeat.crashpoint import crash_point
from everbeat.errors import StoreUnavailable
from everbeat.run.books import Books
from everbeat.run.deadline import HeldLease
from everbeat.run.floor import Floor
from everbeat.run.keeper import Keeper
from everbeat.run.mandate import Mandate
from everbeat.run.meter import Meter
from everbeat.run.pacing import Pacing
from everbeat.run.tally import Tally
from everbeat.store.interface import Store
from everbeat.store.messages import Flush, Flushed
from everbeat.store.transaction import Locked, RowRefused


class Flushing:
    def __init__(
        self, *, store: Store, keeper: Keeper, books: Books, floor: Floor, pacing: Pacing, tally: Tally,
        lease: HeldLease, mandate: Mandate,
    ) -> None:  # fmt: skip
        self._store = store
        self._keeper = keeper
        self._books = books
        self._floor = floor
        self._pacing = pacing
        self._tally = tally
        self._lease = lease
        self._mandate = mandate
        self.meter: Meter | None = None

    @property
    def has_news(self) -> bool:
        return self._books.has_news or bool(self._floor.slots.to_start())

    def flush(self, now: int) -> None:
        if self._mandate.is_displaced:
            self._keeper.keep(self._books.endings)
            return
        if self._books.are_in_doubt and not self._ask_what_is_ours(now):
            return
        if self._books.apart:
            self._keeper.write_down(self._books.apart.endings)
            self._try_apart(now)
        if self._pacing.may_ask(now) and not self._mandate.is_displaced:
            self._turn_page(now)

    def _try_apart(self, now: int) -> None:
        """One workflow that somebody had locked, if it is its time."""
        workflow_id = self._books.apart.due(now)
        if workflow_id is None:
            return
        wanted = self._books.page_apart(workflow_id)
        try:
            flushed = self._write(wanted, now)
        except Locked as error:
            self._books.postpone(workflow_id, now, str(error))
            return
        if flushed is None:
            return
        self._books.turn_page_apart(workflow_id, flushed)
        self._count(wanted, flushed)
        self._pacing.wake()  # what follows from it is ready, and its tasks are wanted again
        self._mandate.is_fenced |= not flushed.alive

    def _turn_page(self, now: int) -> None:
        starts, room = self._floor.slots.to_start(), self._floor.room(now)
        is_offer = not room.is_empty
        if not (self._books.has_news or starts or (is_offer and self._pacing.is_hungry)):
            self._pacing.rest()
            self._tally.away_since = None
            return
        sent_at = self._lease.now_us()
        try:
            wanted = self._books.page(starts, room)
            flushed = self._write(wanted, now)
        except Locked as error:
            if self._books.set_apart(now):
                self._turn_page(now)
            else:
                self._failed(error, now)
            return
        if flushed is None:
            return
        if any(claim.exclusive_key is not None for claim in (*flushed.started, *flushed.claims)):
            self._lease.answered(sent_at)
        self._pacing.answered()
        self._books.turn_page(flushed)
        self._count(wanted, flushed)
        if flushed.alive:
            self._pacing.looked(room, flushed, now, was_offered=is_offer)
            self._floor.launch(starts, flushed.started, flushed.claims)
        else:
            self._mandate.is_fenced = True

    def _write(self, wanted: Flush, now: int) -> Flushed | None:
        """None: nothing was written. Raises `Locked`."""
        flushed: Flushed | None = None
        self._keeper.begin(wanted.endings, self._books.holdings, now)
        try:
            try:
                flushed = self._store.flush(wanted)
            except RowRefused:
                room = None if wanted.room is None else self._floor.room(now)
                flushed = self._store.flush(replace(wanted, room=room, row_by_row=True))
        except Locked:
            raise
        except StoreUnavailable as error:
            self._books.are_in_doubt |= error.maybe_stored
            self._failed(error, now)
        finally:
            self._keeper.end(is_stored=flushed is not None and not flushed.is_older)
        if flushed is None or flushed.is_older:
            self._mandate.is_displaced |= flushed is not None
            return None
        return flushed

    def _ask_what_is_ours(self, now: int) -> bool:
        """Before anything else is claimed (PROTOCOL 7). False: the store does not say."""
        try:
            owned = self._store.surely_owned_by(self._books.worker_id)
            self._books.forget(self._store.hear_again(self._books.events))
            self._books.give_back_unknown(owned)
        except StoreUnavailable as error:
            self._failed(error, now)
        return not self._books.are_in_doubt

    def _failed(self, error: StoreUnavailable, now: int) -> None:
        self._keeper.is_away = True
        self._tally.failed_to_write(str(error), now)
        self._pacing.failed(now)

    def _count(self, wanted: Flush, flushed: Flushed) -> None:
        self._tally.count(wanted.endings, flushed.settlements)
        if self.meter is not None:
            self.meter.flushed(len(wanted.endings) + len(flushed.started) + len(flushed.claims))
        if wanted.endings:
            crash_point("finish.after_commit")
