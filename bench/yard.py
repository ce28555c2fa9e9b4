"""A store in a temporary directory with real workers around it."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.tasks import Works, build

ROOT = Path(__file__).parent.parent


class Yard:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'bench.db'}"
        self.works: Works = build(self.url)
        self._environment = os.environ | {"EVERBEAT_DATABASE_URL": self.url}
        self._workers: list[subprocess.Popen[str]] = []

    def worker(self, *words: str) -> "subprocess.Popen[str]":
        """A worker that is ready to work."""
        process = self._start(*words)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                return process
        raise RuntimeError(f"the worker ended with {process.wait()}")

    def burst(self, *words: str) -> None:
        process = self._start("--burst", *words)
        process.communicate()
        if process.returncode:
            raise RuntimeError(f"the worker ended with {process.returncode}")

    def _start(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "everbeat", "worker", "start", "bench.tasks:app", *words]
        process = subprocess.Popen(
            command, cwd=ROOT, env=self._environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._workers.append(process)
        return process

    def drained_per_second(self) -> float:
        """From the first start to the last end, as the store has them."""
        connection = sqlite3.connect(f"file:{self.directory / 'bench.db'}?mode=ro", uri=True)
        query = "SELECT count(*), min(started_at), max(finished_at) FROM everbeat_tasks WHERE status = 'COMPLETED'"
        count, first, last = connection.execute(query).fetchone()
        connection.close()
        return float(count / ((last - first) / 1e6))

    def stop(self) -> None:
        for process in self._workers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._workers:
            process.communicate(timeout=60)


@contextmanager
def yard() -> Iterator[Yard]:
    directory = Path(tempfile.mkdtemp(prefix="everbeat-bench-", dir=os.environ.get("EVERBEAT_BENCH_DIR")))
    place = Yard(directory)
    try:
        yield place
    finally:
        place.stop()
        place.works.app.close()
        shutil.rmtree(directory, ignore_errors=True)


def until(condition: Callable[[], Any], *, seconds: float = 60.0, every: float = 0.002) -> Any:
    give_up = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > give_up:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(every)
    return answer


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for member in found:
        for thread in Path(f"/proc/{member}/task").glob("*/children"):
            found += [int(child) for child in thread.read_text().split()]
    return found
