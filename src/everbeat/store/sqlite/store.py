"""`Store` on one SQLite file."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everbeat.clock import Clock, SystemClock
from everbeat.errors import StoreUnavailable
from everbeat.model.flow import NewWorkflow
from everbeat.model.task import Enqueued, NewTask
from everbeat.store import schema
from everbeat.store.messages import Sent
from everbeat.store.sql.group import GroupCommit
from everbeat.store.sql.store import SQLStore
from everbeat.store.sqlite import borrowed, migrate, side
from everbeat.store.sqlite.bells import FifoBells
from everbeat.store.sqlite.checks import Checks
from everbeat.store.sqlite.connection import SQLiteDatabase
from everbeat.store.sqlite.place import is_there, refuse_shared_place
from everbeat.store.sqlite.site import SQLiteSite


class SQLiteStore(SQLiteSite, Checks, SQLStore):
    database: SQLiteDatabase
    flushes_at_once = 1

    def __init__(
        self,
        path: str | Path,
        *,
        durability: str = "full",
        file_mode: int = 0o600,
        create: bool = True,
        clock: Clock | None = None,
        patience: float = 30.0,
    ) -> None:
        path = Path(path).absolute()
        super().__init__(path)
        refuse_shared_place(path)
        _prepare_file(path, file_mode, create=create)
        self.database = SQLiteDatabase(path, durability=durability, clock=clock or SystemClock(), patience=patience)
        self.database.when_forked = self._start_afresh
        try:
            self._open_schema(create=create)
        except BaseException:
            self.database.close()
            raise
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Also in the child of a fork, where these locks may be held by threads that exist in the parent only."""
        path = self.database.path
        self.bells = FifoBells(side.directory_of(path), like=path, who_serves=self._who_serves)
        self._sending = GroupCommit(self.database, self._ring_for, rings_early=True)

    def _open_schema(self, *, create: bool) -> None:
        found = migrate.found_in(self.database)
        if found is None and create:
            found = migrate.create(self.database)
        if found is None:
            raise StoreUnavailable(f"{self.database.path} is not an Everbeat store. Nothing was changed.")
        schema.check(str(self.database.path), found)

    @property
    def engine(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def close(self) -> None:
        self.bells.close()
        self.database.close()

    def forget(self) -> None:
        """In the child of a fork, for an owner that opens another store: nothing of the parent's is touched."""
        self.database.after_fork_in_child()
        self.close()

    def enqueue(self, tasks: Sequence[NewTask]) -> Sequence[Enqueued]:
        self._require_file()
        return super().enqueue(tasks)

    def start_workflow(self, flows: Sequence[NewWorkflow]) -> Enqueued:
        self._require_file()
        return super().start_workflow(flows)

    def _require_file(self) -> None:
        """What is sent to a file that has no name any more would be stored, and never found."""
        if not self.database.is_same_file:
            raise StoreUnavailable(
                f"{self.database.path} was moved away or removed, or another file is in its place. "
                f"Nothing was changed: put it back, or restart this process"
            )

    def enqueue_on(self, connection: Any, tasks: Sequence[NewTask]) -> Sent:
        return borrowed.enqueue_on(
            connection, tasks, database=self.database, store_id=self.store_id, clock=self.database.clock
        )

    def data_version(self) -> int:
        return self.database.data_version()


def _prepare_file(path: Path, mode: int, *, create: bool) -> None:
    """Make the file with its mode before SQLite opens it. It is given its name only after our own descriptor of it is
    closed: closing that one later would drop the locks of another thread's connection (PROTOCOL 11)."""
    if is_there(path):
        return
    if not create:
        raise StoreUnavailable(f"there is no store at {path}")
    if path.is_symlink():
        raise StoreUnavailable(
            f"{path} is a link to {os.readlink(path)}, where there is nothing. A store is not created through a link: "
            f"give the path that it is to have"
        )
    fresh = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)
            os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(f"can not create {path}: {error.strerror}") from error
