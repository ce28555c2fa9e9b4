"""One SQLite file, opened for one store: the writer, the reader, and the rules for touching it.

* WAL, synchronous=FULL unless told otherwise, automatic checkpoints off.
* A write is one short BEGIN IMMEDIATE transaction behind the turnstile. BEGIN waits at most 100 ms for a writer that
  bypassed us, then queues up again; after `patience` it gives up and names who is in the way.
* The WAL is checkpointed by whoever makes it long, under the turnstile it still holds, with RESTART, which takes the
  write lock too: no writer and checkpointer overlap, which SQLite before 3.51.3 may answer with corruption. RESTART
  and not TRUNCATE: commits into a reused WAL cost half of those into a growing one. It comes after the commit and can
  not fail it.
* The file is touched through SQLite only (PROTOCOL 11), and never created here: a file that was removed is an error.
* Connections are opened at the first use and put away before a fork, so neither side inherits one.
* Those to a file that is damaged are never closed: closing the last one would write the log into it.

Things that do not work: leaving a connection open across a fork and opening another one in the child. SQLite counts
locks per process and file in memory, which the fork copies: the child believes to hold locks that only the parent has,
and once the parent is gone somebody else deletes the WAL that the child still writes to.
"""

import ctypes
import os
import shlex
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from everbeat.clock import Clock
from everbeat.crashpoint import crash_point
from everbeat.errors import StoreDamaged, StoreUnavailable
from everbeat.model.event import Event
from everbeat.store.sqlite import side
from everbeat.store.sqlite.blocker import find_blocker, find_holder
from everbeat.store.sqlite.transaction import DEFINITE, REFUSED, SQLiteTransaction
from everbeat.store.sqlite.turnstile import PATIENCE, Turnstile
from everbeat.store.transaction import TurnTaken

