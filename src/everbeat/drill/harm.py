"""What was done to the processes of a drill, and what that explains: who may have failed, who had to be missed.

Pure. A task that failed, a quarantine and a worker that was declared dead are right only where something had been done
that explains them; and whoever was killed has to be known to be dead.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from everbeat.drill.ledger import LAST, Line
from everbeat.drill.plan import Deed
from everbeat.model import event
from everbeat.model.event import EventInfo
from everbeat.model.task import AttemptInfo
from everbeat.model.worker import WorkerInfo, WorkerStatus

SLACK_US = 1_000_000
"""A deed is dated a moment before it is done, and a run says that it began a moment after it did."""
SOON_US = 5_000_000
"""A worker that is hurt so soon after its process was killed may not have told of it."""
AWAY_US = 30_000_000
"""So long a database that was killed may be away, and its workers can tell of nothing."""
KILLS_WORKERS = frozenset({Deed.KILL_WORKER, Deed.KILL_EVERY_WORKER})
FREEZES_WORKERS = frozenset({Deed.FREEZE_WORKER, Deed.FREEZE_LONG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A deed that was done."""

    deed: Deed
    wall_us: int
    worker_pid: int = 0
    """The worker that was met, or whose process was."""
    others: frozenset[int] = frozenset()
    """More workers that were met."""
    pids: frozenset[int] = frozenset()
    """Task processes that died of it."""

    @property
    def workers(self) -> frozenset[int]:
        """Workers that were killed or frozen."""
        if self.deed not in KILLS_WORKERS | FREEZES_WORKERS:
            return frozenset()
        return self.others | ({self.worker_pid} if self.worker_pid else frozenset())


@dataclass(slots=True)
class Noticed:
    """How soon the dead of one kind were known, in seconds, and who did not have to be."""

    after: list[float] = field(default_factory=list)
    excused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missed: list[str] = field(default_factory=list)
    """Of whom nobody ever knew."""


