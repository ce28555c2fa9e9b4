"""What is in the store that should not be: rows that nobody of us wrote so, signs that commits were lost.

No task is changed here. Such rows do not keep the others from being recovered; they are told, so that a person looks.
Also here: the note that single tasks could not be recovered, the degraded mode.
"""

from collections.abc import Iterator

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.flow import NodeStatus
from everbeat.model.state import TaskStatus
from everbeat.store.moments import moment
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.records import add_events, text

LISTED = 10
TERMINAL = ", ".join(f"'{state}'" for state in TaskStatus if state.is_terminal)
NODE_ENDS = ", ".join(f"'{state}'" for state in NodeStatus if state.is_terminal)
TEN_YEARS_US = 10 * 366 * 86_400 * 1_000_000

# A walk through the table; asked only by a person, or when the integrity check says that there are some.
UNKNOWN_STATES = f"""
SELECT id, status FROM everbeat_tasks WHERE status NOT IN ({", ".join(f"'{state}'" for state in TaskStatus)}) LIMIT ?"""

# As the one above.
IMPOSSIBLE = f"""
SELECT id, status, why FROM (
    SELECT id, status, CASE
           WHEN status IN ('CLAIMED', 'RUNNING') AND worker_id IS NULL THEN 'nobody owns it; recovery decides about it'
           WHEN status = 'PENDING' AND worker_id IS NOT NULL THEN 'it has an owner'
           WHEN status = 'RUNNING' AND started_at IS NULL THEN 'it has no start'
           WHEN status IN ({TERMINAL}) AND finished_at IS NULL THEN 'it has no end'
           WHEN status IN ('PENDING', 'CLAIMED', 'RUNNING') AND finished_at IS NOT NULL THEN 'it has an end'
           END AS why
      FROM everbeat_tasks) AS every
 WHERE why IS NOT NULL LIMIT ?"""

# everbeat_tasks_owned
OWNERS_WITHOUT_ROWS = """
SELECT t.worker_id, count(*) FROM everbeat_tasks t
 WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.worker_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM everbeat_workers w WHERE w.id = t.worker_id)
 GROUP BY t.worker_id LIMIT ?"""

BEATS_WITHOUT_TASKS = """
SELECT count(*) FROM everbeat_heartbeats h
 WHERE NOT EXISTS (SELECT 1 FROM everbeat_tasks t WHERE t.id = h.task_id)"""

# A walk through the workflows and their nodes. Recovery looks through those that say that something is left in them.
ENDED_TOO_EARLY = f"""
SELECT w.id, w.status, count(*)
  FROM everbeat_workflows w JOIN everbeat_workflow_tasks n ON n.workflow_id = w.id
 WHERE w.finished_at IS NOT NULL AND w.nodes_left = 0 AND n.status NOT IN ({NODE_ENDS})
 GROUP BY w.id, w.status LIMIT ?"""

# everbeat_tasks_due
FAR_FUTURE = """
SELECT id, due_at FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NOT NULL AND due_at > ? ORDER BY due_at LIMIT ?"""

# everbeat_workers_alive. A beat in the future of its own kernel.
FUTURE_BEATS = "SELECT id FROM everbeat_workers WHERE status = 'alive' AND clock_id = ? AND beat_mono > ? LIMIT ?"
BOOT = "SELECT clock_id FROM everbeat_health WHERE id = 1"

NEWEST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'everbeat_tasks'"
FENCE = "SELECT fence FROM everbeat_tasks WHERE seq = ?"

DEGRADED = "SELECT value FROM everbeat_meta WHERE key = 'degraded'"
SET_DEGRADED = """
INSERT INTO everbeat_meta (key, value) VALUES ('degraded', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"""
CLEAR_DEGRADED = "DELETE FROM everbeat_meta WHERE key = 'degraded'"


def oddities(tx: Transaction, *, scan: bool) -> Iterator[str]:
    """What may be and passes, in words: a few of each kind. `scan`: also what only a walk through the heartbeats
    finds."""
    if scan:
        yield from _beats_without_tasks(tx)
    for task_id, due_at in tx.rows(FAR_FUTURE, (tx.now + TEN_YEARS_US, LISTED)):
        said = f"{moment(due_at):%Y-%m-%d}" if isinstance(due_at, int) else repr(due_at)
        yield f"task {task_id} waits for a time in the far future ({said})"
    boot = tx.one(BOOT)
    if boot is not None:
        for (worker_id,) in tx.rows(FUTURE_BEATS, (boot[0], tx.mono + 60_000_000, LISTED)):
            yield f"worker {worker_id} has a heartbeat in the future; it counts as silent"


def contradictions(tx: Transaction) -> Iterator[str]:
    """What can not be, in words: a few of each kind. A walk through all tasks and workflows."""
    for task_id, status in tx.rows(UNKNOWN_STATES, (LISTED,)):
        yield f"task {task_id} is in no known state ({status}); it is left alone"
    for task_id, status, why in tx.rows(IMPOSSIBLE, (LISTED,)):
        yield f"task {task_id} is {status}, but {why}"
    for worker_id, count in tx.rows(OWNERS_WITHOUT_ROWS, (LISTED,)):
        yield f"worker {worker_id} owns tasks ({count}), but there is no such worker; recovery decides about them"
    for workflow_id, status, count in tx.rows(ENDED_TOO_EARLY, (LISTED,)):
        yield (
            f"workflow {workflow_id} is {status} and says that no node is left, but nodes of it ({count}) have not "
            "ended; recovery does not look at it before its nodes_left says so"
        )


def _beats_without_tasks(tx: Transaction) -> Iterator[str]:
    beats = tx.one(BEATS_WITHOUT_TASKS)
    if beats is not None and beats[0]:
        yield f"there are heartbeats ({beats[0]}) of tasks that are not there; retention removes them"


def is_behind(tx: Transaction, marks: frozenset[tuple[int, int]]) -> bool:
    """Whether a journal tells of runs (seq, fence) that the store knows nothing of. RUNNING is committed before a run
    begins, so those commits were lost: the log was removed, or an older copy is in its place. A task that is not there
    tells nothing to who may not ask how many there were."""
    newest = tx.one(NEWEST_SEQ)
    highest = newest[0] if newest else 0
    for seq, fence in marks:
        task = tx.one(FENCE, (seq,))
        if task is None and highest is not None and seq > highest:
            return True
        if task is not None and isinstance(task[0], int) and task[0] < fence:
            return True
    return False


def degraded(tx: Transaction) -> str | None:
    """Why this store works in degraded mode; None if it does not."""
    row = tx.one(DEGRADED)
    return None if row is None else str(row[0])


def note_degraded(tx: Transaction, reason: str | None) -> None:
    if reason is None:
        tx.run(CLEAR_DEGRADED)
        add_events(tx, [Event(name=event.STORE_WHOLE)])
    else:
        tx.run(SET_DEGRADED, (text(reason),))
        add_events(tx, [Event(name=event.STORE_DEGRADED, facts={"reason": reason})])
