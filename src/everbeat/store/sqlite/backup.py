"""Copies of a store: made while it is used, and put back in its place.

A backup is what one moment saw, copied page by page by SQLite itself, so senders and workers go on meanwhile. It has
passed the integrity check before it gets its name, it has the rights of the database, and nothing is overwritten.

A restore never lets a half-done store be seen: the backup is first made ready in a file of its own, then written over
the store in one transaction. Processes that have the store open see the old one or the new one. Only a file that SQLite
can not read any more is renamed instead, after it is known that nobody has it open.

What was CLAIMED or RUNNING in the copy is an orphan there: its owners are dead, and their lock files and journals have
gone on since and prove nothing about it. A new store id keeps spools of the old store out (PROTOCOL 8, 30).

Things that do not work: copying or renaming the file of a store that is in use. A process that closes it later deletes
the log by its name, which is then the log of the new store (PROTOCOL 11).
"""

import fcntl
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from everbeat.crashpoint import crash_point
from everbeat.errors import StoreUnavailable
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.store import schema
from everbeat.store.sqlite import migrate
from everbeat.store.sqlite.blocker import users_of
from everbeat.store.sqlite.connection import SIDE_FILES, SQLiteDatabase, connect
from everbeat.store.sqlite.transaction import COPY_PAGES, Progress
from everbeat.store.upkeep import Backup, CopyRefused, Restored
from everbeat.store.verbs.records import ADD_EVENT, event_row

PATIENCE = 30.0
TRIES = 3
PART = ".part"
"""How the name of a copy ends that is not finished."""
JUST_MADE_SECONDS = 1.0
UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
UNREADABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

GET_META = "SELECT value FROM everbeat_meta WHERE key = ?"
OWNED = "SELECT count(*) FROM everbeat_tasks WHERE status IN ('CLAIMED', 'RUNNING')"

# Their host is forgotten too: a lock file or journal of the same worker tells of what came after the backup.
BURY = """
UPDATE everbeat_workers
   SET status = CASE status WHEN 'alive' THEN 'dead' ELSE status END, ended_at = coalesce(ended_at, :now),
       end_cause = coalesce(end_cause, 'restore'), end_reason = coalesce(end_reason, :reason),
       boot_id = 'restored', clock_id = 'restored', lock_path = ''"""
FORGET = ("DELETE FROM everbeat_roles", "DELETE FROM everbeat_health")


# -- backup -----------------------------------------------------------------------------------------------------------


def back_up(database: SQLiteDatabase, path: Path, *, progress: Progress) -> Backup:
    began = time.monotonic()
    path = path.absolute()
    if os.path.lexists(path):
        raise CopyRefused(f"{path} exists already. Nothing was overwritten: give another name, or remove it.")
    with _part_of(path) as part:
        _copy(database, part, progress)
        crash_point("backup.copied")
        problems = _problems(part)
        final = path.with_name(path.name + ".damaged") if problems else path
        _finish(part, final, like=database.path.stat())
        crash_point("backup.named")
    if problems:
        raise CopyRefused(
            f"the store is damaged, and so is its copy: {problems[0]} ({len(problems)} in all). The copy was kept as "
            f"{final}; do not restore it. Restore an earlier backup (everbeat db restore PATH), or save what can still "
            f"be read (sqlite3 {final} .recover)."
        )
    return Backup(
        store=f"sqlite:///{database.path}", path=str(path), bytes=path.stat().st_size,
        duration=timedelta(seconds=time.monotonic() - began),
    )  # fmt: skip


def _copy(database: SQLiteDatabase, part: Path, progress: Progress) -> None:
    with closing(connect(part, timeout=PATIENCE)) as target:
        target.execute("PRAGMA journal_mode=OFF")  # nobody else knows this file, and half of one is thrown away
        target.execute("PRAGMA synchronous=OFF")
        with database.read(steady=True) as tx:
            tx.one("SELECT count(*) FROM sqlite_master")  # the moment that is copied
            with _writing(part):
                tx.copy_into(target, progress)


