"""What became of everything: the account of a drill, and every promise that was broken.

Pure: what the store says, what the tasks said in the ledger, and what was done to the processes, in; a verdict out. A
task's result is the fence of the run it came from, so the ledger can be held against the store run by run.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from everbeat.drill.ledger import Line, Word
from everbeat.drill.plan import Deed, Kind, Sending
from everbeat.model import event
from everbeat.model.event import EventInfo
from everbeat.model.state import TaskStatus
from everbeat.model.task import TaskInfo
from everbeat.model.worker import WorkerInfo

MOST_LOSSES = 10
"""After losing so many workers a task is failed (PROTOCOL 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A deed that was done."""

    deed: Deed
    wall_us: int
    worker_pid: int = 0
    """The worker that was met, or whose process was."""
    pids: frozenset[int] = frozenset()
    """Task processes that died of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A task as the store has it at the end."""

    info: TaskInfo
    result: int | None
    """The fence of the run whose result it is."""
    late: frozenset[int] = frozenset()
    """Attempts whose outcome was refused, and kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    accepted: Mapping[str, Sending]
    """What `enqueue` returned for."""
    stored: Mapping[str, Stored]
    lines: Sequence[Line]
    done: Sequence[Done]
    events: Sequence[EventInfo]
    workers: Sequence[WorkerInfo] = ()
    complaints: Sequence[str] = ()
    """What else went wrong: a worker that ended by itself, a process that is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    count: int
    p50: timedelta | None
    p95: timedelta | None
    p99: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    ok: bool
    accepted: int
    completed_once: int
    retried: int
    """Began more than once."""
    quarantined: int
    failed: int
    """Not quarantined: they may run once only, and their runner died."""
    refused_late_writes: int
    lost: int
    stuck: int
    accepted_duplicates: int
    runs: int
    runs_cut_short: int
    """Began and did not come to their end."""
    finished_again: int
    """Runs that came to their end beyond the first of their task: their outcome was refused, their effects remain."""
    deeds: dict[str, int]
    time_to_detect: Times
    time_to_detect_process: Times
    time_to_detect_worker: Times
    time_to_restart: Times
    broken: list[str] = field(default_factory=list)


def judge(facts: Facts) -> Verdict:
    runs = _runs(facts.lines)
    tasks = [_Task(sending, facts.stored.get(task_id), runs[task_id]) for task_id, sending in facts.accepted.items()]
    broken = [f"{task.title} {problem}" for task in tasks for problem in task.problems()]
    broken += _overlaps(facts)
    broken += facts.complaints
    by_process, by_worker = list(_detected_processes(facts)), list(_detected_workers(facts))
    return Verdict(
        ok=not broken,
        accepted=len(tasks),
        completed_once=sum(task.status is TaskStatus.COMPLETED and not task.is_duplicate for task in tasks),
        retried=sum(len(task.runs) > 1 for task in tasks),
        quarantined=sum(task.is_quarantined for task in tasks),
        failed=sum(task.status is TaskStatus.FAILED and not task.is_quarantined for task in tasks),
        refused_late_writes=sum(one.name == event.OUTCOME_REFUSED for one in facts.events),
        lost=sum(task.stored is None for task in tasks),
        stuck=sum(task.status is not None and not task.status.is_terminal for task in tasks),
        accepted_duplicates=sum(task.is_duplicate for task in tasks),
        runs=sum(len(task.runs) for task in tasks),
        runs_cut_short=sum(not run.ended for task in tasks for run in task.runs),
        finished_again=sum(max(0, sum(run.ended for run in task.runs) - 1) for task in tasks),
        deeds={deed.value: count for deed, count in sorted(Counter(one.deed for one in facts.done).items())},
        time_to_detect=times(by_process + by_worker),
        time_to_detect_process=times(by_process),
        time_to_detect_worker=times(by_worker),
        time_to_restart=times(_restarted(facts)),
        broken=broken,
    )


# -- single tasks -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    fence: int
    attempt: int
    begun: int = 0
    """How often it said that it began."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Task:
    sending: Sending
    stored: Stored | None
    runs: list[_Run]

    @property
    def title(self) -> str:
        return f"{self.sending.id} ({self.sending.kind})"

    @property
    def status(self) -> TaskStatus | None:
        return None if self.stored is None else self.stored.info.status

    @property
    def is_quarantined(self) -> bool:
        return self.stored is not None and self.stored.info.quarantined

    @property
    def is_duplicate(self) -> bool:
        """One ownership ran twice, code that may run once ran again, or a run was started after one was believed."""
        if any(run.begun > 1 for run in self.runs):
            return True
        if not self.sending.kind.may_repeat and len(self.runs) > 1:
            return True
        believed = None if self.stored is None else self.stored.result
        return believed is not None and any(run.fence > believed for run in self.runs)

    def problems(self) -> Iterator[str]:
        if self.stored is None:
            yield "is lost: it was accepted, and the store does not know it"
            return
        info = self.stored.info
        if not info.status.is_terminal:
            yield f"is stuck: {info.status}, waiting for {info.waiting_for}, owner {info.worker_id}"
            return
        if self.is_duplicate:
            said = ", ".join(f"fence {run.fence} {run.begun}x" for run in self.runs)
            yield f"ran although a run of it counted already ({said}; believed: fence {self.stored.result})"
        if info.status is TaskStatus.COMPLETED and self.stored.result not in {r.fence for r in self.runs if r.ended}:
            yield f"is COMPLETED with the result of fence {self.stored.result}, and no such run came to its end"
        if self.sending.kind is Kind.POISON and not info.quarantined:
            yield f"kills its process and is {info.status}, not in quarantine"
        elif self.sending.kind.may_repeat and not self._has_right_end:
            yield f"may be repeated and is {info.status} with {info.error_code}: {info.error_message}"
        traced = {attempt.attempt for attempt in info.attempts} | self.stored.late
        for run in self.runs:
            if run.fence != self.stored.result and run.attempt not in traced:
                yield f"ran under fence {run.fence} (attempt {run.attempt}), and the store has no trace of it"

    @property
    def _has_right_end(self) -> bool:
        assert self.stored is not None
        info = self.stored.info
        if info.quarantined or info.lost_count >= MOST_LOSSES:
            return info.status is TaskStatus.FAILED
        return info.status is TaskStatus.COMPLETED


def _runs(lines: Iterable[Line]) -> dict[str, list[_Run]]:
    """By task, in the order of their fences."""
    found: dict[str, dict[int, _Run]] = defaultdict(dict)
    for line in lines:
        run = found[line.task_id].setdefault(line.fence, _Run(line.fence, line.attempt))
        run.begun += line.word is Word.BEGIN
        run.ended = run.ended or line.word is Word.END
    by_task = {task_id: [runs[fence] for fence in sorted(runs)] for task_id, runs in found.items()}
    return defaultdict(list, by_task)


def _overlaps(facts: Facts) -> Iterator[str]:
    """Two runs under one exclusive key: one of them said something after the other had begun."""
    last: dict[str, tuple[str, int]] = {}
    told: set[tuple[str, int]] = set()
    for line in sorted(facts.lines, key=lambda line: line.mono_ns):
        sending = facts.accepted.get(line.task_id)
        if sending is None or sending.key is None:
            continue
        run = line.task_id, line.fence
        if line.word is Word.BEGIN:
            last[sending.key] = run
        elif last.get(sending.key) != run and run not in told:
            told.add(run)
            other = last.get(sending.key, ("nobody", 0))
            yield f"{line.task_id} went on under key {sending.key} after {other[0]} had begun"


# -- times ------------------------------------------------------------------------------------------------------------


def times(seconds: Iterable[float]) -> Times:
    found = sorted(seconds)
    return Times(count=len(found), p50=_rank(found, 50), p95=_rank(found, 95), p99=_rank(found, 99))


def _rank(found: Sequence[float], percent: int) -> timedelta | None:
    """The nearest rank: one of the measured values, never one in between."""
    if not found:
        return None
    return timedelta(seconds=round(found[max(0, math.ceil(len(found) * percent / 100) - 1)], 6))


def _detected_processes(facts: Facts) -> Iterator[float]:
    """From the kill of a task process to the event that says so."""
    told: dict[object, list[int]] = defaultdict(list)
    for one in facts.events:
        if one.name == event.CHILD_DIED:
            told[one.facts.get("pid")].append(_us(one))
    for done in facts.done:
        if done.deed is Deed.KILL_PROCESS:
            yield from _since(done, (at for pid in done.pids for at in told[pid]))


def _detected_workers(facts: Facts) -> Iterator[float]:
    """From the kill of a worker to the event that says so. Not where every worker was killed: nobody was there."""
    pids = {worker.id: worker.host.pid for worker in facts.workers}
    told: dict[object, list[int]] = defaultdict(list)
    for one in facts.events:
        if one.name == event.WORKER_DEAD:
            told[pids.get(str(one.worker_id))].append(_us(one))
    for done in facts.done:
        if done.deed is Deed.KILL_WORKER:
            yield from _since(done, told[done.worker_pid])


def _restarted(facts: Facts) -> Iterator[float]:
    """From a kill to the next run of each task that it cut short."""
    begun: dict[str, list[int]] = defaultdict(list)
    unended: dict[int, list[Line]] = defaultdict(list)
    ended = {(line.task_id, line.fence) for line in facts.lines if line.word is Word.END}
    for line in facts.lines:
        if line.word is Word.BEGIN:
            begun[line.task_id].append(line.wall_us)
            if (line.task_id, line.fence) not in ended:
                unended[line.pid].append(line)
    for done in facts.done:
        if done.deed in (Deed.KILL_PROCESS, Deed.KILL_WORKER):
            below = (start for pid in done.pids for start in unended[pid])
            for task_id in sorted({start.task_id for start in below if start.wall_us < done.wall_us}):
                yield from _since(done, begun[task_id])


def _since(done: Done, moments: Iterable[int]) -> Iterator[float]:
    """Seconds from the deed to the first moment after it, if there is one."""
    later = [moment for moment in moments if moment >= done.wall_us]
    if later:
        yield (min(later) - done.wall_us) / 1e6


def _us(one: EventInfo) -> int:
    return round(one.at.timestamp() * 1e6)
