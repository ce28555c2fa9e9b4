"""Pause and resume: while a workflow is paused none of its nodes starts, and each runs once after it is resumed.

Nodes that become ready stay READY. Tasks that are in the store are held where they are: one that is ready waits, one
that was claimed goes back before its code began, and one that runs may end, but does not run again before the resume:
whatever makes a task ready asks for `held` (turns.py).
"""

from everbeat.model.flow import WorkflowStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.flow_rows import FlowRow, find, save, tree
from everbeat.store.verbs.turns import IN_LINE, PAUSED, let_go

# The nodes of one workflow, and the unique index on the id of a task.
OF_WORKFLOW = """id IN (SELECT task_id FROM everbeat_workflow_tasks
                WHERE workflow_id = :id AND status IN ('ENQUEUED', 'RUNNING'))"""
KINDS = f"""
SELECT DISTINCT queue, name, exclusive_key FROM everbeat_tasks
 WHERE {OF_WORKFLOW} AND status IN ('PENDING', 'CLAIMED', 'RUNNING')"""
HOLD = f"""
UPDATE everbeat_tasks
   SET held = 1, fence = fence + CASE WHEN status = 'CLAIMED' THEN 1 ELSE 0 END,
       worker_id = CASE WHEN status = 'CLAIMED' THEN NULL ELSE worker_id END,
       waiting_for = CASE WHEN status = 'RUNNING' OR due_at IS NOT NULL THEN waiting_for
                          ELSE '{PAUSED}' || workflow_id END,
       status = CASE WHEN status = 'CLAIMED' THEN 'PENDING' ELSE status END
 WHERE {OF_WORKFLOW} AND status IN ('PENDING', 'CLAIMED', 'RUNNING')"""
FREE = f"UPDATE everbeat_tasks SET held = 0 WHERE {OF_WORKFLOW} AND held = 1"
LINE_UP = f"""
UPDATE everbeat_tasks SET waiting_for = {IN_LINE}
 WHERE {OF_WORKFLOW} AND status = 'PENDING' AND due_at IS NULL AND waiting_for = '{PAUSED}' || workflow_id"""


def paused_around(tx: Transaction, flow: FlowRow) -> FlowRow | None:
    """The next workflow further out that is paused: while it is, nothing in it runs."""
    around, passed = flow, {flow.id}
    while around.parent_id is not None and around.parent_id not in passed:
        passed.add(around.parent_id)
        further = find(tx, around.parent_id)
        if further is None:
            break
        around = further
        if around.status is WorkflowStatus.PAUSED:
            return around
    return None


def hold_inside(tx: Transaction, flow: FlowRow, *, by: str) -> None:
    """Its own tasks, and all that runs inside it."""
    hold(tx, flow)
    for inner in tree(tx, flow)[1:]:
        if inner.status is WorkflowStatus.RUNNING:
            inner.status, inner.paused_by = WorkflowStatus.PAUSED, by
            save(tx, inner)
            hold(tx, inner)


def release_inside(tx: Transaction, flow: FlowRow) -> list[str]:
    """It and all that is paused inside it run again; which these are."""
    released = []
    for one in tree(tx, flow):
        if one.status is WorkflowStatus.PAUSED:
            one.status, one.paused_by = WorkflowStatus.RUNNING, None
            save(tx, one)
            kinds = tx.all(KINDS, {"id": one.id})
            tx.run(FREE, {"id": one.id})
            tx.run(LINE_UP, {"id": one.id})
            tx.wakes.update({(queue, name) for queue, name, _ in kinds})
            let_go(tx, [key for _, _, key in kinds])
            released.append(one.id)
    return released


def hold(tx: Transaction, flow: FlowRow) -> None:
    keys = {key for _, _, key in tx.all(KINDS, {"id": flow.id})}
    tx.run(HOLD, {"id": flow.id})
    let_go(tx, keys)
