"""Delete what is older than it needs to be, a bite at a time.

A bite is one short transaction: at most `WINDOW` small rows, or so many tasks that their arguments and results are few
megabytes, so that no other writer waits long. It belongs to whoever holds the role, tested in the same transaction.

Workflows go as a whole, with all that is nested in them, when the last of their nodes has ended; their tasks follow.

Never deleted (PROTOCOL 32): a task that has not ended, is in the quarantine or belongs to a workflow that is there, a
worker that is alive or that a task still names as its owner, the newest beat of a task that is owned, an event that
somebody still has to be told of, and the history of a task that goes on.

Tables that are only appended to are walked by their key, which grows with time: no index is needed for it, and a clock
that was set back makes a row stay for one more hour, not more.
"""

from collections.abc import Callable, Iterator, Mapping

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.retention import Bite, Cut, Kept
from everbeat.model.state import TaskStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_ends
from everbeat.store.verbs.counting import NEXT_ENDED_QUEUE
from everbeat.store.verbs.records import add_events
from everbeat.store.verbs.totals import note, noted

WINDOW = 2_000
TASKS = 500
TASK_BYTES = 8 * 1024 * 1024
LAST_PASS = "retention_last_pass_timestamp_seconds"

# The primary key, from where the last bite ended.
AHEAD = """
SELECT max(id), min(moment) FROM
    (SELECT id, {moment} AS moment FROM {table} WHERE id > ? ORDER BY id LIMIT ?) AS ahead"""
DELETE = "DELETE FROM {table} AS r WHERE id > ? AND id <= ? AND {moment} < ? AND NOT ({but})"

NO_MORE_OF_ITS_TASK = "EXISTS (SELECT 1 FROM everbeat_tasks t WHERE t.id = r.task_id)"

# Table, when its rows were written, and which of them stay.
WALKED = {
    # everbeat_tasks by id, everbeat_heartbeats_task
    Kept.HEARTBEATS: (
        "everbeat_heartbeats",
        "sent_at",
        """EXISTS (SELECT 1 FROM everbeat_tasks t
                    WHERE t.id = r.task_id AND t.fence = r.fence AND t.status IN ('CLAIMED', 'RUNNING'))
           AND NOT EXISTS (SELECT 1 FROM everbeat_heartbeats n
                            WHERE n.task_id = r.task_id AND n.fence = r.fence AND n.id > r.id)""",
    ),
    Kept.WORKER_STATES: ("everbeat_worker_states", "snapshot_at", "1 = 0"),
    Kept.ATTEMPTS: ("everbeat_attempts", "finished_at", NO_MORE_OF_ITS_TASK),
    Kept.LATE_OUTCOMES: ("everbeat_late_outcomes", "at", NO_MORE_OF_ITS_TASK),
    # everbeat_deliveries by event_id
    Kept.EVENTS: (
        "everbeat_events",
        "at",
        """wanted = 1 OR EXISTS (SELECT 1 FROM everbeat_deliveries d
                                  WHERE d.event_id = r.id AND d.delivered_at IS NULL AND d.failures < 10)""",
    ),
    Kept.HISTORY: (
        "everbeat_history",
        "at",
        "EXISTS (SELECT 1 FROM everbeat_tasks t WHERE t.id = r.task_id AND t.finished_at IS NULL)",
    ),
    Kept.REPORTS: ("everbeat_recovery_reports", "at", "1 = 0"),
}

# everbeat_tasks_owned
DELETE_WORKERS = """
DELETE FROM everbeat_workers AS w
 WHERE status <> 'alive' AND ended_at < ?
   AND NOT EXISTS (SELECT 1 FROM everbeat_tasks t WHERE t.worker_id = w.id AND t.status IN ('CLAIMED', 'RUNNING'))"""

# everbeat_tasks_ended, oldest first. The length of a value is read without the value.
ENDED = """
SELECT seq, id, length(args) + coalesce(length(result), 0) FROM everbeat_tasks
 WHERE finished_at IS NOT NULL AND queue = ? AND status = ? AND finished_at < ? AND quarantined = 0
   AND (workflow_id IS NULL
        OR NOT EXISTS (SELECT 1 FROM everbeat_workflows w WHERE w.id = everbeat_tasks.workflow_id))
 ORDER BY finished_at LIMIT ? /*pg: FOR UPDATE SKIP LOCKED */"""

# everbeat_workflows_ended, oldest first.
ENDED_WORKFLOWS = """
SELECT id, nodes FROM everbeat_workflows
 WHERE parent_id IS NULL AND finished_at IS NOT NULL AND finished_at < ? AND nodes_left <= 0
 ORDER BY finished_at LIMIT ?"""
# The primary key. Who was waited for at the lock may have reopened one.
STILL_ENDED = """
SELECT id FROM everbeat_workflows WHERE finished_at IS NOT NULL AND finished_at < ? AND nodes_left <= 0
   AND id IN ({marks})"""
# everbeat_workflows_root, and the primary keys
TREE = "SELECT id, nodes FROM everbeat_workflows WHERE parent_id IS NOT NULL AND root_id = ?"
OF_A_WORKFLOW = (
    "DELETE FROM everbeat_workflow_edges WHERE workflow_id = ?",
    "DELETE FROM everbeat_workflow_calls WHERE workflow_id = ?",
    "DELETE FROM everbeat_workflow_tasks WHERE workflow_id = ?",
    "DELETE FROM everbeat_workflows WHERE id = ?",
)

