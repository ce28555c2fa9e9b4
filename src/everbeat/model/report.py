"""The report of a recovery: what was found and done, as a value, in the layout of seed 004, and as JSON."""

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from everbeat.model.task import attempt_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredTask:
    task_id: str
    action: str
    attempt_count: int
    max_attempts: int
    success: bool
    error: str | None
    previous_worker_id: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadWorker:
    worker_id: str
    last_heartbeat: datetime
    orphaned_tasks: list[str]
    more_orphaned: int = 0
    """Tasks beyond those that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TornWorkflow:
    """A workflow whose rows did not agree: a person's SQL, a restored table, a row that was refused."""

    workflow_id: str
    success: bool
    """It goes on; in a dry run, it would."""
    reason: str
    """What was wrong; or why it could not be mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A worker that is neither proven alive nor proven gone; only silence can tell (PROTOCOL 14)."""

    worker_id: str
    tasks: int
    until: datetime
    """When it will have been silent for long enough, if it does not beat before."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a long recovery is."""

    stage: str
    """"integrity", "repair", "checkpoint", "spools", "workers" or "orphans"."""
    done: int = 0
    total: int | None = None
    """None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """One recovery pass, as stored, printed and sent. Of a large one the first thousand tasks are listed, the others
    counted (PROTOCOL 39)."""

    started_at: datetime
    completed_at: datetime
    integrity_check_passed: bool | None = None
    """None: it was not run, or not to its end; the note says so."""
    integrity_note: str | None = None
    wal_frames_checkpointed: int = 0
    recovered_tasks: list[RecoveredTask] = field(default_factory=list)
    dead_workers: list[DeadWorker] = field(default_factory=list)
    more_recovered: int = 0
    more_failed: int = 0
    """Tasks beyond those that are listed."""
    left_alone: int = 0
    """Orphans that the configuration says to leave."""
    undecided: list[Undecided] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    spooled_outcomes: int = 0
    """Outcomes that dead workers had kept on disk, stored now."""
    torn_workflows: list[TornWorkflow] = field(default_factory=list)
    more_torn: int = 0
    """Workflows beyond those that are listed."""
    dry_run: bool = False
    """Nothing was changed: this is what would be done."""

    @property
    def duration(self) -> timedelta:
        """Of the whole pass."""
        return self.completed_at - self.started_at

    def ending_at(self, moment: datetime) -> "RecoveryReport":
        """The same by the clock that shows `moment` now, at its end: what it took stays as it was measured."""
        off = moment - self.completed_at
        undecided = [replace(one, until=one.until + off) for one in self.undecided]
        return replace(self, started_at=self.started_at + off, completed_at=moment, undecided=undecided)

    @property
    def orphaned_tasks_found(self) -> int:
        """All that were decided about, listed or not."""
        return len(self.recovered_tasks) + self.more_recovered + self.more_failed

    @property
    def successful_recoveries(self) -> int:
        """Tasks whose verdict is stored, whatever it is: FAILED, too."""
        return sum(task.success for task in self.recovered_tasks) + self.more_recovered

    @property
    def failed_recoveries(self) -> int:
        """Tasks whose verdict could not be stored; they are tried again later."""
        return self.orphaned_tasks_found - self.successful_recoveries

    @property
    def is_degraded(self) -> bool:
        """Single tasks could not be recovered; everything else goes on."""
        return self.failed_recoveries > 0

    def to_report(self) -> str:
        """The layout of the seed. What it has no place for comes before the last line, and only if there is any."""
        more = self.more_recovered + self.more_failed
        return "\n\n".join(
            [
                "\n".join(
                    [
                        "=== Queue Recovery Report ===" + (" (dry run: nothing was changed)" if self.dry_run else ""),
                        f"Started: {_stamp(self.started_at)}",
                        f"Duration: {self.duration.total_seconds():.1f}s",
                    ]
                ),
                f"Integrity Check: {self.integrity}\nWAL Checkpointed: {self.wal_frames_checkpointed} frames",
                _section(
                    "Orphaned Tasks Found",
                    self.orphaned_tasks_found,
                    [f"{task.task_id}: {_outcome(task)}" for task in self.recovered_tasks],
                    more=more,
                ),
                _section("Dead Workers", len(self.dead_workers), [self._burial(dead) for dead in self.dead_workers]),
                *self._particulars(),
                f"Recovery Complete: {_stamp(self.completed_at)}\n",
            ]
        )

    @property
    def integrity(self) -> str:
        """PASSED, FAILED, INCOMPLETE or NOT RUN, with the note."""
        if self.integrity_check_passed is None:
            word = "NOT RUN" if self.integrity_note is None else "INCOMPLETE"
        else:
            word = "PASSED" if self.integrity_check_passed else "FAILED"
        return f"{word} ({self.integrity_note})" if self.integrity_note else word

    def _burial(self, dead: DeadWorker) -> str:
        return f"{dead.worker_id} (last heartbeat: {_ago(self.completed_at - dead.last_heartbeat)} ago)"

    def _particulars(self) -> list[str]:
        lines = [
            f"{one.worker_id}: {one.tasks} tasks, undecided until {_stamp(one.until)} ({one.reason})"
            for one in self.undecided
        ]
        said = [_section("Undecided Workers", len(lines), lines)] if lines else []
        if self.spooled_outcomes:
            said.append(f"Outcomes From Spools: {self.spooled_outcomes}")
        if self.torn_workflows:
            torn = [f"{one.workflow_id}: {self._mending(one)}" for one in self.torn_workflows]
            count = len(torn) + self.more_torn
            said.append(_section("Torn Workflows", count, torn, more=self.more_torn))
        if self.left_alone:
            said.append(f"Left Alone By Configuration: {self.left_alone}")
        if self.is_degraded:
            failed = self.failed_recoveries
            tasks = "1 task" if failed == 1 else f"{failed} tasks"
            said.append(f"Degraded: {tasks} could not be recovered and will be tried again")
        if self.warnings:
            said.append(_section("Warnings", len(self.warnings), self.warnings))
        return said

    def _mending(self, torn: TornWorkflow) -> str:
        if torn.success:
            return f"{'would go on' if self.dry_run else 'goes on'} ({torn.reason})"
        return f"{'can not' if self.dry_run else 'could not'} be mended ({torn.reason})"

    def summary(self) -> dict[str, Any]:
        """The numbers, for the event and the log line."""
        return {
            "orphaned": self.orphaned_tasks_found,
            "recovered": self.successful_recoveries,
            "failed": self.failed_recoveries,
            "dead_workers": len(self.dead_workers),
            "undecided": len(self.undecided),
            "integrity": self.integrity,
            "frames": self.wal_frames_checkpointed,
            "seconds": round(self.duration.total_seconds(), 3),
        }

    def to_json(self) -> str:
        """One JSON object with every field and count: times in UTC, durations in seconds."""
        said: dict[str, Any] = asdict(self) | {
            "duration": self.duration.total_seconds(),
            "orphaned_tasks_found": self.orphaned_tasks_found,
            "successful_recoveries": self.successful_recoveries,
            "failed_recoveries": self.failed_recoveries,
            "degraded": self.is_degraded,
        }
        return json.dumps(said, default=_exactly)

    @classmethod
    def from_json(cls, text: str) -> "RecoveryReport":
        """What `to_json` said; fields that another version did not know, or knew besides, do not matter."""
        said = json.loads(text)
        plain = {name: said[name] for name in _PLAIN if name in said}
        return cls(
            **plain,
            started_at=_moment(said["started_at"]),
            completed_at=_moment(said["completed_at"]),
            recovered_tasks=[RecoveredTask(**task) for task in said["recovered_tasks"]],
            dead_workers=[
                DeadWorker(**(dead | {"last_heartbeat": _moment(dead["last_heartbeat"])}))
                for dead in said["dead_workers"]
            ],
            undecided=[Undecided(**(one | {"until": _moment(one["until"])})) for one in said.get("undecided", ())],
            torn_workflows=[TornWorkflow(**one) for one in said.get("torn_workflows", ())],
        )


_PLAIN = ("integrity_check_passed", "integrity_note", "wal_frames_checkpointed", "more_recovered", "more_failed",
          "left_alone", "warnings", "spooled_outcomes", "more_torn", "dry_run")  # fmt: skip


def _section(title: str, count: int, lines: list[str], *, more: int = 0) -> str:
    listed = [f"{title}: {count}", *(f"  - {line}" for line in lines)]
    return "\n".join([*listed, f"  ... and {more} more"] if more else listed)


def _outcome(task: RecoveredTask) -> str:
    if not task.success:
        return f"FAILED ({task.error})"
    if task.action == "failed":
        return f"failed ({task.reason})"
    return f"{task.action} (attempt {attempt_of(task.attempt_count, task.max_attempts)})"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _exactly(moment: datetime) -> str:
    if not isinstance(moment, datetime):
        return str(moment)  # written by hand into a row that the report tells of
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _ago(age: timedelta) -> str:
    seconds = max(0.0, age.total_seconds())
    return f"{seconds:.1f}s" if seconds < 60 else f"{seconds / 60:.0f}m"
