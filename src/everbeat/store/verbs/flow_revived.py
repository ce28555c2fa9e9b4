"""Tasks of nodes that are to run again. They live from then on, so that everybody sees that they will run, and are held
until their node may start: whatever it waits for is awaited again, and so is whoever paused its workflow. `flow_ready`
lets them go, with the arguments of that moment. Nodes that will not start after all take them along.
"""

from collections.abc import Sequence

from everbeat.model.state import Change
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs.records import Records

ACTOR = "system/workflow"

# The primary key. What is left of a workflow that was deleted is a task like any other.
IS_A_NODE = """EXISTS (SELECT 1 FROM everbeat_workflow_tasks n
                WHERE n.workflow_id = everbeat_tasks.workflow_id AND n.node = everbeat_tasks.node
                  AND n.task_id = everbeat_tasks.id)"""

HELD = """
SELECT t.seq, t.id, t.attempt, t.fence FROM everbeat_workflow_tasks n JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ? AND {which} AND t.status = 'PENDING' AND t.held = 1 ORDER BY t.seq"""
# The primary key, and the unique index on the id of a task.
OF_NODES = HELD.replace("{which}", "n.node IN ({marks})")
# A walk through the nodes of one workflow.
OF_ENDED_NODES = HELD.replace("{which}", "n.status IN ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')")
CANCEL = """
UPDATE everbeat_tasks SET status = 'CANCELLED', fence = fence + 1, finished_at = ?, waiting_for = NULL, held = 0
 WHERE seq = ?"""


def withdraw(tx: Transaction, workflow_id: str, nodes: Sequence[int]) -> None:
    """These nodes end without having started."""
    _cancel(tx, tx.among(OF_NODES, (workflow_id,), nodes))


def withdraw_all(tx: Transaction, workflow_id: str) -> None:
    """So do all nodes of the workflow that have ended."""
    _cancel(tx, tx.all(OF_ENDED_NODES, (workflow_id,)))


def _cancel(tx: Transaction, held: Sequence[Row]) -> None:
    records = Records(tx)
    for _, task_id, attempt, fence in held:
        records.history(
            task_id=task_id, actor=ACTOR, change=Change.CANCEL, reason="its node does not start after all",
            attempt=attempt, fence=fence,
        )  # fmt: skip
        tx.done.add(task_id)
    records.write()
    tx.many(CANCEL, [(tx.now, seq) for seq, *_ in held])
