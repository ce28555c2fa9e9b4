"""What a store does, in the order of a task's life.

Every write is one short transaction. Every write by an executor carries its fence and worker id, so a caller that has
been superseded changes nothing and is told so. Ages are measured by the store's own clock; times are UTC microseconds.

A store raises `StoreUnavailable` when it can not be reached or written; nothing was changed then.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from everbeat.errors import EverbeatError
from everbeat.model.event import Event, EventInfo
from everbeat.model.flow import NewWorkflow, NodeInfo, NodeResult, WorkflowChange, WorkflowInfo, WorkflowStatus
from everbeat.model.integrity import Checkpoint, IntegrityResult, Rescue
from everbeat.model.order import Order
from everbeat.model.recovery import RECOVERY_ACTOR, Orphan, OrphanClass, Settlement, Verdict
from everbeat.model.report import RecoveryReport
from everbeat.model.retention import Bite, Cut, Kept
from everbeat.model.session import Look, Suspect
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, Enqueued, Finished, LateOutcome, NewTask, TaskInfo
from everbeat.model.worker import NewWorker, Standing, WorkerInfo, WorkerState
from everbeat.store.messages import (
    Beat,
    Flush,
    Flushed,
    Held,
    Measures,
    Ours,
    QueueCount,
    QueueInfo,
    Sent,
    StaleTask,
    TaskFilter,
    Torn,
)


class Bell(Protocol):
    """How an idle worker learns that something may be ready for it. Made by `Store.listen`."""

    def fileno(self) -> int: ...

    def clear(self) -> bool:
        """Silence it. Whether it rang because somebody wants a run of this worker to end."""

    def close(self) -> None: ...


class SessionsUnusable(EverbeatError):
    """This store is reached in a way that makes the loss of a session mean nothing."""


class Session(Protocol):
    """A lock that is lost with the connection of the worker that holds it. Made by `Store.hold_session`."""

    def ping(self) -> None:
        """StoreUnavailable: it is lost."""

    def look(self) -> Look:
        """The same, and who else holds one."""

    def close(self) -> None: ...


class Blocker(Protocol):
    """The process that holds the write lock."""

    @property
    def pid(self) -> int: ...

    @property
    def is_stopped(self) -> bool: ...


class Site(Protocol):
    """What can be known of a store that can not be opened now."""

    @property
    def state_directory(self) -> Path:
        """Where workers of this store on this host keep their lock files and journals."""

    @property
    def location(self) -> str:
        """Where it is, for people: absolute, passwords masked."""

    def blocker(self) -> Blocker | None:
        """Who keeps everybody from writing, if that can be known."""

    def rescue(self) -> Rescue:
        """What a person can do about a store that could not be repaired. From here on nothing is written to it by this
        process, not even when it is closed."""


class Store(Site, Protocol):
    @property
    def engine(self) -> str:
        """The database and its version, for people."""

    @property
    def store_id(self) -> str:
        """Made with the store and never changed: another one is another store."""

    def close(self) -> None: ...

    # -- sending ----------------------------------------------------------------------------------------------------

    def enqueue(self, tasks: Sequence[NewTask]) -> Sequence[Enqueued]:
        """Store all or none, durably, and wake a worker. Calls from several threads share commits."""

    def enqueue_on(self, connection: Any, tasks: Sequence[NewTask]) -> Sent:
        """Store all or none in the transaction on the user's own connection (PROTOCOL 36). ValueError if it is none of
        this store, or no transaction can be open on it; TaskConflict if an id is taken."""

    # -- the life of a worker ---------------------------------------------------------------------------------------

    def register(self, worker: NewWorker) -> None:
        """Enter the store, and set up the queues as the worker's configuration says."""

    def renew_names(self, worker_id: str, task_names: Collection[str]) -> None:
        """The application of this worker was imported again and knows these tasks now."""

    def standing(self, worker_id: str) -> Standing:
        """What this store is, and what it knows of a worker."""

    def beat(self, worker_id: str, held: Collection[Held], state: WorkerState | None = None,
             seen: int | None = None) -> Beat:  # fmt: skip
        """Renew the worker row and write one heartbeat per held claim, with a snapshot of the worker if there is one.
        Never revives a worker declared dead. `seen`: the last beat that was acknowledged."""

    def renew(self, worker_id: str, held: Collection[Held], seen_beat: int) -> bool:
        """Renew the worker row between two beats, for claims with exclusive keys. False: it was declared dead, or the
        store is older than that beat."""

    def hold_session(self, worker_id: str) -> Session | None:
        """None: this store has no sessions. Raises SessionsUnusable."""

    def session_holders(self) -> frozenset[str] | None:
        """Workers that hold one now; None: this store has no sessions."""

    def retire(self, worker_id: str, facts: Mapping[str, Any] | None = None) -> None:
        """Say goodbye: the worker is stopped, what it still owns is free to be recovered."""

    # -- the life of a task -----------------------------------------------------------------------------------------

    flushes_at_once: int
    """More of a worker's only wait for each other."""

    def flush(self, flush: Flush) -> Flushed:
        """All of it, or nothing with RowRefused if a row of it can never be written: then ask for it row by row."""

    def expire(self, *, settle_us: int) -> list[str]:
        """End some of the tasks that were not started while they were good; none for so long after the wall clock was
        set (PROTOCOL 15). The ids of at most one bite: call it again until there are none."""

    def refuse_unknown(self, *, after_us: int, gap_us: int) -> list[str]:
        """Fail some of the tasks whose name no living worker has known for that long, and that have waited for so long.
        Looks further apart than the gap begin to count anew. The ids: call it again until there are none."""

    def mend_turns(self, after: str = "") -> str:
        """Where tasks wait for an exclusive key that is nobody's turn, give the turn to the first of them. Looks at
        some keys that follow `after`, and says which was the last; "" if there are no more."""

    def ours(self, worker_id: str, *, seen_beat: int = 0) -> Ours:
        """What is this worker's own, and what of it somebody wants to end. Cheap to ask."""

    # -- workflows --------------------------------------------------------------------------------------------------

    def start_workflow(self, flows: Sequence[NewWorkflow]) -> Enqueued:
        """Store a workflow and all that is nested in it, durably, and begin. The first is the root."""

    def change_workflow(self, change: WorkflowChange, workflow_id: str, *, actor: str) -> bool:
        """What a person asks for. False: it does not fit the state the workflow is in, or there is none."""

    def workflow(self, workflow_id: str) -> WorkflowInfo | None: ...

    def workflows(self, *, statuses: Collection[WorkflowStatus] = (), name: str | None = None,
                  limit: int = 50) -> list[WorkflowInfo]:  # fmt: skip
        """The newest first. Without those that are nested."""

    def workflow_nodes(self, workflow_id: str) -> list[NodeInfo]:
        """In the order in which they were added."""

    def workflow_results(self, workflow_id: str, *, outputs_only: bool) -> list[NodeResult]:
        """The ends of its nodes; or of those whose results are its own."""

    def workflow_ends(self, workflow_id: str) -> list[NodeResult]:
        """The ends of its nodes without their results, to see what failed and why."""

    def over_around(self, task_id: str) -> WorkflowInfo | None:
        """A workflow around this task that is over for good, so that the task can not live again: it was cancelled, or
        it has completed inside another one, which went on with its result."""

    def wait_workflow(self, workflow_id: str, timeout: float | None) -> WorkflowInfo | None:
        """Its end; None if it has not come in that time. Raises WorkflowNotFound."""

    async def await_workflow(self, workflow_id: str, timeout: float | None) -> WorkflowInfo | None: ...

    def torn_workflows(self, *, after: str = "", all_of_them: bool = False) -> Torn:
        """Look through some workflows that have not ended, as `mend_workflows` does, and change nothing. What can
        not be mended, because of a row further on or a lock, may show only when it is tried."""

    def mend_workflows(self, *, after: str = "", all_of_them: bool = False) -> Torn:
        """Look through some workflows that have not ended and let go on what something tore, each in a transaction of
        its own. Those that can not be mended were set aside, or somebody has locked them. `all_of_them`: also those
        that were set aside before."""

    # -- recovery ---------------------------------------------------------------------------------------------------

    def workers(self, *, alive_only: bool = False) -> list[WorkerInfo]: ...

    def declare_dead(
        self,
        worker_id: str,
        *,
        reason: str,
        cause: str,
        silent_for_us: int | None = None,
        unseen_for_us: int | None = None,
    ) -> bool:
        """One compare-and-set on the worker row; with `silent_for_us` it is tested again in it (PROTOCOL 2).
        `unseen_for_us`: when somebody last saw it alive, if that is later than its last beat."""

    def requeue_silent_claims(self, silent_for_us: int, *, reason: str) -> int:
        """Return the CLAIMED tasks of workers that have been silent for that long; their code never ran."""

    def orphans(self, *, limit: int, after: Claim | None = None) -> list[Claim]:
        """Owned tasks whose owner is dead, stopped or missing, in a fixed order. `after`: those that follow that one,
        so that what is left alone does not hide the rest."""

    def owned_by(self, worker_id: str, *, limit: int = 1000, after: int = 0) -> list[Claim]:
        """In the order of seq, from the one that follows `after`."""

    def surely_owned_by(self, worker_id: str) -> list[Claim]:
        """All of it, once no flush of this worker is still being committed: after one whose answer was lost."""

    def recover(self, verdicts: Sequence[tuple[Orphan, Verdict]], *, actor: str = RECOVERY_ACTOR) -> list[Settlement]:
        """Apply verdicts on orphans under their fence; each with its history, attempt and event. One that can not be
        written is `Unsettled` and does not stop the others; one whose lease is not over is `Leased`."""

    def role_holder(self, role: str) -> str | None:
        """The worker that holds the role now."""

    def owned_ids(self, worker_id: str, *, limit: int) -> list[str]: ...

    def beaten_for(self, worker_id: str) -> str | None:
        """The task that the last beat of this worker was for, too."""

    def count_owned(self, worker_id: str) -> int: ...

    def count_orphans(self) -> int: ...

    def recover_suspected(
        self, suspect: Suspect, verdicts: Sequence[tuple[Orphan, Verdict]]
    ) -> list[Settlement] | None:
        """The same for tasks of a worker that has lost its session. None: it has it again, or has beaten, or somebody
        else sees to it; nothing was changed."""

    def gone_owners(self) -> list[str | None]:
        """Who owns anything and is dead, stopped, unknown or nobody."""

    def orphan_classes(self, owner: str | None, *, after: int, limit: int) -> list[OrphanClass]:
        """The next so many tasks of one owner, by class. Without those that hold an exclusive key or are to be
        cancelled, which are seen to alone."""

    def recover_classes(self, verdicts: Sequence[tuple[OrphanClass, Verdict]]) -> list[bool]:
        """Apply a verdict to all tasks of a class, or, if one of them has moved or can not be written, to none."""

    def take_role(self, role: str, worker_id: str, *, lease_us: int) -> bool:
        """Hold a role for the whole store until the lease runs out (PROTOCOL 3)."""

    def healthy_for_us(self) -> int:
        """For how long the store has been written without an outage (PROTOCOL 14); 0 during one."""

    def stale_tasks(self, status: TaskStatus, silent_for_us: int) -> list[StaleTask]: ...

    def save_report(self, report: RecoveryReport, *, actor: str) -> RecoveryReport:
        """It ends now, by the clock of the store, and so do its other times. As it was saved."""

    def reports(self, *, limit: int) -> list[RecoveryReport]: ...

    # -- the store itself -------------------------------------------------------------------------------------------

    def check_integrity(self, *, budget: float) -> IntegrityResult:
        """Whether all that is stored can be read as it was written; cut after so many seconds. Changes nothing."""

    def repair(self, found: IntegrityResult) -> IntegrityResult:
        """Try to heal what was found, in one transaction: a repair that fails leaves the store as it was. Only while no
        other worker is alive."""

    def restore_log(self) -> str | None:
        """See to it that commits are logged the way we need; how they were logged instead, if they were."""

    def log_bytes(self) -> int:
        """How long the log is that has to be moved into the database."""

    def checkpoint(self) -> Checkpoint: ...

    def contradictions(self) -> list[str]:
        """Rows that can not be what they say, in words: nobody of us writes such. A walk through all tasks."""

    def oddities(self, *, scan: bool) -> list[str]:
        """Rows that are worth a look, in words. `scan`: also those that only a walk through all heartbeats finds."""

    def is_behind(self, marks: frozenset[tuple[int, int]]) -> bool:
        """Whether a journal's begin marks tell of runs that the store knows nothing of: commits were lost."""

    def note_degraded(self, reason: str | None) -> None:
        """Single tasks could not be recovered; None: all could."""

    def degraded(self) -> str | None: ...

    # -- by a person ------------------------------------------------------------------------------------------------

    def cancel(self, task_id: str, *, actor: str) -> bool:
        """Cancel a task whose code has not begun, or ask its owner to end it. False: it had ended before."""

    def carry_out(self, order: Order, wanted: TaskFilter, *, actor: str, reason: str | None = None,
                  dry_run: bool = False) -> Iterator[list[str]]:  # fmt: skip
        """Do it to every task that was asked for and that it fits, in batches of short transactions; the ids of each
        batch. `dry_run`: only those that it fits now."""

    def count_for(self, order: Order, wanted: TaskFilter) -> int:
        """How many tasks were asked for that the order fits."""

    def set_paused(self, queue: str, *, is_paused: bool, actor: str) -> bool:
        """Claim nothing of this queue until it is resumed; what runs goes on. False: it was so already."""

    def accept(self, task_id: str, *, actor: str) -> bool:
        """Make a result that came too late the task's result (PROTOCOL 29). False: none is there, the task runs or
        has completed, or its workflow is over without it."""

    # -- looking ----------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """By the clock that writes the times of tasks, which need not be that of this machine."""

    def get(self, task_id: str, *, full: bool = True) -> TaskInfo | None: ...

    def late_outcomes(self, task_id: str) -> list[LateOutcome]: ...

    def finished(self, task_id: str) -> Finished | None:
        """The end of a task; None while it is not terminal. Raises TaskNotFound."""

    def wait(self, task_id: str, timeout: float | None) -> Finished | None: ...

    async def await_(self, task_id: str, timeout: float | None) -> Finished | None: ...

    def tasks(self, wanted: TaskFilter) -> list[TaskInfo]: ...

    def queues(self) -> list[QueueInfo]: ...

    def counts(self) -> list[QueueCount]: ...

    def later(self, queues: Collection[str] | None) -> int:
        """How many tasks of these queues wait for their time: delayed, or to be retried. None: of all queues."""

    def measure(self) -> Measures: ...

    def events(self, *, after: int = 0, since: datetime | None = None, task_id: str | None = None,
               limit: int = 1000) -> list[EventInfo]: ...  # fmt: skip

    def announce(self, events: Iterable[Event]) -> None: ...

    def hear_again(self, events: Sequence[Event]) -> list[Event]:
        """Those of them that are stored already, by a transaction whose answer was lost: they are told now to whoever
        hears events, and are not to be written again."""

    def on_events(self, hear: Callable[[Sequence[Event]], None]) -> None:
        """Call this with the events of every transaction that is made through this object, after its commit."""

    # -- looking after the records ----------------------------------------------------------------------------------

    def retention_is_due(self, *, every_us: int) -> bool:
        """Whether the last pass that was finished is that long ago."""

    def retain(self, cut: Cut, *, worker_id: str, lease_us: int) -> Bite | None:
        """Delete a little of what is too old, if this worker has the role or can take it. None: somebody else has."""

    def retention_done(self, deleted: Mapping[Kept, int]) -> None:
        """A pass is over."""

    def subscribe(self, application: str, names: Iterable[str]) -> None:
        """From now on events with these names wait to be told to the application; "*" is every one. To be said again
        now and then."""

    def undelivered(self) -> int:
        """How many tellings wait, whoever is to be told."""

    def take_events(
        self, application: str, names: Collection[str], *, worker_id: str, limit: int, lease_us: int
    ) -> list[EventInfo]:
        """Some that wait for the application, oldest first. No other worker of it is given them before the lease has
        run out, or this one is declared dead."""

    def keep_events(self, application: str, events: Sequence[int], *, worker_id: str, lease_us: int) -> None:
        """They are still being told: nobody else is given them for so much longer."""

    def settle_events(
        self,
        application: str,
        *,
        delivered: Sequence[int] = (),
        failed: Sequence[tuple[int, str]] = (),
        returned: Sequence[int] = (),
    ) -> None:
        """What became of events that were taken. One that failed for the tenth time is given up and announced."""

    # -- waking -----------------------------------------------------------------------------------------------------

    def listen(self, worker_id: str) -> Bell:
        """A bell that rings when something may be ready for this worker. It may ring for nothing, and may be missed."""

    def data_version(self) -> int:
        """Changes when somebody else has written; cheap to ask, for what a missed bell would have told."""
