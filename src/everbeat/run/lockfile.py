"""The lock files that prove a worker alive or gone (PROTOCOL 10). No other module opens them (PROTOCOL 11).

A worker holds a POSIX lock on byte 0 of its own file, each of its children on byte 1 + slot. The kernel frees a lock
with the process that holds it, whatever ended it. Fork does not inherit it, so nothing that a task starts can hold on.

Things that do not work: flock and OFD locks (a forked process keeps them), a look at the pid alone (reused, or another
pid namespace), a missing file as proof (containers may share the boot id but not the directory). And a POSIX lock is
dropped when *any* fd of that file is closed in the process that holds it: a process never probes its own file.
"""

import fcntl
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from everbeat import filesystem, private
from everbeat.model.worker import Host, LockIdentity

_MAX_CONTENT = 4096
WHOLE_FILE = -1
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, pid
SHARED = filesystem.NETWORK | filesystem.PERHAPS
_mine: set[tuple[int, int]] = set()
"""(device, inode) of the lock files that this process holds locks on."""
_seized: set[tuple[int, int]] = set()
"""Those among them whose workers are gone."""
_seizing = threading.Lock()


class Liveness(StrEnum):
    HELD = "held"  # somebody of this worker is alive
    FREE = "free"  # proven: the worker and all its children are gone
    SEIZED = "seized"  # the same, and somebody sees to what they left
    UNKNOWN = "unknown"  # nothing proven


GONE = (Liveness.FREE, Liveness.SEIZED)


def this_host() -> Host:
    """This kernel and this process."""
    pid = os.getpid()
    started = _start_ticks(pid)
    if started is None:
        raise RuntimeError("/proc is not mounted; Everbeat needs it to tell processes apart")
    return Host(
        name=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        pid=pid,
        pid_started=started,
        pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
    )


class WorkerLock:
    """A worker's own lock, held until `close` or the end of the process."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        """Its children are given it, too: its name may be gone by the time that one is made."""
        found = os.fstat(fd)
        self.identity = LockIdentity(path=str(path), device=found.st_dev, inode=found.st_ino)
        _mine.add((found.st_dev, found.st_ino))

    @staticmethod
    def path_of(directory: Path, worker_id: str) -> Path:
        return directory / f"worker-{worker_id.replace('/', '_')}.lock"

    @classmethod
    def create(cls, directory: Path, worker_id: str) -> Self:
        """Make the file and lock it. Do this before the worker's row is inserted."""
        path = cls.path_of(directory, worker_id)
        while True:
            fd = private.create_file(path)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)  # waits for somebody who took it for a leftover just now
                if _is_at(path, os.fstat(fd)):
                    os.write(fd, _content(worker_id, this_host()))
                    return cls(path, fd)
            except OSError:
                path.unlink(missing_ok=True)
                os.close(fd)
                raise
            os.close(fd)

    def close(self, *, unlink: bool) -> None:
        """Let go. Unlinked first: a file that is there and unlocked means a worker that did not say goodbye."""
        if self.fd < 0:
            return
        if unlink:
            self.path.unlink(missing_ok=True)
        os.close(self.fd)
        self.fd = -1
        _mine.discard((self.identity.device, self.identity.inode))


def lock_child_byte(fd: int, slot: int) -> None:
    """Lock a child's byte in its worker's file, which must stay open for as long as the child lives."""
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 + slot)
    found = os.fstat(fd)
    _mine.add((found.st_dev, found.st_ino))


