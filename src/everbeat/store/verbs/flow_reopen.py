"""Another run for nodes that failed: what was given up because of them waits for them again, up to the root.

Counters are not undone but counted anew. What has completed in spite of a failure, by `allow_failed` or a partial join,
stays as it is: it is not run again.
"""

from collections.abc import Sequence

from everbeat.model.flow import JOIN_NOT_MET, NodeStatus, WorkflowStatus
from everbeat.store.transaction import RowRefused, Transaction
from everbeat.store.verbs import flow_hold, flow_unbegun
from everbeat.store.verbs.flow_advance import BY_ERROR, advance, look_at
from everbeat.store.verbs.flow_ends import Roots
from everbeat.store.verbs.flow_over import is_over
from everbeat.store.verbs.flow_rows import FlowRow, NodeEnd, find, save

NODES_OF = "SELECT workflow_id, node FROM everbeat_tasks WHERE seq IN ({marks}) AND workflow_id IS NOT NULL"

# The primary keys
GIVEN_UP = f"""
SELECT DISTINCT n.node FROM everbeat_workflow_edges e
  JOIN everbeat_workflow_tasks n ON n.workflow_id = e.workflow_id AND n.node = e.next
 WHERE e.workflow_id = ? AND (n.status = 'SKIPPED' OR (n.status = 'FAILED' AND n.error_code = '{JOIN_NOT_MET}'))
   AND e.node IN ({{marks}})"""
REOPEN = """
UPDATE everbeat_workflow_tasks
   SET status = 'PENDING', error_code = NULL, error_message = NULL, result = NULL, started_at = NULL, finished_at = NULL
 WHERE workflow_id = ? AND node = ? AND status IN ('FAILED', 'SKIPPED', 'CANCELLED')"""

# A walk through the nodes and edges of one workflow, all three.
COUNTED = """
SELECT e.next, sum(CASE WHEN n.status IN ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED') THEN 1 ELSE 0 END),
       sum(CASE WHEN n.status = 'COMPLETED' THEN 1 ELSE 0 END),
       sum(CASE WHEN n.status IN ('FAILED', 'CANCELLED') OR (n.status = 'SKIPPED' AND n.error_code = 'UPSTREAM_FAILED')
                THEN 1 ELSE 0 END)
  FROM everbeat_workflow_edges e
  JOIN everbeat_workflow_tasks n ON n.workflow_id = e.workflow_id AND n.node = e.node
 WHERE e.workflow_id = ? GROUP BY e.next"""
PENDING = """
SELECT node, deps, deps_left, deps_ok, deps_failed FROM everbeat_workflow_tasks
 WHERE workflow_id = ? AND status = 'PENDING' ORDER BY node"""
LEFT = """
SELECT count(*) FROM everbeat_workflow_tasks
 WHERE workflow_id = ? AND status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')"""
SET_COUNTS = """
UPDATE everbeat_workflow_tasks SET deps_left = ?, deps_ok = ?, deps_failed = ? WHERE workflow_id = ? AND node = ?"""
ERROR = """
SELECT name, error_code, error_message FROM everbeat_workflow_tasks
 WHERE workflow_id = ? AND status IN ('FAILED', 'CANCELLED') AND tolerated = 0 ORDER BY finished_at, node LIMIT 1"""

Counts = tuple[int, int, int]
"""Left, ok, failed."""


def reopen_tasks(tx: Transaction, roots: Roots, seqs: Sequence[int]) -> None:
    """These tasks live again, so their nodes do. A workflow whose rows make no sense is left as it is."""
    if not roots:
        return
    nodes: dict[str, list[int]] = {}
    for workflow_id, node in tx.among(NODES_OF, (), seqs):
        nodes.setdefault(workflow_id, []).append(node)
    for workflow_id, mine in nodes.items():
        try:
            with tx.part():
                reopen(tx, workflow_id, mine)
        except RowRefused:
            continue


def reopen(tx: Transaction, workflow_id: str, nodes: Sequence[int]) -> None:
    flow = find(tx, workflow_id)
    if flow is None or is_over(tx, flow.id):
        return
    again, wave = set(nodes), list(nodes)
    while wave:
        wave = [node for (node,) in tx.among(GIVEN_UP, (flow.id,), wave) if node not in again]
        again.update(wave)
    tx.soon(REOPEN, [(flow.id, node) for node in sorted(again)])
    flow_unbegun.restore(tx, flow.id, again)
    pending = list(recount(tx, flow))
    error = tx.one(ERROR, (flow.id,))
    flow.error_node, flow.error_code, flow.error_message = error if error else (None, None, None)
    if flow.status.is_terminal:
        flow.status = WorkflowStatus.RUNNING
    save(tx, flow)
    if flow.status is WorkflowStatus.PAUSED and flow.paused_by == BY_ERROR:
        flow_hold.release_inside(tx, flow)
    elif flow.status is WorkflowStatus.PAUSED:
        flow_hold.hold(tx, flow)
    look_again(tx, flow.id, pending)
    if flow.parent_id is not None and flow.parent_node is not None:
        parent = tx.one("SELECT status FROM everbeat_workflow_tasks WHERE workflow_id = ? AND node = ?",
                        (flow.parent_id, flow.parent_node))  # fmt: skip
        if parent is not None and NodeStatus(parent[0]).is_terminal:
            reopen(tx, flow.parent_id, [flow.parent_node])


def look_again(tx: Transaction, workflow_id: str, waiting: Sequence[int], ends: Sequence[NodeEnd] = ()) -> None:
    """Decide anew about nodes that wait, and go on with all that may start."""
    following = look_at(tx, workflow_id, waiting)
    advance(tx, {workflow_id: [*ends, *following.ends]})
    advance(tx, {workflow_id: []})


def recount(tx: Transaction, flow: FlowRow) -> list[int]:
    """Count anew what is left and what its nodes wait for; the nodes that wait."""
    wrong, pending = miscounted(tx, flow.id)
    tx.soon(SET_COUNTS, [(*counts, flow.id, node) for node, counts in wrong.items()])
    flow.nodes_left = nodes_left(tx, flow.id)
    return pending


def miscounted(tx: Transaction, workflow_id: str) -> tuple[dict[int, Counts], list[int]]:
    """What the counters of which nodes should be and are not; and all nodes that wait."""
    pending = tx.all(PENDING, (workflow_id,))
    counted = {node: counts for node, *counts in tx.all(COUNTED, (workflow_id,))} if pending else {}
    wrong: dict[int, Counts] = {}
    for node, deps, *stored in pending:
        ended, ok, failed = counted.get(node, (0, 0, 0))
        right = (deps - ended, ok, failed)
        if right != tuple(stored):
            wrong[node] = right
    return wrong, [row[0] for row in pending]


def nodes_left(tx: Transaction, workflow_id: str) -> int:
    row = tx.one(LEFT, (workflow_id,))
    return row[0] if row else 0
