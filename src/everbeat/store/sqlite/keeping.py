"""The part of `SQLiteStore` that looks after the records themselves: retention, and the telling of events."""

from collections.abc import Mapping

from everbeat.model.retention import Bite, Cut, Kept
from everbeat.store.sqlite.connection import Database
from everbeat.store.verbs import living, retaining

JANITOR = "janitor"


class Keeping:
    database: Database
    _boot_id: str

    def retention_is_due(self, *, every_us: int) -> bool:
        with self.database.read() as tx:
            return retaining.is_due(tx, every_us=every_us)

    def retain(self, cut: Cut, *, worker_id: str, lease_us: int) -> Bite | None:
        with self.database.write() as tx:
            if not living.take_role(tx, JANITOR, worker_id, boot_id=self._boot_id, lease_us=lease_us):
                return None
            return retaining.bite(tx, cut)

    def retention_done(self, deleted: Mapping[Kept, int]) -> None:
        with self.database.write() as tx:
            retaining.done(tx, deleted)
