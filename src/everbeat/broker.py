"""Recovery by hand: look for what is stale, decide about it now, beat for workers of your own.

The blocking class is the only one with code; `Broker` has the same methods as coroutines, each run in a thread. Nothing
is decided here: `everbeat.run.manual` asks the same pure functions as the reaper.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from everbeat.aside import in_thread
from everbeat.config.checks import number
from everbeat.errors import TaskNotFound
from everbeat.ids import name_problem
from everbeat.model.integrity import IntegrityResult
from everbeat.model.report import Progress, RecoveryReport
from everbeat.model.worker import StaleWorker, WorkerHeartbeatStatus

if TYPE_CHECKING:
    from everbeat.app import Everbeat
    from everbeat.run.manual import ByHand

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_THRESHOLD_MS = 366 * 86_400_000


class SyncBroker:
    """Each method is one pass over the store. Thresholds left out are those of the configuration."""

    def __init__(self, app: "Everbeat") -> None:
        self._app = app
        self._recovery = app.config.recovery
        self._last_report: RecoveryReport | None = None

    @property
    def _by_hand(self) -> "ByHand":
        """Imported when it is needed: a process that only sends has no use for it."""
        from everbeat.run.manual import ByHand

        return ByHand(self._app.store, self._recovery)

    def get_stale_tasks(self, stale_threshold_minutes: float | None = None) -> list[dict[str, Any]]:
        """RUNNING tasks without a heartbeat for that long, with worker and last heartbeat. Changes nothing."""
        default = self._recovery.running_stale_threshold_ms / 60_000
        threshold = _ms("stale_threshold_minutes", stale_threshold_minutes, default, unit_ms=60_000)
        return self._by_hand.get_stale_tasks(stale_threshold_ms=threshold)

    def mark_stale_tasks_as_failed(self, stale_threshold_ms: int | None = None) -> int:
        """Fail stale RUNNING tasks, whatever the recovery action; how many."""
        threshold = _ms("stale_threshold_ms", stale_threshold_ms, self._recovery.running_stale_threshold_ms)
        return self._by_hand.mark_stale_tasks_as_failed(stale_threshold_ms=threshold)

    def requeue_stale_claimed(self, stale_threshold_ms: int | None = None) -> int:
        """Return stale CLAIMED tasks to their queue; their code never ran. How many."""
        threshold = _ms("stale_threshold_ms", stale_threshold_ms, self._recovery.claimed_stale_threshold_ms)
        return self._by_hand.requeue_stale_claimed(stale_threshold_ms=threshold)

    def recover_stuck_workflows(self) -> int:
        """Let workflows go on that something tore; how many. Those that could not be mended before are tried again."""
        return self._by_hand.recover_stuck_workflows()

    def recover(
        self, dry_run: bool = False, *, on_progress: Callable[[Progress], None] | None = None
    ) -> RecoveryReport:
        """All that a starting worker does before it claims anything: integrity check, log, dead workers, orphans. With
        `dry_run` it says what it would do and changes nothing. RecoveryFailed if the store is damaged beyond repair."""
        report = self._by_hand.recover(dry_run=dry_run, on_progress=on_progress or _ignore)
        if not dry_run:
            self._last_report = report
        return report

    @property
    def last_report(self) -> RecoveryReport | None:
        """Of the last `recover()` here; before the first one, of the last recovery of the store by anybody."""
        if self._last_report is None:
            return next(iter(self._app.store.reports(limit=1)), None)
        return self._last_report

    def check_integrity(self) -> IntegrityResult:
        """Check that all that is stored can be read as it was written; rebuild the indexes if they are damaged and no
        worker is alive."""
        return self._by_hand.check_integrity()

    def checkpoint_wal(self) -> int:
        """Move the write-ahead log into the database; how many frames."""
        return self._app.store.checkpoint().frames

    def send_heartbeat(self, worker_id: str, task_id: str | None = None) -> bool:
        """Beat for a worker of your own, and for the task it works on. Registers an unknown worker. False: it was
        declared dead, and nothing was written; it has to go on under another name. TaskNotFound: there is no such
        task, and nothing was written."""
        problem = name_problem(worker_id, "worker")
        if problem is not None:
            raise ValueError(problem)
        if task_id is not None and self._app.store.get(task_id, full=False) is None:
            raise TaskNotFound(task_id, where=self._app.store.location)
        return self._by_hand.send_heartbeat(worker_id, task_id)

    def is_worker_alive(self, worker_id: str) -> bool:
        """False also for a worker that nobody knows."""
        return self._by_hand.is_worker_alive(worker_id)

    def detect_stale_workers(self) -> list[StaleWorker]:
        """Workers that are silent for longer than the thresholds allow, with the tasks they hold. Changes nothing."""
        return self._by_hand.detect_stale_workers()

    def mark_worker_dead(self, worker_id: str) -> bool:
        """Declare a worker dead; its tasks are recovered by the usual rules. False if it was not alive."""
        return self._by_hand.mark_worker_dead(worker_id)

    def get_worker_status(self) -> list[WorkerHeartbeatStatus]:
        """Every worker that is kept, with the first task it holds; one of your own with that of its last beat."""
        return self._by_hand.get_worker_status()


def _awaited(
    method: Callable[Concatenate[SyncBroker, P], T],
) -> Callable[Concatenate["Broker", P], Coroutine[Any, Any, T]]:
    """The coroutine twin of a blocking method, with the same signature."""

    @functools.wraps(method)
    async def twin(self: "Broker", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(method, self.sync, *args, **kwargs)

    return twin


class Broker:
    """The methods of `SyncBroker` as coroutines, usable from any event loop."""

    def __init__(self, app: "Everbeat") -> None:
        self.sync = SyncBroker(app)

    get_stale_tasks = _awaited(SyncBroker.get_stale_tasks)
    mark_stale_tasks_as_failed = _awaited(SyncBroker.mark_stale_tasks_as_failed)
    requeue_stale_claimed = _awaited(SyncBroker.requeue_stale_claimed)
    recover_stuck_workflows = _awaited(SyncBroker.recover_stuck_workflows)
    recover = _awaited(SyncBroker.recover)
    check_integrity = _awaited(SyncBroker.check_integrity)
    checkpoint_wal = _awaited(SyncBroker.checkpoint_wal)
    send_heartbeat = _awaited(SyncBroker.send_heartbeat)
    is_worker_alive = _awaited(SyncBroker.is_worker_alive)
    detect_stale_workers = _awaited(SyncBroker.detect_stale_workers)
    mark_worker_dead = _awaited(SyncBroker.mark_worker_dead)
    get_worker_status = _awaited(SyncBroker.get_worker_status)

    @property
    def last_report(self) -> RecoveryReport | None:
        """Of the last `recover()` here; before the first one, of the last recovery of the store by anybody."""
        return self.sync.last_report


def _ignore(progress: Progress) -> None:
    """Nobody wants to know how far it is."""


def _ms(name: str, given: float | None, default: float, *, unit_ms: int = 1) -> int:
    """A threshold in milliseconds: the one given, else the configured one."""
    value = default if given is None else given
    problem = number(name, value, 0, LONGEST_THRESHOLD_MS / unit_ms)
    if problem is not None:
        raise ValueError(problem)
    return round(value * unit_ms)
