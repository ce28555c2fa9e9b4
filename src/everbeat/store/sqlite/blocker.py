"""Who holds SQLite's write lock, or has a file open, as the kernel tells it.

In WAL mode a writer holds a POSIX lock on one byte of the -shm file, and /proc/locks names its process. So the holder
is known without any record of our own, also when it is a stranger (a forgotten sqlite3 shell), and nothing has to be
opened: only the inode is asked for, because closing a descriptor of these files would drop locks (PROTOCOL 11).
"""

import os
from dataclasses import dataclass
from pathlib import Path

WRITE_BYTE = 120
LOOKS = 3
"""The table is read page by page: a line is passed over when others before it go away meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    pid: int
    state: str
    """The letter of /proc: "T" for a stopped process."""

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"

    def __str__(self) -> str:
        return f"pid {self.pid} (stopped)" if self.is_stopped else f"pid {self.pid}"


def find_blocker(database: Path) -> Blocker | None:
    """The process that holds the write lock now; None if nobody does or the kernel does not say."""
    return _find(f"{database}-shm", "POSIX", WRITE_BYTE)


def find_holder(turnstile: Path) -> Blocker | None:
    """The process that stands in the turnstile now: nobody moves the log or changes tables beside it."""
    return _find(turnstile, "FLOCK", 0)


def _find(file: str | Path, kind: str, byte: int) -> Blocker | None:
    try:
        found = os.stat(file)
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        tables = (Path("/proc/locks").read_text() for _ in range(LOOKS))
        pid = next((pid for table in tables if (pid := _holder(table, place, kind, byte))), None)
    except OSError:
        return None
    return None if pid is None else Blocker(pid=pid, state=_state_of(pid))


def _holder(table: str, place: str, kind: str, byte: int) -> int | None:
    for line in table.splitlines():
        words = line.split()
        if "->" in words or words[1] != kind or words[3] != "WRITE" or words[5] != place:
            continue
        end = byte if words[7] == "EOF" else int(words[7])
        if int(words[6]) <= byte <= end and int(words[4]) > 0:  # no pid: it lives in another namespace
            return int(words[4])
    return None


def users_of(path: Path) -> list[int]:
    """The processes that have a file open, as far as this user may see them; this one is not counted."""
    wanted = os.stat(path)
    found: set[int] = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            opened = os.stat(link)
        except OSError:
            continue
        if (opened.st_dev, opened.st_ino) == (wanted.st_dev, wanted.st_ino):
            found.add(int(link.parts[2]))
    return sorted(found - {os.getpid()})


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "?"
