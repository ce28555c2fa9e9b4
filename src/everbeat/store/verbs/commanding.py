"""What a person asks for, about many tasks at once: one statement for their change, one for their history.

Named changes of the transition table, each with its actor in the history, and each raises the fence (PROTOCOL 1): an
owner that is alive can neither start nor settle the task any more. Only the cancel of a task that runs is a request
(stopping.py). Batches are found by a read and written by short transactions that test again what was asked for, so a
million tasks hold up nobody.

A late outcome is taken by `accept` only, one task at a time: somebody has looked at it (PROTOCOL 29).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.order import FAILED_BY_HAND, REQUEUED_BY_HAND, Order
from everbeat.model.state import Change, TaskStatus, sources, target
from everbeat.store.messages import TaskFilter
from everbeat.store.transaction import Row, RowRefused, Transaction
from everbeat.store.verbs import flow_ends, flow_reopen, stopping
from everbeat.store.verbs.flow_over import MAY_LIVE_AGAIN, is_over
from everbeat.store.verbs.flow_revived import IS_A_NODE
from everbeat.store.verbs.looking import conditions
from everbeat.store.verbs.records import Records, add_events, text
from everbeat.store.verbs.turns import FOR_KEY, IN_LINE, PAUSED, hand_over, keys_of, let_go

BATCH = 500

FIT = "SELECT seq, id FROM everbeat_tasks WHERE {fit} AND seq > ? ORDER BY seq LIMIT ?"
STILL_FIT = """
SELECT seq, id FROM everbeat_tasks WHERE {fit} AND seq IN ({{marks}}) ORDER BY seq
 /*pg: FOR UPDATE OF everbeat_tasks */"""
COUNT = "SELECT count(*) FROM everbeat_tasks WHERE {fit}"

# Primary key, all of them. A worker that claimed the task has an older fence now and can not start or settle it.
CANCEL = """
UPDATE everbeat_tasks
   SET status = 'CANCELLED', fence = fence + 1, finished_at = ?, due_at = NULL, waiting_for = NULL
 WHERE seq IN ({marks})"""

# everbeat_tasks_unique. A task whose unique key has another holder by now stays ended.
KEY_IS_FREE = """
(unique_key IS NULL OR NOT EXISTS
    (SELECT 1 FROM everbeat_tasks holder
      WHERE holder.unique_key IS NOT NULL AND holder.status IN ('PENDING', 'CLAIMED', 'RUNNING')
        AND holder.name = everbeat_tasks.name AND holder.unique_key = everbeat_tasks.unique_key))"""
# What a workflow that goes on may still need.
NOT_NEEDED = """
NOT EXISTS (SELECT 1 FROM everbeat_workflows w JOIN everbeat_workflows r ON r.id = w.root_id
             WHERE w.id = everbeat_tasks.workflow_id AND (r.nodes_left > 0 OR r.finished_at IS NULL))"""
# While its code may be running, a task keeps its exclusive key (PROTOCOL 24).
NOT_EXCLUSIVE = "(exclusive_key IS NULL OR status <> 'RUNNING')"
SAME_KEY = """
SELECT seq, name, unique_key FROM everbeat_tasks WHERE seq IN ({marks}) AND unique_key IS NOT NULL ORDER BY seq"""

# Fresh counters: attempt keeps growing because it names runs, so the earlier ones become unbilled. It is good again,
# without an end: otherwise it would expire at once. A node's is held until its node may start (flow_revived.py).
REVIVE = f"""
UPDATE everbeat_tasks
   SET status = 'PENDING', fence = fence + 1, worker_id = NULL, free_attempts = attempt, crash_count = 0,
       lost_count = 0, dispatch_count = 0,
       solo = CASE WHEN solo > quarantined THEN solo ELSE quarantined END, quarantined = 0, due_at = NULL, run_at = ?,
       good_until = NULL, started_at = NULL, finished_at = NULL,
       waiting_for = CASE WHEN {IS_A_NODE} THEN '{PAUSED}' || workflow_id ELSE {FOR_KEY} END,
       held = CASE WHEN {IS_A_NODE} THEN 1 ELSE 0 END, cancel_requested_at = NULL,
       error_code = NULL, error_message = NULL, error = NULL, progress = NULL
 WHERE seq IN ({{marks}})"""

# The run that is taken away is not billed: who asks for another one must get it.
REQUEUE = f"""
UPDATE everbeat_tasks
   SET fence = fence + 1, worker_id = NULL, due_at = NULL, run_at = ?, waiting_for = {IN_LINE},
       cancel_requested_at = NULL,
       free_attempts = free_attempts + CASE WHEN status = 'RUNNING' THEN 1 ELSE 0 END, status = 'PENDING'
 WHERE seq IN ({{marks}})"""

GIVE_UP = """
UPDATE everbeat_tasks
   SET status = 'FAILED', fence = fence + 1, finished_at = ?, due_at = NULL, waiting_for = NULL,
       error_code = ?, error_message = ?, error = NULL
 WHERE seq IN ({marks})"""

DISCARD = "UPDATE everbeat_tasks SET quarantined = 0 WHERE seq IN ({marks})"

# No arguments are ever stored as no bytes at all: that is how an erased task is known.
ERASE = (
    """UPDATE everbeat_tasks SET args = x'', result = NULL, error_message = NULL, error = NULL, progress = NULL
        WHERE seq IN ({marks})""",
    """UPDATE everbeat_workflow_calls SET args = x''
        WHERE (workflow_id, node) IN
              (SELECT workflow_id, node FROM everbeat_tasks WHERE seq IN ({marks}) AND workflow_id IS NOT NULL)""",
    """UPDATE everbeat_workflow_tasks SET error_message = NULL
        WHERE (workflow_id, node) IN
              (SELECT workflow_id, node FROM everbeat_tasks WHERE seq IN ({marks}) AND workflow_id IS NOT NULL)""",
    """UPDATE everbeat_workflow_tasks SET result = NULL, error_message = NULL
        WHERE (workflow_id, node) IN
              (SELECT w.parent_id, w.parent_node FROM everbeat_tasks t JOIN everbeat_workflows w ON w.id = t.workflow_id
                WHERE t.seq IN ({marks}) AND w.parent_id IS NOT NULL)""",
    """UPDATE everbeat_workflows SET error_message = NULL
        WHERE id IN (SELECT workflow_id FROM everbeat_tasks WHERE seq IN ({marks}) AND workflow_id IS NOT NULL)""",
)
PURGE = "DELETE FROM everbeat_tasks WHERE seq IN ({marks})"

# By the index on their task, all of them.
OF_RECORDS = {
    Order.ERASE: (
        "UPDATE everbeat_attempts SET error_message = NULL, error = NULL WHERE task_id IN ({marks})",
        "UPDATE everbeat_late_outcomes SET result = NULL, error_message = NULL WHERE task_id IN ({marks})",
    ),
    Order.PURGE: (
        "DELETE FROM everbeat_attempts WHERE task_id IN ({marks})",
        "DELETE FROM everbeat_history WHERE task_id IN ({marks})",
        "DELETE FROM everbeat_late_outcomes WHERE task_id IN ({marks})",
        "DELETE FROM everbeat_heartbeats WHERE task_id IN ({marks})",
    ),
}

ADD_HISTORY = """
INSERT INTO everbeat_history (task_id, at, actor, change, old_status, new_status, reason, attempt, fence, worker_id)
SELECT id, ?, ?, ?, status, coalesce(?, status), ?, attempt, fence, worker_id
  FROM everbeat_tasks WHERE seq IN ({marks})"""

# A run that is taken from its owner ends without a result, like any other in this table.
ADD_ATTEMPTS = """
INSERT INTO everbeat_attempts (task_id, attempt, fence, outcome, will_retry, billed, started_at, finished_at,
                               error_code, error_message, worker_id, hostname)
