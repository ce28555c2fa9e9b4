"""The read side: tasks, results, counts, events, as people and handles ask for them.

What the code of a sensitive task said in its errors and its progress may hold what it was given, so it is not shown
(PROTOCOL 41). Only `finished`, which is for the sender of the task, has it.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from everbeat.errors import EverbeatError
from everbeat.model.event import EventInfo
from everbeat.model.flow import CONDITION_NOT_MET, JOIN_NOT_MET, UPSTREAM_FAILED, WORKFLOW_CANCELLED
from everbeat.model.order import FAILED_BY_HAND, REQUEUED_BY_HAND
from everbeat.model.state import TaskStatus
from everbeat.model.task import AttemptInfo, Finished, HistoryEntry, LateOutcome, TaskError, TaskInfo, TaskPolicy
from everbeat.store.messages import TaskFilter
from everbeat.store.moments import micros, moment, moment_or_none
from everbeat.store.reading import facts_in, object_in
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs import living

QUEUE_HOLDS = """
       (SELECT CASE WHEN q.paused = 1 THEN 'which is paused'
                    WHEN q.max_concurrency <= (SELECT count(*) FROM everbeat_tasks o
                                                WHERE o.counted = 1 AND o.status IN ('CLAIMED', 'RUNNING')
                                                  AND o.queue = q.name) THEN 'which has as many tasks as it may' END
          FROM everbeat_queues q WHERE q.name = {task}.queue)"""
"""What its queue keeps a task from, if it does."""
TASK = f"""
SELECT id, name, queue, status, priority, attempt, max_attempts, crash_count, lost_count, fence, worker_id, created_at,
       run_at, started_at, finished_at, error_code, error_message, waiting_for, quarantined, due_at, progress,
       {QUEUE_HOLDS.format(task="everbeat_tasks")}, policy
  FROM everbeat_tasks"""

KNOWN = frozenset(TaskStatus)
"""A row in another state is passed over in lists: `db check` tells of it."""
HIDDEN = "(not shown: the task is sensitive)"
OURS = frozenset(
    {"WORKER_CRASHED", "WORKER_STOPPED", "NEIGHBOUR_CRASHED", "LEASE_LOST", "TASK_TIMEOUT", "UNKNOWN_TASK",
     "ROW_UNREADABLE", FAILED_BY_HAND, REQUEUED_BY_HAND, UPSTREAM_FAILED, CONDITION_NOT_MET, JOIN_NOT_MET,
     WORKFLOW_CANCELLED}
)  # fmt: skip
"""Codes whose messages are our own words."""

ATTEMPTS = """
SELECT attempt, outcome, error_code, error_message, worker_id, hostname, pid, started_at, finished_at, will_retry
  FROM everbeat_attempts WHERE task_id = ? ORDER BY id"""

HISTORY = """
SELECT at, actor, change, old_status, new_status, reason, attempt, fence, worker_id
  FROM everbeat_history WHERE task_id = ? ORDER BY id"""

# everbeat_late_outcomes_task
LATE = """
SELECT at, attempt, fence, worker_id, found_status, found_fence, result IS NOT NULL, error_code, error_message,
       (SELECT policy FROM everbeat_tasks t WHERE t.id = task_id)
  FROM everbeat_late_outcomes WHERE task_id = ? ORDER BY id"""

FINISHED = "SELECT status, attempt, result, error_code, error_message, error FROM everbeat_tasks WHERE id = ?"

# The primary key, or everbeat_events_task where only one task is asked for.
EVENTS = "SELECT id, at, name, task_id, worker_id, facts FROM everbeat_events WHERE id > ?{more} ORDER BY id LIMIT ?"


def get(tx: Transaction, task_id: str, *, full: bool) -> TaskInfo | None:
    row = tx.one(TASK + " WHERE id = ?", (task_id,))
    if row is None:
        return None
    if not full:
        return _info(row, Waits(tx))
    return _info(
        row,
        Waits(tx),
        attempts=[_attempt(found, row[22]) for found in tx.rows(ATTEMPTS, (task_id,))],
        history=[_entry(found) for found in tx.rows(HISTORY, (task_id,))],
    )


def late_outcomes(tx: Transaction, task_id: str) -> list[LateOutcome]:
    return [
        LateOutcome(
            at=moment(row[0]), attempt=row[1], fence=row[2], worker_id=row[3], found_status=row[4], found_fence=row[5],
            has_result=bool(row[6]), error_code=row[7], error_message=shown_message(row[7], row[8], row[9]),
        )
        for row in tx.rows(LATE, (task_id,))
    ]  # fmt: skip


def finished(tx: Transaction, task_id: str) -> tuple[bool, Finished | None]:
    """Whether the task exists, and its end if it has come."""
    row = tx.one(FINISHED, (task_id,))
    if row is None:
        return False, None
    status = _state(task_id, row[0])
    if not status.is_terminal:
        return True, None
    return True, Finished(status=status, attempt=row[1], result=row[2], error=_error(row[3], row[4], row[5]))


def tasks(tx: Transaction, wanted: TaskFilter) -> list[TaskInfo]:
    where = list(conditions(wanted))
    sql = TASK + (" WHERE " + " AND ".join(text for text, _ in where) if where else "") + " ORDER BY seq DESC LIMIT ?"
    waits = Waits(tx)
    rows = tx.all(sql, [*(value for _, values in where for value in values), wanted.limit])
    return [_info(row, waits) for row in rows if row[3] in KNOWN]


def events(tx: Transaction, *, after: int, since: datetime | None, task_id: str | None, limit: int) -> list[EventInfo]:
    asked = {" AND at >= ?": micros(since), " AND task_id = ?": task_id}
    more = {text: value for text, value in asked.items() if value is not None}
    return [
        EventInfo(
            id=row[0], at=moment(row[1]), name=str(row[2]), task_id=row[3], worker_id=row[4], facts=facts_in(row[5])
        )
        for row in tx.rows(EVENTS.format(more="".join(more)), (after, *more.values(), limit))
    ]


def conditions(wanted: TaskFilter) -> Iterator[tuple[str, list[Any]]]:
    """What was asked for, as conditions on everbeat_tasks with their values."""
    lists = {"id": wanted.ids, "status": wanted.statuses, "name": wanted.names, "queue": wanted.queues,
             "error_code": wanted.error_codes}  # fmt: skip
    for column, values in lists.items():
        if values:
            yield f"{column} IN ({', '.join('?' * len(values))})", [str(value) for value in values]
    if wanted.since is not None:
        yield "created_at >= ?", [micros(wanted.since)]
    if wanted.older_than is not None:
        yield "coalesce(finished_at, created_at) < ?", [micros(wanted.older_than)]
    if wanted.quarantined is not None:
        yield "quarantined = ?", [int(wanted.quarantined)]


def _info(
    row: Row, waits: "Waits", attempts: list[AttemptInfo] | None = None, history: list[HistoryEntry] | None = None
) -> TaskInfo:
    return TaskInfo(
        id=row[0], name=row[1], queue=row[2], status=_state(row[0], row[3]), priority=row[4], attempt=row[5],
        max_attempts=row[6], crash_count=row[7], lost_count=row[8], fence=row[9], worker_id=row[10],
        created_at=moment(row[11]), run_at=moment(row[12]), started_at=moment_or_none(row[13]),
        finished_at=moment_or_none(row[14]), error_code=row[15], error_message=shown_message(row[15], row[16], row[22]),
        waiting_for=waits.of(
            status=row[3], queue=row[2], name=row[1], stored=row[17], due_at=row[19], held=row[21]
        ), quarantined=bool(row[18]),
        progress=_progress(row[20], row[22]), attempts=attempts or [], history=history or [],
    )  # fmt: skip


class Waits:
    """What tasks that are not running wait for: every one of them says it (P2). Who is alive is asked at most once."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._alive: list[living.Served] | None = None

    def of(
        self, *, status: str, queue: str, name: str, stored: str | None, due_at: int | None, held: str | None
    ) -> str | None:
        if status != TaskStatus.PENDING:
            return None
        if stored:
            return str(stored)
        if held:
            return f"its queue {queue}, {held}"
        if due_at is None or due_at <= self._tx.now:
            return self._worker(queue, name)
        return f"its time, {moment(due_at):%Y-%m-%d %H:%M:%S} UTC"

    def _worker(self, queue: str, name: str) -> str:
        if self._alive is None:
            self._alive = [served for _, served in living.served(self._tx)]
        if not self._alive:
            return "a worker; none is running"
        if not any(name in served.names for served in self._alive):
            return f"a worker that knows {name}; of {len(self._alive)} running none does"
        if not any(served.covers(queue, name) for served in self._alive):
            return f"a worker for its queue {queue}; of {len(self._alive)} running none takes {name} from it"
        return "a free slot"