BEGIN_WAIT_MS = 100
CHECKPOINT_ROWS = 64_000
"""Some 16 MB of log, which are moved in 20 ms. Pages that were changed several times are moved once: more often, and a
drain loses a tenth."""
CHECKPOINT_COMMITS = 250
LONG_WAL = 64 * 1024 * 1024
LONG_WAL_PAUSE = 1.0
LOOK_SECONDS = 0.05
"""How often the size of the log is asked for. Of a file that was asked about Linux notes the time of the next change
more finely, and a commit takes 50 of its 200 microseconds longer; no disk makes a log much longer in this time."""
FORK_PATIENCE = 5.0
SIDE_FILES = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by these endings of its name."""
TEXT = partial(str, encoding="utf-8", errors="replace")
"""SQLite takes any bytes as text. A row that is not UTF-8 must not keep anybody from reading the others."""


def connect(path: Path, *, timeout: float, read_only: bool = False) -> sqlite3.Connection:
    """A connection to a file that is there. `read_only` leaves no trace beside a file that has no log, so it also works
    on a disk that can not be written."""
    mode = "rw"
    if read_only:
        mode = "ro" if os.path.exists(f"{path}-wal") else "ro&immutable=1"
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=timeout,
        cached_statements=256,
    )  # fmt: skip
    connection.text_factory = TEXT
    return connection


class SQLiteDatabase:
    def __init__(self, path: Path, *, durability: str, clock: Clock, patience: float) -> None:
        self.path = path
        self.clock = clock
        self.patience = patience
        self.turnstile = Turnstile(side.directory_of(path) / "turnstile", like=path)
        self._durability = durability
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._is_writing = False
        self._is_closed = False
        self._file: tuple[int, int] | None = None
        self._put_away = False
        self._pid = os.getpid()
        self._changes = 0
        self._commits = 0
        self._checkpointed_at = 0.0
        self._looked_at = 0.0
        self.when_forked: Callable[[], None] | None = None
        """Called in the child of a fork."""
        self.when_told: Callable[[Sequence[Event]], None] | None = None
        """Called with what a transaction announced, after its commit."""
        _OPEN.add(self)

    # -- transactions -----------------------------------------------------------------------------------------------

    @contextmanager
    def write(
        self, point: str | None = None, *, wipe: bool = False, hurries: bool = False
    ) -> Iterator[SQLiteTransaction]:
        """A transaction: committed at the end of the block, rolled back if it raises. `point` names crash points.
        `wipe`: what it deletes or blanks is overwritten in the file, now and by every later write of this connection.
        `hurries` has no meaning: there is one lock, and nobody gets past it.
        """
        told: list[Event] = []
        with self._writing:
            writer = self._take_writer()
            try:
                self._is_writing = True
                if wipe:
                    writer.execute("PRAGMA secure_delete=ON").fetchone()
                self._begin(writer)
                tx = SQLiteTransaction(writer, self.clock)
                yield tx
                if point:
                    crash_point(f"{point}.before_commit")
                self._commit(writer)
                if point:
                    crash_point(f"{point}.after_commit")
                told = tx.events
                self._checkpoint_if_long(writer)
            except sqlite3.Error as error:
                raise self._translate(error) from error
            finally:
                try:
                    self._end(writer)
                except BaseException:  # an interrupt
                    self._end(writer)
                    raise
        if told and self.when_told is not None:
            self.when_told(told)  # holding nothing: who listens may be slow

    @contextmanager
    def read(self, *, steady: bool = False) -> Iterator[SQLiteTransaction]:
        """Read on a connection of its own, which no writer blocks. `steady`: all of it sees one moment."""
        with self._reading:
            try:
                reader = self._reader = self._reader or self._open(query_only=True)
                if not steady or reader.in_transaction:
                    yield SQLiteTransaction(reader, self.clock)
                    return
                try:
                    reader.execute("BEGIN")
                    yield SQLiteTransaction(reader, self.clock)
                finally:
                    reader.rollback()
            except sqlite3.Error as error:
                raise self._translate(error) from error

    @contextmanager
    def alone(self) -> Iterator[sqlite3.Connection]:
        """The writer behind the turnstile, outside a transaction, for schema work. Never bypasses."""
        with self._writing:
            writer = self._take_writer()
            try:
                self._is_writing = True
                if not self.turnstile.insist(self.patience):
                    raise TurnTaken(self._why_blocked(), may_pass=True)
                writer.execute(f"PRAGMA busy_timeout={round(self.patience * 1000)}")
                yield writer
            except sqlite3.Error as error:
                raise self._translate(error) from error
            finally:
                try:
                    self._end(writer)
                except BaseException:  # an interrupt
                    self._end(writer)
                    raise
                if self._writer is writer:
                    writer.execute(f"PRAGMA busy_timeout={BEGIN_WAIT_MS}")

    refused: tuple[type[Exception], ...] = REFUSED

    @property
    def is_same_file(self) -> bool:
        """Whether the file that was opened first is still the one of this name. Asked of the name only."""
        return self._file is None or self._file == _file_at(self.path)

    def data_version(self) -> int:
        """Changes whenever another connection has committed."""
        with self.read() as tx:
            row = tx.one("PRAGMA data_version")
        return int(row[0]) if row else 0

    def checkpoint(self, mode: str = "RESTART") -> tuple[bool, int]:
        """Move the WAL into the database: whether it was complete, and how many frames."""
        with self.alone() as connection:
            busy, _, moved = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return not busy, moved

    def empty_log(self) -> None:
        self.checkpoint("TRUNCATE")

    def condemn(self) -> None:
        """It is damaged: whatever is done from now on in this process, nothing moves the log into it."""
        _DAMAGED.add(self.path)

    def close(self) -> None:
        with self._writing, self._reading:
            self._is_closed = True
            self._close_connections()
            self.turnstile.close()
        _OPEN.discard(self)

    # -- forks ------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Put the connections away, so that the child inherits none. Waits for what other threads are doing."""
        if not self._writing.acquire(timeout=FORK_PATIENCE):
            return
        if not self._reading.acquire(timeout=FORK_PATIENCE):
            self._writing.release()
            return
        self._put_away = not self._is_busy
        if self._put_away:
            self._close_connections()
        else:  # this very thread forks in the middle of a transaction
            self._reading.release()
            self._writing.release()

    def after_fork_in_parent(self) -> None:
        if self._put_away:
            self._put_away = False
            self._reading.release()
            self._writing.release()

    def after_fork_in_child(self) -> None:
        """Once per child, whoever comes first: our own handler, or an owner that forgets the store."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self.turnstile.start_afresh()
        self._writing, self._reading = threading.RLock(), threading.RLock()
        if not self._put_away:
            self._abandon_connections()
        self._put_away = self._is_writing = False
        if self.when_forked is not None:
            self.when_forked()

    @property
    def _is_busy(self) -> bool:
        return self._is_writing or (self._reader is not None and self._reader.in_transaction)

    def _abandon_connections(self) -> None:
        """A transaction was open for too long to wait for its end. Nothing may touch its connection here, not even a
        finalizer, and this process can not open the file safely any more."""
        for connection in (self._writer, self._reader):
            if connection is not None:
                _keep_for_ever(connection)
                _UNSAFE.add(self.path)
        self._writer = self._reader = None

    # -- within -----------------------------------------------------------------------------------------------------

    def _take_writer(self) -> sqlite3.Connection:
        if self._is_writing:  # a signal handler, in the middle of a transaction of the thread it interrupted
            raise RuntimeError(f"{self.path} is being written by this thread already")
        self._writer = self._writer or self._open(query_only=False)
        return self._writer

    def _begin(self, writer: sqlite3.Connection) -> None:
        give_up = time.monotonic() + self.patience
        while True:
            self.turnstile.enter(min(PATIENCE, self.patience))
            try:
                writer.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                self.turnstile.leave()
                if not _is_busy(error):
                    raise
                if time.monotonic() >= give_up:
                    raise StoreUnavailable(self._why_blocked(), may_pass=True) from error
            else:
                return

    def _commit(self, writer: sqlite3.Connection) -> None:
        try:
            writer.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_IOERR:  # written but not known to be synced
                raise StoreUnavailable(f"{self.path}: {error} while committing.", maybe_stored=True) from error
            raise

    def _end(self, writer: sqlite3.Connection) -> None:
        """Whatever happened: no transaction and no turnstile is kept."""
        self._is_writing = False
        try:
            if writer.in_transaction:
                writer.rollback()
        except sqlite3.Error:
            # The disk is in trouble. A connection that can not roll back is of no use; closing it ends its locks.
            self._writer = None
            self._close_connection(writer)
        finally:
            self.turnstile.leave()

    def _checkpoint_if_long(self, writer: sqlite3.Connection) -> None:
        """After the commit, so nothing that goes wrong here may reach the caller."""
        self._commits += 1
        is_long = self._is_wal_long()
        is_due = self._commits >= CHECKPOINT_COMMITS or writer.total_changes - self._changes >= CHECKPOINT_ROWS
        if not self.turnstile.is_held or not (is_due or is_long) or self.path in _DAMAGED:
            return
        self._changes, self._commits = writer.total_changes, 0
        self._checkpointed_at = time.monotonic()
        try:
            writer.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if is_long else 'RESTART'})").fetchone()
        except sqlite3.Error:
            return

    def _is_wal_long(self) -> bool:
        """By its size, for few rows with large arguments. A reader may keep it long: not tried at every commit."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS or now - self._checkpointed_at < LONG_WAL_PAUSE:
            return False
        self._looked_at = now
        try:
            return os.stat(f"{self.path}-wal").st_size > LONG_WAL
        except OSError:
            return False

    def _open(self, *, query_only: bool) -> sqlite3.Connection:
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: this store was closed.")
        if self.path in _UNSAFE:
            raise StoreUnavailable(
                f"{self.path}: this process was forked in the middle of a transaction and can not use the store. "
                f"Fork earlier, or start a new process instead."
            )
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(self.path, timeout=self.patience if query_only else BEGIN_WAIT_MS / 1000)
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA synchronous={'FULL' if self._durability == 'full' else 'NORMAL'}")
            connection.execute("PRAGMA cache_size=-16000")
            if query_only:
                connection.execute("PRAGMA query_only=1")
            self._file = self._file or _file_at(self.path)
        except sqlite3.Error as error:
            translated = self._translate(error)
            if connection is not None:
                self._close_connection(connection)
            raise translated from error
        return connection

    def _close_connections(self) -> None:
        for connection in (self._writer, self._reader):
            if connection is not None:
                self._close_connection(connection)
        self._writer = self._reader = None
        self._changes = 0

    def _close_connection(self, connection: sqlite3.Connection) -> None:
        if self.path in _DAMAGED:
            _keep_for_ever(connection)
        else:
            connection.close()

    def _translate(self, error: sqlite3.Error) -> Exception:
        if isinstance(error, DEFINITE):
            return error
        if _is_busy(error):
            return StoreUnavailable(self._why_blocked(), may_pass=True)
        if self._is_damage(error):
            self.condemn()
            url = shlex.quote(f"sqlite:///{self.path}")
            return StoreDamaged(
                f"{self.path} is damaged: {error}. Nothing was changed by this step. Stop what uses it, then run: "
                f"everbeat queue recover --db {url}. It repairs what can be repaired, and says what to do otherwise"
            )
        return StoreUnavailable(f"{self.path}: {error}{self._why_closed(error)}. Nothing was changed by this step.")

    def _is_damage(self, error: sqlite3.Error) -> bool:
        """A file that is not a database was damaged only if it was ever ours."""
        if _code(error) == sqlite3.SQLITE_NOTADB:
            return side.directory_of(self.path).exists()
        return _code(error) == sqlite3.SQLITE_CORRUPT

    def _why_closed(self, error: sqlite3.Error) -> str:
        """SQLite says only that it could not open the file."""
        if _code(error) != sqlite3.SQLITE_CANTOPEN:
            return ""
        if os.path.isdir(self.path):
            return ", it is a directory"
        return "" if os.access(self.path, os.R_OK | os.W_OK) else ", this user may not read and write it"

    def _why_blocked(self) -> str:
        blocker = find_blocker(self.path) or find_holder(self.turnstile.path)
        who = f"store blocked by {blocker}" if blocker else "store blocked"
        return f"{self.path}: {who}; could not write for {self.patience:.0f}s. Nothing was changed by this step."


_OPEN: "weakref.WeakSet[SQLiteDatabase]" = weakref.WeakSet()
_UNSAFE: set[Path] = set()
"""Files that this process inherited in the middle of a transaction of its parent."""
_DAMAGED: set[Path] = set()
"""Files that SQLite could not read as it had written them."""


def _keep_for_ever(connection: sqlite3.Connection) -> None:
    """Nobody may close it, not even a finalizer. Its locks end with this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def _code(error: sqlite3.Error) -> int:
    """The primary result code, without the extension."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _before_fork() -> None:
    for database in tuple(_OPEN):
        database.before_fork()


def _after_fork_in_parent() -> None:
    for database in tuple(_OPEN):
        database.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for database in tuple(_OPEN):
        database.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
