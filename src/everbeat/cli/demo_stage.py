"""Where the demo plays: a temporary directory, worker processes with their logs, and waiting with a limit.

Whatever way the demo ends, its workers and its directory go: also after Ctrl-C and SIGTERM. If the demo itself is
killed with kill -9, the kernel tells its workers to stop.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from everbeat.cli.ends import Refused, like_ctrl_c

T = TypeVar("T")

READY_LINE = "ready"
PATIENCE_SECONDS = 40.0
LOOK_SECONDS = 0.02
STOP_SECONDS = 10.0


class Stage:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'demo.db'}"
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def start_worker(self, name: str, target: str, *, processes: int) -> None:
        from everbeat.run.child import die_with_parent  # lazily: every command imports this module

        command = [sys.executable, "-P", "-m", "everbeat", "worker", "start", target, "--db", self.url, "--name", name,
                   "--processes", str(processes), "--drain-timeout", "1"]  # fmt: skip
        me = os.getpid()
        with self._open_log(name) as log:
            self._workers[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which stops them in its own time
                preexec_fn=lambda: die_with_parent(signal.SIGTERM, me),
            )

    def is_ready(self, name: str) -> bool:
        return READY_LINE in self.log_of(name).splitlines()

    def kill(self, name: str) -> str:
        """kill -9, and the name of the signal that the kernel says it died of."""
        process = self._workers.pop(name)
        process.kill()
        return signal.Signals(-process.wait()).name

    def descendants_of(self, name: str) -> list[int]:
        return _descendants(self._workers[name].pid)

    def wait_for(self, what: str, look: Callable[[], T | None]) -> T:
        """What `look` sees, once it is something. Fails if a worker dies that nobody killed."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not (seen := look()):
            for name, process in self._workers.items():
                if process.poll() is not None:
                    raise Refused(f"worker {name} ended with exit code {process.returncode}:\n{self.log_of(name)}")
            if time.monotonic() > give_up:
                raise Refused(f"waited {PATIENCE_SECONDS:.0f}s in vain for {what}")
            time.sleep(LOOK_SECONDS)
        return seen

    def log_of(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def clear(self) -> None:
        """Stop the workers that are left."""
        for process in self._workers.values():
            process.terminate()
        give_up = time.monotonic() + STOP_SECONDS
        for process in self._workers.values():
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _open_log(self, name: str) -> IO[bytes]:
        return (self.directory / f"{name}.log").open("wb")


@contextmanager
def stage(*, keep: bool) -> Iterator[Stage]:
    directory = Path(tempfile.mkdtemp(prefix="everbeat-demo-"))
    made = Stage(directory)
    try:
        with like_ctrl_c():
            try:
                yield made
            finally:
                made.clear()
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only its remains."""
    return _parent_of(pid) is not None


def _descendants(pid: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {one: _parent_of(one) for one in pids}
    found = [pid]
    for ancestor in found:  # which grows meanwhile
        found += [child for child, parent in parents.items() if parent == ancestor]
    return found[1:]


def _parent_of(pid: int) -> int | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(parent)
