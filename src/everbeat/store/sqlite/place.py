"""Where a SQLite store can not be: in a place that another machine, or another view of this one, shares (PROTOCOL 17).

The write-ahead log needs memory that all its users share, and locks that all of them see. A network file system offers
neither. A file that is mounted alone into a container has its log and its side files in another directory than the same
file outside: each side would work with a log of its own.
"""

import os
import re
from pathlib import Path

from everbeat import filesystem
from everbeat.errors import StoreUnavailable

MOUNTS = Path("/proc/self/mountinfo")


def refuse_shared_place(path: Path) -> None:
    """Raise with the reason. The file need not be there, and is not opened."""
    network = filesystem.NETWORK.get(filesystem.type_of(path.parent) or 0)
    if network is not None:
        raise StoreUnavailable(
            f"{path} is on a network file system ({network}), which a SQLite store can not be on: other machines would "
            f"not see its locks. Put it on a local disk, or use PostgreSQL."
        )
    if is_mounted_alone(Path(os.path.realpath(path)), MOUNTS.read_text() if MOUNTS.exists() else ""):
        raise StoreUnavailable(
            f"{path} is a file that was mounted by itself, so its write-ahead log is not that of the file outside. "
            f"Mount the directory that it is in instead."
        )


def is_there(path: Path) -> bool:
    """Whether the file exists. Raises if this user may not know."""
    try:
        return path.exists()
    except OSError as error:
        raise StoreUnavailable(f"can not look for {path}: {error.strerror}. Nothing was changed.") from error


def is_mounted_alone(path: Path, mounts: str) -> bool:
    """Whether this very file is a mount point, by the lines of /proc/self/mountinfo."""
    return any(_plain(line.split(" ")[4]) == str(path) for line in mounts.splitlines())


def _plain(escaped: str) -> str:
    """Spaces and the like are written as \\ooo there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)
