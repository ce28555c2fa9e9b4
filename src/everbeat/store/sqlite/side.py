"""The directory beside the database, `<db>.d`: turnstile, wake-ups, lock files, journals.

As private as the database itself (PROTOCOL 40): whoever may use that file may use these, nobody else; never followed
through a link.
"""

import os
import stat
from pathlib import Path

from everbeat import private
from everbeat.errors import StoreUnavailable

OTHERS, GROUP = 0o007, 0o070
NOT_OURS = "is not a directory of this user; remove it or use another database path"


def directory_of(database: Path) -> Path:
    return database.with_name(database.name + ".d")


def make_directory(path: Path, *, like: Path) -> Path:
    """Create it with the rights of the database `like`, or check that nobody else can have made the one that is there.
    One of ours that is open to others is closed to them."""
    try:
        problem = _make_directory(path, like.stat())
    except OSError as error:
        raise StoreUnavailable(f"can not use the directory {path}: {error.strerror}") from error
    if problem is not None:
        raise StoreUnavailable(f"{path} {problem}")
    return path


def open_file(path: Path, *, like: Path) -> int:
    """The file, made with the rights of the database if it is not there. A database that a group may write is used by
    several, each of whom may have been the first."""
    try:
        model = like.stat()
        try:
            fd = private.create_file(path)
        except FileExistsError:
            owners = None if model.st_mode & stat.S_IWGRP else (model.st_uid,)
            return private.open_file(path, os.O_RDWR, owners=owners)
        _share(fd, model, directory=False)
    except OSError as error:
        raise StoreUnavailable(f"can not open {path}: {error.strerror}") from error
    return fd


def _make_directory(path: Path, model: os.stat_result) -> str | None:
    """What is wrong with the one that is there."""
    try:
        path.mkdir(mode=0o700)
        is_new = True
    except FileExistsError:
        is_new = False
    if not stat.S_ISDIR(path.lstat().st_mode):
        return NOT_OURS
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | private.FLAGS)
    try:
        if is_new:
            _share(fd, model, directory=True)
        return _directory_problem(fd, model)
    finally:
        os.close(fd)


def _directory_problem(fd: int, model: os.stat_result) -> str | None:
    found = os.fstat(fd)
    if not private.is_ours(found, (model.st_uid,)):
        return NOT_OURS
    too_much = found.st_mode & (OTHERS if model.st_mode & 0o060 else OTHERS | GROUP)
    if too_much and found.st_uid == os.geteuid():
        os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~too_much)
    elif too_much & 0o022:
        return "can be written by others; its owner must close it: chmod go-rwx"
    return None


def _share(fd: int, model: os.stat_result, *, directory: bool) -> None:
    """The group of a database that is shared with a group may use its side files; others never."""
    group = model.st_mode & 0o060
    if not group:
        return
    if os.fstat(fd).st_gid != model.st_gid:
        os.fchown(fd, -1, model.st_gid)
    os.fchmod(fd, 0o700 | group | group >> 2 & 0o010 if directory else 0o600 | group)