def probe(lock: LockIdentity, worker_id: str, host: Host, me: Host) -> tuple[Liveness, str]:
    """Whether a worker of this kernel is alive, with the reason in words. Asks for the whole file: its children's bytes
    count too. `host` is the worker's, as it registered itself; `me` is the asker's."""
    if host.boot_id != me.boot_id:
        return Liveness.UNKNOWN, f"worker {worker_id} registered under another boot of a kernel ({host.boot_id})"
    if (lock.device, lock.inode) in _seized:
        return _unlocked(worker_id, host, me, Liveness.SEIZED)
    if (lock.device, lock.inode) in _mine:
        return Liveness.HELD, f"worker {worker_id} runs in this process"
    try:
        found = os.lstat(lock.path)
        if (found.st_dev, found.st_ino) in _mine:
            return Liveness.UNKNOWN, f"lock file {lock.path} belongs to another worker, which runs in this process"
        fd = os.open(lock.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # a row may name what can be no path
        return Liveness.UNKNOWN, f"lock file {lock.path}: {getattr(error, 'strerror', error)}"
    try:
        doubt = _doubt(fd, lock, worker_id, host)
        if doubt:
            return Liveness.UNKNOWN, f"lock file {lock.path} {doubt}"
        holder = _holder(fd)
    finally:
        os.close(fd)
    if holder is not None and holder != WHOLE_FILE:
        return Liveness.HELD, f"worker {worker_id} holds its lock (pid {holder})"
    return _unlocked(worker_id, host, me, Liveness.FREE if holder is None else Liveness.SEIZED)


def _unlocked(worker_id: str, host: Host, me: Host, found: Liveness) -> tuple[Liveness, str]:
    """It holds no lock, nor does a child of it: it is gone, unless its process is there."""
    if me.pid_namespace == host.pid_namespace and _start_ticks(host.pid) == host.pid_started:
        return Liveness.UNKNOWN, f"worker {worker_id} lost its lock, but its process {host.pid} is alive"
    if found is Liveness.SEIZED:
        return found, f"worker {worker_id} is gone: somebody sees to what it left"
    return found, f"worker {worker_id} is gone: its lock is free"


def is_worker(directory: Path, pid: int) -> bool:
    """Whether this process is a worker, by the lock files alone: the store may be unreadable when this is asked."""
    return any(worker == (pid, _start_ticks(pid)) for worker in workers_in(directory))


def workers_in(directory: Path) -> Iterator[tuple[int, int]]:
    """Pid and start time of every worker that holds a lock there, other than those of this process."""
    for path in directory.glob("worker-*.lock"):
        said, holder = _ask(path) or (None, None)
        match said:
            case {"pid": int(pid), "pid_started": int(started)} if holder is not None:
                yield pid, started


def is_held(path: Path) -> bool:
    """Whether anybody locks a byte of this file. True also where that can not be known."""
    answer = _ask(path)
    return answer is None or answer[1] is not None


def _ask(path: Path) -> tuple[dict[str, Any] | None, int | None] | None:
    """What a lock file says, and who locks any byte of it; None if that can not be known, or is this very process."""
    try:
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) in _mine:
            return None
        fd = private.open_file(path, os.O_RDONLY, owners=())
    except OSError:
        return None
    try:
        said, holder = os.read(fd, _MAX_CONTENT), _holder(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        facts = json.loads(said)
    except ValueError:
        facts = None
    return facts if isinstance(facts, dict) else None, holder


@contextmanager
def seize(path: Path) -> Iterator[str | None]:
    """Hold the whole lock file of a worker that is gone with all its children, so that nobody else sees to it now. The
    id that it names, which is empty if it was killed before it wrote one; None: it could not be had."""
    try:
        found = os.lstat(path)
    except OSError:
        yield None
        return
    key = found.st_dev, found.st_ino
    with _seizing:
        is_free = key not in _mine and stat.S_ISREG(found.st_mode)
        if is_free:
            _mine.add(key)
    if not is_free:
        yield None
        return
    fd = -1
    try:
        fd = _seize(path, key)
        if fd >= 0:
            _seized.add(key)
        yield None if fd < 0 else _named(fd)
    finally:
        _seized.discard(key)
        if fd >= 0:
            os.close(fd)
        _mine.discard(key)


def _seize(path: Path, key: tuple[int, int]) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened = os.fstat(fd)
        if (opened.st_dev, opened.st_ino) == key and _is_at(path, opened):
            return fd
    except OSError:
        pass
    os.close(fd)
    return -1


def _named(fd: int) -> str:
    try:
        return str(json.loads(os.read(fd, _MAX_CONTENT))["worker_id"])
    except (ValueError, KeyError, TypeError):
        return ""


def _is_at(path: Path, opened: os.stat_result) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def _doubt(fd: int, lock: LockIdentity, worker_id: str, host: Host) -> str | None:
    """Why this file proves nothing; None if it is what the worker registered."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({found.st_uid})"
    if (found.st_dev, found.st_ino) != (lock.device, lock.inode):
        return "is not the file that the worker registered"
    kind = filesystem.type_of(fd)
    if kind is None or kind in SHARED:
        name = "one of unknown kind" if kind is None else SHARED[kind]
        return f"is on a file system whose locks other machines may hold ({name})"
    if os.read(fd, _MAX_CONTENT) != _content(worker_id, host):
        return "names another worker or another start of it"
    return None


def _content(worker_id: str, host: Host) -> bytes:
    said = {
        "worker_id": worker_id,
        "boot_id": host.boot_id,
        "pid": host.pid,
        "pid_started": host.pid_started,
        "pid_namespace": host.pid_namespace,
    }
    return json.dumps(said).encode() + b"\n"


def _holder(fd: int) -> int | None:
    """The pid that locks any byte of the file (0 when it can not be seen from this pid namespace); None if nobody does;
    WHOLE_FILE if somebody has seized it, which is possible only once the worker and all its children are gone."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, length, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return None
    return WHOLE_FILE if length == 0 else pid


def _start_ticks(pid: int) -> int | None:
    """When a process was started, in ticks since boot; None if there is none, or only its remains."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = content[content.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
