"""A queue in front of SQLite's write lock.

SQLite's own busy handler sleeps up to 100 ms between tries, so a process that sleeps never wins against one that
commits back to back: a starved heartbeat would be a worker falsely declared dead. flock waiters are served in order.

The turnstile is for fairness only; correctness is SQLite's. It is therefore waited for at most a second and then
bypassed, so that a frozen holder stops nobody (PROTOCOL 16), and bypassed at once for as long as that wait goes
unanswered. Checkpoint and migration never bypass it.

Things that do not work: a timed flock does not exist, and polling LOCK_NB brings back the starvation. So when the
turnstile is taken, a thread blocks in flock on our behalf and we wait for the thread. A new file for every wait that
was given up leaks a thread and a descriptor per second of a frozen holder; so a wait is never given up, only no longer
wanted, and whoever comes next finds it still in the queue. Trying again for about as long as a commit takes, before
that thread is asked: four processes that send store a quarter less; and even if only those try that have met nobody
for a while, a task reaches an idle worker half a millisecond later (2.55 for 2.05): who tries slows down who commits.
"""

import fcntl
import os
import threading
import time
from pathlib import Path

from everbeat.store.sqlite import side

PATIENCE = 1.0
IDLE_SECONDS = 10.0
"""After so long without contention the waiting thread ends."""


class Turnstile:
    """One per connection: flock belongs to the open file, so connections of one process queue up as well.

    Used by one thread at a time; only the waiter is shared with its thread.
    """

    def __init__(self, path: Path, *, like: Path) -> None:
        self.path = path
        self._like = like
        self._fd: int | None = None
        self._waiter: _Waiter | None = None
        self.is_held = False

    def enter(self, patience: float = PATIENCE) -> bool:
        """Wait for the turn. False: it did not come in time, go on without it."""
        return self._enter(patience, insist=False)

    def insist(self, patience: float) -> bool:
        """Wait for the turn without ever going on without it. False: do not go on."""
        return self._enter(patience, insist=True)

    def leave(self) -> None:
        if self.is_held and self._fd is not None:
            self.is_held = False
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of everything. It opens again at the next use."""
        self.is_held = False
        fd, self._fd = self._fd, None
        waiter, self._waiter = self._waiter, None
        if fd is not None and not (waiter and waiter.outlive()):
            os.close(fd)

    def start_afresh(self) -> None:
        """In the child of a fork: the lock and the thread are the parent's, only a copy of the descriptor is ours."""
        self.is_held = False
        fd, self._fd, self._waiter = self._fd, None, None
        if fd is not None:
            os.close(fd)

    def _enter(self, patience: float, *, insist: bool) -> bool:
        if self._fd is None:
            side.make_directory(self.path.parent, like=self._like)
            self._fd = side.open_file(self.path, like=self._like)
        if self._waiter is not None and self._waiter.is_queued:
            self.is_held = self._waiter.wait(patience if insist else 0)
            return self.is_held
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self._waiter is None:
                self._waiter = _Waiter(self._fd)
            self.is_held = self._waiter.wait(patience)
        else:
            self.is_held = True
        return self.is_held


class _Waiter:
    """Blocks in flock for us, in a thread. A daemon: it never keeps a process from exiting."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._queued = False
        self._wanted = False
        self._orphaned = False

    @property
    def is_queued(self) -> bool:
        """An earlier wait stands in the kernel's queue still."""
        with self._changed:
            return self._queued

    def wait(self, patience: float) -> bool:
        """True: the lock is ours. False: not in time; should it come later, it is let go at once."""
        give_up = time.monotonic() + patience
        with self._changed:
            self._wanted = True
            if not self._queued:
                self._queued = True
                self._wake()
            while self._queued and (left := give_up - time.monotonic()) > 0:
                self._changed.wait(left)
            self._wanted = False
            return not self._queued

    def outlive(self) -> bool:
        """The owner closes. True: the thread is in the queue, and will close the file when it comes out."""
        with self._changed:
            self._orphaned = True
            self._changed.notify_all()
            return self._queued

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="everbeat-turnstile", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while self._is_asked():
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            with self._changed:
                if not self._wanted:
                    # Explicitly: a child that was forked meanwhile holds a copy of this file, and with it the lock.
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
                if self._orphaned:
                    os.close(self._fd)
                    return
                self._queued = False
                self._changed.notify_all()

    def _is_asked(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._orphaned, IDLE_SECONDS)
            if not self._queued:
                self._thread = None
            return self._queued