OF_A_TASK = (
    "DELETE FROM everbeat_attempts WHERE task_id = ?",
    "DELETE FROM everbeat_late_outcomes WHERE task_id = ?",
    "DELETE FROM everbeat_heartbeats WHERE task_id = ?",
)
DELETE_TASK = "DELETE FROM everbeat_tasks WHERE seq = ?"

# A subscription that nobody has renewed for that long is over, and what it waited for with it.
FORGOTTEN = "DELETE FROM everbeat_subscriptions WHERE seen_at < ?"
UNWANTED = """
UPDATE everbeat_events SET wanted = 0
 WHERE wanted = 1 AND NOT EXISTS (SELECT 1 FROM everbeat_subscriptions s WHERE s.event IN (name, '*'))"""
UNDELIVERABLE = """
DELETE FROM everbeat_deliveries AS d
 WHERE d.delivered_at IS NULL AND d.failures < 10
   AND NOT EXISTS (SELECT 1 FROM everbeat_subscriptions s, everbeat_events e
                    WHERE s.application = d.application AND e.id = d.event_id AND s.event IN (e.name, '*'))"""
DELIVERIES = """
DELETE FROM everbeat_deliveries AS d
 WHERE d.event_id > ? AND d.event_id <= ? AND NOT EXISTS (SELECT 1 FROM everbeat_events e WHERE e.id = d.event_id)"""


def is_due(tx: Transaction, *, every_us: int) -> bool:
    """Whether the last pass was that long ago; also if it seems to lie in the future."""
    last = noted(tx, LAST_PASS)
    return last is None or not tx.now - every_us < last * 1e6 <= tx.now


def bite(tx: Transaction, cut: Cut) -> Bite:
    before = tx.now - cut.older_than_us
    return (OTHERWISE.get(cut.kept) or _walk)(tx, cut, before)


def done(tx: Transaction, deleted: Mapping[Kept, int]) -> None:
    """The end of a pass. It is announced if it deleted anything."""
    note(tx, LAST_PASS, tx.now / 1e6)
    facts = {kept.value: count for kept, count in deleted.items() if count}
    if facts:
        add_events(tx, [Event(name=event.RETENTION_COMPLETED, facts=facts)])


def _walk(tx: Transaction, cut: Cut, before: int) -> Bite:
    table, moment, but = WALKED[cut.kept]
    ahead = tx.one(AHEAD.format(table=table, moment=moment), (cut.after, WINDOW))
    if ahead is None or ahead[0] is None or ahead[1] >= before:
        return Bite(deleted=0, after=None)
    deleted = tx.run(DELETE.format(table=table, moment=moment, but=but), (cut.after, ahead[0], before))
    return Bite(deleted=deleted, after=ahead[0])


def _delete_workers(tx: Transaction, cut: Cut, before: int) -> Bite:
    return Bite(deleted=tx.run(DELETE_WORKERS, (before,)), after=None)


def _delete_tasks(tx: Transaction, cut: Cut, before: int) -> Bite:
    chosen: list[tuple[int, str]] = []
    size = 0
    for seq, task_id, length in _ended_before(tx, before):
        chosen.append((seq, task_id))
        size += length
        if len(chosen) == TASKS or size >= TASK_BYTES:
            break
    for statement in OF_A_TASK:
        tx.many(statement, [(task_id,) for _, task_id in chosen])
    tx.many(DELETE_TASK, [(seq,) for seq, _ in chosen])
    return Bite(deleted=len(chosen), after=0 if chosen else None)


def _delete_workflows(tx: Transaction, cut: Cut, before: int) -> Bite:
    """Each at once: nobody finds half a workflow."""
    chosen: list[str] = []
    size = 0
    for workflow_id, nodes in tx.all(ENDED_WORKFLOWS, (before, TASKS)):
        chosen.append(workflow_id)
        size += nodes + sum(more for _, more in tx.all(TREE, (workflow_id,)))
        if size >= WINDOW:
            break
    flow_ends.lock(tx, chosen)
    chosen = [workflow_id for (workflow_id,) in tx.among(STILL_ENDED, (before,), chosen)]
    inside = [workflow_id for root in chosen for workflow_id, _ in tx.all(TREE, (root,))]
    for statement in OF_A_WORKFLOW:
        tx.many(statement, [(workflow_id,) for workflow_id in (*inside, *chosen)])
    return Bite(deleted=len(chosen), after=0 if chosen else None)


def _ended_before(tx: Transaction, before: int) -> Iterator[tuple[int, str, int]]:
    terminal = [status.value for status in TaskStatus if status.is_terminal]
    queue = tx.one(NEXT_ENDED_QUEUE, ("",))
    while queue is not None:
        for status in terminal:
            yield from tx.all(ENDED, (queue[0], status, before, TASKS))
        queue = tx.one(NEXT_ENDED_QUEUE, queue)


def _delete_events(tx: Transaction, cut: Cut, before: int) -> Bite:
    if cut.after == 0 and tx.run(FORGOTTEN, (before,)):
        tx.run(UNWANTED)
        tx.run(UNDELIVERABLE)
    walked = _walk(tx, cut, before)
    if walked.after is not None:
        tx.run(DELIVERIES, (cut.after, walked.after))
    return walked


OTHERWISE: dict[Kept, Callable[[Transaction, Cut, int], Bite]] = {
    Kept.WORKERS: _delete_workers,
    Kept.WORKFLOWS: _delete_workflows,
    Kept.TASKS: _delete_tasks,
    Kept.EVENTS: _delete_events,
}
"""How what is not simply walked is deleted."""
