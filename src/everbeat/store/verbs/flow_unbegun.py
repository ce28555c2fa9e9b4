"""Nested workflows that never begin, because their node was skipped or a join before it can not be met.

They end with their node, so that nobody waits for them: CANCELLED, and their nodes SKIPPED for the reason that it was.
If the node is to live again after all, they are as they were in the beginning.
"""

from collections.abc import Iterable

from everbeat.decide.flow import Turn
from everbeat.model.flow import WorkflowStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_revived
from everbeat.store.verbs.flow_rows import find, save, tree
from everbeat.store.verbs.records import text

# The primary key
SKIP_NODES = """
UPDATE everbeat_workflow_tasks SET status = 'SKIPPED', error_code = ?, error_message = ?, finished_at = ?
 WHERE workflow_id = ? AND status IN ('PENDING', 'READY')"""
RESTORE_NODES = """
UPDATE everbeat_workflow_tasks
   SET status = CASE WHEN deps = 0 THEN 'READY' ELSE 'PENDING' END, error_code = NULL, error_message = NULL,
       finished_at = NULL
 WHERE workflow_id = ? AND status = 'SKIPPED'"""
NEVER_BEGUN = """
SELECT w.id FROM everbeat_workflow_tasks n JOIN everbeat_workflows w ON w.id = n.child_id
 WHERE n.workflow_id = ? AND n.node IN ({marks}) AND w.status = 'CANCELLED' AND w.started_at IS NULL"""


def give_up(tx: Transaction, child_id: str, turn: Turn) -> None:
    """With all that is nested in it. It may have begun before, and waited to begin again."""
    child = find(tx, child_id)
    if child is None or child.status is not WorkflowStatus.PENDING:
        return
    for one in tree(tx, child):
        if one.status is not WorkflowStatus.PENDING:
            continue
        one.nodes_left -= tx.run(SKIP_NODES, (turn.code, text(turn.message), tx.now, one.id))
        one.status = WorkflowStatus.CANCELLED
        save(tx, one)
        flow_revived.withdraw_all(tx, one.id)
        tx.done.add(one.id)


def restore(tx: Transaction, workflow_id: str, nodes: Iterable[int]) -> None:
    """Those of these nodes live again: what is nested in them may begin."""
    for (child_id,) in tx.among(NEVER_BEGUN, (workflow_id,), sorted(nodes)):
        child = find(tx, child_id)
        for one in tree(tx, child) if child is not None else ():
            one.nodes_left += tx.run(RESTORE_NODES, (one.id,))
            one.status = WorkflowStatus.PENDING
            save(tx, one)
