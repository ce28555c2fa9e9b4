"""`Maintenance` on a PostgreSQL database: its tables. Copies are made with PostgreSQL's own tools."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from everbeat.store import schema as steps
from everbeat.store.postgres import migrate
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.site import PostgresSite
from everbeat.store.upkeep import Backup, CopyRefused, Restored, Schema

BACKUP = (
    "a PostgreSQL store is copied with PostgreSQL's own tools, while it is used: "
    "pg_dump --format=custom --table='*.everbeat_*' --file=PATH DATABASE. See docs/postgresql.md"
)
RESTORE = (
    "a PostgreSQL store is restored with PostgreSQL's own tools, after all workers were stopped: "
    "pg_restore --clean --if-exists --dbname=DATABASE PATH. See docs/postgresql.md"
)


class PostgresMaintenance(PostgresSite):
    def __init__(self, url: str, schema: str | None, *, patience: float) -> None:
        super().__init__(url, schema)
        self._patience = patience

    def schema(self) -> Schema:
        with self._database() as database:
            return steps.compared(self.location, migrate.found_in(database))

    def migration(self) -> str:
        return migrate.sql(self.schema().found)

    def migrate(self) -> Schema:
        before = self.schema()
        with self._database() as database:
            if before.found is None:
                migrate.create(database)
                return before
            return steps.compared(self.location, migrate.upgrade(database))

    def back_up(self, path: Path, *, progress: Callable[[int, int], None]) -> Backup:
        raise CopyRefused(BACKUP)

    def check_backup(self, path: Path) -> None:
        raise CopyRefused(RESTORE)

    def restore(self, path: Path, *, actor: str, progress: Callable[[int, int], None]) -> Restored:
        raise CopyRefused(RESTORE)

    @contextmanager
    def _database(self) -> Iterator[PostgresDatabase]:
        database = PostgresDatabase(self._url, schema=self._schema, clock=None, patience=self._patience)
        with closing(database):
            yield database
