"""Proof of death: FREE only when everything fits, HELD while anybody lives, UNKNOWN for the rest."""

import fcntl
import os
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from everbeat import filesystem
from everbeat.model.worker import Host, LockIdentity
from everbeat.run import lockfile
from everbeat.run.lockfile import Liveness, WorkerLock, is_worker, lock_child_byte, probe, seize, this_host

Peer = tuple[int, LockIdentity, Host]


@pytest.fixture
def start_peer(tmp_path: Path) -> Iterator[Callable[[str], Peer]]:
    """Start a process that holds a worker's lock; answer with its pid, lock and host."""
    pids: list[int] = []

    def start(worker_id: str) -> Peer:
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            lock = WorkerLock.create(tmp_path, worker_id)
            host = this_host()
            identity = lock.identity
            said = f"{identity.device} {identity.inode} {host.pid_started} {host.pid_namespace}"
            os.write(tell, said.encode())
            signal.pause()
            os._exit(0)
        pids.append(pid)
        device, inode, started, namespace = map(int, os.read(ready, 200).split())
        os.close(ready)
        os.close(tell)
        path = str(tmp_path / f"worker-{worker_id}.lock")
        host = replace(this_host(), pid=pid, pid_started=started, pid_namespace=namespace)
        return pid, LockIdentity(path=path, device=device, inode=inode), host

    yield start
    for pid in pids:
        end(pid)


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def test_a_living_worker_holds_its_lock(start_peer: Callable[[str], Peer]) -> None:
    pid, lock, host = start_peer("w1")

    liveness, reason = probe(lock, "w1", host, this_host())

    assert liveness is Liveness.HELD
    assert f"pid {pid}" in reason


def test_a_stopped_worker_holds_its_lock(start_peer: Callable[[str], Peer]) -> None:
    pid, lock, host = start_peer("w1")
    os.kill(pid, signal.SIGSTOP)

    assert probe(lock, "w1", host, this_host())[0] is Liveness.HELD


def test_a_killed_worker_is_proven_gone(start_peer: Callable[[str], Peer]) -> None:
    pid, lock, host = start_peer("w1")
    end(pid)

    assert probe(lock, "w1", host, this_host()) == (Liveness.FREE, "worker w1 is gone: its lock is free")


def test_a_worker_that_nobody_has_reaped_is_gone(start_peer: Callable[[str], Peer]) -> None:
    pid, lock, host = start_peer("w1")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    assert probe(lock, "w1", host, this_host())[0] is Liveness.FREE


def test_a_child_that_outlives_its_supervisor_keeps_the_worker_alive(start_peer: Callable[[str], Peer]) -> None:
    pid, lock, host = start_peer("w1")
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        lock_child_byte(os.open(lock.path, os.O_RDWR), 3)
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    end(pid)

    held = probe(lock, "w1", host, this_host())[0]
    end(child)
    free = probe(lock, "w1", host, this_host())[0]

    assert (held, free) == (Liveness.HELD, Liveness.FREE)


def test_probing_does_not_disturb_the_holder(start_peer: Callable[[str], Peer]) -> None:
    _, lock, host = start_peer("w1")

    verdicts = {probe(lock, "w1", host, this_host())[0] for _ in range(100)}

    assert verdicts == {Liveness.HELD}


def test_a_stopped_worker_is_told_by_its_lock_file_alone_and_a_stranger_is_not_taken_for_one(
    start_peer: Callable[[str], Peer],
) -> None:
    """Whoever is taken for a worker may be killed for holding the store's write lock."""
    _, lock, host = start_peer("w1")
    directory = Path(lock.path).parent
    os.kill(host.pid, signal.SIGSTOP)
    (directory / "worker-broken.lock").write_bytes(b"not json")

    assert is_worker(directory, host.pid)
    assert not is_worker(directory, os.getppid())


def test_a_pid_that_another_process_has_now_is_no_worker(start_peer: Callable[[str], Peer]) -> None:
    _, lock, host = start_peer("w1")
    path = Path(lock.path)
    path.write_text(path.read_text().replace(str(host.pid_started), str(host.pid_started + 1)))

    assert not is_worker(path.parent, host.pid)


def test_a_process_never_opens_its_own_lock_file(tmp_path: Path) -> None:
    lock = WorkerLock.create(tmp_path, "me")
    host = this_host()

    verdict = probe(lock.identity, "me", host, host)
    misled = probe(replace(lock.identity, inode=1), "me", host, host)[0]
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        lockfile._mine.clear()
        os.write(tell, probe(lock.identity, "me", host, host)[0].encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert verdict == (Liveness.HELD, "worker me runs in this process")
    assert misled is Liveness.UNKNOWN
    assert os.read(ready, 10) == b"held"  # seen from outside, the probes above have not dropped the lock
    lock.close(unlink=True)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("missing", "No such file"),
        ("link", "symbolic link"),
        ("fifo", "not a regular file"),
        ("replaced", "not the file that the worker registered"),
        ("content", "names another worker"),
        ("other id", "names another worker"),
        ("other boot", "another boot"),
    ],
)
def test_what_does_not_fit_proves_nothing(start_peer: Callable[[str], Peer], what: str, reason: str) -> None:
    pid, lock, host = start_peer("w1")
    end(pid)
    worker_id, path, me = "w1", Path(lock.path), this_host()
    match what:
        case "missing":
            path.unlink()
        case "link":
            path.symlink_to(path.rename(path.with_suffix(".moved")))
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "replaced":
            content = path.read_bytes()
            path.rename(path.with_suffix(".moved"))
            path.write_bytes(content)
        case "content":
            path.write_bytes(path.read_bytes().replace(b'"w1"', b'"w2"'))
        case "other id":
            worker_id = "w2"
        case "other boot":
            me = replace(me, boot_id="another")

    liveness, said = probe(lock, worker_id, host, me)

    assert liveness is Liveness.UNKNOWN
    assert reason in said


