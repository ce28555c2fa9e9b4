"""Workflows that are over for good, with all that is in them: a person cancelled one, or one has completed inside
another, which went on with its result. What failed in there stays failed: if it lived again, it would contradict what
others have gone on with. One that completed in spite of failures and is in no other may be reopened.
"""

from everbeat.model.flow import WorkflowInfo
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_look

# The primary key, once for each workflow further out. (UNION: rows that name each other as parents are an end, too.)
OVER = """
WITH RECURSIVE around (id, parent_id, status) AS (
    SELECT id, parent_id, status FROM everbeat_workflows WHERE id = {workflow_id}
     UNION
    SELECT w.id, w.parent_id, w.status FROM everbeat_workflows w JOIN around ON w.id = around.parent_id)
SELECT id FROM around WHERE status = 'CANCELLED' OR (status = 'COMPLETED' AND parent_id IS NOT NULL)"""
OVER_FOR = OVER.format(workflow_id="?")

# Of a task, for those who may let it live again.
MAY_LIVE_AGAIN = f"(workflow_id IS NULL OR NOT EXISTS ({OVER.format(workflow_id='everbeat_tasks.workflow_id')}))"
WORKFLOW_OF = "SELECT workflow_id FROM everbeat_tasks WHERE id = ? AND workflow_id IS NOT NULL"


def is_over(tx: Transaction, workflow_id: str) -> bool:
    """It, or one around it."""
    return bool(tx.all(OVER_FOR, (workflow_id,)))


def around(tx: Transaction, task_id: str) -> WorkflowInfo | None:
    """The one that keeps this task from living again."""
    for (workflow_id,) in tx.all(WORKFLOW_OF, (task_id,)):
        for (over,) in tx.all(OVER_FOR, (workflow_id,)):
            return flow_look.get(tx, over)
    return None
