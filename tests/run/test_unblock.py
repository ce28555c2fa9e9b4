"""A frozen process that holds SQLite's write lock: ours is ended once it has been so for too long, others never."""

import os
import select
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.words import VirtualClock

from everbeat.config import RecoveryConfig
from everbeat.report.log import Reporter
from everbeat.run.lockfile import WorkerLock
from everbeat.run.unblock import Unblocker
from everbeat.store.sqlite.store import SQLiteStore

THRESHOLD = RecoveryConfig(running_stale_threshold_ms=60_000, check_interval_ms=1_000)

Freeze = Callable[..., int]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "jobs.db")
    store.checkpoint()  # so that there is a directory beside it
    yield store
    store.close()


@pytest.fixture
def freeze(store: SQLiteStore) -> Iterator[Freeze]:
    """Start a process that stops itself in the middle of a write; answer with its pid."""
    pids: list[int] = []

    def freeze(*, is_worker: bool) -> int:
        pid = os.fork()
        if pid == 0:
            lock = WorkerLock.create(store.state_directory, "frozen") if is_worker else None
            connection = sqlite3.connect(store.database.path, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(lock is None)
        pids.append(pid)
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        return pid

    yield freeze
    for pid in pids:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def looked_for(store: SQLiteStore, *, seconds: float) -> Unblocker:
    """Somebody who could not write, now and so much later."""
    clock = VirtualClock()
    unblocker = Unblocker(store, THRESHOLD, clock, Reporter())
    assert unblocker.look()
    clock.advance(seconds)
    assert unblocker.look()
    return unblocker


def ended(pid: int) -> bool:
    """Whether it is gone, or goes within a moment: the kernel takes its time."""
    pidfd = os.pidfd_open(pid)
    is_over = bool(select.select([pidfd], [], [], 0.2)[0])
    os.close(pidfd)
    return is_over


def test_a_worker_that_is_stopped_in_a_write_is_ended_after_the_threshold(store: SQLiteStore, freeze: Freeze) -> None:
    pid = freeze(is_worker=True)

    looked_for(store, seconds=59)
    before = ended(pid)
    looked_for(store, seconds=61)

    assert not before
    assert ended(pid)
    assert not Unblocker(store, THRESHOLD, VirtualClock(), Reporter()).look()


def test_a_stranger_that_is_stopped_in_a_write_is_named_and_never_ended(
    store: SQLiteStore, freeze: Freeze, caplog: pytest.LogCaptureFixture
) -> None:
    pid = freeze(is_worker=False)

    unblocker = looked_for(store, seconds=3600)

    assert unblocker.is_blocked
    assert f"pid {pid} (stopped)" in caplog.text
    assert not ended(pid)
