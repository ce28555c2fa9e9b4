"""The part of `SQLiteStore` that start-up asks about the file itself: is it whole, is its log in order. PostgreSQL
answers the same questions by its own means."""

from everbeat.model.integrity import Checkpoint, IntegrityResult
from everbeat.store.sqlite import integrity, wal
from everbeat.store.sqlite.connection import SQLiteDatabase


class Checks:
    database: SQLiteDatabase

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
