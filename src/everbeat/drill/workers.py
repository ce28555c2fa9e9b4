"""The workers of a drill: real ones, started by the command that users start, each with a log of its own.

They end with the drill, whatever way it ends: if the drill itself is killed, the kernel kills them. All that is below
them is found by a mark in its environment. Processes are met by their pidfd, so a signal never reaches a stranger who
was given the same number.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everbeat.drill.tasks import LEDGER, QUEUE
from everbeat.run.child import die_with_parent
from everbeat.run.pidfds import send_signal, wait_for_exit

MARK = "EVERBEAT_DRILL"
TARGET = "everbeat.drill.tasks:app"
PROCESSES = 2
READY = "ready"
DRAIN_SECONDS = 5
STOP_SECONDS = 20.0
FORK_SERVER = b"everbeat.run.forkserver"


@dataclass(slots=True, eq=False)
class Worker:
    name: str
    process: "subprocess.Popen[bytes]"
    pidfd: int
    log: Path
    was_killed: bool = False
    was_frozen: bool = False
    was_told_to_stop: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_ready(self) -> bool:
        return READY in self.log.read_text(errors="replace").splitlines()

    def task_processes(self) -> list[int]:
        return [
            child for server in _children(self.pid) if FORK_SERVER in _read(server, "cmdline")
            for child in _children(server)
        ]  # fmt: skip


@dataclass(slots=True, eq=False)
class Workers:
    directory: Path
    url: str
    count: int
    mark: str
    """Begins their names."""
    living: list[Worker] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Workers that ended, and nobody had killed them."""
    started: int = 0

    def tend(self) -> None:
        """Note those that have ended, and start others in their places."""
        for worker in [worker for worker in self.living if worker.has_ended]:
            self.living.remove(worker)
            os.close(worker.pidfd)
            complaint = _complaint(worker)
            if complaint is not None:
                self.complaints.append(complaint)
        while len(self.living) < self.count:
            self.living.append(self._start())

    def are_ready(self) -> bool:
        return len(self.living) == self.count and all(worker.is_ready for worker in self.living)

    def stop(self) -> None:
        """SIGTERM, and after a while SIGKILL, for all of them; then whatever is left below them."""
        for worker in self.living:
            send_signal(worker.pidfd, signal.SIGCONT)
            worker.was_told_to_stop = True
            send_signal(worker.pidfd, signal.SIGTERM)
        give_up = time.monotonic() + STOP_SECONDS
        for worker in self.living:
            if not wait_for_exit(worker.pidfd, give_up):
                self.complaints.append(f"worker {worker.name} did not stop within {STOP_SECONDS:.0f}s of SIGTERM")
                worker.was_killed = True
                worker.process.kill()
            worker.process.wait()
            os.close(worker.pidfd)
            complaint = _complaint(worker)
            if complaint is not None:
                self.complaints.append(complaint)
        self.living = []

    def left_over(self) -> list[int]:
        """Processes below them that are still there."""
        mark = f"{MARK}={self.directory}".encode()
        return [pid for pid in _all_pids() if mark in _read(pid, "environ").split(b"\0") and _is_alive(pid)]

    def sweep(self, patience: float = 5.0) -> list[int]:
        """Wait a moment for what is below dead workers to go, then kill it; what had to be killed."""
        give_up = time.monotonic() + patience
        while (left := self.left_over()) and time.monotonic() < give_up:
            time.sleep(0.05)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return left

    def _start(self) -> Worker:
        self.started += 1
        name = f"{self.mark}-worker-{self.started}"
        command = [sys.executable, "-P", "-m", "everbeat", "worker", "start", TARGET, "--name", name, "--queues", QUEUE,
                   "--processes", str(PROCESSES), "--drain-timeout", str(DRAIN_SECONDS)]  # fmt: skip
        log, me = self.directory / f"{name}.log", os.getpid()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=dict(self._environment()),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C is for the drill, which stops them in its own time
                preexec_fn=lambda: die_with_parent(signal.SIGKILL, me),
            )
        return Worker(name, process, os.pidfd_open(process.pid), log)

    def _environment(self) -> Iterator[tuple[str, str]]:
        """Nothing that a user has set for real workers may reach these. The URL may hold a password, so it is no word
        of the command line, which everybody can read."""
        for name, value in os.environ.items():
            if not name.startswith("EVERBEAT_"):
                yield name, value
        yield "EVERBEAT_DATABASE_URL", self.url
        yield "EVERBEAT_STATE_DIR", str(self.directory / "state")
        yield LEDGER, str(self.directory / "ledger")
        yield MARK, str(self.directory)


def _complaint(worker: Worker) -> str | None:
    code = worker.process.returncode
    if worker.was_killed:
        return None
    if worker.was_told_to_stop and code in (0, -signal.SIGTERM):
        return None  # by the signal: it had only just been started, and knew of none yet
    if code == -signal.SIGKILL and worker.was_frozen:
        return None  # it was stopped while it held the write lock of SQLite, and the others ended it (PROTOCOL 16)
    said = worker.log.read_text(errors="replace").splitlines()[-5:]
    return f"worker {worker.name} ended by itself with exit code {code}: " + " / ".join(said)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _children(pid: int) -> list[int]:
    return [one for one in _all_pids() if _stat(one)[1:2] == [str(pid).encode()] and _is_alive(one)]


def _is_alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], [b"Z"], [b"X"])


def _stat(pid: int) -> list[bytes]:
    """State, parent, and so on; empty if there is no such process."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
