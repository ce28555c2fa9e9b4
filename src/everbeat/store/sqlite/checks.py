"""The part of `SQLiteStore` that start-up asks about the file itself: is it whole, is its log in order, what is in it
that should not be. PostgreSQL answers the same questions by its own means."""

from everbeat.model.integrity import Checkpoint, IntegrityResult
from everbeat.store.sqlite import integrity, wal
from everbeat.store.sqlite.connection import Database
from everbeat.store.verbs import doubting


class Checks:
    database: Database

    def check_integrity(self, *, budget: float) -> IntegrityResult:
        return integrity.check(self.database.path, budget=budget)

    def repair(self, found: IntegrityResult) -> IntegrityResult:
        return integrity.repair(self.database, found)

    def restore_log(self) -> str | None:
        return wal.restore_mode(self.database)

    def log_bytes(self) -> int:
        return wal.bytes_in(self.database.path)

    def checkpoint(self) -> Checkpoint:
        return wal.checkpoint(self.database)

    def inconsistencies(self, *, scan: bool) -> list[str]:
        with self.database.read() as tx:
            return list(doubting.inconsistencies(tx, scan=scan))

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
