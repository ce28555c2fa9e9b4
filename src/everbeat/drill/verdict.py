"""What became of everything: the account of a drill, and every promise that was broken.

Pure: what the store says, what the tasks said in the ledger, and what was done to the processes, in; a verdict out. A
task's result is the fence of the run it came from, so the ledger can be held against the store run by run. What did not
complete must be explained by what was done (`harm.py`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from everbeat.drill.harm import Done, Harm, Noticed
from everbeat.drill.ledger import LAST, Line, Word
from everbeat.drill.plan import Deed, Kind, Sending
from everbeat.model import event
from everbeat.model.event import EventInfo
from everbeat.model.state import TaskStatus
from everbeat.model.task import TaskInfo
from everbeat.model.worker import WorkerInfo

MOST_LOSSES = 10
"""After losing more workers than this a task is failed (PROTOCOL 5)."""
MOST_CRASHES = 3
"""After so many deaths of its own process a task is set aside."""
CRASHED = "WORKER_CRASHED"


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
    not_timed: dict[str, int]
    """Who was killed and is in no time below: nobody had to notice, or nobody was there."""
    time_to_detect: Times
    time_to_detect_process: Times
    time_to_detect_worker: Times
    time_to_restart: Times
    broken: list[str] = field(default_factory=list)


def judge(facts: Facts) -> Verdict:
    runs = _runs(facts.lines)
    tasks = [_Task(sending, facts.stored.get(task_id), runs[task_id]) for task_id, sending in facts.accepted.items()]
    harm = Harm(facts.done, facts.workers, facts.events, facts.lines)
    processes, workers, restarted = harm.processes(), harm.workers(), list(_restarted(facts))
    broken = [] if tasks else ["nothing was accepted, so nothing was tried"]
    broken += [f"{task.title} {problem}" for task in tasks for problem in task.problems(harm)]
    broken += _overlaps(facts)
    broken += [*harm.declared_for_nothing(), *processes.missed, *workers.missed]
    broken += facts.complaints
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
        not_timed=_not_timed(processes, workers, restarted),
        time_to_detect=times(processes.after + workers.after),
        time_to_detect_process=times(processes.after),
        time_to_detect_worker=times(workers.after),
        time_to_restart=times(seconds for seconds in restarted if seconds is not None),
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

    def problems(self, harm: Harm) -> Iterator[str]:
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
        if info.status is not TaskStatus.COMPLETED or self.sending.kind is Kind.POISON:
            yield from self._unexplained(info, harm)
        traced = {attempt.attempt for attempt in info.attempts} | self.stored.late
        for run in self.runs:
            if run.fence != self.stored.result and run.attempt not in traced:
                yield f"ran under fence {run.fence} (attempt {run.attempt}), and the store has no trace of it"

    def _unexplained(self, info: TaskInfo, harm: Harm) -> Iterator[str]:
        """What the end of a task that did not complete should be, and is not."""
        crashes = sum(map(harm.ended_process_of, info.attempts))
        losses = sum(map(harm.ended_worker_of, info.attempts))
        ended = f"is {info.status} with {info.error_code}"
        if self.sending.kind is Kind.POISON:
            if not info.quarantined:
                yield f"kills its process and is {info.status}, not in quarantine"
            if len(self.runs) > MOST_CRASHES + losses:
                yield f"kills its process and was let run {len(self.runs)} times"
        elif info.status is not TaskStatus.FAILED or info.error_code != CRASHED:
            yield f"{ended}, and no death explains that: {info.error_message}"
        elif info.quarantined:
            if crashes < MOST_CRASHES:
                yield f"is in quarantine, and its own process was killed {crashes} times"
        elif self.sending.kind.may_repeat:
            if losses <= MOST_LOSSES and crashes < MOST_CRASHES:
                yield f"may be repeated and {ended} after {crashes + losses} deaths: {info.error_message}"
        elif not (crashes or losses):
            yield f"{ended}, and neither its process nor its worker was hurt: {info.error_message}"


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


def _not_timed(processes: Noticed, workers: Noticed, restarted: Sequence[float | None]) -> dict[str, int]:
    found = dict(sorted(processes.excused.items())) | dict(sorted(workers.excused.items()))
    ended = sum(seconds is None for seconds in restarted)
    return found | ({"tasks that ended with the run that was cut short": ended} if ended else {})


def _restarted(facts: Facts) -> Iterator[float | None]:
    """From a kill to the next run of each task that it cut short. None: there was none."""
    begun: dict[str, list[int]] = defaultdict(list)
    unended: dict[int, list[Line]] = defaultdict(list)
    ended = {(line.task_id, line.fence) for line in facts.lines if line.word in LAST}
    for line in facts.lines:
        if line.word is Word.BEGIN:
            begun[line.task_id].append(line.wall_us)
            if (line.task_id, line.fence) not in ended:
                unended[line.pid].append(line)
    for done in facts.done:
        if done.deed in (Deed.KILL_PROCESS, Deed.KILL_WORKER):
            below = (start for pid in done.pids for start in unended[pid])
            for task_id in sorted({start.task_id for start in below if start.wall_us < done.wall_us}):
                later = [moment for moment in begun[task_id] if moment >= done.wall_us]
                yield (min(later) - done.wall_us) / 1e6 if later else None