def _state(task_id: str, stored: str) -> TaskStatus:
    if stored not in KNOWN:
        raise EverbeatError(
            f"task {task_id} is in no known state ({stored!r}): somebody wrote that by hand. It is left alone. "
            f"`everbeat db check` lists such rows."
        )
    return TaskStatus(stored)


def shown_message(code: str | None, message: str | None, policy: str | None) -> str | None:
    is_shown = message is None or code in OURS or not TaskPolicy.load(policy).sensitive
    return message if is_shown else HIDDEN


def _progress(stored: str | None, policy: str | None) -> dict[str, Any] | None:
    said = object_in(stored) if stored else None
    if said and said.get("note") is not None and TaskPolicy.load(policy).sensitive:
        return said | {"note": HIDDEN}
    return said


def _attempt(row: Row, policy: str | None) -> AttemptInfo:
    return AttemptInfo(
        attempt=row[0], outcome=row[1], error_code=row[2], error_message=shown_message(row[2], row[3], policy),
        worker_id=row[4], hostname=row[5], pid=row[6], started_at=moment_or_none(row[7]), finished_at=moment(row[8]),
        will_retry=bool(row[9]),
    )  # fmt: skip


def _entry(row: Row) -> HistoryEntry:
    return HistoryEntry(
        at=moment(row[0]), actor=row[1], change=row[2], old_status=row[3], new_status=row[4], reason=row[5],
        attempt=row[6], fence=row[7], worker_id=row[8],
    )  # fmt: skip


def _error(code: str | None, message: str | None, stored: str | None) -> TaskError | None:
    if code is None:
        return None
    more = (object_in(stored) or {}) if stored else {}
    return TaskError(code=code, message=message or "", exception_type=more.get("type"), traceback=more.get("traceback"))
