"""The directory beside the database, `<db>.d`: turnstile, wake-ups, lock files, journals.

As private as the database itself (PROTOCOL 40): whoever may use that file may use these, nobody else; never followed
through a link.
"""

import os
import stat
from pathlib import Path

from everbeat.errors import StoreUnavailable

OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_of(database: Path) -> Path:
    return database.with_name(database.name + ".d")


def make_directory(path: Path, *, like: Path) -> Path:
    """Create it with the rights of the database `like`, or check that nobody else owns the one that is there."""
    try:
        model = like.stat()
        if not path.exists():
            _create_directory(path, model)
        found = path.lstat()
    except OSError as error:
        raise StoreUnavailable(f"can not use the directory {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), model.st_uid, 0):
        raise StoreUnavailable(f"{path} is not a directory of this user; remove it or use another database path")
    return path


def open_file(path: Path, *, like: Path) -> int:
    try:
        fd = os.open(path, OPEN, 0o600)
        if os.fstat(fd).st_uid == os.geteuid():
            _share(fd, like.stat(), directory=False)
    except OSError as error:
        raise StoreUnavailable(f"can not open {path}: {error.strerror}") from error
    return fd


def _create_directory(path: Path, model: os.stat_result) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _share(fd, model, directory=True)
    finally:
        os.close(fd)


def _share(fd: int, model: os.stat_result, *, directory: bool) -> None:
    """The group of a database that is shared with a group may use its side files; others never."""
    group = model.st_mode & 0o060
    if not group:
        return
    if os.fstat(fd).st_gid != model.st_gid:
        os.fchown(fd, -1, model.st_gid)
    os.fchmod(fd, 0o700 | group | group >> 2 & 0o010 if directory else 0o600 | group)
