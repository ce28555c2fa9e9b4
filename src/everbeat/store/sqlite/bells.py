"""`Bells` between processes of one machine.

A listener owns a FIFO in a directory; whoever commits something of interest writes a byte into it. A bell may ring for
nothing and may be lost when its ringer is killed between commit and ring, so every listener also polls, slowly. For the
same reason ringing never fails: it comes after a commit that must not be reported as failed.

Two kinds, in directories of their own: `wake` for idle workers, named by worker id, and `done` for those who wait for
a task, named by a digest of its id so that only they are woken.

A byte says why: something may be ready, or somebody wants a run of this worker to end. When a FIFO is full of the first
the second is lost, and found by the poll.

A FIFO is opened before it is given its name, so a named one without a reader belongs to the dead and is removed by
whoever notices. A ringer never blocks: a full FIFO has been rung already. Who has waited will wait again: its FIFO is
kept under a name that nobody rings, and renamed the next time.

Things that do not work: inotify on the -wal fires before the commit is visible and loses the last wake-up; one FIFO
shared by all workers wakes one that can not run the task; opening every bell of the directory runs out of descriptors
when thousands wait; a new FIFO for every wait: ext4 gives no inode away again for minutes, and looks at each of those
that were deleted meanwhile to find another, which takes a millisecond of a core where hundreds were.
"""

import errno
import hashlib
import os
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Set
from contextlib import suppress
from pathlib import Path

from everbeat import private
from everbeat.errors import StoreUnavailable
from everbeat.store.bells import can_run
from everbeat.store.sqlite import side
from everbeat.store.transaction import Kind
from everbeat.store.verbs.living import Served

SETTLED_NS = 50_000_000
READY, STOP = b"!", b"s"
WAKE, DONE = "wake", "done"
MOST_SPARE = 16
NEW, SPARE = ".new-", ".spare-"
SERVED_PER_SECOND = 20
"""How often a sender asks who serves what, at most."""


class Bell:
    """The listener's end."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name
        hidden = directory / f"{NEW}{name}.{secrets.token_hex(4)}"
        self._fd = -1
        try:
            os.mkfifo(hidden, 0o600)
            os.chmod(hidden, directory.stat().st_mode & 0o660)
            self._fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.rename(hidden, self._path)
        except OSError as error:
            self.close()
            hidden.unlink(missing_ok=True)
            raise StoreUnavailable(f"can not make a wake-up in {directory}: {error.strerror}") from error

    def rename(self, name: str) -> None:
        path = self._path.with_name(name)
        os.rename(self._path, path)
        self._path = path

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> bool:
        """Whether somebody wants a run to end."""
        try:
            return STOP in os.read(self._fd, 65536)
        except BlockingIOError:
            return False

    def wait(self, timeout: float) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(timeout * 1000):
            self.clear()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(fd)


class SpareBell(Bell):
    """One that is kept for the next who waits."""

    def __init__(self, directory: Path, name: str, spare: "deque[SpareBell]") -> None:
        self._spare = spare
        super().__init__(directory, name)

    def close(self) -> None:
        if self._fd < 0 or len(self._spare) >= MOST_SPARE:
            super().close()
            return
        try:
            self.rename(f"{SPARE}{secrets.token_hex(6)}")
        except OSError:
            super().close()
        else:
            self._spare.append(self)

    def hang_again(self, name: str) -> bool:
        """What was rung for somebody else is not heard any more. False: it is gone."""
        self.clear()
        try:
            self.rename(name)
        except OSError:
            super().close()
            return False
        return True

    def take_away(self) -> None:
        super().close()


class Ringer:
    """The other end: knows who listens by watching the directory's time stamp, and keeps open what it has rung."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = -1
        self._names: set[str] = set()
        self._fds: dict[str, int] = {}

    def listeners(self) -> Set[str]:
        """The names of all bells, fresh."""
        try:
            stamp = os.stat(self._directory).st_mtime_ns
            if stamp != self._seen:
                self._look(stamp)
        except OSError:
            self._names = set()
        return self._names

    def ring(self, wanted: Callable[[str], bool], why: bytes = READY) -> None:
        self.ring_these([name for name in self.listeners() if wanted(name)], why)

    def ring_these(self, names: Iterable[str], why: bytes = READY) -> None:
        for name in names:
            if not self._write(name, why):
                self._write(name, why)  # what was kept open had ended; another may hang there by now

    def close(self) -> None:
        for name in list(self._fds):
            self._let_go(name)
        self._seen = -1

    def _look(self, stamp: int) -> None:
        self._names = {name for name in os.listdir(self._directory) if not name.startswith(".")}
        for name in self._fds.keys() - self._names:
            self._let_go(name)
        # A stamp is coarse: one that is still fresh may hide a bell that is hung up right now.
        self._seen = stamp if time.time_ns() - stamp > SETTLED_NS else -1

    def _write(self, name: str, why: bytes) -> bool:
        """False: what was kept open under this name has no listener any more."""
        was_open = name in self._fds
        try:
            if not was_open:
                self._fds[name] = private.open_pipe(self._directory / name, os.O_WRONLY)
            os.write(self._fds[name], why)
        except BlockingIOError:
            return True
        except OSError as error:
            self._let_go(name)
            if error.errno == errno.ENXIO:
                with suppress(OSError):
                    (self._directory / name).unlink()
            return not was_open
        return True

    def _let_go(self, name: str) -> None:
        fd = self._fds.pop(name, None)
        if fd is not None:
            os.close(fd)


