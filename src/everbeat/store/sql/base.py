"""What every part of a SQL store stands on: transactions, and the bells that are rung after them."""

from collections.abc import Collection, Iterable, Sequence

from everbeat.errors import StoreUnavailable
from everbeat.model.recovery import Adopted, AllStored, Settled, Settlement, Verdict
from everbeat.model.state import Change, target
from everbeat.model.task import Claim
from everbeat.store.bells import Bells
from everbeat.store.messages import Ending
from everbeat.store.transaction import Database, Kind, Transaction
from everbeat.store.verbs import living


class Base:
    database: Database
    bells: Bells

    @property
    def location(self) -> str:
        """Overridden by the site of each store, which comes first among its bases."""
        raise NotImplementedError

    def _who_serves(self) -> dict[str, living.Served]:
        """For bells, which must not fail: a worker that is missing here is woken for everything."""
        try:
            with self.database.read() as tx:
                return dict(living.served(tx))
        except StoreUnavailable:
            return {}

    def _note_ends(self, tx: Transaction, ends: Iterable[tuple[Settlement, Claim, Verdict]]) -> set[Kind]:
        """Note in the transaction which tasks have ended, so that those who wait for them can be woken with the commit.
        Returns the kinds of tasks that are ready again."""
        again: set[Kind] = set()
        for settlement, claim, verdict in ends:
            if verdict.change is Change.COMPLETE and type(settlement) is Settled:  # nearly all
                tx.done.add(claim.id)
            elif isinstance(settlement, (Settled, Adopted)):
                if isinstance(settlement, Adopted) or target(settlement.change or verdict.change).is_terminal:
                    tx.done.add(claim.id)
                else:
                    again.add((claim.queue, claim.name))
        return again

    def _note_settled(
        self, tx: Transaction, endings: Sequence[Ending], settlements: Sequence[Settlement]
    ) -> Collection[Kind]:
        """`_note_ends` for a flush, with a shortcut for the usual one: all of it are results, and all were stored."""
        if isinstance(settlements, AllStored):
            tx.done.update(settlements.ids)
            return ()
        ends = zip(settlements, endings, strict=bool(settlements))
        return self._note_ends(tx, ((one, ending.claim, ending.verdict) for one, ending in ends))

    def _tell(self, tx: Transaction, again: Collection[Kind] = ()) -> None:
        """After the commit: wake those who wait for what has ended, and workers for what is ready."""
        if tx.done:
            self.bells.ring_waiters(tx.done)
        if tx.wakes or again:
            self.bells.ring_workers({*tx.wakes, *again})
