"""Nested workflows that never begin, because their node was skipped or a join before it can not be met.

They end with their node, so that nobody waits for them: CANCELLED, and their nodes SKIPPED for the reason that it was.
If the node is to live again after all, they are as they were in the beginning.
"""

from collections.abc import Iterable, Mapping

from everbeat.decide.flow import Turn
from everbeat.model.flow import WorkflowStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_revived
from everbeat.store.verbs.flow_rows import save, with_nested
from everbeat.store.verbs.records import text

# The primary keys, as all that follow.
SKIP_NODES = """
UPDATE everbeat_workflow_tasks SET status = 'SKIPPED', error_code = ?, error_message = ?, finished_at = ?
 WHERE workflow_id = ? AND status IN ('PENDING', 'READY')"""
RESTORE_NODES = """
UPDATE everbeat_workflow_tasks
   SET status = CASE WHEN deps = 0 THEN 'READY' ELSE 'PENDING' END, error_code = NULL, error_message = NULL,
       finished_at = NULL
 WHERE workflow_id = ? AND status = 'SKIPPED'"""
NOT_BEGUN = "SELECT id FROM everbeat_workflows WHERE id IN ({marks}) AND status = 'PENDING'"
NEVER_BEGUN = """
SELECT w.id FROM everbeat_workflow_tasks n JOIN everbeat_workflows w ON w.id = n.child_id
 WHERE n.workflow_id = ? AND n.node IN ({marks}) AND w.status = 'CANCELLED' AND w.started_at IS NULL"""


def give_up(tx: Transaction, ends: Mapping[str, Turn]) -> None:
    """With all that is nested in them. They may have begun before, and waited to begin again."""
    not_begun = [child_id for (child_id,) in tx.among(NOT_BEGUN, (), sorted(ends))]
    for one, child_id in with_nested(tx, not_begun):
        if one.status is not WorkflowStatus.PENDING:
            continue
        turn = ends[child_id]
        one.nodes_left -= tx.run(SKIP_NODES, (turn.code, text(turn.message), tx.now, one.id))
        one.status = WorkflowStatus.CANCELLED
        save(tx, one)
        flow_revived.withdraw_all(tx, one.id)
        tx.done.add(one.id)


def restore(tx: Transaction, workflow_id: str, nodes: Iterable[int]) -> None:
    """Those of these nodes live again: what is nested in them may begin."""
    never_begun = [child_id for (child_id,) in tx.among(NEVER_BEGUN, (workflow_id,), sorted(nodes))]
    for one, _ in with_nested(tx, never_begun):
        one.nodes_left += tx.run(RESTORE_NODES, (one.id,))
        one.status = WorkflowStatus.PENDING
        save(tx, one)