def test_a_network_file_system_proves_nothing(
    start_peer: Callable[[str], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, lock, host = start_peer("w1")
    end(pid)
    monkeypatch.setattr(filesystem, "type_of", lambda fd: 0x6969)

    liveness, reason = probe(lock, "w1", host, this_host())

    assert liveness is Liveness.UNKNOWN
    assert "nfs" in reason


def test_the_kind_of_a_file_system_is_known(tmp_path: Path) -> None:
    with open("/proc/self/stat") as proc:
        assert filesystem.type_of(proc.fileno()) == 0x9FA0
    assert filesystem.type_of(Path("/proc/self")) == 0x9FA0
    assert filesystem.type_of(tmp_path / "missing") is None


def test_a_lost_lock_of_a_living_process_proves_nothing(tmp_path: Path) -> None:
    lock = WorkerLock.create(tmp_path, "me")
    lock.close(unlink=False)
    host = this_host()

    liveness, reason = probe(lock.identity, "me", host, host)
    elsewhere = probe(lock.identity, "me", host, replace(host, pid_namespace=1))[0]

    assert liveness is Liveness.UNKNOWN
    assert f"process {os.getpid()} is alive" in reason
    assert elsewhere is Liveness.FREE  # a pid of another namespace says nothing


def test_a_lock_file_is_private_and_made_only_once(tmp_path: Path) -> None:
    lock = WorkerLock.create(tmp_path, "w1")

    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        WorkerLock.create(tmp_path, "w1")
    lock.close(unlink=True)
    lock.close(unlink=True)
    assert not lock.path.exists()


def test_the_lock_of_a_worker_is_seized_only_when_all_of_it_is_gone(
    start_peer: Callable[[str], Peer], tmp_path: Path
) -> None:
    pid, lock, host = start_peer("w1")
    mine = WorkerLock.create(tmp_path, "mine")

    with seize(Path(lock.path)) as held, seize(mine.path) as own, seize(tmp_path / "worker-none.lock") as missing:
        assert (held, own, missing) == (None, None, None)
    end(pid)
    with seize(Path(lock.path)) as gone, seize(Path(lock.path)) as again:
        assert (gone, again) == ("w1", None)
        assert in_another_process(lambda: _is_seized(Path(lock.path)))
        assert probe(lock, "w1", host, this_host())[0] is Liveness.SEIZED
        living = replace(this_host(), boot_id=host.boot_id)
        assert probe(lock, "w1", living, this_host())[0] is Liveness.UNKNOWN  # it lost its lock, and may go on
        assert in_another_process(lambda: _seems_seized(lock, host))
    assert not in_another_process(lambda: _is_seized(Path(lock.path)))
    mine.close(unlink=True)


def _seems_seized(lock: LockIdentity, host: Host) -> bool:
    lockfile._mine.clear()
    lockfile._seized.clear()
    return probe(lock, "w1", host, this_host())[0] is Liveness.SEIZED


def _is_seized(path: Path) -> bool:
    lockfile._mine.clear()
    with seize(path) as worker_id:
        return worker_id is None


def in_another_process(question: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(int(question()))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_a_lock_file_that_is_taken_for_a_leftover_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lockf, rivals = tmp_path / "worker-w1.lock", fcntl.lockf, 1

    def be_late(*args: int) -> None:
        nonlocal rivals
        while rivals:
            rivals -= 1
            assert in_another_process(lambda: _removes(path))
        lockf(*args)

    def _removes(path: Path) -> bool:
        with seize(path) as worker_id:
            path.unlink()
            return worker_id == ""

    monkeypatch.setattr(lockfile.fcntl, "lockf", be_late)
    lock = WorkerLock.create(tmp_path, "w1")
    monkeypatch.undo()

    assert path.stat().st_ino == lock.identity.inode
    assert in_another_process(lambda: _is_seized(path))
    lock.close(unlink=True)


def test_a_slot_can_not_be_taken_twice(tmp_path: Path) -> None:
    lock = WorkerLock.create(tmp_path, "w1")
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        lock_child_byte(lock.fd, 0)
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    rival = os.fork()
    if rival == 0:
        try:
            lock_child_byte(lock.fd, 0)
        except OSError:
            os._exit(7)
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(rival, 0)[1]) == 7
    end(pid)
    lock.close(unlink=True)


def test_a_host_is_told_apart_by_boot_process_and_namespace() -> None:
    host = this_host()

    assert host.pid == os.getpid()
    assert host.pid_started > 0
    assert host.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert len(host.boot_id) == 36
