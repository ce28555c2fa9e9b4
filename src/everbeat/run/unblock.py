"""What to do about a frozen process that keeps everybody from writing (PROTOCOL 16).

Only SQLite has this: its write lock is held by a process, and one that is stopped in the middle of a transaction holds
it for as long as it is stopped. If it is a worker of ours and has been so for longer than a worker may be silent, it is
ended: its tasks are as lost as if it had gone silent elsewhere. A stranger is named, never touched.

One that is stopped between two steps of its commit keeps everybody from reading, too. So its lock file says whether it
is ours, and this works for whoever could not even open the store.
"""

import os
import signal
from contextlib import suppress

from everbeat.clock import Clock
from everbeat.config import RecoveryConfig
from everbeat.report.log import Reporter
from everbeat.run.lockfile import is_worker
from everbeat.store.interface import Site


class Unblocker:
    def __init__(self, site: Site, config: RecoveryConfig, clock: Clock, reporter: Reporter) -> None:
        self._site = site
        self._allowed_us = config.running_stale_threshold_ms * 1000
        self._clock = clock
        self._reporter = reporter
        self._blocked: tuple[int, int] | None = None
        """Who, and since when we know."""

    @property
    def is_blocked(self) -> bool:
        return self._blocked is not None

    def look(self) -> bool:
        """Call it whenever a write was not possible. True: somebody is in the way."""
        blocker, now = self._site.blocker(), self._clock.mono_us()
        if blocker is None or not blocker.is_stopped:
            self._blocked = None
            return blocker is not None
        if self._blocked is None or self._blocked[0] != blocker.pid:
            self._blocked = blocker.pid, now
            self._reporter.store_blocked(str(blocker))
        if now - self._blocked[1] > self._allowed_us and is_worker(self._site.state_directory, blocker.pid):
            self._reporter.warn("worker.ended", pid=blocker.pid, reason="it was stopped while it held the write lock")
            with suppress(ProcessLookupError, PermissionError):  # gone meanwhile, or another user's: named, no more
                os.kill(blocker.pid, signal.SIGKILL)
        return True
