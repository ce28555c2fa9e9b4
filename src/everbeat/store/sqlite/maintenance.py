"""`Maintenance` on one SQLite file: schema, backup, restore. Never creates a file unless it is asked to migrate."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from everbeat.clock import SystemClock
from everbeat.errors import StoreUnavailable
from everbeat.store import schema
from everbeat.store.sqlite import backup, migrate, side
from everbeat.store.sqlite.connection import SQLiteDatabase
from everbeat.store.sqlite.place import is_there
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.upkeep import Backup, Restored, Schema


class SQLiteMaintenance:
    def __init__(self, path: Path, *, durability: str, file_mode: int, patience: float) -> None:
        self._path = path.absolute()
        self._durability = durability
        self._file_mode = file_mode
        self._patience = patience

    @property
    def location(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def state_directory(self) -> Path:
        return side.directory_of(self._path)

    def schema(self) -> Schema:
        with self._existing() as database:
            return schema.compared(self.location, migrate.found_in(database))

    def migration(self) -> str:
        return migrate.sql(self.schema().found)

    def migrate(self) -> Schema:
        before = self.schema() if is_there(self._path) else schema.compared(self.location, None)
        if before.found is None:
            SQLiteStore(
                self._path, durability=self._durability, file_mode=self._file_mode, patience=self._patience
            ).close()
            return before
        with self._existing() as database:
            return schema.compared(self.location, migrate.upgrade(database))

    def back_up(self, path: Path, *, progress: Callable[[int, int], None]) -> Backup:
        with self._existing() as database:
            return backup.back_up(database, path, progress=progress)

    def check_backup(self, path: Path) -> None:
        backup.check(path.absolute())

    def restore(self, path: Path, *, actor: str, progress: Callable[[int, int], None]) -> Restored:
        with self._database() as database:
            return backup.restore(database, path, actor=actor, file_mode=self._file_mode, progress=progress)

    @contextmanager
    def _existing(self) -> Iterator[SQLiteDatabase]:
        if not is_there(self._path):
            raise StoreUnavailable(f"there is no store at {self._path}")
        with self._database() as database:
            yield database

    @contextmanager
    def _database(self) -> Iterator[SQLiteDatabase]:
        database = SQLiteDatabase(
            self._path, durability=self._durability, clock=SystemClock(), patience=self._patience
        )  # fmt: skip
        with closing(database):
            yield database
