"""Open files that only their rightful owner may have made, and believe what was opened rather than its name.

Whoever can write into a directory can plant a link, a pipe, or a second name of somebody's precious file there. So:
never follow a link, never block, and ask the open descriptor for type, owner and number of names (PROTOCOL 40).
"""

import errno
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
ROOT = 0
KINDS: dict[Callable[[int], bool], str] = {stat.S_ISREG: "a regular file", stat.S_ISFIFO: "a pipe"}


def open_file(path: Path | str, access: int, *, owners: Collection[int] | None = None) -> int:
    """A regular file with one name. `owners` besides us and root; None: whoever made it."""
    return _open(path, access, stat.S_ISREG, owners)


def open_pipe(path: Path | str, access: int) -> int:
    """Of anybody who may write into the directory: it is only rung, never read."""
    return _open(path, access, stat.S_ISFIFO, None)


def create_file(path: Path | str) -> int:
    """New, ours, 0600. FileExistsError if there is anything of that name."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o600)


def close_directory(path: Path | str) -> None:
    """See to it that nobody but its owner, who must be us, can use it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"it belongs to another user ({found.st_uid})", str(path))
        if found.st_mode & 0o077:
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def is_ours(found: os.stat_result, owners: Collection[int] = ()) -> bool:
    return found.st_uid in (os.geteuid(), ROOT, *owners)


def _open(path: Path | str, access: int, is_kind: Callable[[int], bool], owners: Collection[int] | None) -> int:
    fd = os.open(path, access | FLAGS)
    try:
        found = os.fstat(fd)
        if not is_kind(found.st_mode):
            raise PermissionError(errno.EPERM, f"it is not {KINDS[is_kind]}", str(path))
        if found.st_nlink > 1:
            raise PermissionError(errno.EPERM, "the file has another name, too", str(path))
        if owners is not None and not is_ours(found, owners):
            raise PermissionError(errno.EPERM, f"it belongs to another user ({found.st_uid})", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd
