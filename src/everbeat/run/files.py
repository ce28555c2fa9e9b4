"""The files of one worker: its lock, which proves that it lives, and its journal, which says what it began.

Made before the worker enters the store (PROTOCOL 10). They go with it, unless somebody will need them: then they stay,
as the proof of its end and the record of what had begun.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from everbeat.errors import StoreUnavailable
from everbeat.run.journal import DEFAULT_ENTRIES, Journal
from everbeat.run.lockfile import WorkerLock
from everbeat.run.profile import Profile
from everbeat.run.slot import ASYNC_FRAMES


@dataclass(slots=True)
class Files:
    lock: WorkerLock
    journal: Journal
    stay: bool = False
    """Whether they are left when the worker goes."""

    @property
    def lost(self) -> list[str]:
        """The names under which nobody finds them any more."""
        return [str(own.path) for own in (self.lock, self.journal) if not _is_there(own.path, own.fd)]


@contextmanager
def files_of(profile: Profile, directory: Path) -> Iterator[Files]:
    try:
        files = _made(profile, directory)
    except OSError as error:
        raise StoreUnavailable(f"can not make the files of a worker in {directory}: {error.strerror}") from error
    try:
        yield files
    finally:
        files.journal.close(unlink=not files.stay)
        files.lock.close(unlink=not files.stay)


def _is_there(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except OSError:
        return False


def _made(profile: Profile, directory: Path) -> Files:
    lock = WorkerLock.create(directory, profile.worker_id)
    try:
        return Files(lock, _journal(profile, directory))
    except OSError:
        lock.close(unlink=True)
        raise


def _journal(profile: Profile, directory: Path) -> Journal:
    options = profile.options
    tasks = profile.async_slots + (ASYNC_FRAMES + 2 * options.processes) * options.frame_depth
    return Journal.create(
        directory,
        profile.worker_id,
        boot_id=profile.host.boot_id,
        slots=options.most_children,
        entries=max(DEFAULT_ENTRIES, 2 * tasks),  # some run, as many are being settled
    )
