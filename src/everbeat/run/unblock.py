"""What to do about a frozen process that keeps everybody from writing (PROTOCOL 16).

Only SQLite has this: its write lock is held by a process, and one that is stopped in the middle of a transaction holds
it for as long as it is stopped. If it is a worker of ours and has been so for longer than a worker may be silent, it is
ended: its tasks are as lost as if it had gone silent elsewhere. A stranger is named, never touched.

One that is stopped between two steps of its commit keeps everybody from reading, too: then its lock file says that it
is ours.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from everbeat.clock import Clock
from everbeat.config import RecoveryConfig
from everbeat.model.worker import WorkerInfo
from everbeat.report.log import Reporter
from everbeat.run.lockfile import is_running, is_worker
from everbeat.store.interface import Store


class Unblocker:
    def __init__(self, store: Store, config: RecoveryConfig, clock: Clock, reporter: Reporter) -> None:
        self._store = store
        self._allowed_us = config.running_stale_threshold_ms * 1000
        self._clock = clock
        self._reporter = reporter
        self._blocked: tuple[int, int] | None = None
        """Who, and since when we know."""

    @property
    def is_blocked(self) -> bool:
        return self._blocked is not None

    def look(self, known: Iterable[WorkerInfo] = ()) -> bool:
        """Call it whenever a write was not possible. True: somebody is in the way."""
        blocker, now = self._store.blocker(), self._clock.mono_us()
        if blocker is None or not blocker.is_stopped:
            self._blocked = None
            return blocker is not None
        if self._blocked is None or self._blocked[0] != blocker.pid:
            self._blocked = blocker.pid, now
            self._reporter.store_blocked(str(blocker))
        if now - self._blocked[1] > self._allowed_us and self._is_worker(blocker.pid, known):
            self._reporter.warn("worker.ended", pid=blocker.pid, reason="it was stopped while it held the write lock")
            with suppress(ProcessLookupError, PermissionError):  # gone meanwhile, or another user's: named, no more
                os.kill(blocker.pid, signal.SIGKILL)
        return True

    def _is_worker(self, pid: int, known: Iterable[WorkerInfo]) -> bool:
        return _is_among(known, pid) or is_worker(self._store.state_directory, pid)


def _is_among(workers: Iterable[WorkerInfo], pid: int) -> bool:
    return any(worker.host.pid == pid and worker.same_boot and is_running(worker.host) for worker in workers)