def _problems(path: Path) -> list[str]:
    """What the integrity check finds; the check itself may fail, which is a finding too."""
    with closing(connect(path, timeout=PATIENCE)) as connection:
        try:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        except sqlite3.DatabaseError as error:
            return [str(error)]
    return [] if found == ["ok"] else found


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """Trouble with the place of the copy is told as such: it is not the store's."""
    try:
        yield
    except sqlite3.Error as error:
        if (error.sqlite_errorcode & 0xFF) in UNWRITABLE:
            raise CopyRefused(f"can not write to {part.parent}: {error}. The store is as it was.") from error
        raise


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """An empty file beside the wanted one, private until it is finished; gone if anything goes wrong. Locked while it
    is needed: one that is not was left by somebody who was killed, and goes, too."""
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}{PART}")
    try:
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CopyRefused(f"can not write to {part.parent}: {error.strerror}") from error
    try:
        _lock(fd)
        for old in _parts_of(path):
            if old != part:
                _remove_if_left(old)
        yield part
    except sqlite3.Error as error:
        raise CopyRefused(f"{path}: {error}. Nothing was changed.") from error
    finally:
        _remove(part)
        os.close(fd)


def _parts_of(path: Path) -> list[Path]:
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(PART)}")
    return [path.with_name(found) for found in os.listdir(path.parent) if name.fullmatch(found)]


def _remove_if_left(part: Path) -> None:
    """Not if it was made only now: whoever made it locks it at once."""
    try:
        fd = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if time.time() - os.fstat(fd).st_mtime > JUST_MADE_SECONDS and _lock(fd):
            _remove(part)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """False: somebody has it, or this file system has no such locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(part: Path) -> None:
    for suffix in ("", *SIDE_FILES):
        part.with_name(part.name + suffix).unlink(missing_ok=True)


def _finish(part: Path, path: Path, *, like: os.stat_result) -> None:
    """Give it its rights and its name, on the disk before this returns. Refuses if the name is taken meanwhile."""
    try:
        fd = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_gid != like.st_gid and os.geteuid() in (0, like.st_uid):
                os.fchown(fd, -1, like.st_gid)
            os.fchmod(fd, like.st_mode & 0o666)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.link(part, path)
        _sync_directory(path.parent)
    except FileExistsError as error:
        raise CopyRefused(
            f"{path} exists already. Nothing was overwritten: give another name, or remove it."
        ) from error
    except OSError as error:
        raise CopyRefused(f"can not write {path}: {error.strerror}") from error


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- restore ----------------------------------------------------------------------------------------------------------


def restore(database: SQLiteDatabase, path: Path, *, actor: str, file_mode: int, progress: Progress) -> Restored:
    """Put the backup in the place of the store. The caller knows that no live worker uses it."""
    path = path.absolute()
    exists = database.path.exists()
    if exists and path.exists() and database.path.samefile(path):
        raise CopyRefused(f"{path} is the store itself; give the path of a backup")
    check(path)
    if exists and is_readable(database.path) and _is_foreign(database.path):
        raise CopyRefused(f"{database.path} is a database of something else. Nothing was changed.")
    with _part_of(database.path) as part:
        _fetch(path, part, progress)
        problems = _problems(part)
        if problems:
            raise CopyRefused(f"{path} is damaged: {problems[0]} ({len(problems)} in all). The store is as it was.")
        store_id, orphans = _make_ready(part, path, actor)
        kept: Path | None = None
        if not exists:
            _finish(part, database.path, like=_with_mode(part.stat(), file_mode))
        elif is_readable(database.path):
            _compare_page_sizes(part, database.path)
            kept = _write_over(database, part, progress)
        else:
            kept = _rename_away(database.path, part)
    return Restored(
        store=f"sqlite:///{database.path}", path=str(path), store_id=store_id, orphans=orphans,
        kept=None if kept is None else str(kept),
    )  # fmt: skip


def is_readable(path: Path) -> bool:
    """Whether SQLite takes the file for a database. One that is only locked is."""
    try:
        with closing(connect(path, timeout=PATIENCE)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if (error.sqlite_errorcode & 0xFF) in UNREADABLE:
            return False
        raise StoreUnavailable(f"{path}: {error}. Nothing was changed.") from error
    return True


def check(path: Path) -> None:
    """Raises if there is no backup, or none that this program can read."""
    if not path.is_file():
        raise CopyRefused(f"there is no backup at {path}")
    with _reading(path) as source:
        found = migrate.found_on(source, path)
    if found is None:
        raise CopyRefused(f"{path} is not a backup of an Everbeat store. The store is as it was.")
    if found.version > schema.newest():
        schema.check(str(path), found)


def _fetch(path: Path, part: Path, progress: Progress) -> None:
    with _reading(path) as source, closing(connect(part, timeout=PATIENCE)) as target, _writing(part):
        source.backup(target, pages=COPY_PAGES, progress=lambda _, left, total: progress(left, total), sleep=0)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(connect(path, timeout=PATIENCE, read_only=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise CopyRefused(f"{path} can not be read: {error}. The store is as it was.") from error


def _is_foreign(path: Path) -> bool:
    """Somebody else's tables, and none of ours."""
    with closing(connect(path, timeout=PATIENCE)) as connection:
        has_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,)
        return has_tables and connection.execute(migrate.IS_OURS).fetchone() is None