class Harm:
    def __init__(
        self, done: Sequence[Done], workers: Iterable[WorkerInfo], events: Sequence[EventInfo], lines: Sequence[Line]
    ) -> None:
        self._done = done
        self._workers = {worker.id: worker for worker in workers}
        self._rows: Mapping[int, list[WorkerInfo]] = defaultdict(list)
        for worker in self._workers.values():
            self._rows[worker.host.pid].append(worker)
        self._died = _moments(
            ((self._pid_of(one.worker_id), one.facts.get("pid")), one) for one in events if one.name == event.CHILD_DIED
        )
        self._declared = _moments((one.worker_id, one) for one in events if one.name == event.WORKER_DEAD)
        self._cut_short = _cut_short(lines)
        self._killed_processes: dict[int, list[int]] = defaultdict(list)
        self._hurt_workers: dict[int, list[int]] = defaultdict(list)
        self._store_killed = [one.wall_us for one in done if one.deed is Deed.KILL_DATABASE]
        for one in done:
            if one.deed is Deed.KILL_PROCESS:
                for pid in one.pids:
                    self._killed_processes[pid].append(one.wall_us)
            for pid in one.workers:
                self._hurt_workers[pid].append(one.wall_us)

    # -- what it explains ---------------------------------------------------------------------------------------------

    def ended_process_of(self, attempt: AttemptInfo) -> bool:
        """Its own process was killed while it ran."""
        return _is_within(self._killed_processes.get(attempt.pid or 0, ()), attempt)

    def ended_worker_of(self, attempt: AttemptInfo) -> bool:
        """Its worker was killed or frozen, before it was taken from it."""
        worker = self._workers.get(attempt.worker_id or "")
        moments = () if worker is None else self._hurt_workers.get(worker.host.pid, ())
        return any(moment <= _us(attempt.finished_at) + SLACK_US for moment in moments)

    def declared_for_nothing(self) -> Iterator[str]:
        """Workers of the drill that were declared dead though nobody had touched them. One whose entry got no answer
        has entered again by then, under another name: nobody beats for the first."""
        for worker_id, moments in self._declared.items():
            worker = self._workers.get(str(worker_id))
            if worker is None:
                continue
            hurt = self._hurt_workers.get(worker.host.pid, [])
            lives = self._lives(worker.host.pid, max(moments))
            is_abandoned = bool(lives) and worker is not lives[-1]
            if not is_abandoned and not any(moment <= max(moments) + SLACK_US for moment in hurt):
                yield f"worker {worker.name} was declared dead, and nothing had been done to it: {worker.end_reason}"

    def _pid_of(self, worker_id: str | None) -> int:
        worker = self._workers.get(worker_id or "")
        return 0 if worker is None else worker.host.pid

    def _lives(self, pid: int, moment: int) -> list[WorkerInfo]:
        """The lives that a process had begun by then, in order. Its number may be that of another one later."""
        begun = [row for row in self._rows.get(pid, ()) if _us(row.started_at) <= moment]
        return sorted(begun, key=lambda row: row.started_at)

    # -- who noticed --------------------------------------------------------------------------------------------------

    def processes(self) -> Noticed:
        """Task processes that were killed, by the event that says so."""
        found = Noticed()
        for one in self._done:
            if one.deed is Deed.KILL_PROCESS:
                for pid in sorted(one.pids):
                    self._notice_process(one, pid, found)
        return found

    def _notice_process(self, one: Done, pid: int, found: Noticed) -> None:
        known = [moment for moment in self._died.get((one.worker_pid, pid), ()) if moment >= one.wall_us]
        if known:
            found.after.append((min(known) - one.wall_us) / 1e6)
        elif not any(_is_around(one.wall_us, *run) for run in self._cut_short.get(pid, ())):
            found.excused["processes that ran nothing"] += 1
        elif any(abs(moment - one.wall_us) < self._patience_us(one) for moment in self._lamed(one)):
            found.excused["processes whose worker was hurt as well"] += 1
        else:
            found.missed.append(f"process {pid} was killed while it ran a task, and its worker never told of it")

    def _lamed(self, one: Done) -> Iterator[int]:
        """When a worker was hurt, and when others declared it dead of it: one that stayed frozen was ended by them."""
        yield from self._hurt_workers.get(one.worker_pid, ())
        for row in self._lives(one.worker_pid, one.wall_us):
            yield from self._declared.get(row.id, ())

    def _patience_us(self, one: Done) -> int:
        """Who has no store can tell nobody."""
        return AWAY_US if any(abs(moment - one.wall_us) < AWAY_US for moment in self._store_killed) else SOON_US

    def workers(self) -> Noticed:
        """Workers that were killed, by the event that says so. Where every one was killed nobody was there, and the
        time says nothing."""
        found = Noticed()
        for one in self._done:
            for pid in sorted(one.workers) if one.deed in KILLS_WORKERS else ():
                self._notice_worker(one, pid, found)
        return found

    def _notice_worker(self, one: Done, pid: int, found: Noticed) -> None:
        rows = self._lives(pid, one.wall_us)
        if not rows:
            found.excused["workers that had not registered yet"] += 1
            return
        known = [moment for row in rows for moment in self._declared.get(row.id, ()) if moment >= one.wall_us]
        unknown = [row.name for row in rows if row.status is not WorkerStatus.DEAD]
        if unknown:
            found.missed.append(f"worker {unknown[0]} (process {pid}) was killed, and nobody ever knew")
        elif not known:
            found.excused["workers that counted as dead already"] += 1
        elif one.deed is Deed.KILL_EVERY_WORKER:
            found.excused["workers that were killed all at once"] += 1
        else:
            found.after.append((min(known) - one.wall_us) / 1e6)


def _moments(found: Iterable[tuple[object, EventInfo]]) -> Mapping[object, list[int]]:
    by: dict[object, list[int]] = defaultdict(list)
    for key, one in found:
        by[key].append(_us(one.at))
    return by


def _cut_short(lines: Iterable[Line]) -> Mapping[int, list[tuple[int, int]]]:
    """By process: when each run began that it did not end, and when it was last heard of."""
    open_runs: dict[tuple[int, str, int], tuple[int, int]] = {}
    for line in lines:
        run = line.pid, line.task_id, line.fence
        if line.word in LAST:
            open_runs.pop(run, None)
        else:
            open_runs[run] = open_runs.get(run, (line.wall_us, 0))[0], line.wall_us
    by: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (pid, _, _), moments in open_runs.items():
        by[pid].append(moments)
    return by


def _is_around(moment: int, began: int, last: int) -> bool:
    return began <= moment and last <= moment + SLACK_US


def _is_within(moments: Iterable[int], attempt: AttemptInfo) -> bool:
    began = 0 if attempt.started_at is None else _us(attempt.started_at)
    return any(began - SLACK_US <= moment <= _us(attempt.finished_at) + SLACK_US for moment in moments)


def _us(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6)