SELECT t.id, t.attempt, t.fence, ?, ?, ?, t.started_at, ?, ?, ?, t.worker_id, w.hostname
  FROM everbeat_tasks t LEFT JOIN everbeat_workers w ON w.id = t.worker_id
 WHERE t.seq IN ({marks}) AND t.status = 'RUNNING'"""

SEQ = "SELECT seq FROM everbeat_tasks WHERE id = ?"
WORKFLOW_OF = "SELECT seq, workflow_id FROM everbeat_tasks WHERE seq IN ({marks}) AND workflow_id IS NOT NULL"
FIND = "SELECT seq, status, attempt, fence FROM everbeat_tasks WHERE id = ? /*pg: FOR UPDATE */"

# everbeat_late_outcomes_task
NEWEST_RESULT = """
SELECT fence, worker_id, result FROM everbeat_late_outcomes
 WHERE task_id = ? AND result IS NOT NULL ORDER BY id DESC LIMIT 1"""

ACCEPT = """
UPDATE everbeat_tasks
   SET status = 'COMPLETED', fence = fence + 1, result = ?, finished_at = ?, worker_id = ?, due_at = NULL,
       waiting_for = NULL, quarantined = 0, error_code = NULL, error_message = NULL, error = NULL
 WHERE seq = ? AND fence = ? AND status = ?"""

REASONS = {
    Order.CANCEL: "cancelled",
    Order.RETRY: "another run was asked for",
    Order.RELEASE: "released from the quarantine",
    Order.DISCARD: "taken out of the quarantine without another run",
    Order.REQUEUE: "taken from its owner to run again",
    Order.FAIL: "failed by a person",
    Order.ERASE: "arguments, result and errors were erased",
}


def fit(tx: Transaction, order: Order, wanted: TaskFilter, *, after: int) -> list[tuple[int, str]]:
    """The next tasks that the order fits, in the order of seq."""
    where, values = _fit(order, wanted)
    return [(seq, task_id) for seq, task_id in tx.rows(FIT.format(fit=where), [*values, after, BATCH])]


def count(tx: Transaction, order: Order, wanted: TaskFilter) -> int:
    where, values = _fit(order, wanted)
    row = tx.one(COUNT.format(fit=where), values)
    return row[0] if row else 0


def carry_out(
    tx: Transaction, order: Order, wanted: TaskFilter, seqs: Sequence[int], *, actor: str, reason: str | None = None
) -> tuple[list[str], set[str]]:
    """Do it to those of them that it still fits; their ids, and the workers that must hear of it. Who asks for it hands
    over the exclusive keys that are let go."""
    roots = flow_ends.lock_of(tx, seqs)
    where, values = _fit(order, wanted)
    found = tx.among(STILL_FIT.format(fit=where), values, seqs)
    if order.change is Change.REVIVE:
        trees = _by_tree(tx, roots, found)
        return [
            task_id
            for root, mine in trees.items()
            for _, task_id in _revive_in(tx, root, roots, order, mine, actor=actor, reason=reason)
        ], set()
    these, ids = [seq for seq, _ in found], [task_id for _, task_id in found]
    owners: set[str] = set()
    if order is Order.CANCEL and these:
        running, owners = stopping.request(tx, these, actor=actor, reason=text(reason) or REASONS[order])
        these = [seq for seq in these if seq not in running]
    if not these:
        return ids, owners
    owners |= stopping.owners_of(tx, these)
    if order is Order.PURGE:
        add_events(tx, [Event(name=event.TASKS_PURGED, facts={"tasks": len(ids), "actor": actor})])
    else:
        _record(tx, order, these, actor=actor, reason=text(reason) or REASONS[order])
    for statement in OF_RECORDS.get(order, ()):
        tx.change_among(statement, (), ids)
    for statement, before in _statements(tx, order, reason):
        tx.change_among(statement, before, these)
    if order.change is not None:
        let_go(tx, keys_of(tx, these))
        flow_ends.follow(tx, roots, these)
    return ids, owners


def revive(tx: Transaction, seqs: Sequence[int], *, actor: str, reason: str) -> list[int]:
    """Those of these tasks that can live again. Who asks for it reopens their nodes."""
    where, values = _fit(Order.RETRY, TaskFilter())
    found = tx.among(STILL_FIT.format(fit=where), values, seqs)
    return [seq for seq, _ in _revive(tx, Order.RETRY, found, actor=actor, reason=reason)]


def _by_tree(tx: Transaction, roots: flow_ends.Roots, found: list[Row]) -> dict[str | None, list[Row]]:
    """Tasks by the root of their workflows; None: of those that are in none."""
    flows: dict[int, str] = dict(tx.among(WORKFLOW_OF, (), [seq for seq, _ in found])) if roots else {}
    trees: dict[str | None, list[Row]] = {}
    for row in found:
        trees.setdefault(roots.get(flows.get(row[0], "")), []).append(row)
    return trees


def _revive_in(
    tx: Transaction, root: str | None, roots: flow_ends.Roots, order: Order, found: list[Row], *, actor: str,
    reason: str | None,
) -> list[Row]:  # fmt: skip
    """With their nodes. A workflow whose rows make no sense is left as it is, and told."""
    if root is None:
        return _revive(tx, order, found, actor=actor, reason=reason)
    try:
        with tx.part():
            revived = _revive(tx, order, found, actor=actor, reason=reason)
            flow_reopen.reopen_tasks(tx, roots, [seq for seq, _ in revived])
    except RowRefused as error:
        flow_ends.tell_torn(tx, root, error)
        return []
    return revived


def _revive(tx: Transaction, order: Order, found: list[Row], *, actor: str, reason: str | None) -> list[Row]:
    chosen = _one_per_key(tx, found) if found else []
    seqs = [seq for seq, _ in chosen]
    if seqs:
        _record(tx, order, seqs, actor=actor, reason=text(reason) or REASONS[order])
        tx.change_among(REVIVE, (tx.now,), seqs)
        let_go(tx, keys_of(tx, seqs))
    return chosen


def accept(tx: Transaction, task_id: str, *, actor: str) -> bool:
    """Make the newest result that came too late the task's result. False: there is none, or the task is owned or has a
    result, or its workflow is over without it."""
    seqs = [seq for (seq,) in tx.all(SEQ, (task_id,))]
    roots = flow_ends.lock_of(tx, seqs)  # before any task
    task, late = tx.one(FIND, (task_id,)), tx.one(NEWEST_RESULT, (task_id,))
    if task is None or late is None or task[1] not in sources(Change.ACCEPT):
        return False
    (seq, status, attempt, fence), (late_fence, worker_id, result) = task, late
    if status != TaskStatus.PENDING and any(is_over(tx, workflow_id) for workflow_id in roots):
        return False
    tx.run(ACCEPT, (result, tx.now, worker_id, seq, fence, status))
    records = Records(tx)
    records.history(
        task_id=task_id, actor=actor, change=Change.ACCEPT, old=status, attempt=attempt,
        reason=f"the result that came too late under fence {late_fence} was accepted", fence=fence, worker_id=worker_id,
    )  # fmt: skip
    records.write()
    if status != TaskStatus.PENDING:
        try:
            with tx.part():
                flow_reopen.reopen_tasks(tx, roots, [seq])
        except RowRefused as error:
            flow_ends.tell_torn(tx, next(iter(roots.values())), error)
    flow_ends.follow(tx, roots, [seq])
    hand_over(tx, keys_of(tx, [seq]))
    return True


def _one_per_key(tx: Transaction, found: list[Row]) -> list[Row]:
    """Of ended tasks with the same unique key only the newest can live again."""
    keyed = tx.among(SAME_KEY, (), [seq for seq, _ in found])
    newest = {(name, key): seq for seq, name, key in keyed}
    older = {seq for seq, name, key in keyed if newest[name, key] != seq}
    return [row for row in found if row[0] not in older]


def _record(tx: Transaction, order: Order, seqs: Sequence[int], *, actor: str, reason: str) -> None:
    change = order.change
    new = None if change is None else target(change).value
    said = (change or order).value
    tx.change_among(ADD_HISTORY, (tx.now, text(actor), said, new, reason), seqs)
    if order in (Order.REQUEUE, Order.FAIL):
        code, again = (REQUEUED_BY_HAND, 1) if order is Order.REQUEUE else (FAILED_BY_HAND, 0)
        tx.change_among(ADD_ATTEMPTS, (code, again, 1 - again, tx.now, code, reason), seqs)


def _statements(tx: Transaction, order: Order, reason: str | None) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each with the values that come before the tasks."""
    match order:
        case Order.CANCEL:
            yield CANCEL, (tx.now,)
        case Order.REQUEUE:
            yield REQUEUE, (tx.now,)
        case Order.FAIL:
            yield GIVE_UP, (tx.now, FAILED_BY_HAND, text(reason) or REASONS[order])
        case Order.DISCARD:
            yield DISCARD, ()
        case Order.ERASE:
            yield from ((statement, ()) for statement in ERASE)
        case Order.PURGE:
            yield PURGE, ()


def _fit(order: Order, wanted: TaskFilter) -> tuple[str, list[Any]]:
    """What was asked for, and of that what the order fits. An erased task can not run again."""
    statuses = [status for status in order.statuses if not wanted.statuses or status in wanted.statuses]
    asked = list(conditions(replace(wanted, statuses=statuses)))
    if not statuses:
        asked.append(("1 = 0", []))
    if order.is_for_quarantine:
        asked.append(("quarantined = 1", []))
    if order in (Order.REQUEUE, Order.FAIL) and not wanted.force:
        asked.append((NOT_EXCLUSIVE, []))
    if order.change is Change.REVIVE:
        asked += [("args <> x''", []), (KEY_IS_FREE, []), (MAY_LIVE_AGAIN, [])]
    if order in (Order.PURGE, Order.ERASE):
        asked.append((NOT_NEEDED, []))
    return " AND ".join(said for said, _ in asked), [value for _, values in asked for value in values]
