"""What every part of a SQL store stands on: transactions, and the bells that are rung after them."""

from collections.abc import Iterable

from everbeat.errors import StoreUnavailable
from everbeat.model.recovery import Adopted, Settled, Settlement, Verdict
from everbeat.model.state import target
from everbeat.model.task import Claim
from everbeat.store.bells import Bells
from everbeat.store.transaction import Database, Transaction
from everbeat.store.verbs import living


class Base:
    database: Database
    bells: Bells

    @property
    def location(self) -> str:
        """Said by what knows the place of the store, which comes before this in every store."""
        raise NotImplementedError

    def _who_serves(self) -> dict[str, living.Served]:
        """Asked by bells, which never fail: whoever is not known is woken for everything."""
        try:
            with self.database.read() as tx:
                return dict(living.served(tx))
        except StoreUnavailable:
            return {}

    def _announce_ends(self, tx: Transaction, ends: Iterable[tuple[Settlement, Claim, Verdict]]) -> None:
        """Wake those who wait for what has ended, and workers for what is ready again."""
        done: list[str] = [*tx.done]
        ready = tx.wakes
        for settlement, claim, verdict in ends:
            if isinstance(settlement, (Settled, Adopted)):
                if isinstance(settlement, Adopted) or target(settlement.change or verdict.change).is_terminal:
                    done.append(claim.id)
                else:
                    ready.add((claim.queue, claim.name))
        if done:
            self.bells.ring_waiters(done)
        if ready:
            self.bells.ring_workers(ready)
