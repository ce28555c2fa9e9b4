"""The part of a SQL store that looks after the records themselves: measures, retention, the telling of events, and what
in them makes no sense."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from everbeat.model.event import EventInfo
from everbeat.model.retention import Bite, Cut, Kept
from everbeat.store.messages import Measures
from everbeat.store.sql.base import Base
from everbeat.store.verbs import doubting, living, measuring, retaining, telling

JANITOR = "janitor"


class Keeping(Base):
    def measure(self) -> Measures:
        with self.database.read(steady=True) as tx:
            return measuring.measure(tx)

    def retention_is_due(self, *, every_us: int) -> bool:
        with self.database.read() as tx:
            return retaining.is_due(tx, every_us=every_us)

    def retain(self, cut: Cut, *, worker_id: str, lease_us: int) -> Bite | None:
        with self.database.write() as tx:
            if not living.take_role(tx, JANITOR, worker_id, lease_us=lease_us):
                return None
            return retaining.bite(tx, cut)

    def retention_done(self, deleted: Mapping[Kept, int]) -> None:
        with self.database.write() as tx:
            retaining.done(tx, deleted)

    def subscribe(self, application: str, names: Iterable[str]) -> None:
        with self.database.write() as tx:
            telling.subscribe(tx, application, names)

    def undelivered(self) -> int:
        with self.database.read() as tx:
            return telling.waiting(tx)

    def take_events(
        self, application: str, names: Collection[str], *, worker_id: str, limit: int, lease_us: int
    ) -> list[EventInfo]:
        with self.database.read() as tx:
            if not telling.is_due(tx, application, names):
                return []
        with self.database.write() as tx:
            return telling.take(tx, application, names, worker_id=worker_id, limit=limit, lease_us=lease_us)

    def keep_events(self, application: str, events: Sequence[int], *, worker_id: str, lease_us: int) -> None:
        with self.database.write() as tx:
            telling.keep(tx, application, events, worker_id=worker_id, lease_us=lease_us)

    def settle_events(
        self,
        application: str,
        *,
        delivered: Sequence[int] = (),
        failed: Sequence[tuple[int, str]] = (),
        returned: Sequence[int] = (),
    ) -> None:
        with self.database.write() as tx:
            telling.settle(tx, application, delivered, failed, returned)

    def contradictions(self) -> list[str]:
        with self.database.read() as tx:
            return list(doubting.contradictions(tx))

    def oddities(self, *, scan: bool) -> list[str]:
        with self.database.read() as tx:
            return list(doubting.oddities(tx, scan=scan))

    def is_behind(self, marks: frozenset[tuple[int, int]]) -> bool:
        with self.database.read() as tx:
            return doubting.is_behind(tx, marks)

    def note_degraded(self, reason: str | None) -> None:
        if self.degraded() != reason:
            with self.database.write() as tx:
                doubting.note_degraded(tx, reason)

    def degraded(self) -> str | None:
        with self.database.read() as tx:
            return doubting.degraded(tx)