class FifoBells:
    """`who_serves` asks the store what each worker can run; it is asked only while somebody unknown listens: a worker
    about to register, or declared dead. Until it is known, the stranger is woken for everything."""

    are_light = False

    def __init__(self, directory: Path, *, like: Path, who_serves: Callable[[], dict[str, Served]]) -> None:
        self._directory = directory
        self._like = like
        self._who_serves = who_serves
        self._ringing = threading.Lock()
        self._wake = Ringer(directory / WAKE)
        self._done = Ringer(directory / DONE)
        self._spare: deque[SpareBell] = deque()
        self._has_swept = False
        self._served: dict[str, Served] = {}
        self._served_at = 0.0

    def for_worker(self, worker_id: str) -> Bell:
        return Bell(self._made(WAKE), worker_id)

    def for_waiter(self, task_id: str) -> Bell:
        name = f"{digest(task_id)}.{os.urandom(4).hex()}"
        with suppress(IndexError):
            while not (bell := self._spare.pop()).hang_again(name):
                continue
            return bell
        directory = self._made(DONE)
        if not self._has_swept:
            self._has_swept = True
            _sweep(directory)
        return SpareBell(directory, name, self._spare)

    def ring_workers(self, kinds: set[Kind] | None) -> None:
        """A busy worker finds the task by itself."""
        with self._ringing:
            listeners = self._wake.listeners()
            if listeners - self._served.keys() and time.monotonic() - self._served_at > 1.0 / SERVED_PER_SECOND:
                self._served_at = time.monotonic()
                self._served = self._who_serves()
            self._wake.ring_these([name for name in listeners if can_run(self._served.get(name), kinds)])

    def ring_owners(self, workers: Collection[str]) -> None:
        with self._ringing:
            self._wake.ring(workers.__contains__, STOP)

    def ring_waiters(self, tasks: Collection[str]) -> None:
        with self._ringing:
            listeners = self._done.listeners()
            if listeners:
                ended = {digest(task_id) for task_id in tasks}
                self._done.ring_these([name for name in listeners if name.partition(".")[0] in ended])

    def close(self) -> None:
        with self._ringing:
            self._wake.close()
            self._done.close()
        with suppress(IndexError):
            while True:
                self._spare.pop().take_away()

    def _made(self, name: str) -> Path:
        side.make_directory(self._directory, like=self._like)
        return side.make_directory(self._directory / name, like=self._like)


def _sweep(directory: Path) -> None:
    """Remove what the dead had kept for their next wait."""
    for name in os.listdir(directory):
        if name.startswith(SPARE):
            try:
                os.close(private.open_pipe(directory / name, os.O_WRONLY))
            except OSError as error:
                if error.errno == errno.ENXIO:
                    with suppress(OSError):
                        os.unlink(directory / name)


def digest(task_id: str) -> str:
    return hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
