"""A queue in front of SQLite's write lock.

SQLite's own busy handler sleeps up to 100 ms between tries, so a process that sleeps never wins against one that
commits back to back: a starved heartbeat would be a worker falsely declared dead.

Who is inside holds a flock. Who waits says so by a lock on a byte of the same file, and sleeps until its bell is rung:
each byte has a bell, a FIFO beside the file. Who leaves asks the kernel for the first of those locks, which is that of
whoever has waited longest, and rings there. Nobody is rung twice for one turn, or wakes up for somebody else's. The
kernel takes all of these locks from the dead; a bell may be lost with the process that it woke, so everybody looks from
time to time.

The turnstile is for fairness only; correctness is SQLite's. It is therefore waited for at most a second and then
bypassed, so that a frozen holder stops nobody (PROTOCOL 16), and bypassed at once for as long as that wait goes
unanswered. Checkpoint and migration never bypass it.

Things that do not work: a timed flock does not exist, and polling LOCK_NB brings back the starvation. A thread that
blocks in flock on our behalf: whoever is next wakes up twice, and four processes that send store a quarter less. One
bell for all, with EPOLLEXCLUSIVE: it wakes whoever has registered first, and others wait for a quarter of a second.
Trying again for about as long as a commit takes, before going to sleep: a quarter less; and even if only those try that
have met nobody for a while, a task reaches an idle worker half a millisecond later (2.55 for 2.05): who tries slows
down who commits.
"""

import fcntl
import os
import secrets
import select
import struct
import time
from contextlib import suppress
from pathlib import Path

from everbeat import private
from everbeat.store.sqlite import side

PATIENCE = 1.0
LOOK_SECONDS = 0.02
"""After so long whoever waits looks by itself."""
BELLS = 32
"""Two that wait at the same one both wake up."""
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, pid
_ANYBODY = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, BELLS, 0)


class Turnstile:
    """One per connection: its locks belong to the open file, so connections of one process queue up as well. Used by
    one thread at a time."""

    def __init__(self, path: Path, *, like: Path) -> None:
        self.path = path
        self._like = like
        self._fd: int | None = None
        self._mine = secrets.randbelow(BELLS)
        """The bell that it waits at."""
        self._bells: dict[int, int] = {}
        """Those that are open."""
        self._is_unanswered = False
        """The last wait was given up, and its turn has not come since."""
        self.is_held = False

    def enter(self, patience: float = PATIENCE) -> bool:
        """Wait for the turn. False: it did not come in time, go on without it."""
        fd = self._open()
        self.is_held = _try(fd) or (not self._is_unanswered and self._wait(fd, patience))
        self._is_unanswered = not self.is_held
        return self.is_held

    def insist(self, patience: float) -> bool:
        """Wait for the turn without ever going on without it. False: do not go on."""
        self._is_unanswered = False
        return self.enter(patience)

    def leave(self) -> None:
        """Also after an interrupt that came before anybody knew that the turn was ours."""
        if self._fd is None:
            return
        self.is_held = False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        kind, _, bell, _, _ = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _ANYBODY))
        if kind != fcntl.F_UNLCK:
            self._ring(bell)

    def close(self) -> None:
        """Let go of everything. It opens again at the next use."""
        self.is_held = False
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        while self._bells:
            os.close(self._bells.popitem()[1])

    def start_afresh(self) -> None:
        """In the child of a fork: the locks are the parent's, only copies of the descriptors are ours."""
        self.close()

    def _open(self) -> int:
        if self._fd is None:
            side.make_directory(self.path.parent, like=self._like)
            self._fd = side.open_file(self.path, like=self._like)
        return self._fd

    def _wait(self, fd: int, patience: float) -> bool:
        give_up = time.monotonic() + patience
        rings = select.poll()
        with suppress(OSError):
            rings.register(self._bell(self._mine), select.POLLIN)
        _note(fd, fcntl.F_RDLCK, self._mine)
        try:
            while not _try(fd):
                left = give_up - time.monotonic()
                if left <= 0:
                    return False
                for bell, _ in rings.poll(min(left, LOOK_SECONDS) * 1000):
                    with suppress(BlockingIOError):
                        os.read(bell, 4096)
            return True
        finally:
            _note(fd, fcntl.F_UNLCK, self._mine)

    def _ring(self, number: int) -> None:
        """Who is not woken looks by itself."""
        with suppress(OSError):
            os.write(self._bell(number), b"!")

    def _bell(self, number: int) -> int:
        if number not in self._bells:
            path = self.path.with_name(f"{self.path.name}.{number}")
            with suppress(FileExistsError):
                os.mkfifo(path, 0o600)
                os.chmod(path, path.parent.stat().st_mode & 0o660)
            self._bells[number] = private.open_pipe(path, os.O_RDWR)
        return self._bells[number]


def _note(fd: int, kind: int, bell: int) -> None:
    """Whether somebody waits at this one."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, bell, 1, 0))


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
