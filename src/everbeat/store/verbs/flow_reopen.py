"""Another run for nodes that failed: what was given up because of them, or was about to start without them, waits for
them again, up to the root. Nothing starts before all that is reopened has been: one may wait for the other. What is
nested waits for its node, and begins again with it.

Counters are not undone but counted anew. What has completed in spite of a failure, by `allow_failed` or a partial join,
stays as it is: it is not run again.
"""

from collections.abc import Mapping, Sequence

from everbeat.model.flow import BY_ERROR, JOIN_NOT_MET, NodeStatus, OnError, WorkflowStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_hold, flow_unbegun
from everbeat.store.verbs.flow_advance import advance, look_at
from everbeat.store.verbs.flow_ends import Roots
from everbeat.store.verbs.flow_over import is_over
from everbeat.store.verbs.flow_rows import FlowRow, NodeEnd, find, save

NODES_OF = "SELECT workflow_id, node FROM everbeat_tasks WHERE seq IN ({marks}) AND workflow_id IS NOT NULL"

# The primary keys; and not DISTINCT, for which SQLite walks all nodes of the workflow if one is given. One that was
# skipped although it has a task ran before, and is not wanted since what its condition asks has completed: that does
# not change any more.
GIVEN_UP = f"""
SELECT n.node FROM everbeat_workflow_edges e
  JOIN everbeat_workflow_tasks n ON n.workflow_id = e.workflow_id AND n.node = e.next
 WHERE e.workflow_id = ? AND e.node IN ({{marks}})
   AND ((n.status = 'SKIPPED' AND NOT EXISTS (SELECT 1 FROM everbeat_tasks t WHERE t.id = n.task_id))
        OR (n.status = 'FAILED' AND n.error_code = '{JOIN_NOT_MET}') OR n.status = 'READY')"""
REOPEN = """
UPDATE everbeat_workflow_tasks
   SET status = 'PENDING', error_code = NULL, error_message = NULL, result = NULL, started_at = NULL, finished_at = NULL
 WHERE workflow_id = ? AND node = ? AND status IN ('FAILED', 'SKIPPED', 'CANCELLED', 'READY')"""
# A task that has completed does not live again: where its result was lost the node gets another one, and the task stays
# as it was. The new id is made of the old one, so nobody makes two.
RENEW = """
UPDATE everbeat_workflow_tasks SET task_id = task_id || '.again'
 WHERE workflow_id = ? AND node IN ({marks})
   AND EXISTS (SELECT 1 FROM everbeat_tasks t
                WHERE t.id = everbeat_workflow_tasks.task_id AND t.status = 'COMPLETED' AND t.result IS NULL)"""
STATUS = "SELECT status FROM everbeat_workflow_tasks WHERE workflow_id = ? AND node = ?"

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
# The same, and the primary key. What has failed in maps that go on.
ERROR_IN_MAP = """
SELECT w.error_node, w.error_code, w.error_message
  FROM everbeat_workflow_tasks n JOIN everbeat_workflows w ON w.id = n.child_id
 WHERE n.workflow_id = ? AND n.kind = 'map' AND n.tolerated = 0 AND w.error_node IS NOT NULL ORDER BY n.node LIMIT 1"""

Counts = tuple[int, int, int]
"""Left, ok, failed."""


def reopen_tasks(tx: Transaction, roots: Roots, seqs: Sequence[int]) -> None:
    """These tasks of one tree live again, so their nodes do."""
    nodes: dict[str, list[int]] = {}
    for workflow_id, node in tx.among(NODES_OF, (), seqs):
        if workflow_id in roots:
            nodes.setdefault(workflow_id, []).append(node)
    reopen(tx, nodes)


def reopen(tx: Transaction, nodes: Mapping[str, Sequence[int]], *, resumed: str | None = None) -> None:
    """These nodes of one tree. A pause by an error is over when what failed is to run again, and so is any pause of the
    workflow that is `resumed` by it; but not inside of another that is paused."""
    reopened = _mark_all(tx, nodes)
    released: list[str] = []
    for workflow_id in filter(None, (resumed, *reversed(reopened))):
        flow = find(tx, workflow_id)
        if flow is None or flow_hold.paused_around(tx, flow) is not None:
            continue
        if workflow_id == resumed or (flow.status is WorkflowStatus.PAUSED and flow.paused_by == BY_ERROR):
            released += flow_hold.release_inside(tx, flow)
    for workflow_id in reopened:
        look_again(tx, workflow_id, [row[0] for row in tx.all(PENDING, (workflow_id,))])
    advance(tx, {workflow_id: [] for workflow_id in released})


def _mark_all(tx: Transaction, nodes: Mapping[str, Sequence[int]]) -> list[str]:
    """These, and all that follows from it, but nothing is started; in which workflows, from the inner ones outwards."""
    waiting = {workflow_id: set(mine) for workflow_id, mine in nodes.items() if mine}
    reopened: dict[str, None] = {}
    while waiting:
        workflow_id = next(iter(waiting))
        mine = waiting.pop(workflow_id)
        flow = find(tx, workflow_id)
        if flow is None or is_over(tx, flow.id):
            continue
        reopened.pop(flow.id, None)
        reopened[flow.id] = None
        _mark(tx, flow, mine)
        if flow.parent_id is not None and flow.parent_node is not None:
            if flow.status is WorkflowStatus.PENDING:
                waiting.setdefault(flow.parent_id, set()).add(flow.parent_node)
            elif flow.is_map:  # whose elements are nodes of the one around it, as far as its error goes
                waiting.setdefault(flow.parent_id, set())
    return list(reopened)


def _mark(tx: Transaction, flow: FlowRow, nodes: set[int]) -> None:
    again, wave = set(nodes), list(nodes)
    while wave:
        wave = sorted({node for (node,) in tx.among(GIVEN_UP, (flow.id,), wave)} - again)
        again.update(wave)
    tx.soon(REOPEN, [(flow.id, node) for node in sorted(again)])
    tx.change_among(RENEW, (flow.id,), sorted(again))
    flow_unbegun.restore(tx, flow.id, again)
    recount(tx, flow)
    error = tx.one(ERROR, (flow.id,))
    if error is None and flow.on_error is OnError.PAUSE:
        error = tx.one(ERROR_IN_MAP, (flow.id,))
    flow.error_node, flow.error_code, flow.error_message = error if error else (None, None, None)
    if flow.status.is_terminal:
        around = flow_hold.paused_around(tx, flow)
        flow.status = WorkflowStatus.RUNNING if around is None else WorkflowStatus.PAUSED
        flow.paused_by = None if around is None else around.paused_by
        if _has_ended_above(tx, flow):
            flow.status, flow.paused_by = WorkflowStatus.PENDING, None
    save(tx, flow)


def _has_ended_above(tx: Transaction, flow: FlowRow) -> bool:
    """The node that it is."""
    node = None if flow.parent_id is None else tx.one(STATUS, (flow.parent_id, flow.parent_node))
    return node is not None and NodeStatus(node[0]).is_terminal


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