def _make_ready(part: Path, origin: Path, actor: str) -> tuple[str, int]:
    """A store of its own that nobody owns anything in; its id and the number of its orphans."""
    now, store_id = time.time_ns() // 1000, str(uuid.uuid4())
    with closing(connect(part, timeout=PATIENCE)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        found = migrate.found_on(connection, part)
        migrate.apply_missing(connection, found.version if found else 0)
        (before,) = connection.execute(GET_META, ("store_id",)).fetchone()
        connection.execute(schema.SET_META, ("store_id", store_id))
        connection.execute(BURY, {"now": now, "reason": "the store was restored from a backup"})
        for statement in FORGET:
            connection.execute(statement)
        facts = {"backup": str(origin), "actor": actor, "previous_store_id": before}
        connection.execute(ADD_EVENT, event_row(now, Event(name=event.STORE_RESTORED, facts=facts)))
        (orphans,) = connection.execute(OWNED).fetchone()
        connection.execute("COMMIT")
    return store_id, orphans


def _compare_page_sizes(part: Path, path: Path) -> None:
    """SQLite can not write pages of one size over a log of another."""
    sizes = []
    for file in (part, path):
        with closing(connect(file, timeout=PATIENCE)) as connection:
            sizes.append(connection.execute("PRAGMA page_size").fetchone()[0])
    if sizes[0] != sizes[1]:
        raise CopyRefused(
            f"{path} has pages of {sizes[1]} bytes, the backup of {sizes[0]}. Nothing was changed: stop every process "
            f"that uses the store, move it away with its log, and repeat."
        )


def _write_over(database: SQLiteDatabase, part: Path, progress: Progress) -> Path:
    """In one transaction of the store itself. What was there is copied before, up to the very last commit."""
    for _ in range(TRIES):
        before = database.data_version()
        kept = _keep(database, progress)
        crash_point("restore.kept")
        try:
            with closing(connect(part, timeout=PATIENCE)) as source, database.alone() as target:
                half = source.execute("PRAGMA page_count").fetchone()[0] // 2
                source.backup(target, pages=min(COPY_PAGES, half), progress=_unless_changed(database, before), sleep=0)
        except _Changed:
            kept.unlink()
        else:
            crash_point("restore.after_commit")
            database.checkpoint("TRUNCATE")
            return kept
    raise CopyRefused(
        f"{database.path} is being written to all the time. Nothing was changed: stop its senders and repeat."
    )


class _Changed(Exception):
    """Somebody has written to the store since it was copied."""


def _unless_changed(database: SQLiteDatabase, before: int) -> Callable[[int, int, int], None]:
    """Asked once, after the first pages, which are never all of them: the copying holds the store's write lock by then,
    and has committed nothing."""
    is_asked = False

    def progress(status: int, left: int, total: int) -> None:
        nonlocal is_asked
        if not is_asked and database.data_version() != before:
            raise _Changed
        is_asked = True

    return progress


def _keep(database: SQLiteDatabase, progress: Progress) -> Path:
    kept = _kept_name(database.path)
    with _part_of(kept) as part:
        _copy(database, part, progress)
        _finish(part, kept, like=database.path.stat())
    return kept


def _rename_away(path: Path, part: Path) -> Path:
    """The log goes first: a file without its log is only old, a log beside another file destroys that."""
    users = users_of(path)
    if users:
        pids = ", ".join(map(str, users))
        raise CopyRefused(f"{path} is damaged and open in process {pids}. Nothing was changed: stop it and repeat.")
    kept, like = _kept_name(path), path.stat()
    for suffix in (*SIDE_FILES, ""):
        side = path.with_name(path.name + suffix)
        if side.exists():
            os.rename(side, kept.with_name(kept.name + suffix))
    _finish(part, path, like=like)
    return kept


def _kept_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}")


def _with_mode(found: os.stat_result, mode: int) -> os.stat_result:
    return os.stat_result((mode, *found[1:]))
